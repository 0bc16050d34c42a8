"""From rows to sentences to encode: split, filter, dedupe, and leave out what the store holds."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.index_builder.corpus import Row
from descsim_tools.index_builder.report import FillReport, Rejects
from descsim_tools.store import Store
from descsim_tools.store.metadata import encode_metadata
from descsim_tools.types import Record

CHUNK = 1024
"""Sentences prepared at a time; within a chunk they are encoded in order of length."""

SPAN_OF, SPAN_START, SPAN_END = "span_of", "span_start", "span_end"
"""Metadata of a sentence that is a part of its row: the row's id, and where the part lies in it."""


class OnLong(StrEnum):
    """What becomes of a sentence over the encoder's limit of tokens.

    `SPLIT` makes several sentences of it, `CUT` encodes only its beginning (and the report names
    it), `REJECT` sets it aside.
    """

    SPLIT = "split"
    CUT = "cut"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence on its way into the store, with its length in tokens."""

    record: Record
    row: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sentences to encode, and how far the reader was when it had them."""

    sentences: list[Sentence]
    done: int


@dataclass
class SentenceMaker:
    """Turns rows into chunks of sentences that the store lacks, and counts what it leaves out.

    Attributes:
        encoder: Tells lengths in tokens.
        store: Asked what it holds already.
        report: Gets the counts.
        rejects: Gets the rows that cannot be stored.
        split: Find the sentences in each text.
        min_words: Sentences of fewer words are dropped.
        on_long: For sentences over the encoder's limit.
    """

    encoder: DescriptionEncoder
    store: Store
    report: FillReport
    rejects: Rejects
    split: bool
    min_words: int
    on_long: OnLong
    _seen: SeenIds = field(init=False)

    def __post_init__(self) -> None:
        self._seen = SeenIds()

    def chunks(self, rows: Iterator[Row]) -> Iterator[Chunk]:
        """Read all rows and yield what is to be encoded, chunk by chunk."""
        waiting: list[Sentence] = []
        for row in rows:
            waiting.extend(self._sentences_of(row))
            while len(waiting) >= CHUNK:
                yield Chunk(self._prepared(waiting[:CHUNK]), row.done)
                del waiting[:CHUNK]
            done = row.done
        if waiting:
            yield Chunk(self._prepared(waiting), done)

    def _sentences_of(self, row: Row) -> Iterator[Sentence]:
        self.report.rows += 1
        problem, excerpt = row.problem, row.excerpt
        if row.record is None and problem is None:
            self.report.blank_rows += 1
            return
        if row.record is not None:
            problem = _problem_of(row.record)
            excerpt = row.record.text
        if problem is not None or row.record is None:
            self.report.failed_rows += 1
            self.rejects.add(row.number, problem or "", excerpt)
            return
        for record in _split(row.record) if self.split else [_trimmed(row.record)]:
            yield Sentence(record, row.number)

    def _prepared(self, sentences: list[Sentence]) -> list[Sentence]:
        counts = self.encoder.count_tokens([s.record.text for s in sentences])
        fitting: list[Sentence] = []
        for sentence, tokens in zip(sentences, counts, strict=True):
            self.report.sentences += 1
            if len(sentence.record.text.split()) < self.min_words:
                self.report.short += 1
            elif tokens <= self.encoder.max_tokens:
                fitting.append(replace(sentence, tokens=tokens))
            else:
                fitting.extend(self._fit(sentence, tokens))
        return self._missing(self._seen.keep_new(map(_with_id, fitting), self.report, self.rejects))

    def _fit(self, sentence: Sentence, tokens: int) -> list[Sentence]:
        limit = self.encoder.max_tokens
        if self.on_long is OnLong.REJECT:
            self.report.failed_sentences += 1
            reason = f"{tokens} tokens, {self.encoder.spec.name} reads {limit}"
            self.rejects.add(sentence.row, reason, sentence.record.text)
            return []
        if self.on_long is OnLong.CUT:
            return [replace(sentence, tokens=tokens)]
        spans = self.encoder.split_long(sentence.record.text)
        parts = _parts(sentence.record, spans)
        self.report.split += 1
        self.report.sentences += len(parts) - 1
        lengths = self.encoder.count_tokens([part.text for part in parts])
        return [
            Sentence(part, sentence.row, length)
            for part, length in zip(parts, lengths, strict=True)
        ]

    def _missing(self, sentences: list[Sentence]) -> list[Sentence]:
        """Drop what the store holds with this very text; bring its metadata up to date."""
        stored = {r.id: r for r in self.store.get([str(s.record.id) for s in sentences])}
        missing, changed = [], []
        for sentence in sentences:
            old = stored.get(sentence.record.id)
            if old is None or old.text != sentence.record.text:
                missing.append(sentence)
                if sentence.tokens > self.encoder.max_tokens:
                    self.report.cut.append(str(sentence.record.id))
                continue
            self.report.already_stored += 1
            if encode_metadata(old.metadata) != encode_metadata(sentence.record.metadata):
                changed.append(sentence.record)
        if changed:
            self.store.update_metadata(changed)
            self.report.updated_metadata += len(changed)
        return missing


