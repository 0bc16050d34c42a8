"""What a person decided of rows; it overrules every other judge."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from descsim_tools.agents.statement import Decider, Status, Verdict
from descsim_tools.errors import CorpusError, DataError
from descsim_tools.lines import read_json_lines

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for a formula at a cell's beginning."""
QUOTED = tuple(f"'{start}" for start in FORMULA)

_YES = ("yes", "y", "true", "1")
_NO = ("no", "n", "false", "0")


@dataclass(frozen=True, slots=True)
class Decisions:
    """Verdicts by the id of the row."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


def read_decisions(source: Mapping[str, bool | str] | str | Path | None) -> Decisions:
    """Read what a person decided.

    Args:
        source: yes or no (or True, False) by id, or a file: .jsonl with the fields `id` and
            `decision`, or .csv with these columns. Rows without a decision are passed over, so that
            a report that was filled in will do.

    Raises:
        DataError: The file cannot be read, or a decision is neither yes nor no.
    """
    if source is None:
        return Decisions()
    rows = iter(source.items()) if isinstance(source, Mapping) else _rows(Path(source))
    verdicts: dict[str, Verdict] = {}
    for id_, decision in rows:
        word = str(decision if decision is not None else "").strip().casefold()
        if not word:
            continue
        if word not in _YES + _NO:
            raise DataError(f"the decision of {id_!r} is {decision!r}, need yes or no")
        status = Status.MATCHED if word in _YES else Status.REJECTED
        verdicts[id_] = Verdict(status, Decider.PERSON, "decided by a person")
    return Decisions(verdicts)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield from [_pair(row, path) for row in csv.DictReader(file)]
        elif path.suffix == ".jsonl":
            yield from [_pair(row, path) for _, row in read_json_lines(path, "file of decisions")]
        else:
            raise DataError(f"{path} is no file of decisions; its name must end in .jsonl or .csv")
    except (OSError, UnicodeDecodeError, csv.Error, CorpusError) as error:
        raise DataError(f"cannot read the decisions in {path}: {error}") from error


def _pair(row: Any, path: Path) -> tuple[str, Any]:
    if not isinstance(row, dict) or "id" not in row or "decision" not in row:
        raise DataError(f"{path} has a row without `id` and `decision`: {str(row)[:100]}")
    id_ = str(row["id"])
    # In a .csv of ours a quote goes before what a spreadsheet would run.
    return id_[1:] if path.suffix == ".csv" and id_.startswith(QUOTED) else id_, row["decision"]
