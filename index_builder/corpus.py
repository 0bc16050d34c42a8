"""Corpus readers: files, folders and iterables as numbered rows.

A row that cannot be read is no exception but a `Row` with a problem, so that the rest goes on.
To add a reader, write a function that yields rows and name its suffix in `_FILE_READERS`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from descsim_tools.errors import CorpusError, require
from descsim_tools.types import Record

_PARQUET_BATCH = 1024
_SNIFFED = 8192
_FOLDER_SUFFIXES = (".md", ".txt")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a corpus: a record, a problem, or neither if it is blank.

    Attributes:
        number: Position in its source, from 1: a line, a record or a file.
        record: What was read.
        problem: Why nothing could be read.
        excerpt: The beginning of what a bad row holds.
        done: How far the reader is after this row, in the corpus's unit.
    """

    number: int
    record: Record | None = None
    problem: str | None = None
    excerpt: str = ""
    done: int = 0


@dataclass(frozen=True, slots=True)
class Corpus:
    """A readable corpus.

    Attributes:
        name: For messages and reports.
        raw: Running text whose sentences are to be found, rather than one text a row.
        plain: Text without fields of its own, where very short lines are titles and scraps.
        total: Its size in bytes, rows or files, as `Row.done` counts; None if not known.
        rows: Starts reading.
    """

    name: str
    raw: bool
    plain: bool
    total: int | None
    rows: Callable[[], Iterator[Row]]


def open_corpus(
    corpus: str | Path | Iterable[str | Record | Mapping[str, Any]],
    *,
    text_field: str = "text",
    id_field: str = "id",
) -> Corpus:
    """Open a corpus.

    Args:
        corpus: A file (.txt: a sentence or paragraph a line; .jsonl; .csv; .tsv; .parquet), a
            folder of .txt and .md files, or an iterable of strings, records or mappings.
        text_field: Field, column or key that holds the text.
        id_field: Field, column or key that holds a row's id; rows without one get an id from their
            text. All other fields become metadata.

    Raises:
        CorpusError: There is no such file, its kind is not known, it is binary, or its header
            lacks the text column.
    """
    if isinstance(corpus, str | Path):
        return _open_path(Path(corpus), text_field, id_field)
    if not isinstance(corpus, Iterable) or isinstance(corpus, Mapping):
        raise CorpusError(
            f"got a {type(corpus).__name__}, need a path or an iterable of strings or records"
        )
    items = corpus
    return Corpus(
        name="the iterable",
        raw=False,
        plain=False,
        total=len(items) if isinstance(items, Sized) else None,
        rows=lambda: _item_rows(items, text_field, id_field),
    )


def _open_path(path: Path, text_field: str, id_field: str) -> Corpus:
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in _FOLDER_SUFFIXES and p.is_file())
        if not files:
            raise CorpusError(f"the folder {path} holds no .txt or .md file")
        return Corpus(path.name, True, True, len(files), lambda: _folder_rows(path, files))
    if not path.exists():
        raise CorpusError(f"there is no corpus {path}")
    suffix = path.suffix.lower()
    if suffix not in _FILE_READERS:
        raise CorpusError(
            f"cannot read {path}: its name ends in {suffix or 'nothing'!r}, known are "
            f"{', '.join(sorted(_FILE_READERS))}, and folders of .txt and .md files"
        )
    if path.stat().st_size == 0:
        raise CorpusError(f"{path} is empty")
    if suffix == ".parquet":
        return _open_parquet(path, text_field, id_field)
    _refuse_binary(path)
    read = _FILE_READERS[suffix]
    if suffix in (".csv", ".tsv"):
        _check_header(path, text_field)
    return Corpus(
        name=path.name,
        raw=False,
        plain=suffix == ".txt",
        total=path.stat().st_size,
        rows=lambda: read(path, text_field, id_field),
    )


def _refuse_binary(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFFED)
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CorpusError(f"{path} is UTF-16; convert it to UTF-8 first")
    if b"\0" in head:
        raise CorpusError(f"{path} is a binary file, need UTF-8 text")


def _open_text(path: Path, newline: str | None = None) -> IO[str]:
    # Bytes that are no UTF-8 become lone surrogates, by which their row is named and set aside.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _text_rows(path: Path, text_field: str, id_field: str) -> Iterator[Row]:
    done = 0
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            done += _size(line)
            text = line.strip()
            metadata = {"source": path.name, "line": number}
            record = Record(text, metadata=metadata) if text else None
            yield Row(number, record, done=done)


def _jsonl_rows(path: Path, text_field: str, id_field: str) -> Iterator[Row]:
    done = 0
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            done += _size(line)
            if not line.strip():
                yield Row(number, done=done)
                continue
            try:
                fields = json.loads(line)
            except ValueError as error:
                yield Row(number, problem=f"no JSON: {error}", excerpt=line, done=done)
                continue
            except RecursionError:
                yield Row(number, problem="JSON nested too deeply", excerpt=line, done=done)
                continue
            row = _row(number, fields, text_field, id_field)
            yield replace(row, done=done)


