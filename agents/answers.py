"""What an answer is: statements, each with citations that were checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from descsim_tools.integrations.tooling import plain
from descsim_tools.types import Hit


class Status(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    NOT_IN_CORPUS = "not in the corpus"
    BADLY_ASKED = "badly asked"
    TALK = "talk"
    """A turn of a chat that asks for nothing from the corpus, such as a greeting."""
    NO_ANSWER = "no answer"
    """The model gave nothing usable, which says nothing about the corpus."""
    OUT_OF_BUDGET = "out of budget"


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote that stands in a sentence of the corpus.

    Attributes:
        number: Its mark in the answer, `[1]` for 1.
        id: Id of the sentence in the store.
        text: The whole sentence.
        quote: The quoted part, as it stands in the sentence.
        span: Where the quote begins and ends in the sentence, in characters.
        metadata: The sentence's metadata.
        score: The score that it was found with, higher is better.
    """

    number: int
    id: str
    text: str
    quote: str
    span: tuple[int, int]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A description that was tried, and the best sentence that it finds."""

    description: str
    hit: Hit


@dataclass(frozen=True, slots=True)
class Dropped:
    """A statement of the model that is not in the answer, as its citations are not right."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or what stands in the way of one.

    Attributes:
        status: What became of the question.
        question: The question that was answered; in a chat, the turn put so that it stands alone.
        text: The statements with marks such as `[1]`, or a sentence that says why there are none.
        citations: What the marks stand for.
        descriptions: What the corpus was searched for.
        sources: The sentences that the model was given.
        suggestions: For a badly asked question, descriptions that find something.
        dropped: Statements that were left out.
        problem: What went wrong, if something did.
        requests: Requests sent to the model.
        tokens_in: Tokens that it read.
        tokens_out: Tokens that it wrote.
        cost: Money, if the client knows a price. These four are differences in the account of the
            client, so they include what others ask of the same client at the same time.
        seconds: Time it took.
    """

    status: Status
    question: str
    text: str
    citations: tuple[Citation, ...] = ()
    descriptions: tuple[str, ...] = ()
    sources: tuple[Hit, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    problem: str = ""
    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; dates in metadata become strings."""
        return plain(asdict(self))
