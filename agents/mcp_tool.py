"""The finder as a tool of the MCP server: `find_instances`.

Nothing heavy is imported before the first call. A call is a job with an id that follows from its
arguments; what it found out is kept in a record, so a job that was cancelled, timed out or lost its
server goes on where it was when it is called again, by its id or by the same arguments.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from descsim_tools.errors import require

require("mcp", "mcp")

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from pydantic import BaseModel, Field

from descsim_tools.agents.files import written_whole
from descsim_tools.agents.settings import FinderSettings
from descsim_tools.agents.tooling import (
    ALL_OF_HELP,
    ANY_OF_HELP,
    CONCEPT_HELP,
    NONE_OF_HELP,
    SHOWN,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    statement_to_dict,
)
from descsim_tools.integrations.mcp_server import Progress, ToolMaker, make_tool

if TYPE_CHECKING:
    from descsim_tools.agents.finder import InstanceFinder
    from descsim_tools.agents.statement import Statement
    from descsim_tools.llm import LLM
    from descsim_tools.rerankers import Reranker
    from descsim_tools.search import DescriptionIndex

__all__ = ["find_instances_tool"]

_JOB_ID = re.compile(r"[0-9a-f]{16}")
_ARGUMENTS = "arguments.json"
_JOB_HELP = (
    "Id of an earlier job, instead of a concept: goes on where it was, or gives its result again."
)
_FIRST_HELP = f"How many instances to pass over; a call gives at most {SHOWN}."


class FoundInstances(BaseModel):
    """What was found, and how complete it is."""

    job_id: str = Field(description="Call again with it to go on, or to see more instances.")
    looked_for: dict[str, list[str]] = Field(description="The conditions.")
    instances: list[dict[str, Any]] = Field(description="Sentences, the most probable first.")
    not_shown: int = Field(description="Instances after these; ask for them by `first`.")
    unjudged: list[dict[str, Any]] = Field(description="Sentences nobody could judge: not a no.")
    statement: list[str] = Field(description="The statement of completeness, in words.")
    counts: dict[str, int | None] = Field(description="Sentences stored, examined, matched ...")
    missed: dict[str, float] | None = Field(
        default=None,
        description="Estimated number of instances missed, with an interval; the unjudged are not "
        "counted in it.",
    )
    ended_by: str = Field(description="done, budget, cancelled or no answer.")


class _Jobs:
    """Runs each job once at a time, and keeps its last result."""

    def __init__(self, folder: Path, make_finder: Callable[[], InstanceFinder]) -> None:
        self._folder = folder
        self._make_finder = make_finder
        self._finder: InstanceFinder | None = None
        self._turn = threading.Lock()
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._done: dict[str, Statement] = {}

    def finder(self) -> InstanceFinder:
        with self._turn:
            if self._finder is None:
                self._finder = self._make_finder()
            return self._finder

    def open(self, arguments: dict[str, Any], job_id: str | None) -> tuple[str, dict[str, Any]]:
        """Return a job's id and arguments, from either of the two."""
        if job_id is not None:
            path = self._folder / job_id / _ARGUMENTS
            if _JOB_ID.fullmatch(job_id) and path.is_file():
                arguments = _read(path)
                # Other stores and judges may keep their jobs in the same folder.
                if self._id(arguments) == job_id:
                    return job_id, arguments
            raise ValueError(
                f"there is no job {job_id!r} of this store and its judges; call with a concept to "
                "start one"
            )
        if not any(arguments[name] for name in ("concept", "all_of", "any_of")):
            raise ValueError(
                "give a concept to look for, descriptions in all_of or any_of, or the job_id of an "
                "earlier call"
            )
        job_id = self._id(arguments)
        folder = self._folder / job_id
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(folder / _ARGUMENTS) as file:
            json.dump(arguments, file)
        return job_id, arguments

    def _id(self, arguments: Any) -> str:
        identity = [arguments, self.finder().index.store.id, *self.finder().judges]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def run(
        self,
        job_id: str,
        arguments: dict[str, Any],
        cancel: threading.Event,
        tell: Callable[[str], None],
    ) -> Statement:
        """Run a job, or go on with it, or give its result."""
        with self._turns[job_id]:
            if job_id in self._done:
                return self._done[job_id]
            concept = arguments["concept"]
            others = {key: value for key, value in arguments.items() if key != "concept"}
            folder = self._folder / job_id
            statement = None
            for event in self.finder().stream(concept, **others, record=folder, cancel=cancel):
                tell(f"job {job_id}: {event.message} ({event.matched:,} instances so far)")
                statement = event.statement
            assert statement is not None  # the last event has it
            if str(statement.ended_by) == "done":
                self._done[job_id] = statement
            return statement


def _read(path: Path) -> Any:
    """Read a job's arguments; what is damaged is those of no job."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def find_instances_tool(
    folder: str | Path,
    *,
    rerank: Reranker | str | None = None,
    llm: LLM | None = None,
    settings: FinderSettings | None = None,
) -> ToolMaker:
    """Make the tool for `create_server(..., more_tools=[...])`.

    Args:
        folder: For the records of the jobs, made if missing.
        rerank: A calibrated reranker or its name; None takes the finder's default.
        llm: A language model, whose budget holds over all jobs.
        settings: None takes the defaults.
    """

    def make(open_index: Callable[[], DescriptionIndex]) -> Tool:
        def make_finder() -> InstanceFinder:
            from descsim_tools.agents.finder import DEFAULT_RERANK, InstanceFinder

            return InstanceFinder(
                open_index(), rerank=rerank or DEFAULT_RERANK, llm=llm, settings=settings
            )

        jobs = _Jobs(Path(folder), make_finder)

        async def find_instances(
            ctx: Context[Any, Any],
            concept: Annotated[str | None, Field(description=CONCEPT_HELP)] = None,
            all_of: Annotated[list[str] | None, Field(description=ALL_OF_HELP)] = None,
            any_of: Annotated[list[str] | None, Field(description=ANY_OF_HELP)] = None,
            none_of: Annotated[list[str] | None, Field(description=NONE_OF_HELP)] = None,
            job_id: Annotated[str | None, Field(description=_JOB_HELP)] = None,
            first: Annotated[int, Field(ge=0, description=_FIRST_HELP)] = 0,
        ) -> FoundInstances:
            conditions = {"all_of": all_of, "any_of": any_of, "none_of": none_of}
            given = {"concept": concept, **{k: v or [] for k, v in conditions.items()}}
            return await _found(ctx, jobs, given, job_id, first)

        return make_tool(find_instances, TOOL_NAME, TOOL_DESCRIPTION)

    return make


async def _found(
    ctx: Context[Any, Any], jobs: _Jobs, given: dict[str, Any], job_id: str | None, first: int
) -> FoundInstances:
    progress = Progress(ctx)
    opening = functools.partial(jobs.open, given, job_id)
    job, arguments = await progress.run("opening the store and its encoder", opening)
    told = [f"job {job}: starting"]
    cancel = threading.Event()
    try:
        statement = await progress.run(
            lambda: told[-1], functools.partial(jobs.run, job, arguments, cancel, told.append)
        )
    finally:
        cancel.set()  # when the client has left, the job stops; its record stays
    return FoundInstances(job_id=job, **statement_to_dict(statement, first))
