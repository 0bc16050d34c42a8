"""What a person decided of rows; it overrules every other judge."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from descsim_tools.agents.statement import Decider, Status, Verdict
from descsim_tools.errors import CorpusError, DataError
from descsim_tools.lines import read_json_lines

logger = logging.getLogger(__name__)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for a formula at a cell's beginning."""
_YES = ("yes", "y", "true", "1")
_NO = ("no", "n", "false", "0")


@dataclass(frozen=True, slots=True)
class Decisions:
    """Verdicts by the id of the row."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def words(self) -> dict[str, str]:
        """Yes or no by the id of the row."""
        return {id_: decision_of(verdict) for id_, verdict in self.verdicts.items()}


def decision_of(verdict: Verdict) -> str:
    """Return what a person decided in a word, or nothing if another judge did."""
    if verdict.decided_by is not Decider.PERSON:
        return ""
    return "yes" if verdict.status is Status.MATCHED else "no"


def read_decisions(source: Mapping[str, bool | str] | str | Path | None) -> Decisions:
    """Read what a person decided.

    Args:
        source: yes or no (or True, False) by id, or a file: .jsonl with the fields `id` and
            `decision`, or .csv with these columns. Rows without a decision are passed over, so that
            a report that was filled in will do.

    Raises:
        DataError: The file cannot be read, a decision is neither yes nor no, or a row has both.
    """
    if source is None:
        return Decisions()
    rows = iter(source.items()) if isinstance(source, Mapping) else _rows(Path(source))
    verdicts: dict[str, Verdict] = {}
    for id_, decision in rows:
        word = _word(decision)
        if not word:
            continue
        if word not in ("yes", "no"):
            raise DataError(f"the decision of {id_!r} is {decision!r}, need yes or no")
        status = Status.MATCHED if word == "yes" else Status.REJECTED
        known = verdicts.setdefault(id_, Verdict(status, Decider.PERSON, "decided by a person"))
        if known.status is not status:
            raise DataError(
                f"{source} decides {id_!r} both yes and no; leave one of its rows without a "
                "decision"
            )
    if not verdicts and not isinstance(source, Mapping):
        logger.warning("%s decides nothing: no row of it has yes or no as its decision", source)
    return Decisions(verdicts)


def decisions_in(path: Path) -> dict[str, str]:
    """Return the decisions that a file holds by id: yes, no, or whatever else somebody wrote.

    Raises:
        DataError: It is a .csv that cannot be read, so nobody knows.
    """
    rows = _lines(path) if path.suffix == ".jsonl" else _rows(path)
    return {id_: word for id_, decision in rows if (word := _word(decision))}


def quoted(value: str) -> str:
    """Keep a spreadsheet from running a cell: a quote makes it text.

    What already begins so gets another quote, for `unquoted` to give back what there was.
    """
    return f"'{value}" if value.lstrip("'").startswith(_FORMULA) else value


def unquoted(value: str) -> str:
    """Return what `quoted` was given."""
    return value[1:] if value.startswith("'") and quoted(value) != value else value


def _word(decision: Any) -> str:
    word = str(decision if decision is not None else "").strip().casefold()
    return "yes" if word in _YES else "no" if word in _NO else word


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the decisions of a file of JSON lines that may hold anything else beside them."""
    try:
        for _, row in read_json_lines(path, "file of decisions"):
            if isinstance(row, dict) and "id" in row:
                yield str(row["id"]), row.get("decision")
    except (OSError, CorpusError):
        return


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
    return unquoted(id_) if path.suffix == ".csv" else id_, row["decision"]
