"""`InstanceFinder`: all instances of a concept in a store, with a statement of completeness."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from descsim_tools.agents.decisions import Decisions, read_decisions
from descsim_tools.agents.plan import Query
from descsim_tools.agents.record import FindRecord
from descsim_tools.agents.settings import FinderSettings
from descsim_tools.agents.statement import (
    Statement,
)
from descsim_tools.agents.steps import Event, Search
from descsim_tools.encoders import DEFAULT_PRESET
from descsim_tools.rerankers import Reranker, load_reranker
from descsim_tools.search import DescriptionIndex

if TYPE_CHECKING:
    from descsim_tools.llm import LLM

DEFAULT_RERANK = "auto"
"""`combined`, where the store is of the encoder that it was tuned for, else `cross-encoder`."""

_WITHOUT_PROBABILITIES = ("log-prob",)
_NO_PROBABILITIES = "gives scores and no probabilities; take 'combined' or 'cross-encoder'"


class FindOptions(TypedDict, total=False):
    """What a search may be told.

    Attributes:
        all_of: Further descriptions that must fit too.
        any_of: Descriptions of which one must fit.
        none_of: Descriptions of which none may fit.
        where: Chroma's filter on metadata.
        record: Folder to keep the search in; the same search in the same folder goes on where the
            last one stopped, and pays for nothing twice.
        decisions: What a person decided: yes (True) or no by the id of the row, or a file of it,
            .jsonl or .csv with `id` and `decision`. It overrules every other judge.
        cancel: Set it from any thread to end the search; what is left stays unjudged.
    """

    all_of: Iterable[str]
    any_of: Iterable[str]
    none_of: Iterable[str]
    where: Mapping[str, Any] | None
    record: str | Path | None
    decisions: Mapping[str, bool | str] | str | Path | None
    cancel: threading.Event | None


class InstanceFinder:
    """Finds all instances of a concept, not a list of the best ones, and tells how complete it is.

        >>> with DescriptionIndex.open("store") as index:
        ...     finder = InstanceFinder(index)
        ...     statement = finder.find("people deceived by forged documents")
        ...     print(statement)

    A search plans descriptions, retrieves deep for each, judges by a cascade (similarity,
    cross-encoder, and a language model for what stays uncertain), looks at the neighbours of
    confirmed instances, and estimates from samples what is missed. It only reads the store.

    Without a language model the cascade ends at the cross-encoder. A budget is the model's own:
    `LLM(model, budget=Budget(...))` is never exceeded, and what it does not allow stays unjudged.

    Attributes:
        index: The store to search; whoever opened it closes it.
        llm: The language model, or None.
        settings: How far to go, and where to cut.
    """

    def __init__(
        self,
        index: DescriptionIndex,
        *,
        rerank: Reranker | str | None = DEFAULT_RERANK,
        llm: LLM | None = None,
        settings: FinderSettings | None = None,
    ) -> None:
        """Make a finder; a reranker that is named is loaded at the first search.

        Args:
            index: The store to search.
            rerank: A calibrated reranker, or its name, or `auto`: `combined` where the store is of
                the encoder that it was tuned for, else `cross-encoder`. None leaves all judging to
                the model.
            llm: A language model.
            settings: None takes the defaults.

        Raises:
            ValueError: There is nobody to judge, or the reranker gives no probabilities.
        """
        if rerank is None and llm is None:
            raise ValueError(
                "there is nobody to judge: give a calibrated reranker, a language model, or both"
            )
        self.index = index
        self.llm = llm
        self.settings = settings or FinderSettings()
        if rerank == DEFAULT_RERANK:
            tuned_for_it = index.encoder.spec.name == DEFAULT_PRESET
            rerank = "combined" if tuned_for_it else "cross-encoder"
        if isinstance(rerank, str):
            check_name(rerank)
            self._name: str | None = rerank
        else:
            self._name = None if rerank is None else _name_of(_checked(rerank))
        self._rerank = rerank
        self._turn = threading.Lock()

    @property
    def judges(self) -> tuple[str, ...]:
        """Names of the reranker, as it was given, and of the model, those that there are."""
        named = (self._name, self.llm.model if self.llm else None)
        return tuple(name for name in named if name is not None)

    def find(self, concept: str | None = None, **options: Unpack[FindOptions]) -> Statement:
        """Find all instances.

        Args:
            concept: What the sentences should be instances of.
            **options: See `FindOptions`.

        Raises:
            DataError: The record holds another search or is damaged, or the decisions cannot be
                read.
            NoModelError: There is no such model or server, or the key is refused.
            RerankerError: The reranker cannot be loaded, or was tuned for another encoder.
            StoreError: The store is closed or unreachable, or the filter malformed.
            ValueError: A description is blank, there is nothing to look for, or a decision is on a
                row that is not in the store or that the filter leaves out.
        """
        statement = None
        for event in self.stream(concept, **options):
            statement = event.statement
        assert statement is not None  # the last event has it
        return statement

    def stream(
        self, concept: str | None = None, **options: Unpack[FindOptions]
    ) -> Generator[Event, None, None]:
        """Find all instances, and tell what happens; arguments and errors as in `find`.

        Closing the generator ends the search.
        """
        if unknown := sorted(set(options) - set(FindOptions.__annotations__)):
            raise TypeError(
                f"find takes no {', '.join(unknown)}, only {', '.join(FindOptions.__annotations__)}"
            )
        _check_where(options.get("where"))
        query = Query.of(
            concept,
            all_of=options.get("all_of", ()),
            any_of=options.get("any_of", ()),
            none_of=options.get("none_of", ()),
        )
        decisions = read_decisions(options.get("decisions"))
        return self._events(query, decisions, options)

    async def afind(self, concept: str | None = None, **options: Unpack[FindOptions]) -> Statement:
        """Find all instances without holding up the event loop; as `find`."""
        statement = None
        async for event in self.astream(concept, **options):
            statement = event.statement
        assert statement is not None  # the last event has it
        return statement

    async def astream(
        self, concept: str | None = None, **options: Unpack[FindOptions]
    ) -> AsyncIterator[Event]:
        """Find all instances, and tell what happens; as `stream`.

        The search runs in a thread. When the task is cancelled or the iterator closed, it ends
        after the request that is under way.
        """
        cancel = options.get("cancel") or threading.Event()
        left = threading.Event()
        options["cancel"] = _Either(cancel, left)
        events = self.stream(concept, **options)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        def put(item: Event | BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            try:
                with closing(events):
                    for event in events:
                        put(event)
            except BaseException as error:  # raised again in the task
                put(error)
            else:
                put(None)

        threading.Thread(target=work, name="descsim-find", daemon=True).start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            left.set()

    def _events(
        self, query: Query, decisions: Decisions, options: FindOptions
    ) -> Generator[Event, None, None]:
        identity = {
            "query": query.to_dict(),
            "where": options.get("where"),
            "encoder": self.index.store.manifest.fingerprint,
            "collection": self.index.store.id,
            "judges": list(self.judges),
        }
        record = FindRecord(options.get("record"), identity)
        with closing(record):
            cancel = options.get("cancel") or threading.Event()
            search = Search(
                self.index,
                self.settings,
                self.llm,
                self.reranker,
                self.judges,
                query=query,
                decisions=decisions,
                where=options.get("where"),
                record=record,
                cancel=cancel,
            )
            yield from search.events()

    def reranker(self) -> Reranker | None:
        """Return the cross-encoder, loaded at the first call."""
        with self._turn:
            if isinstance(self._rerank, str):
                self._rerank = _checked(
                    load_reranker(self._rerank, device=self.index.encoder.device)
                )
            self.index.check_reranker(self._rerank)
            return self._rerank


class _Either(threading.Event):
    """Is set once either of two is."""

    def __init__(self, one: threading.Event, other: threading.Event) -> None:
        super().__init__()
        self._both = (one, other)

    def is_set(self) -> bool:
        return super().is_set() or any(event.is_set() for event in self._both)


def _check_where(where: Mapping[str, Any] | None) -> None:
    if where is None:
        return
    if not isinstance(where, Mapping):
        raise TypeError(f"where is {where!r} ({type(where).__name__}), need a mapping")
    try:
        json.dumps(where, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"where holds what no filter can ask for: {error}") from error


def check_name(rerank: str) -> None:
    """Refuse a reranker by its name that cannot judge, before it is loaded.

    Raises:
        ValueError: It gives no probabilities.
    """
    if rerank.partition(":")[0] in _WITHOUT_PROBABILITIES:
        raise ValueError(f"{rerank} {_NO_PROBABILITIES}")


def _name_of(reranker: Reranker) -> str:
    return str(getattr(reranker, "name", type(reranker).__name__))


def _checked(reranker: Reranker) -> Reranker:
    if getattr(reranker, "calibration", None) is None:
        raise ValueError(
            f"{type(reranker).__name__} {_NO_PROBABILITIES}, or calibrate a cross-encoder with "
            "`descsim rerank calibrate`"
        )
    return reranker