class SeenIds:
    """The ids that a fill has met, in a temporary database, since a large corpus has many.

    An id met again with the same text is a duplicate; with another text it is an error of the
    corpus, and the row is set aside.
    """

    def __init__(self) -> None:
        # An empty name makes a database that SQLite keeps in memory while small, then on disk.
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, digest BLOB, row INTEGER)")

    def keep_new(
        self, sentences: Iterator[Sentence], report: FillReport, rejects: Rejects
    ) -> list[Sentence]:
        """Return the sentences whose ids are new, in order."""
        new = []
        for sentence in sentences:
            digest = _digest(sentence.record.text)
            id_ = sentence.record.id
            found = self._db.execute("SELECT digest, row FROM seen WHERE id = ?", (id_,)).fetchone()
            if found is None:
                self._db.execute("INSERT INTO seen VALUES (?, ?, ?)", (id_, digest, sentence.row))
                new.append(sentence)
            elif found[0] == digest:
                report.duplicates += 1
            else:
                report.failed_sentences += 1
                reason = f"the id {id_!r} was already used, with another text, by row {found[1]}"
                rejects.add(sentence.row, reason, sentence.record.text)
        return new


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _with_id(sentence: Sentence) -> Sentence:
    record = sentence.record
    if record.id is not None:
        return sentence
    return replace(sentence, record=replace(record, id=_digest(record.text).hex()))


def _problem_of(record: Record) -> str | None:
    try:
        record.text.encode()
    except UnicodeEncodeError:
        return "the text is no valid UTF-8"
    if record.id is not None and (not isinstance(record.id, str) or not record.id):
        return f"the id {record.id!r} is no non-empty string"
    try:
        (record.id or "").encode()
        encode_metadata(record.metadata)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "the metadata is nested too deeply or contains itself"
    return None


def _trimmed(record: Record) -> Record:
    return replace(record, text=record.text.strip())


def _split(record: Record) -> list[Record]:
    from sentencex import get_sentence_boundaries

    spans: list[tuple[int, int]] = []
    for boundary in get_sentence_boundaries("en", record.text):
        start, end = boundary["start_index"], boundary["end_index"]
        piece = record.text[start:end]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return _parts(record, spans)


def _parts(record: Record, spans: Sequence[tuple[int, int]]) -> list[Record]:
    """Make a record of each span, with ids and positions that lead back to the whole text."""
    if len(spans) == 1:
        start, end = spans[0]
        return [replace(record, text=_one_line(record.text[start:end]))]
    whole = record.metadata.get(SPAN_START, 0)
    offset = whole if isinstance(whole, int) else 0
    parent = {} if record.id is None else {SPAN_OF: record.metadata.get(SPAN_OF, record.id)}
    return [
        Record(
            _one_line(record.text[start:end]),
            None if record.id is None else f"{record.id}#{number}",
            {**record.metadata, **parent, SPAN_START: offset + start, SPAN_END: offset + end},
        )
        for number, (start, end) in enumerate(spans)
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
