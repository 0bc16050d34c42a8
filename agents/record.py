"""The record of a search: a file of events and verdicts that only grows, to go on from.

A line is written before what follows from it. A kill may cut the last line short; it is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from descsim_tools.agents.plan import Plan
from descsim_tools.agents.statement import Cost, Row, Verdict
from descsim_tools.errors import DataError

RECORD = "record.jsonl"
ANSWERS = "answers.sqlite"
"""A model's answers, for an `LLM` made by `open_llm`."""
TRANSCRIPT = "transcript.jsonl"

_FORMAT = 1


class _Entry(BaseModel):
    """A line; what it has beside these fields is for people."""

    model_config = ConfigDict(strict=True)

    event: str


class _SearchEntry(_Entry):
    format: int
    search: dict[str, Any]


class _PlanEntry(_Entry):
    plan: Plan


class _DescriptionsEntry(_Entry):
    round: int
    descriptions: list[str]


class _HitsEntry(_Entry):
    search: str
    ids: list[str]


class _ScoreEntry(_Entry):
    key: str
    p: Annotated[float, Field(ge=0, le=1)]
    truncated: bool


class _VerdictEntry(_Entry):
    key: str
    verdict: Verdict


class _CostEntry(_Entry):
    cost: Cost


_ENTRIES: dict[str, type[_Entry]] = {
    "plan": _PlanEntry,
    "descriptions": _DescriptionsEntry,
    "hits": _HitsEntry,
    "score": _ScoreEntry,
    "verdict": _VerdictEntry,
    "cost": _CostEntry,
}


