"""`RagAnswerer`: answers a question from a store, with citations that are checked by code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from descsim_tools.agents import rag_prompts as prompts
from descsim_tools.agents.answers import Answer, Dropped, Status, Suggestion
from descsim_tools.agents.citations import visible
from descsim_tools.agents.foreign import check_utf8
from descsim_tools.agents.statements import composed, faults_of, one_line, own_words
from descsim_tools.errors import LLMError
from descsim_tools.integrations.common import CANDIDATES, Reranker, SearchSettings, checked, find
from descsim_tools.llm import LLM, BudgetError, NoModelError, OutputError, Spent
from descsim_tools.rerankers import load_reranker
from descsim_tools.search import DescriptionIndex
from descsim_tools.types import Hit

DESCRIPTIONS = 3
"""Most descriptions that a question is turned into."""

SOURCE_CHARACTERS = 24_000
"""Most characters of sources that a model is given at once; the best sources come first."""

_LONGEST_DESCRIPTION = 500
_TRIED = 3  # sentences for each description that may be offered

_NOTHING_FOUND = "The corpus was searched, and nothing was found that answers this."
_NOTHING_FITS = "What was found in the corpus does not answer this."
_NOT_USABLE = "The model gave no usable answer."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """When work on a question began, and what had been spent by then."""

    spent: Spent
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Planned:
    """What will be done about a question.

    Attributes:
        question: The question, as it will be answered.
        descriptions: What the corpus is searched for.
        begun: When work on it began.
        objection: What is wrong with the question; then the descriptions are what may be meant.
        sources: Sentences to answer from, if no search is needed.
        problem: What went wrong so far.
    """

    question: str
    descriptions: tuple[str, ...]
    begun: Begun
    objection: str = ""
    sources: tuple[Hit, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The sentences that a question is answered from; there is at least one."""

    planned: Planned
    hits: tuple[Hit, ...]


Event = Planned | Found | Answer
"""What a stream yields, in this order; the answer is always last."""


