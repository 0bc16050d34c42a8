"""LlamaIndex: answers and chat as workflows, the finder as a tool.

Needs `pip install "descsim-tools[llama-index,openai]"`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

from descsim_tools.errors import require

require("llama_index.core", "llama-index")

from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from descsim_tools.agents.answers import Answer
from descsim_tools.agents.chat import Chatbot, Turn, turns_from_list, turns_to_list
from descsim_tools.agents.finder import InstanceFinder
from descsim_tools.agents.rag import Found, Planned, RagAnswerer
from descsim_tools.agents.statement import Statement
from descsim_tools.agents.tooling import TOOL_DESCRIPTION, TOOL_NAME, FindArguments, answer

__all__ = [
    "ChatWorkflow",
    "FoundEvent",
    "FoundInstances",
    "PlannedEvent",
    "QuestionEvent",
    "RagWorkflow",
    "TurnEvent",
    "find_instances_tool",
]

T = TypeVar("T", bound=Event)

_TURNS = "descsim_turns"


class QuestionEvent(StartEvent):
    """A question."""

    question: str


class TurnEvent(StartEvent):
    """What a user says in a chat."""

    said: str


class PlannedEvent(Event):
    """What will be searched for; also on the stream."""

    said: str
    planned: Planned


class FoundEvent(Event):
    """What was found; also on the stream."""

    said: str
    found: Found


class _Steps(Workflow):
    """What follows from a plan."""

    def __init__(
        self, answerer: RagAnswerer, *, timeout: float | None = None, **settings: Any
    ) -> None:
        # LlamaIndex's own default is 45 s, which ends a run before the client gives up.
        super().__init__(timeout=timeout, **settings)
        self._answerer = answerer

    @step
    async def search(self, ctx: Context, event: PlannedEvent) -> FoundEvent | StopEvent:
        """Search the store."""
        found = await asyncio.to_thread(self._answerer.search, event.planned)
        if isinstance(found, Answer):
            return await self._end(ctx, event.said, found)
        return _told(ctx, FoundEvent(said=event.said, found=found))

    @step
    async def write(self, ctx: Context, event: FoundEvent) -> StopEvent:
        """Write the answer and check its citations."""
        answer = await asyncio.to_thread(self._answerer.write, event.found)
        return await self._end(ctx, event.said, answer)

    async def _begin(
        self, ctx: Context, said: str, planned: Planned | Answer
    ) -> PlannedEvent | StopEvent:
        if isinstance(planned, Answer):
            return await self._end(ctx, said, planned)
        return _told(ctx, PlannedEvent(said=said, planned=planned))

    async def _end(self, ctx: Context, said: str, answer: Answer) -> StopEvent:
        return StopEvent(result=answer)


class RagWorkflow(_Steps):
    """Answers a question: `answer = await RagWorkflow(answerer).run(question="...")`.

    The result is an `Answer`; the stream has a `PlannedEvent` and a `FoundEvent`.

    Args:
        answerer: What answers.
        timeout: Seconds for a run; by default only the client's own time-outs hold.
        **settings: Other settings of a workflow, such as `verbose`.
    """

    @step
    async def plan(self, ctx: Context, event: QuestionEvent) -> PlannedEvent | StopEvent:
        """Turn the question into descriptions."""
        planned = await asyncio.to_thread(self._answerer.plan, event.question)
        return await self._begin(ctx, event.question, planned)


class ChatWorkflow(_Steps):
    """Answers a turn: `answer = await ChatWorkflow(bot).run(said="...", ctx=ctx)`.

    The context remembers the conversation: give each turn the same `ctx = Context(workflow)`. The
    chatbot's own memory is not used, but its bounds hold.

    Args:
        bot: What answers.
        timeout: Seconds for a run; by default only the client's own time-outs hold.
        **settings: Other settings of a workflow, such as `verbose`.
    """

    def __init__(self, bot: Chatbot, *, timeout: float | None = None, **settings: Any) -> None:
        super().__init__(bot.answerer, timeout=timeout, **settings)
        self._bot = bot

    @step
    async def plan(self, ctx: Context, event: TurnEvent) -> PlannedEvent | StopEvent:
        """Decide what to do about the turn."""
        turns = turns_from_list(await ctx.store.get(_TURNS, default=[]))
        planned = await asyncio.to_thread(self._bot.plan, event.said, turns)
        return await self._begin(ctx, event.said, planned)

    async def _end(self, ctx: Context, said: str, answer: Answer) -> StopEvent:
        turns = turns_from_list(await ctx.store.get(_TURNS, default=[]))
        kept = self._bot.remembered([*turns, Turn(said, answer)])
        await ctx.store.set(_TURNS, turns_to_list(kept))
        return await super()._end(ctx, said, answer)


def _told(ctx: Context, event: T) -> T:
    ctx.write_event_to_stream(event)
    return event


@dataclass(frozen=True)
class FoundInstances:
    """What the tool found; as text it is the JSON that a model gets."""

    statement: Statement

    def __str__(self) -> str:
        return answer(self.statement)


def find_instances_tool(
    finder: InstanceFinder, *, name: str = TOOL_NAME, description: str = TOOL_DESCRIPTION
) -> FunctionTool:
    """Make a tool that lets an agent find all instances.

    The model gets JSON text; the tool output's `raw_output` is a `FoundInstances`.

    Args:
        finder: Finds; its store and its language model's budget are its own.
        name: What the model calls it.
        description: What tells the model how to use it.
    """

    def find(**arguments: Any) -> FoundInstances:
        return FoundInstances(finder.find(**FindArguments(**arguments).model_dump()))

    async def afind(**arguments: Any) -> FoundInstances:
        return FoundInstances(await finder.afind(**FindArguments(**arguments).model_dump()))

    return FunctionTool.from_defaults(
        find, async_fn=afind, name=name, description=description, fn_schema=FindArguments
    )