class FindRecord:
    """What earlier runs of the same search found out; without a folder, of this run alone.

    Attributes:
        plan: The plan, once there is one.
        descriptions: Those that a model added, by the number of the round.
        earlier: What earlier runs cost.
    """

    def __init__(self, folder: str | Path | None, identity: Mapping[str, Any]) -> None:
        """Open or make a record.

        Args:
            folder: Made if missing; None keeps nothing.
            identity: What the search is; that of the folder must be the same.

        Raises:
            DataError: The folder holds another search, no record or a damaged one, or another
                process uses it.
        """
        self.plan: Plan | None = None
        self.descriptions: dict[int, list[str]] = {}
        self.earlier = Cost()
        self._hits: dict[str, list[str]] = {}
        self._scores: dict[str, tuple[float, bool]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._run = Cost()
        self._file: IO[str] | None = None
        self._lock: FileLock | None = None
        if folder is not None:
            self._open(Path(folder), json.loads(json.dumps(identity)))

    def close(self) -> None:
        """Close the file and let others use the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()

    def score(self, row: Row) -> tuple[float, bool] | None:
        """Return a row's probability and whether it was truncated, if it was read before."""
        return self._scores.get(_key(row))

    def verdict(self, row: Row) -> Verdict | None:
        """Return what a model said of a row, if it was asked before."""
        return self._verdicts.get(_key(row))

    def hits(self, search: str) -> list[str]:
        """Return the ids of the rows that a search gave to earlier runs."""
        return self._hits.get(search, [])

    def add_hits(self, search: str, ids: list[str]) -> None:
        """Keep the ids of the rows that a search gave."""
        self._hits[search] = ids
        self._write("hits", search=search, ids=ids)

    def add_plan(self, plan: Plan) -> None:
        """Keep the plan."""
        self.plan = plan
        self._write("plan", plan=plan.to_dict())

    def add_descriptions(self, number: int, texts: list[str]) -> None:
        """Keep the descriptions that a model added in a round."""
        self.descriptions[number] = texts
        self._write("descriptions", round=number, descriptions=texts)

    def add_score(self, row: Row) -> None:
        """Keep a row's probability."""
        if row.probability is not None:
            self._scores[_key(row)] = (row.probability, row.truncated)
            self._write(
                "score", key=_key(row), id=row.id, p=row.probability, truncated=row.truncated
            )

    def add_verdict(self, row: Row, verdict: Verdict) -> None:
        """Keep a verdict; one of no decision is only told, and asked for again."""
        if verdict.decided_by is not None or verdict.unjudged_for == "unsure":
            self._verdicts[_key(row)] = verdict
        self._write("verdict", key=_key(row), id=row.id, verdict=verdict.to_dict())

    def add_cost(self, cost: Cost) -> None:
        """Keep what this run has cost so far."""
        self._write("cost", cost=asdict(cost))

    def add_event(self, message: str) -> None:
        """Tell what happened."""
        self._write("event", message=message)

    def _open(self, folder: Path, identity: dict[str, Any]) -> None:
        if (folder / "chroma.sqlite3").exists():
            raise DataError(f"{folder} is a store; name another folder for the record")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"the record cannot be kept in {folder}: {error.strerror}") from error
        # Not one lock a thread: an asynchronous search runs in another thread than its caller.
        self._lock = FileLock(folder / ".lock", thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise DataError(
                f"another search writes to {folder}; wait for it, or name another folder"
            ) from error
        try:
            path = folder / RECORD
            known = self._read(path, identity) if path.exists() else False
            self._file = path.open("a", encoding="utf-8")
            if not known:
                self._write("search", format=_FORMAT, search=identity)
            self._write("run")
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, identity: dict[str, Any]) -> bool:
        """Read the lines that are whole, cut off the rest, and tell whether there are any."""
        whole = path.read_bytes()
        end = whole.rfind(b"\n") + 1
        lines = whole[:end].decode("utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                if number == 1:
                    _check_identity(path, _SearchEntry.model_validate_json(line), identity)
                else:
                    self._take(line)
            except ValueError as error:
                # Each line was written before what follows from it: what is above can be kept.
                cut = "" if number == 1 else "delete this line and all below it to go on, or "
                raise DataError(
                    f"{path}, line {number}, is no line of a record ({_told(error)}): the record "
                    f"is damaged; {cut}name another folder"
                ) from error
        self.earlier = self.earlier.plus(self._run)
        if end < len(whole):
            with path.open("r+b") as file:
                file.truncate(end)
        return bool(lines)

    def _take(self, line: str) -> None:
        event = _Entry.model_validate_json(line).event
        match _ENTRIES.get(event, _Entry).model_validate_json(line):
            case _PlanEntry(plan=plan):
                self.plan = plan
            case _DescriptionsEntry(round=number, descriptions=texts):
                self.descriptions[number] = texts
            case _HitsEntry(search=search, ids=ids):
                self._hits[search] = ids
            case _ScoreEntry(key=key, p=p, truncated=truncated):
                self._scores[key] = (p, truncated)
            case _VerdictEntry(key=key, verdict=verdict):
                if verdict.decided_by is not None or verdict.unjudged_for == "unsure":
                    self._verdicts[key] = verdict
            case _CostEntry(cost=cost):
                self._run = cost
            case _Entry(event="run"):  # which counts from 0
                self.earlier, self._run = self.earlier.plus(self._run), Cost()

    def _write(self, event: str, **fields: Any) -> None:
        if self._file is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "at": at, **fields}, ensure_ascii=True)
        self._file.write(line + "\n")
        self._file.flush()


def _told(error: ValueError) -> str:
    """Return what is wrong with a line, in one."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _check_identity(path: Path, entry: _SearchEntry, identity: dict[str, Any]) -> None:
    if entry.event != "search" or entry.format != _FORMAT:
        raise ValueError(f"it starts with {entry.event!r} of format {entry.format}")
    theirs = entry.search
    for key, value in identity.items():
        if theirs.get(key) != value:
            raise DataError(
                f"{path.parent} holds another search: its {key} is {theirs.get(key)!r}, here it is "
                f"{value!r}; name another folder"
            )


def _key(row: Row) -> str:
    """Name a row's content: a sentence that changed under its id is judged anew."""
    content = f"{row.id}\0{row.text}".encode(errors="replace")
    return hashlib.sha256(content).hexdigest()[:24]