class RagAnswerer:
    """Answers questions from a store by search and a language model.

    The model writes descriptions, the store is searched for them, and the model answers from what
    was found. It gets no tools. A statement stays only if the sentences that it cites were given to
    the model and hold the words that it quotes; what the statement makes of them is the model's.

        >>> answerer = RagAnswerer(DescriptionIndex.open("my-store"), LLM("gpt-5-mini"))
        ... answer = answerer.answer("Do any animals get drunk?")

    `answer`, `stream`, `aanswer` and `astream` return a status whatever the model does; the budget
    of the client holds. They raise NoModelError if there is no model to ask, and StoreError if the
    store cannot be read, and ValueError for a question that is no text. `plan`, `search` and
    `write` are their steps.
    """

    def __init__(
        self,
        index: DescriptionIndex,
        llm: LLM,
        *,
        k: int = 8,
        where: Mapping[str, Any] | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        rerank: Reranker | str | None = None,
        candidates: int = CANDIDATES,
    ) -> None:
        """Bring a store and a model together.

        Args:
            index: The store; whoever opened it closes it.
            llm: The model; whoever made it closes it.
            k: Most sentences for each description.
            where: Chroma's filter on metadata; the model cannot change it.
            min_score: Least cosine similarity of a sentence.
            min_probability: Least calibrated probability; needs a reranker that gives one.
            rerank: A reranker, or its name, see `descsim_tools.rerankers.load_reranker`.
            candidates: How many sentences a reranker is given.

        Raises:
            RerankerError: The reranker cannot be loaded.
            ValueError: A number is out of its range.
        """
        if k < 1 or candidates < 1:
            raise ValueError(f"k is {k} and candidates {candidates}, need numbers from 1 up")
        if isinstance(rerank, str):
            rerank = load_reranker(rerank, device=index.encoder.device)
        if min_probability is not None and rerank is None:
            raise ValueError(f"min_probability is {min_probability}, which needs a reranker")
        self.index = index
        self.llm = llm
        self._k = k
        self._settings: SearchSettings = checked(
            {
                "where": where,
                "min_score": min_score,
                "min_probability": min_probability,
                "reranker": rerank,
                "candidates": candidates,
            }
        )

    def answer(self, question: str) -> Answer:
        """Answer a question."""
        return last(self.stream(question))

    def stream(self, question: str) -> Iterator[Event]:
        """Answer a question and tell of each step when it is done."""
        return self.go_on(self.plan(question))

    async def aanswer(self, question: str) -> Answer:
        """Answer a question in a thread."""
        return await asyncio.to_thread(self.answer, question)

    def astream(self, question: str) -> AsyncIterator[Event]:
        """Answer a question in threads and tell of each step when it is done."""
        return in_threads(self.stream(question))

    def go_on(self, planned: Planned | Answer) -> Iterator[Event]:
        """Yield a plan and what follows from it."""
        yield planned
        if isinstance(planned, Answer):
            return
        found = self.search(planned)
        yield found
        if isinstance(found, Found):
            yield self.write(found)

    def plan(self, question: str) -> Planned | Answer:
        """Ask the model what to search for.

        Raises:
            ValueError: The question is no text.
        """
        check_question(question)
        begun = Begun(self.llm.spent)
        if not question.strip():
            blank = Planned(question, (), begun)
            return self.end(blank, Status.BADLY_ASKED, "The question is blank.")
        try:
            plan = self.llm.parse(prompts.plan_question(question), prompts.QuestionPlan)
        except LLMError as error:
            return self.planless(question, begun, error)
        objection = ""
        if plan.kind is prompts.Kind.BADLY_ASKED:
            objection = own_words(plan.problem) or "This cannot be answered from sentences."
        return Planned(question, described(plan.descriptions, question), begun, objection)

    def search(self, planned: Planned) -> Found | Answer:
        """Search for the descriptions of a plan; of a badly asked question, only try them."""
        if planned.sources:
            return Found(planned, planned.sources)
        if planned.objection:
            return self._object(planned)
        hits = merged([self._find(text, self._k) for text in planned.descriptions])
        if not hits:
            return self.end(planned, Status.NOT_IN_CORPUS, _NOTHING_FOUND)
        return Found(planned, fitting(hits))

    def write(self, found: Found) -> Answer:
        """Ask the model for statements, check their citations, and keep what is right."""
        planned = found.planned
        sources = {f"s{number}": hit for number, hit in enumerate(found.hits, start=1)}
        request = prompts.write_answer(planned.question, sources)
        try:
            draft = self.llm.parse(request, prompts.Draft)
        except LLMError as error:
            return self.failed(planned, error, sources=found.hits)
        if not draft.found:
            return self.end(planned, Status.NOT_IN_CORPUS, _NOTHING_FITS, sources=found.hits)
        kept, dropped, failure = self._checked(planned.question, sources, draft.statements)
        if failure is not None and not kept:
            return self.failed(planned, failure, sources=found.hits, dropped=dropped)
        if not kept:
            # What the model says it found may well be there; asked again, it may cite it rightly.
            self.llm.forget(request, prompts.Draft)
            wrong = "no statement had a right citation, also when it was asked for again"
            more: dict[str, Any] = {"sources": found.hits, "dropped": dropped}
            return self.end(planned, Status.NO_ANSWER, _NOT_USABLE, wrong, **more)
        text, citations = composed(kept, sources)
        return self.end(
            planned,
            Status.ANSWERED,
            text,
            citations=citations,
            sources=found.hits,
            dropped=dropped,
        )

    def planless(self, question: str, begun: Begun, error: LLMError) -> Planned | Answer:
        """Go on without a plan, if the model wrote one that cannot be used: search as was asked."""
        if isinstance(error, OutputError):
            problem = f"the plan cannot be used, so the question itself was searched for: {error}"
            return Planned(question, described([], question), begun, problem=problem)
        return self.failed(Planned(question, (), begun), error)

    def failed(self, planned: Planned, error: LLMError, **more: Any) -> Answer:
        """Return what a failure of the model comes to.

        Raises:
            NoModelError: There is no model to ask.
        """
        if isinstance(error, NoModelError):
            raise error
        if isinstance(error, BudgetError):
            status, text = Status.OUT_OF_BUDGET, "The budget does not allow another request."
        else:
            status, text = Status.NO_ANSWER, _NOT_USABLE
        return self.end(planned, status, text, str(error), **more)

    def end(
        self, planned: Planned, status: Status, text: str, problem: str = "", **more: Any
    ) -> Answer:
        """Make the answer, with the account of what it took."""
        before, after = planned.begun.spent, self.llm.spent
        return Answer(
            status,
            planned.question,
            text,
            descriptions=planned.descriptions,
            problem="; ".join(filter(None, [planned.problem, problem])),
            requests=after.requests - before.requests,
            tokens_in=after.tokens_in - before.tokens_in,
            tokens_out=after.tokens_out - before.tokens_out,
            cost=max(0.0, after.cost - before.cost),
            seconds=time.monotonic() - planned.begun.at,
            **more,
        )

    def _find(self, description: str, k: int) -> list[Hit]:
        return find(self.index, description, k, **self._settings)

    def _object(self, planned: Planned) -> Answer:
        """Say what is wrong with a question, and offer what was tried and finds an instance."""
        found = {}
        for number, description in enumerate(planned.descriptions, start=1):
            hits = self._find(description, _TRIED)
            sources = {f"d{number}s{hit.rank}": hit for hit in hits}
            if sources:
                found[f"d{number}"] = (description, sources)
        suggestions: tuple[Suggestion, ...] = ()
        problem = ""
        try:
            if found:
                named = self.llm.parse(prompts.try_descriptions(found), prompts.Instances)
                suggestions = suggested(found, named.instances)
        except NoModelError:
            raise
        except LLMError as error:
            problem = f"no other description is offered, as none could be tried: {error}"
        return self.end(
            planned, Status.BADLY_ASKED, planned.objection, problem, suggestions=suggestions
        )

    def _checked(
        self, question: str, sources: Mapping[str, Hit], statements: Sequence[prompts.Statement]
    ) -> tuple[list[prompts.Statement], tuple[Dropped, ...], LLMError | None]:
        """Return the statements with right citations, faulty ones after another try at them.

        Returns:
            Those that are right, those that are not, and why there was no other try.
        """
        tried = dict(enumerate(statements, start=1))
        faults = faults_of(tried, sources)
        if not faults:
            return list(tried.values()), (), None
        failure: LLMError | None = None
        unmended = ""
        request = prompts.correct(
            question, sources, {n: (tried[n], fault) for n, fault in faults.items()}
        )
        try:
            corrections = self.llm.parse(request, prompts.Corrections).statements
        except NoModelError:
            raise
        except LLMError as error:
            failure = error
            unmended = f"; it was not asked for again or not mended: {error}"
        else:
            tried |= {c.number: c for c in reversed(corrections) if c.number in faults}
            faults = faults_of(tried, sources)
            if len(faults) == len(tried):
                self.llm.forget(request, prompts.Corrections)
        dropped = [Dropped(visible(tried[n].text), f + unmended) for n, f in faults.items()]
        return [tried[n] for n in sorted(tried) if n not in faults], tuple(dropped), failure


