"""`Chatbot`: a conversation over a store, whose answers have checked citations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from descsim_tools.agents import rag_prompts as prompts
from descsim_tools.agents.answers import Answer, Status
from descsim_tools.agents.files import written_whole
from descsim_tools.agents.rag import (
    Begun,
    Event,
    Planned,
    RagAnswerer,
    check_question,
    described,
    fitting,
    in_threads,
    last,
)
from descsim_tools.agents.statements import one_line, own_words
from descsim_tools.errors import DataError, LLMError
from descsim_tools.llm.structured import well_formed
from descsim_tools.types import Hit

MEMORY_CHARACTERS = 16_000
"""Most characters of a conversation that a model is shown, about 4,000 tokens."""

TURN_CHARACTERS = MEMORY_CHARACTERS // 2
"""Most characters of one of its turns."""

_FORMAT = 1
_FAILED = (Status.NO_ANSWER, Status.OUT_OF_BUDGET)
_MORE = " ..."
_GREETING = "Ask me for something that the corpus may hold."


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user said and what the chatbot answered."""

    said: str
    answer: Answer

    def shown(self) -> dict[str, Any]:
        """Return it as the model sees it later: of a turn too long, the beginning of each part."""
        cited = dict.fromkeys(citation.text for citation in self.answer.citations)
        user, assistant, *sentences = _cut([self.said, self.answer.text, *cited])
        return {"user": user, "assistant": assistant, "cited": sentences}

    @property
    def size(self) -> int:
        """Characters that the model is shown of it."""
        shown = self.shown()
        return sum(map(len, [shown["user"], shown["assistant"], *shown["cited"]]))


