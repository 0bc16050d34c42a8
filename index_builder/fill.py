"""`fill`: read, encode and write, overlapped."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.encoders.encoder import Vectors
from descsim_tools.errors import CorpusError, StoreError
from descsim_tools.index_builder.corpus import Corpus, Row, open_corpus
from descsim_tools.index_builder.progress import FillProgress, fill_progress
from descsim_tools.index_builder.report import FillReport, Rejects, peak_memory_mb
from descsim_tools.index_builder.sentences import Chunk, OnLong, Sentence, SentenceMaker
from descsim_tools.store import DEFAULT_COLLECTION, EncoderLike, Store, create_store, open_store
from descsim_tools.types import Record

logger = logging.getLogger(__name__)

BATCH_TOKENS = 4096
"""Most tokens of a forward pass, padding included: bounds memory whatever the texts' lengths."""

_WRITE_ROWS = 512
_CHUNKS_AHEAD = 2
_WRITES_AHEAD = 4
MIN_WORDS = 6
"""The paper leaves out sentences of fewer words (section 5)."""

_T = TypeVar("_T")


def fill(
    corpus: str | Path | Iterable[str | Record | Mapping[str, Any]],
    location: str | Path,
    *,
    encoder: EncoderLike = None,
    collection: str = DEFAULT_COLLECTION,
    text_field: str = "text",
    id_field: str = "id",
    split: bool | None = None,
    min_words: int | None = None,
    on_long: OnLong | str = OnLong.SPLIT,
    devices: list[str] | None = None,
    rejects: str | Path | None = None,
    progress: bool = False,
) -> FillReport:
    """Encode a corpus into a store, which is made if it does not exist.

    Sentences that the store holds already are not encoded again, so a fill that was broken off goes
    on where it was, and a second fill encodes nothing. Memory does not grow with the corpus but for
    the store's own index.

    Args:
        corpus: See `open_corpus`.
        location: A folder or the URL of a Chroma server.
        encoder: An encoder, or a preset, folder or hub id; None takes the store's own, or for a new
            store the default preset.
        collection: Name of the Chroma collection.
        text_field: Field or column that holds the text.
        id_field: Field or column that holds a row's id, if there is one; rows without get an id
            from their text.
        split: Find the sentences in each text; None does so for folders of documents.
        min_words: Drop sentences of fewer words; None means 6 for .txt files and folders, else 0.
        on_long: What becomes of a sentence over the encoder's limit: `split`, `cut` or `reject`.
        devices: Such as `["cuda:0", "cuda:1"]`; None takes the encoder's own.
        rejects: File to name bad rows in; None takes `rejects.jsonl` in the store's folder, or
            `descsim-rejects.jsonl` here when the store is on a server.
        progress: Show a bar on standard error.

    Returns:
        Counts that add up, see `FillReport`.

    Raises:
        CorpusError: The corpus cannot be read, or nothing in it can be stored.
        EncoderError: The encoder cannot be loaded.
        StoreError: The store cannot be written, or another encoder filled it.
    """
    opened = open_corpus(corpus, text_field=text_field, id_field=id_field)
    on_long = _on_long(on_long)
    rows = _started(opened)
    started = time.perf_counter()
    with _opened(location, encoder, collection, devices) as (store, loaded):
        report = FillReport(opened.name, str(location), loaded.spec.name)
        with store.writer(), Rejects(_rejects_path(rejects, location), report) as rejected:
            maker = SentenceMaker(
                loaded,
                store,
                report,
                rejected,
                split=opened.raw if split is None else split,
                min_words=(MIN_WORDS if opened.plain else 0) if min_words is None else min_words,
                on_long=on_long,
            )
            with fill_progress(opened.total, shown=progress) as bar:
                unfit = _encode_and_write(
                    maker.chunks(rows), _replicas(loaded, devices), store, report, bar
                )
            for sentence in unfit:
                report.failed_sentences += 1
                reason = "the encoder gave a vector that is not finite"
                rejected.add(sentence.row, reason, sentence.record.text)
        report.stored = store.count()
    report.seconds = time.perf_counter() - started
    report.sentences_per_second = report.encoded / report.seconds
    report.peak_memory_mb = peak_memory_mb()
    if report.sentences == report.failed_sentences:
        raise CorpusError(_nothing_stored(report))
    return report


