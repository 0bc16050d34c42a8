"""What to look for: conditions, and descriptions of each at different abstraction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from descsim_tools.agents.foreign import check_utf8
from descsim_tools.errors import LLMError

if TYPE_CHECKING:
    from descsim_tools.llm import LLM

Floats = NDArray[np.float64]

MOST_DESCRIPTIONS = 4
"""Descriptions of a condition that a model may add to the user's own."""

_LONGEST = 300
_PLAN_TASK = """\
A user wants all sentences of a corpus that are concrete instances of what he describes. Sentences \
are found by descriptions: abstract statements of what a sentence is about, in general words.
For each numbered condition give up to {most} further descriptions of the same thing, some more \
abstract and some more concrete than the user's own, each a noun phrase or a clause, without \
names. A description must not be broader than the condition: what fits it should fit the condition.
Then say in does_not_count what is close to the conditions and yet no instance."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a sentence must fit to be an instance.

    Attributes:
        all_of: Descriptions that must all fit.
        any_of: Descriptions of which one must fit, if there are any.
        none_of: Descriptions of which none may fit.
    """

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.positive:
            raise ValueError(
                "there is nothing to look for; give a concept, or descriptions in all_of or any_of"
            )

    @classmethod
    def of(
        cls,
        concept: str | None = None,
        *,
        all_of: Iterable[str] = (),
        any_of: Iterable[str] = (),
        none_of: Iterable[str] = (),
    ) -> Query:
        """Make a query; the concept is the first of those that must all fit.

        Raises:
            TypeError: A list of descriptions is a string.
            ValueError: A description is blank, or there is nothing to look for.
        """
        first = () if concept is None else _texts((concept,), "concept")
        others = _texts(_listed(all_of, "all_of"), "all_of")
        return cls(
            tuple(dict.fromkeys((*first, *others))),
            _texts(_listed(any_of, "any_of"), "any_of"),
            _texts(_listed(none_of, "none_of"), "none_of"),
        )

    @property
    def positive(self) -> tuple[str, ...]:
        """Descriptions that sentences are retrieved by."""
        return self.all_of + self.any_of

    @property
    def conditions(self) -> tuple[str, ...]:
        """All descriptions: of `all_of`, `any_of`, `none_of`, in this order."""
        return self.all_of + self.any_of + self.none_of

    def probability(self, each: Floats) -> Floats:
        """Combine the probabilities of the conditions.

        The least probable of `all_of`, the most probable of `any_of`, and the least probable of
        not fitting one of `none_of` decide: conditions of one sentence are no independent events.

        Args:
            each: (n, conditions), in the order of `conditions`.

        Returns:
            (n,) probabilities that a sentence is an instance.
        """
        ends = (len(self.all_of), len(self.positive))
        every, some, none = np.split(each, ends, axis=1)
        parts = [every, 1 - none] + ([some.max(axis=1, keepdims=True)] if self.any_of else [])
        return np.asarray(np.concatenate(parts, axis=1).min(axis=1))

    def similarity(self, each: Floats) -> Floats:
        """Combine cosines with the positive conditions, (n, positive), into (n,)."""
        every, some = np.split(each, [len(self.all_of)], axis=1)
        parts = [every] + ([some.max(axis=1, keepdims=True)] if self.any_of else [])
        return np.asarray(np.concatenate(parts, axis=1).min(axis=1))

    def to_dict(self) -> dict[str, list[str]]:
        """Return as JSON has it."""
        return {
            "all_of": list(self.all_of),
            "any_of": list(self.any_of),
            "none_of": list(self.none_of),
        }

    def __str__(self) -> str:
        parts = ["; and ".join(self.all_of)] if self.all_of else []
        parts += [f"any of: {'; '.join(self.any_of)}"] if self.any_of else []
        parts += [f"none of: {'; '.join(self.none_of)}"] if self.none_of else []
        return " - ".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is searched for.

    Attributes:
        descriptions: For each positive condition its descriptions, the user's own first.
        does_not_count: What is close and no instance; told to the model that judges.
        made_by: Name of the model, or `user`.
        note: Why there is no plan of a model, where one was asked.
        failed_for: The same in a word: `budget`, `cut`, `refusal` and so on.
    """

    descriptions: Mapping[str, tuple[str, ...]]
    does_not_count: tuple[str, ...] = ()
    made_by: str = "user"
    note: str = ""
    failed_for: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON has it."""
        return {
            "descriptions": {key: list(texts) for key, texts in self.descriptions.items()},
            "does_not_count": list(self.does_not_count),
            "made_by": self.made_by,
            "note": self.note,
            "failed_for": self.failed_for,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        """Read what `to_dict` made."""
        return cls(
            {key: tuple(texts) for key, texts in fields["descriptions"].items()},
            tuple(fields["does_not_count"]),
            fields["made_by"],
            fields["note"],
            fields["failed_for"],
        )


class PlannedCondition(BaseModel):
    """What a model says of one condition."""

    number: int
    descriptions: list[str]


class PlanAnswer(BaseModel):
    """What a model is asked for."""

    conditions: list[PlannedCondition]
    does_not_count: list[str]


def user_plan(query: Query, note: str = "", failed_for: str = "") -> Plan:
    """Take the user's text as it is."""
    return Plan({text: (text,) for text in query.positive}, note=note, failed_for=failed_for)


def failure_of(error: LLMError) -> str:
    """Return in a word why a model gave nothing that can be used."""
    from descsim_tools.llm import (
        BudgetError,
        CancelledError,
        NoAnswerError,
        NoModelError,
        OutputError,
    )

    if isinstance(error, BudgetError):
        return "budget"
    if isinstance(error, CancelledError):
        return "cancelled"
    if isinstance(error, NoAnswerError | NoModelError):
        return "no answer"
    return error.kind if isinstance(error, OutputError) else "refused"


def make_plan(query: Query, llm: LLM | None, cancelled: Callable[[], bool] = lambda: False) -> Plan:
    """Ask a model for descriptions; no text of the corpus is in what it reads.

    A model that fails, declines or is over its budget leaves the user's text as it is, with a note.

    Raises:
        NoModelError: There is no such server or model, or the key is refused.
    """
    if llm is None:
        return user_plan(query)
    from descsim_tools.llm import NoModelError

    try:
        answer = llm.parse(_plan_messages(query), PlanAnswer, cancelled=cancelled)
    except NoModelError:
        raise
    except LLMError as error:
        return user_plan(query, f"no plan by {llm.model}: {error}", failure_of(error))
    given = {planned.number: planned.descriptions for planned in answer.conditions}
    descriptions = {
        text: (text, *cleaned(given.get(number, []), MOST_DESCRIPTIONS, (text,)))
        for number, text in enumerate(query.positive, start=1)
    }
    return Plan(descriptions, cleaned(answer.does_not_count, 6), llm.model)


def cleaned(texts: Iterable[str], most: int, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the first texts that are new, not blank and not overlong, with plain spaces."""
    seen = {text.casefold() for text in known}
    kept: list[str] = []
    for text in texts:
        plain = " ".join(text.split())
        if plain and len(plain) <= _LONGEST and plain.casefold() not in seen:
            seen.add(plain.casefold())
            kept.append(plain)
    return tuple(kept[:most])


def criterion(query: Query, plan: Plan) -> str:
    """Return what is looked for as a model is told, in JSON."""
    told = {key: texts for key, texts in query.to_dict().items() if texts}
    return json.dumps({**told, "does_not_count": list(plan.does_not_count)}, ensure_ascii=False)


@dataclass
class Searches:
    """The descriptions that were searched for, in order, and the condition of each.

    Attributes:
        texts: Descriptions.
        owner: For each, the number of its condition among the positive ones.
    """

    texts: list[str] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)

    def add(self, text: str, owner: int) -> None:
        """Add a description."""
        self.texts.append(text)
        self.owner.append(owner)


def _plan_messages(query: Query) -> list[dict[str, str]]:
    conditions = [
        {"number": number, "condition": text} for number, text in enumerate(query.positive, start=1)
    ]
    told = {"conditions": conditions, "must_not_fit": list(query.none_of)}
    return [
        {"role": "system", "content": _PLAN_TASK.format(most=MOST_DESCRIPTIONS)},
        {"role": "user", "content": json.dumps(told, ensure_ascii=False)},
    ]


def _listed(texts: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise TypeError(f"{name} is one string, need a list of descriptions: [{texts!r}]")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{name} is {texts!r}, need a list of descriptions")
    return tuple(texts)


def _texts(texts: tuple[str, ...], name: str) -> tuple[str, ...]:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} holds {text!r} ({type(text).__name__}), need strings")
        if not text.strip():
            raise ValueError(f"{name} has a blank description; say what you look for")
        check_utf8(text, name)
    return tuple(dict.fromkeys(" ".join(text.split()) for text in texts))
