"""The steps of one search for all instances, and what they tell on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from descsim_tools.agents.citations import find_evidence
from descsim_tools.agents.decisions import Decisions
from descsim_tools.agents.estimate import (
    SAMPLED,
    UNREAD,
    Evidence,
    Stratum,
    Survey,
    base_rate,
    by_hash,
    estimate,
)
from descsim_tools.agents.expand import NEIGHBOURS, SEEDS, new_descriptions
from descsim_tools.agents.judge import LLMJudge, decide, probabilities
from descsim_tools.agents.plan import Floats, Plan, Query, Searches, failure_of, make_plan
from descsim_tools.agents.record import FindRecord
from descsim_tools.agents.settings import FinderSettings
from descsim_tools.agents.statement import (
    Cost,
    Decider,
    EndedBy,
    Missed,
    Round,
    Row,
    Statement,
    Status,
    Verdict,
    ordered,
    unjudged,
)
from descsim_tools.errors import LLMError
from descsim_tools.rerankers import Reranker
from descsim_tools.search import DescriptionIndex
from descsim_tools.store.store import chroma_errors
from descsim_tools.types import Hit, Record

if TYPE_CHECKING:
    from descsim_tools.llm import LLM

_T = TypeVar("_T")
_WAITING = unjudged("waiting", "not judged yet")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: `plan`, `retrieved`, `reading`, `judged`, `round`, `estimating`, or `statement`, which
            is the last.
        message: In words.
        examined: Rows known so far.
        decided: How many of them are decided or known to stay unjudged.
        matched: How many of them are instances.
        cost: So far.
        rows: With `judged`, the rows that were.
        statement: With `statement`, the result.
    """

    kind: str
    message: str
    examined: int = 0
    decided: int = 0
    matched: int = 0
    cost: Cost = field(default_factory=Cost)
    rows: tuple[Row, ...] = ()
    statement: Statement | None = None


_Steps: TypeAlias = Generator[Event, None, _T]
"""Events, and a result in the end."""


