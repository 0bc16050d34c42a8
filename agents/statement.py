"""What a search for all instances found, and how complete it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from descsim_tools.agents.plan import Plan, Query
from descsim_tools.integrations.tooling import plain
from descsim_tools.text import printable


class Status(StrEnum):
    """What became of a row."""

    MATCHED = "matched"
    REJECTED = "rejected"
    UNJUDGED = "unjudged"


class Decider(StrEnum):
    """Who decided a row."""

    SCORE = "score"
    CROSS_ENCODER = "cross-encoder"
    MODEL = "model"
    PERSON = "person"


class EndedBy(StrEnum):
    """Why a search ended."""

    DONE = "done"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a row, and why.

    Attributes:
        status: Matched, rejected or unjudged.
        decided_by: Who decided; None if nobody did.
        reason: For people.
        evidence: Words of the row that show it.
        unjudged_for: Why nobody decided, as one of a few words: `budget`, `cut`, `refusal`,
            `unsure` and so on; empty for what is decided.
        model: Name of the model, if one decided.
    """

    status: Status
    decided_by: Decider | None
    reason: str
    evidence: str = ""
    unjudged_for: str = ""
    model: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` made."""
        by = fields["decided_by"]
        return cls(**{
            **fields,
            "status": Status(fields["status"]),
            "decided_by": None if by is None else Decider(by),
        })  # fmt: skip


def unjudged(why: str, reason: str) -> Verdict:
    """Return the verdict of a row that nobody decided."""
    return Verdict(Status.UNJUDGED, None, reason, unjudged_for=why)


@dataclass(frozen=True, slots=True)
class Row:
    """An examined sentence.

    Attributes:
        id: In the store.
        text: The sentence, exactly as stored.
        metadata: Where it comes from; for a part of a longer text also `span_of`, `span_start` and
            `span_end`, in characters.
        score: Cosine similarity with what is looked for, in [-1, 1].
        probability: That it is an instance, by the cross-encoder; None if it did not read it.
        found_by: The description or the sentence by which it was found.
        verdict: What became of it.
        span: Where the evidence lies in the text, in characters; None if there is none.
        truncated: Whether the cross-encoder read only a part of it.
    """

    id: str
    text: str
    metadata: Mapping[str, Any]
    score: float
    found_by: str
    verdict: Verdict
    probability: float | None = None
    span: tuple[int, int] | None = None
    truncated: bool = False

    @property
    def status(self) -> Status:
        """Matched, rejected or unjudged."""
        return self.verdict.status

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON has it."""
        verdict = self.verdict
        return {
            "id": self.id,
            "status": str(verdict.status),
            "decided_by": None if verdict.decided_by is None else str(verdict.decided_by),
            "model": verdict.model or None,
            "reason": verdict.reason,
            "unjudged_for": verdict.unjudged_for or None,
            "evidence": verdict.evidence or None,
            "span": None if self.span is None else list(self.span),
            "probability": None if self.probability is None else round(self.probability, 6),
            "score": round(self.score, 6),
            "text": self.text,
            "metadata": plain(self.metadata),
            "found_by": self.found_by,
            "truncated": self.truncated,
        }


@dataclass(frozen=True, slots=True)
class Band:
    """A part of what was not matched, and how many instances it may hold.

    Attributes:
        name: For people.
        low: Lower end of the band, in similarity or probability.
        high: Upper end, which is not within.
        size: Rows in it.
        read: Rows of it that the cross-encoder read.
        judged: Rows of it that the language model judged as a sample.
        found: How many of those are instances; they are matched now and count no longer.
        estimate: Instances left in it.
    """

    name: str
    low: float
    high: float
    size: int
    read: int
    judged: int
    found: int
    estimate: float


@dataclass(frozen=True, slots=True)
class Missed:
    """How many instances are estimated to be missed, not counting what is unjudged.

    Attributes:
        estimate: Their number, as expected.
        low: Lower end of the interval.
        high: Upper end.
        confidence: That the interval holds the number, if the assumptions do.
        method: How it was estimated, and what that assumes.
        bands: Where they may be.
    """

    estimate: float
    low: int
    high: int
    confidence: float
    method: str
    bands: tuple[Band, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON has it."""
        return {**asdict(self), "estimate": round(self.estimate, 2)}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of retrieval.

    Attributes:
        number: From 0, the plan's own.
        descriptions: Those first searched for in it.
        neighbours_of: Confirmed instances whose neighbours were looked at.
        examined: Rows first examined in it.
        matched: How many of them are instances.
    """

    number: int
    descriptions: tuple[str, ...]
    neighbours_of: int
    examined: int
    matched: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a search cost, over all its runs if it has a record.

    Of a run that was killed, requests that were under way count at the most that they can cost.

    Attributes:
        requests: Sent to the language model.
        tokens_in: It read.
        tokens_out: It wrote.
        money: In the currency of the price; 0 without one.
        seconds: It took.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    money: float = 0.0
    seconds: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """Return the sum of two."""
        return Cost(
            self.requests + other.requests,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.money + other.money,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """All instances that were found, and how complete that is.

    `examined` = `matched` + `rejected` + `unjudged`. Unjudged is never "no": such rows are listed
    with the reason.

    Attributes:
        query: What was looked for.
        plan: The descriptions that were searched for.
        stored: Sentences in the store that the filter lets through; None if not counted.
        rows: Every examined row: matched, then unjudged, then rejected, the most probable first.
        missed: Estimate of the instances that are neither among the matched nor among the unjudged;
            None if not estimated.
        rounds: What each round gave.
        cost: Of this search.
        ended_by: Why it ended.
        stopped: What ended it, in words, if it is not done.
        judges: Who could decide, in order: names of the cross-encoder and the model.
        accept: Least probability of an instance by the cross-encoder alone.
        where: The filter on metadata.
    """

    query: Query
    plan: Plan
    stored: int | None
    rows: tuple[Row, ...]
    missed: Missed | None
    rounds: tuple[Round, ...]
    cost: Cost
    ended_by: EndedBy
    accept: float
    stopped: str = ""
    judges: tuple[str, ...] = ()
    where: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", Counter(str(row.status) for row in self.rows))

    @property
    def examined(self) -> int:
        """Rows that were looked at."""
        return len(self.rows)

    @property
    def matched(self) -> int:
        """Rows that are instances."""
        return self.counts.get(Status.MATCHED, 0)

    @property
    def rejected(self) -> int:
        """Rows that are none."""
        return self.counts.get(Status.REJECTED, 0)

    @property
    def unjudged(self) -> int:
        """Rows that nobody decided."""
        return self.counts.get(Status.UNJUDGED, 0)

    @property
    def instances(self) -> tuple[Row, ...]:
        """The matched rows."""
        return tuple(row for row in self.rows if row.status is Status.MATCHED)

    @property
    def unjudged_for(self) -> dict[str, int]:
        """Number of unjudged rows by the reason."""
        reasons = (row.verdict.unjudged_for for row in self.rows if row.status is Status.UNJUDGED)
        return dict(Counter(reasons).most_common())

    @property
    def decided_by(self) -> dict[str, int]:
        """Number of decided rows by who decided."""
        deciders = (row.verdict.decided_by for row in self.rows)
        return dict(Counter(str(decider) for decider in deciders if decider).most_common())

    @property
    def not_counted(self) -> str:
        """What the estimate leaves out, as the end of a sentence; empty if nothing."""
        return f", not counting the {self.unjudged:,} unjudged" if self.unjudged else ""

    def to_dict(self, *, rows: bool = True) -> dict[str, Any]:
        """Return as JSON has it, with or without the rows."""
        facts: dict[str, Any] = {
            "query": self.query.to_dict(),
            "where": None if self.where is None else dict(self.where),
            "plan": self.plan.to_dict(),
            "judges": list(self.judges),
            "accept": self.accept,
            "stored": self.stored,
            "examined": self.examined,
            "matched": self.matched,
            "rejected": self.rejected,
            "unjudged": self.unjudged,
            "unjudged_for": self.unjudged_for,
            "decided_by": self.decided_by,
            "missed": None if self.missed is None else self.missed.to_dict(),
            "rounds": [asdict(one) for one in self.rounds],
            "cost": asdict(self.cost),
            "ended_by": str(self.ended_by),
            "stopped": self.stopped,
        }
        return {**facts, "rows": [row.to_dict() for row in self.rows]} if rows else facts

    def __str__(self) -> str:
        return printable("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the statement in words, a line each."""
        of = "" if self.stored is None else f" of {self.stored:,}"
        found = [
            f"{self.matched:,} matched, {self.rejected:,} rejected, {self.unjudged:,} unjudged; "
            f"{self.examined:,}{of} sentences examined"
        ]
        if self.unjudged:
            found.append("unjudged, which is not no: " + _counts(self.unjudged_for))
        if self.decided_by:
            found.append("decided by: " + _counts(self.decided_by))
        found.append(self._missed_line())
        cost = self.cost
        asked = f"{cost.requests:,} requests, {cost.tokens_in + cost.tokens_out:,} tokens"
        money = f", {cost.money:.4f} spent" if cost.money else ""
        found.append(f"cost: {asked}{money}, {cost.seconds:.1f} s" if cost.requests else
                     f"cost: no request to a model, {cost.seconds:.1f} s")  # fmt: skip
        if self.plan.note:
            found.append(self.plan.note)
        if self.ended_by is not EndedBy.DONE:
            found.append(f"ended by {self.ended_by}: {self.stopped}")
        return found

    def _missed_line(self) -> str:
        if self.missed is None:
            return "instances missed: not estimated"
        return (
            f"instances missed: about {self.missed.estimate:.1f} "
            f"({self.missed.confidence:.0%} interval {self.missed.low:,} to {self.missed.high:,})"
            f"{self.not_counted}"
        )


def ordered(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows as a statement lists them."""
    first = {Status.MATCHED: 0, Status.UNJUDGED: 1, Status.REJECTED: 2}
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                first[row.status],
                -(row.probability if row.probability is not None else row.score),
                row.id,
            ),
        )
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())