class Chatbot:
    """Answers turn by turn and remembers the last ones.

    The model turns each turn, in its context, into descriptions to search for, unless it asks about
    sentences that were cited before or for nothing from the corpus. Answers come from a
    `RagAnswerer` and have its guarantees.

    Memory is bounded: the model is shown at most `turns` turns and `MEMORY_CHARACTERS` characters
    of them, and the oldest are forgotten first; they are not summarised. Of a turn that alone is
    over `TURN_CHARACTERS` the model is shown the beginning of each part. A turn that got no answer,
    as the model or the budget failed, is not remembered.

    A chatbot holds one conversation: give it one turn at a time.

        >>> bot = Chatbot(RagAnswerer(DescriptionIndex.open("my-store"), LLM("gpt-5-mini")))
        ... print(bot.ask("Do any animals get drunk?").text)
        ... print(bot.ask("And plants?").text)

    Attributes:
        answerer: What answers.
        turns: The turns that are remembered, oldest first.
    """

    def __init__(self, answerer: RagAnswerer, *, turns: int = 10) -> None:
        """Begin a conversation.

        Args:
            answerer: What answers.
            turns: Most turns that are remembered.

        Raises:
            ValueError: `turns` is below 0.
        """
        if turns < 0:
            raise ValueError(f"turns is {turns}, need a number from 0 up")
        self.answerer = answerer
        self.turns: tuple[Turn, ...] = ()
        self._most = turns

    def ask(self, said: str) -> Answer:
        """Answer a turn."""
        return last(self.stream(said))

    def stream(self, said: str) -> Iterator[Event]:
        """Answer a turn and tell of each step when it is done; remember it at the end."""
        for event in self.reply(said, self.turns):
            if isinstance(event, Answer):
                self.turns = self.remembered([*self.turns, Turn(said, event)])
            yield event

    async def aask(self, said: str) -> Answer:
        """Answer a turn in a thread."""
        return await asyncio.to_thread(self.ask, said)

    def astream(self, said: str) -> AsyncIterator[Event]:
        """Answer a turn in threads and tell of each step when it is done."""
        return in_threads(self.stream(said))

    def reply(self, said: str, turns: Sequence[Turn]) -> Iterator[Event]:
        """Answer a turn after others, for a caller who remembers them; nothing is kept here."""
        return self.answerer.go_on(self.plan(said, turns))

    def plan(self, said: str, turns: Sequence[Turn]) -> Planned | Answer:
        """Ask the model what to do about a turn after others.

        Raises:
            ValueError: The turn is no text.
        """
        check_question(said)
        turns = self.remembered(turns)
        begun = Begun(self.answerer.llm.spent)
        asked = Planned(said, (), begun)
        if not said.strip():
            return self.answerer.end(asked, Status.TALK, _GREETING)
        request = prompts.plan_turn(said, [turn.shown() for turn in turns])
        try:
            plan = self.answerer.llm.parse(request, prompts.TurnPlan)
        except LLMError as error:
            return self.answerer.planless(said, begun, error)
        reply = own_words(plan.reply)
        if plan.kind is prompts.TurnKind.TALK:
            return self.answerer.end(asked, Status.TALK, reply or _GREETING)
        question = one_line(plan.question) or said
        cited = cited_in(turns) if plan.kind is prompts.TurnKind.CITED else ()
        if cited:
            return Planned(question, (), begun, sources=cited)
        objection = ""
        if plan.kind is prompts.TurnKind.BADLY_ASKED:
            objection = reply or "This cannot be answered from sentences."
        return Planned(question, described(plan.descriptions, question), begun, objection)

    def remembered(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return of a conversation what is remembered: its last turns that did not fail."""
        usable = [turn for turn in turns if turn.answer.status not in _FAILED]
        kept: list[Turn] = []
        size = 0
        for turn in reversed(usable[-self._most :] if self._most else []):
            size += turn.size
            if size > MEMORY_CHARACTERS:
                break
            kept.append(turn)
        return tuple(reversed(kept))

    def reset(self) -> None:
        """Forget the conversation."""
        self.turns = ()

    def save(self, path: str | Path) -> None:
        """Write what is remembered to a JSON file, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        payload = {"format": _FORMAT, "turns": turns_to_list(self.turns)}
        with written_whole(path) as file:
            json.dump(payload, file, ensure_ascii=False, indent=1)

    def load(self, path: str | Path) -> None:
        """Go on with a conversation that was saved.

        Raises:
            DataError: The file holds no conversation, or one in another format.
        """
        try:
            payload = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read as a conversation: {error}") from error
        if not isinstance(payload, dict) or payload.get("format") != _FORMAT:
            raise DataError(
                f"{path} holds no conversation of format {_FORMAT}; give a file that "
                "Chatbot.save wrote"
            )
        self.turns = self.remembered(turns_from_list(payload.get("turns")))


def turns_to_list(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return turns as JSON has them."""
    return [{"said": turn.said, "answer": turn.answer.to_dict()} for turn in turns]


def turns_from_list(listed: object) -> list[Turn]:
    """Return turns that came as JSON.

    Raises:
        DataError: They are none.
    """
    try:
        return _TURNS.validate_python(well_formed(listed))
    except TypeError as error:
        raise DataError(f"this is no conversation: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise DataError(f"this is no conversation: {where}: {first['msg']}") from error


def _cut(parts: Sequence[str]) -> list[str]:
    """Cut the longest parts of a turn, so that the whole is not too long."""
    if sum(map(len, parts)) <= TURN_CHARACTERS:
        return list(parts)
    room = TURN_CHARACTERS // len(parts)
    return [part if len(part) <= room else part[: room - len(_MORE)] + _MORE for part in parts]


def cited_in(turns: Sequence[Turn]) -> tuple[Hit, ...]:
    """Return the sentences that were cited, the latest turn's first, as many as fit."""
    hits: dict[str, Hit] = {}
    for turn in reversed(turns):
        for citation in turn.answer.citations:
            hit = Hit(citation.id, citation.score, len(hits) + 1, citation.text, citation.metadata)
            hits.setdefault(citation.id, hit)
    return fitting(list(hits.values()))


_TURNS = TypeAdapter(list[Turn])