def _csv_rows(path: Path, text_field: str, id_field: str) -> Iterator[Row]:
    with _open_text(path, newline="") as file:
        counted = _CountedLines(file)
        # The limit is the module's, not the reader's; its default refuses a field over 128 KiB.
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        # In a file of tabs a quote is a character like any other.
        tabs = path.suffix.lower() == ".tsv"
        reader = csv.DictReader(
            counted,
            delimiter=_delimiter(path),
            quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
            restkey="",
            strict=True,
        )
        number = 0
        while True:
            number += 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"no CSV: {error}"
                yield Row(number, problem=problem, excerpt=counted.last, done=counted.done)
                continue
            names = len(reader.fieldnames or [])
            if "" in fields or None in fields.values():
                problem = f"the header names {names} fields, this row has more or fewer"
                excerpt = ", ".join(str(v) for v in fields.values())
                yield Row(number, problem=problem, excerpt=excerpt, done=counted.done)
                continue
            yield replace(_row(number, fields, text_field, id_field), done=counted.done)


class _CountedLines:
    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.done = 0
        self.last = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self.file)
        self.done += _size(line)
        self.last = line
        return line


def _size(line: str) -> int:
    return len(line.encode("utf-8", "surrogateescape"))


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _check_header(path: Path, text_field: str) -> None:
    with _open_text(path, newline="") as file:
        header = next(csv.reader(file, delimiter=_delimiter(path)), [])
    _check_columns(path, header, text_field)


def _check_columns(path: Path, columns: list[str], text_field: str) -> None:
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise CorpusError(f"{path} names the column {repeated[0]!r} more than once; rename one")
    if text_field not in columns:
        raise CorpusError(
            f"{path} has no column {text_field!r}; it has: {', '.join(map(repr, columns))}. Name "
            "the one that holds the text: text_field=..., on the command line --text-field"
        )


def _open_parquet(path: Path, text_field: str, id_field: str) -> Corpus:
    parquet = require("pyarrow.parquet", "parquet")
    arrow = require("pyarrow", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            columns, total = file.schema_arrow.names, file.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path} is no parquet file: {error}") from error
    _check_columns(path, columns, text_field)

    def rows() -> Iterator[Row]:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_PARQUET_BATCH):
                for fields in batch.to_pylist():
                    number += 1
                    yield replace(_row(number, fields, text_field, id_field), done=number)

    return Corpus(path.name, False, False, total, rows)


def _folder_rows(folder: Path, files: list[Path]) -> Iterator[Row]:
    for number, path in enumerate(files, start=1):
        name = path.relative_to(folder).as_posix()
        try:
            _refuse_binary(path)
            with _open_text(path) as file:
                text = file.read()
        except (CorpusError, OSError) as error:
            yield Row(number, problem=str(error), excerpt=name, done=number)
            continue
        record = Record(text, metadata={"source": name}) if text.strip() else None
        yield Row(number, record, done=number)


def _item_rows(items: Iterable[Any], text_field: str, id_field: str) -> Iterator[Row]:
    for number, item in enumerate(items, start=1):
        if isinstance(item, str):
            row = Row(number, Record(item) if item.strip() else None)
        elif isinstance(item, Record):
            row = _row_of_record(number, item)
        else:
            row = _row(number, item, text_field, id_field)
        yield replace(row, done=number)


def _row_of_record(number: int, record: Record) -> Row:
    text: Any = record.text  # what the caller put there, whatever its annotation says
    if not isinstance(text, str):
        return Row(number, problem=f"the text is a {type(text).__name__}, need a string")
    return Row(number, record if record.text.strip() else None)


def _row(number: int, fields: Any, text_field: str, id_field: str) -> Row:
    excerpt = str(fields)
    if not isinstance(fields, Mapping):
        return Row(number, problem=f"a {type(fields).__name__}, need an object", excerpt=excerpt)
    if text_field not in fields:
        names = ", ".join(repr(name) for name in fields)
        return Row(number, problem=f"no field {text_field!r}, only {names}", excerpt=excerpt)
    text, id_ = fields[text_field], fields.get(id_field)
    if not isinstance(text, str):
        kind = "null" if text is None else f"a {type(text).__name__}"
        return Row(number, problem=f"the text is {kind}, need a string", excerpt=excerpt)
    if not text.strip():
        return Row(number)
    if id_ is not None and (isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == ""):
        return Row(number, problem=f"the id {id_!r} is no string or integer", excerpt=excerpt)
    metadata = {k: v for k, v in fields.items() if k not in (text_field, id_field)}
    return Row(number, Record(text, None if id_ is None else str(id_), metadata))


_FILE_READERS: dict[str, Callable[[Path, str, str], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": lambda path, text, id_: _open_parquet(path, text, id_).rows(),
    ".tsv": _csv_rows,
    ".txt": _text_rows,
}