class Search:
    """One search: its rows, and the steps that fill and decide them."""

    def __init__(
        self,
        index: DescriptionIndex,
        settings: FinderSettings,
        llm: LLM | None,
        reranker: Callable[[], Reranker | None],
        judges: tuple[str, ...],
        *,
        query: Query,
        decisions: Decisions,
        where: Mapping[str, Any] | None,
        record: FindRecord,
        cancel: threading.Event,
    ) -> None:
        """Take what a search needs; nothing is done before `events`.

        Args:
            index: The store to search.
            settings: How far to go, and where to cut.
            llm: The language model, or None.
            reranker: Loads the cross-encoder; gives None where there is none.
            judges: Names of the two, for the statement.
            query: What is looked for.
            decisions: What a person decided.
            where: Chroma's filter on metadata.
            record: What earlier runs of this search did, and where this one is kept.
            cancel: Set to end the search.
        """
        self._started = time.monotonic()
        self._encoder = index.encoder
        self._store = index.store
        self._settings = settings
        self._llm = llm
        self._load_reranker = reranker
        self._judges = judges
        self._query = query
        self._decisions = decisions
        self._where = where
        self._record = record
        self._cancel = cancel
        self._rows: dict[str, Row] = {}
        self._rounds: list[Round] = []
        self._searches = Searches()
        self._vectors: list[NDArray[np.float32]] = []
        self._depths: list[int] = []
        self._last: list[list[str]] = []  # of each description the lower half of its hits
        self._seeded: set[str] = set()
        self._plan = Plan({})
        self._judge: LLMJudge | None = None
        self._reranker: Reranker | None = None
        self._spent_before = llm.spent if llm else None
        self._stored: int | None = None
        self._over_budget = ""

    def events(self) -> Iterator[Event]:
        """Do the search; the last event has the statement."""
        try:
            yield from self._steps()
        finally:
            # Of a search that was left or interrupted too: what it paid for is paid.
            self._record.add_cost(self._cost())

    def _steps(self) -> Iterator[Event]:
        yield from self._make_plan()
        self._add_decided()
        for number in range(self._settings.rounds + 1):
            yield from self._round(number)
            if self._cancel.is_set() or self._is_last(number):
                break
        missed = None
        if not self._cancel.is_set() and self._settings.sample:
            yield self._event("estimating", "estimating what is missed")
            missed = yield from self._estimated()
        statement = self._statement(missed)
        self._record.add_event(statement.lines()[0])
        yield replace(self._event("statement", statement.lines()[0]), statement=statement)

    def _make_plan(self) -> Iterator[Event]:
        self._reranker = self._load_reranker()
        plan = self._record.plan
        if plan is None:
            plan = make_plan(self._query, self._llm, self._cancel.is_set)
            self._record.add_cost(self._cost())
            if not plan.note:  # a plan that failed may be had by the next run
                self._record.add_plan(plan)
            if plan.failed_for == "budget":
                self._over_budget = plan.note
        self._plan = plan
        if self._llm is not None:
            self._judge = LLMJudge(self._llm, self._query, plan, self._settings.batch)
        for owner, text in enumerate(self._query.positive):
            for description in plan.descriptions[text]:
                self._search_for(description, owner)
        yield self._event("plan", f"{len(self._searches.texts)} descriptions to search for")

    def _search_for(self, description: str, owner: int) -> None:
        self._searches.add(description, owner)
        self._vectors.append(self._encoder.encode_descriptions([description])[0])
        self._depths.append(0)
        self._last.append([])

    def _add_decided(self) -> None:
        """Take the rows that a person decided, whether or not they are found."""
        records = self._store.get(list(self._decisions.verdicts))
        unknown = set(self._decisions.verdicts) - {str(record.id) for record in records}
        if unknown:
            raise ValueError(
                f"the decisions name {len(unknown)} ids that are not in the store, such as "
                f"{min(unknown)!r}; take these rows out of the decisions"
            )
        outside = self._left_out({str(record.id) for record in records})
        if outside:
            raise ValueError(
                f"the decisions name {len(outside)} rows that the filter leaves out, such as "
                f"{min(outside)!r}; take these rows out of the decisions, or search without the "
                "filter"
            )
        hits = _unranked(records)
        self._take(hits, "a person's decision")
        for hit in hits:
            self._settle(self._rows[hit.id], self._decisions.verdicts[hit.id])

    def _left_out(self, ids: set[str]) -> set[str]:
        """Return which of the ids are of rows that the filter leaves out."""
        if self._where is None or not ids:
            return set()
        left = set(ids)
        with chroma_errors(self._store.location):
            for page, _ in self._store.vector_pages(self._where):
                left -= set(page)
                if not left:
                    break
        return left

    # --- retrieving -------------------------------------------------------------------------

    def _round(self, number: int) -> Iterator[Event]:
        before, matched = set(self._rows), self._matched()
        texts = self._expand(number)
        seeds = self._neighbours() if number else 0
        self._retrieve()
        new = [row for id_, row in self._rows.items() if id_ not in before]
        yield self._event("retrieved", f"round {number}: {len(new):,} new rows to judge")
        yield from self._judge_rows(new)
        found = self._matched() - matched
        self._rounds.append(Round(number, tuple(texts), seeds, len(new), found))
        message = f"round {number}: {len(new):,} rows examined, {found:,} instances"
        self._record.add_event(message)
        yield self._event("round", message)

    def _expand(self, number: int) -> list[str]:
        """Return the descriptions that are new in a round, the plan's own or a model's."""
        if number == 0:
            return list(self._searches.texts)
        texts = self._record.descriptions.get(number)
        if texts is None:
            texts = []
            confirmed = [row for row in ordered(self._matches()) if row.id not in self._seeded]
            if self._llm is not None and confirmed and len(self._query.positive) == 1:
                known = self._searches.texts
                try:
                    texts = new_descriptions(
                        self._query, self._plan, known, confirmed, self._llm, self._cancel.is_set
                    )
                    self._record.add_descriptions(number, texts)
                except LLMError as error:
                    self._note_budget(failure_of(error), str(error))
                self._record.add_cost(self._cost())
        for text in texts:
            self._search_for(text, 0)
        return texts

    def _neighbours(self) -> int:
        """Retrieve what lies near confirmed instances."""
        fresh = [row for row in ordered(self._matches()) if row.id not in self._seeded][:SEEDS]
        self._seeded |= {row.id for row in fresh}
        vectors = self._store.vectors([row.id for row in fresh])
        for row, vector in zip(fresh, vectors, strict=True):
            found_by = f"near {row.id}"
            self._take(self._hits(found_by, vector, NEIGHBOURS), found_by)
        return len(fresh)

    def _retrieve(self) -> None:
        """Search for each description, deeper where its last hits still were instances."""
        for number, text in enumerate(self._searches.texts):
            depth = self._depths[number]
            if depth and not self._still_yields(number):
                continue
            deeper = max(self._settings.depth, 2 * depth)
            hits = self._hits(text, self._vectors[number], deeper)
            self._depths[number] = deeper
            # Fewer hits than asked for are all there are.
            tail = hits[max(depth, deeper // 2) : deeper] if len(hits) >= deeper else []
            self._last[number] = [hit.id for hit in tail]
            self._take(hits, text)

    def _hits(self, name: str, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Ask the store, and add what it gave to an earlier run and still holds.

        It is asked each time, as it may have changed; an approximate index may give other rows
        once reopened, and what was found, perhaps at a price, is not to be lost by that.
        """
        search = f"{k}: {name}"
        hits = self._store.query(vector, k, self._where)
        ids = {hit.id for hit in hits}
        earlier = self._record.hits(search)
        records = self._store.get([id_ for id_ in earlier if id_ not in ids])
        outside = self._left_out({str(record.id) for record in records})
        hits += [hit for hit in _unranked(records) if hit.id not in outside]
        if not ids.issubset(earlier):
            self._record.add_hits(search, [hit.id for hit in hits])
        return hits

    def _still_yields(self, number: int) -> bool:
        last = [self._rows[id_] for id_ in self._last[number]]
        found = sum(row.status is Status.MATCHED for row in last)
        return bool(last) and found / len(last) >= self._settings.min_yield

    def _is_last(self, number: int) -> bool:
        """Whether another round is not worth it: the last one gave too little, or all are known."""
        last = self._rounds[-1]
        share = last.matched / last.examined if last.examined else 0.0
        if number > 0 and share < self._settings.min_yield:
            return True
        fresh = any(row.id not in self._seeded for row in self._matches())
        deeper = any(map(self._still_yields, range(len(self._last))))
        return not fresh and not deeper

    def _take(self, hits: Sequence[Hit], found_by: str) -> None:
        new = [hit for hit in hits if hit.id not in self._rows]
        if not new:
            return
        similarity = self._similarity(self._store.vectors([hit.id for hit in new]))
        for hit, score in zip(new, similarity.tolist(), strict=True):
            self._rows[hit.id] = Row(hit.id, hit.text, hit.metadata, score, found_by, _WAITING)

    def _similarity(self, vectors: NDArray[np.float32]) -> Floats:
        """Return (n,) cosines with what is looked for: of each condition the nearest text."""
        cosines = (vectors @ np.stack(self._vectors).T).astype(np.float64)
        owner = np.array(self._searches.owner)
        each = [
            cosines[:, owner == number].max(axis=1) for number in range(len(self._query.positive))
        ]
        return self._query.similarity(np.stack(each, axis=1))

    # --- judging ----------------------------------------------------------------------------

    def _judge_rows(self, rows: Sequence[Row]) -> Iterator[Event]:
        waiting = [row for row in rows if self._rows[row.id].verdict is _WAITING]
        yield from self._read(waiting)
        yield from self._decide([self._rows[row.id] for row in waiting])

    def _read(self, rows: Sequence[Row], *, all_of_them: bool = False) -> Iterator[Event]:
        """Let the cross-encoder read rows that are similar enough, or all of them."""
        rows = [row for row in rows if all_of_them or row.score >= self._settings.min_score]
        unread: list[Row] = []
        for row in rows:
            known = self._record.score(row) if self._reranker is not None else None
            if known is None:
                unread.append(row)
            else:
                self._rows[row.id] = replace(row, probability=known[0], truncated=known[1])
        if self._reranker is None or not unread:
            return
        cosines = self._own_cosines(unread)
        done = 0
        for part, _ in probabilities(self._reranker, self._query, unread, cosines):
            for row in part:
                self._rows[row.id] = row
                self._record.add_score(row)
            done += len(part)
            yield self._event("reading", f"read {done:,} of {len(unread):,} rows")
            if self._cancel.is_set():
                return

    def _own_cosines(self, rows: Sequence[Row]) -> Floats:
        """Return (n, conditions) cosines with the conditions' own texts."""
        texts = self._encoder.encode_descriptions(list(self._query.conditions))
        vectors = self._store.vectors([row.id for row in rows])
        return np.asarray(vectors @ texts.T, dtype=np.float64)

    def _decide(self, rows: Sequence[Row]) -> Iterator[Event]:
        """Decide rows by their scores, and ask the model about the others."""
        open_rows: list[Row] = []
        settled: list[Row] = []
        for row in rows:
            if self._cancel.is_set() and row.probability is None:
                verdict: Verdict | None = unjudged("cancelled", "the search was cancelled")
            else:
                verdict = decide(row, self._settings, has_model=self._judge is not None)
            if verdict is None:
                open_rows.append(row)
            else:
                settled.append(self._settle(row, verdict))
        if settled:
            yield self._judged(settled)
        yield from self._ask(open_rows)

    def _ask(self, rows: Sequence[Row]) -> Iterator[Event]:
        """Ask the model, unless it was asked before; the most probable rows first."""
        assert self._judge is not None or not rows
        known = [(row, verdict) for row in rows if (verdict := self._record.verdict(row))]
        if known:
            yield self._judged([self._settle(row, verdict) for row, verdict in known])
        asked = {row.id for row, _ in known}
        twins: dict[str, list[Row]] = {}
        for row in ordered([row for row in rows if row.id not in asked]):
            twins.setdefault(row.text, []).append(row)
        if self._judge is None or not twins:
            return
        first = [same[0] for same in twins.values()]
        for found in self._judge.judge(first, self._cancel.is_set):
            settled = []
            for row, verdict in found:
                self._note_budget(verdict.unjudged_for, verdict.reason)
                for twin in twins[row.text]:
                    self._record.add_verdict(twin, verdict)
                    settled.append(self._settle(twin, verdict))
            self._record.add_cost(self._cost())
            if settled:
                yield self._judged(settled)

    def _note_budget(self, why: str, reason: str) -> None:
        if why == "budget":
            self._over_budget = self._over_budget or reason

    def _settle(self, row: Row, verdict: Verdict) -> Row:
        verdict = self._decisions.verdicts.get(row.id, verdict)
        span = find_evidence(verdict.evidence, row.text) if verdict.evidence else None
        self._rows[row.id] = replace(self._rows[row.id], verdict=verdict, span=span)
        return self._rows[row.id]

    # --- estimating -------------------------------------------------------------------------

    def _estimated(self) -> _Steps[Missed | None]:
        """Estimate what is missed, from samples of what was rejected or never read."""
        strata = self._survey()
        share = max(1, self._settings.sample // (len(strata) + 2))
        bands: list[Evidence] = []
        background = 0.0
        for stratum in strata:
            band = yield from self._stratum(stratum, share)
            bands.append(band)
            if band.probabilities:  # of the farthest band, in the end
                background = float(np.median(band.probabilities))
        bands += yield from self._rejected_bands(share)
        bands = [band for band in bands if band.size > 0]
        unknown = any(not band.probabilities and not band.judged for band in bands)
        if unknown or self._cancel.is_set():
            return None
        return estimate(
            bands,
            base_rate=base_rate(self._matched(), self._stored or len(self._rows)),
            background=background,
            judge=self._llm.model if self._llm else "",
        )

    def _survey(self) -> list[Stratum]:
        """Count and sample what nobody read."""
        survey = Survey(self._settings.sample)
        for ids, vectors in self._store.vector_pages(self._where):
            rows = [self._rows.get(id_) for id_ in ids]
            read = [r is not None and r.verdict.decided_by is not Decider.SCORE for r in rows]
            survey.add(ids, self._similarity(vectors), read)
            if self._cancel.is_set():
                return []
        self._stored = survey.rows
        return survey.strata()

    def _stratum(self, stratum: Stratum, share: int) -> _Steps[Evidence]:
        """Judge a sample of what was never read: all by the cross-encoder, some by the model."""
        ids = stratum.ids if self._reranker is not None else stratum.ids[:share]
        hits = _unranked(self._store.get(ids))
        self._take(hits, SAMPLED)
        yield from self._read([self._rows[hit.id] for hit in hits], all_of_them=True)
        rows = [self._rows[hit.id] for hit in hits]
        judged, found = yield from self._judge_sample(rows[:share])
        waiting = [self._rows[row.id] for row in rows]
        yield from self._decide(
            [row for row in waiting if row.verdict.decided_by in (None, Decider.SCORE)]
        )
        chances = tuple(row.probability for row in rows if row.probability is not None)
        # A row that nobody read stays in the band, so that a band of such rows is not known of.
        now = [self._rows[row.id] for row in rows]
        left = stratum.size - sum(
            row.probability is not None or row.verdict.decided_by is Decider.MODEL for row in now
        )
        return Evidence(UNREAD, stratum.low, stratum.high, left, chances, judged, found)

    def _rejected_bands(self, share: int) -> _Steps[list[Evidence]]:
        """Judge a sample of what the cross-encoder rejected, of the likelier and the others."""
        rejected = [
            (row.probability, row)
            for row in self._rows.values()
            if row.status is Status.REJECTED
            and row.verdict.decided_by is Decider.CROSS_ENCODER
            and row.probability is not None
        ]
        low = self._settings.uncertain[0] if self._llm else self._settings.accept
        bands = []
        for least, most in ((low / 5, 1.0), (0.0, low / 5)):
            inside = [(p, row) for p, row in rejected if least <= p < most]
            rows = by_hash([row for _, row in inside])[:share]
            judged, found = yield from self._judge_sample(rows)
            left = len(inside) - judged
            chances = tuple(p for p, _ in inside)
            name = "rejected by the cross-encoder"
            bands.append(Evidence(name, least, min(most, low), left, chances, judged, found))
        return bands

    def _judge_sample(self, rows: Sequence[Row]) -> _Steps[tuple[int, int]]:
        """Ask the model about a sample; a row that it does not decide keeps what it had."""
        if self._judge is None:
            return 0, 0
        before = {row.id: row.verdict for row in rows}
        yield from self._ask(rows)
        judged = [self._rows[id_] for id_ in before]
        for row in judged:
            old = before[row.id]
            if row.verdict.decided_by is None and old.decided_by is not None:
                self._rows[row.id] = replace(row, verdict=old)
        by_model = [row for row in judged if row.verdict.decided_by is Decider.MODEL]
        return len(by_model), sum(row.status is Status.MATCHED for row in by_model)

    # --- telling ----------------------------------------------------------------------------

    def _matches(self) -> list[Row]:
        return [row for row in self._rows.values() if row.status is Status.MATCHED]

    def _matched(self) -> int:
        return len(self._matches())

    def _judged(self, rows: Sequence[Row]) -> Event:
        return self._event("judged", f"{len(rows):,} rows judged", tuple(rows))

    def _event(self, kind: str, message: str, rows: tuple[Row, ...] = ()) -> Event:
        decided = sum(row.verdict is not _WAITING for row in self._rows.values())
        matched = self._matched()
        return Event(kind, message, len(self._rows), decided, matched, self._cost(), rows)

    def _cost(self) -> Cost:
        """Return what this run cost so far."""
        seconds = round(time.monotonic() - self._started, 3)
        if self._llm is None or self._spent_before is None:
            return Cost(seconds=seconds)
        now, then = self._llm.spent, self._spent_before
        return Cost(
            now.requests - then.requests,
            now.tokens_in - then.tokens_in,
            now.tokens_out - then.tokens_out,
            max(0.0, now.cost - then.cost),
            seconds,
        )

    def _statement(self, missed: Missed | None) -> Statement:
        rows = ordered(list(self._rows.values()))
        ended, stopped = self._end()
        if self._stored is None and self._where is None:
            self._stored = self._store.count()
        return Statement(
            query=self._query,
            plan=self._plan,
            stored=self._stored,
            rows=rows,
            missed=missed,
            rounds=tuple(self._rounds),
            cost=self._record.earlier.plus(self._cost()),
            ended_by=ended,
            stopped=stopped,
            judges=self._judges,
            accept=self._settings.accept,
            where=self._where,
        )

    def _end(self) -> tuple[EndedBy, str]:
        if self._cancel.is_set():
            return EndedBy.CANCELLED, "the search was cancelled"
        if self._over_budget:
            return EndedBy.BUDGET, self._over_budget
        if self._judge is not None and self._judge.stopped:
            return EndedBy.NO_ANSWER, self._judge.stopped
        if self._judge is not None and self._judge.useless and not self._has_answers():
            reason = f"no answer of the model had a usable verdict: {self._judge.useless}"
            return EndedBy.NO_ANSWER, reason
        return EndedBy.DONE, ""

    def _has_answers(self) -> bool:
        """Whether the model said of any row what counts, in this run or in an earlier one."""
        verdicts = (row.verdict for row in self._rows.values())
        return any(v.decided_by is Decider.MODEL or v.unjudged_for == "unsure" for v in verdicts)


def _unranked(records: Iterable[Record]) -> list[Hit]:
    """Return rows as hits that no search has ranked."""
    return [Hit(str(r.id), 0.0, 1, r.text, r.metadata) for r in records]