def check_question(question: object) -> None:
    """Check that a question is text that can be sent.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(question, str):
        raise ValueError(f"the question is {question!r}, need a string")
    check_utf8(question, "the question")


def suggested(
    found: Mapping[str, tuple[str, Mapping[str, Hit]]], named: Sequence[prompts.Instance]
) -> tuple[Suggestion, ...]:
    """Return the descriptions of which a sentence found was named an instance, each once."""
    instances = [(pair.description, pair.source) for pair in named]
    suggestions = []
    for id_, (description, sources) in found.items():
        hits = [hit for source, hit in sources.items() if (id_, source) in instances]
        suggestions += [Suggestion(description, hit) for hit in hits[:1]]
    return tuple(suggestions)


def merged(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Return the hits of several searches, each once: first the firsts of all, then the seconds."""
    best: dict[str, Hit] = {}
    for hit in (hit for hits in lists for hit in hits):
        known = best.get(hit.id)
        if known is None or (hit.rank, -hit.score) < (known.rank, -known.score):
            best[hit.id] = hit
    order = sorted(best.values(), key=lambda hit: (hit.rank, -hit.score, hit.id))
    return [replace(hit, rank=rank) for rank, hit in enumerate(order, start=1)]


def fitting(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the first hits that a model can be given at once, at least one."""
    taken: list[Hit] = []
    size = 0
    for hit in hits:
        size += len(hit.text)
        if taken and size > SOURCE_CHARACTERS:
            break
        taken.append(hit)
    return tuple(taken)


def described(descriptions: Sequence[str], question: str) -> tuple[str, ...]:
    """Return what to search for: different descriptions, or the question if there are none."""
    different: dict[str, str] = {}
    for text in map(one_line, descriptions):
        if text:
            different.setdefault(text.casefold(), text[:_LONGEST_DESCRIPTION])
    chosen = tuple(different.values())[:DESCRIPTIONS]
    return chosen or (one_line(question)[:_LONGEST_DESCRIPTION],)


def last(events: Iterator[Event]) -> Answer:
    """Return the answer that ends a stream."""
    *_, answer = events
    if not isinstance(answer, Answer):
        raise TypeError(f"the stream ended with {type(answer).__name__}, not with an answer")
    return answer


async def in_threads(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield what an iterator yields, waiting for each item in a thread."""

    def take() -> list[T]:
        return list(islice(items, 1))

    while taken := await asyncio.to_thread(take):
        yield taken[0]
