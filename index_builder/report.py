"""What a fill did: counts that add up, and the rows it set aside."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

_SHOWN = 20
_EXCERPT = 200


@dataclass
class FillReport:
    """Counts of one fill.

    `rows` = `blank_rows` + `failed_rows` + those that gave sentences; `sentences` = `encoded` +
    `already_stored` + `duplicates` + `short` + `failed_sentences`.

    Attributes:
        corpus: Name of the corpus.
        store: Where it went.
        encoder: Name of the encoder.
        rows: Rows read.
        blank_rows: Rows without text.
        failed_rows: Rows set aside whole; named in the rejects file.
        sentences: Sentences that the other rows gave.
        failed_sentences: Sentences set aside; named in the rejects file.
        short: Sentences dropped by the word filter.
        duplicates: Sentences that this fill had already met.
        already_stored: Sentences that the store held before; nothing was encoded for them.
        updated_metadata: Of these, how many got new metadata.
        encoded: Sentences encoded and written.
        split: Sentences over the encoder's limit that were split into several.
        cut: Ids of sentences over the limit of which only the beginning was encoded.
        stored: Sentences in the store at the end.
        seconds: Wall time.
        sentences_per_second: `encoded` over `seconds`.
        peak_memory_mb: Highest resident memory of the process so far.
        rejects: File that names what was set aside, if anything was.
        first_rejects: The first of them.
    """

    corpus: str
    store: str
    encoder: str
    rows: int = 0
    blank_rows: int = 0
    failed_rows: int = 0
    sentences: int = 0
    failed_sentences: int = 0
    short: int = 0
    duplicates: int = 0
    already_stored: int = 0
    updated_metadata: int = 0
    encoded: int = 0
    split: int = 0
    cut: list[str] = field(default_factory=list)
    stored: int = 0
    seconds: float = 0.0
    sentences_per_second: float = 0.0
    peak_memory_mb: float = 0.0
    rejects: str | None = None
    first_rejects: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


class Rejects:
    """Writes rows that cannot be stored to a JSON-lines file, made when the first one comes."""

    def __init__(self, path: Path, report: FillReport) -> None:
        self._path = path
        self._report = report
        self._file: IO[str] | None = None

    def __enter__(self) -> Rejects:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: int, reason: str, excerpt: str) -> None:
        """Name a row: its number, why it was set aside, and how it begins."""
        printable = excerpt[:_EXCERPT].encode(errors="backslashreplace").decode()
        entry = {"row": row, "reason": reason, "excerpt": printable}
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8")
            self._report.rejects = str(self._path)
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        if len(self._report.first_rejects) < _SHOWN:
            self._report.first_rejects.append(entry)


def peak_memory_mb() -> float:
    """Return the highest resident memory of this process so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