def _encode_and_write(
    chunks: Iterator[Chunk],
    encoders: list[DescriptionEncoder],
    store: Store,
    report: FillReport,
    bar: FillProgress,
) -> list[Sentence]:
    """Encode and write all chunks; return the sentences whose vectors are not finite."""
    idle: queue.SimpleQueue[DescriptionEncoder] = queue.SimpleQueue()
    for encoder in encoders:
        idle.put(encoder)

    def encode(batch: list[Sentence]) -> Vectors:
        encoder = idle.get()
        try:
            texts = [sentence.record.text for sentence in batch]
            return encoder.encode_sentences(texts, batch_size=len(texts))
        finally:
            idle.put(encoder)

    with ThreadPoolExecutor(len(encoders)) as pool, _Writer(store, report) as writer:
        encoding: deque[tuple[list[Sentence], Future[Vectors], float]] = deque()

        def take() -> None:
            batch, vectors, done = encoding.popleft()
            writer.add(batch, vectors.result())
            bar.update(done, report.encoded)

        begun = 0
        for chunk in _ahead(chunks):
            batches = list(token_batches(chunk.sentences, BATCH_TOKENS))
            for number, batch in enumerate(batches, start=1):
                done = begun + (chunk.done - begun) * number / len(batches)
                encoding.append((batch, pool.submit(encode, batch), done))
                if len(encoding) > 2 * len(encoders):
                    take()
            begun = chunk.done
            if not batches:
                bar.update(chunk.done, report.encoded)
        while encoding:
            take()
    return writer.unfit


def token_batches(sentences: list[Sentence], budget: int) -> Iterator[list[Sentence]]:
    """Group sentences of like length so that no group exceeds a budget of tokens once padded.

    A sentence over the budget makes a group of its own.
    """
    batch: list[Sentence] = []
    for sentence in sorted(sentences, key=lambda s: s.tokens):
        # Sorted, so that the newest is the longest and sets the padded length.
        if batch and (len(batch) + 1) * sentence.tokens > budget:
            yield batch
            batch = []
        batch.append(sentence)
    if batch:
        yield batch


class _Writer:
    """Collects encoded sentences and writes them from a thread of its own."""

    def __init__(self, store: Store, report: FillReport) -> None:
        self._store = store
        self._report = report
        self._records: list[Record] = []
        self._vectors: list[Vectors] = []
        self._writes: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self.unfit: list[Sentence] = []

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self._flush()
                self._wait(0)

    def add(self, batch: list[Sentence], vectors: Vectors) -> None:
        fit = [bool(np.isfinite(vector).all()) for vector in vectors]
        self.unfit += [s for s, is_fit in zip(batch, fit, strict=True) if not is_fit]
        self._records += [s.record for s, is_fit in zip(batch, fit, strict=True) if is_fit]
        self._vectors.append(vectors[fit])
        self._report.encoded += sum(fit)
        if len(self._records) >= _WRITE_ROWS:
            self._flush()
            self._wait(_WRITES_AHEAD)

    def _flush(self) -> None:
        if self._records:
            vectors = np.concatenate(self._vectors)
            self._writes.append(self._thread.submit(self._store.upsert, self._records, vectors))
            self._records, self._vectors = [], []

    def _wait(self, allowed: int) -> None:
        while len(self._writes) > allowed:
            self._writes.popleft().result()


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Run an iterator in a thread of its own, a few items ahead."""
    end = object()
    with ThreadPoolExecutor(1) as reader:
        coming: deque[Future[Any]] = deque(
            reader.submit(next, items, end) for _ in range(_CHUNKS_AHEAD)
        )
        while (item := coming.popleft().result()) is not end:
            coming.append(reader.submit(next, items, end))
            yield item


def _started(corpus: Corpus) -> Iterator[Row]:
    """Start reading, so that a corpus without rows is refused before a store is made for it."""
    rows = corpus.rows()
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{corpus.name} holds no rows")
    return chain([first], rows)


@contextmanager
def _opened(
    location: str | Path, encoder: EncoderLike, collection: str, devices: list[str] | None
) -> Iterator[tuple[Store, DescriptionEncoder]]:
    device = devices[0] if devices else None
    there = Store.has_collection(location, collection)
    make = open_store if there else create_store
    try:
        store, loaded = make(location, encoder, collection=collection, device=device)
    except StoreError:
        # Another fill may have made it since; then the right to write decides, as always.
        if there or not Store.has_collection(location, collection):
            raise
        store, loaded = open_store(location, encoder, collection=collection, device=device)
    with store:
        yield store, loaded


def _replicas(encoder: DescriptionEncoder, devices: list[str] | None) -> list[DescriptionEncoder]:
    return [encoder] + [encoder.replicate(device) for device in (devices or [])[1:]]


def _on_long(on_long: OnLong | str) -> OnLong:
    try:
        return OnLong(on_long)
    except ValueError as error:
        allowed = ", ".join(choice.value for choice in OnLong)
        raise ValueError(f"on_long is {on_long!r}, need one of {allowed}") from error


def _rejects_path(rejects: str | Path | None, location: str | Path) -> Path:
    if rejects is not None:
        return Path(rejects)
    on_server = str(location).startswith(("http://", "https://"))
    return Path("descsim-rejects.jsonl") if on_server else Path(location) / "rejects.jsonl"


def _nothing_stored(report: FillReport) -> str:
    where = f"; {report.rejects} names the reasons" if report.rejects else ""
    return (
        f"{report.corpus} holds nothing that can be stored: of {report.rows} rows "
        f"{report.blank_rows} are blank and {report.failed_rows} are bad, and "
        f"{report.failed_sentences} sentences were set aside{where}"
    )
