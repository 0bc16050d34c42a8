"""What was asked, answered and spent: an SQLite file, so that a killed process loses nothing.

A request is entered with the most it can cost before it is sent, and settled with what it did cost
in the transaction that keeps its answer. A request that was never settled, because the process was
killed or the connection broke, stays entered at the most: a budget is never exceeded.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descsim_tools.errors import LLMError
from descsim_tools.llm.errors import BudgetError

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, sent REAL, state TEXT, tokens_in INTEGER, tokens_out INTEGER, cost REAL
);
"""
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a million tokens, in the currency of the budget.

    Attributes:
        tokens_in: Of tokens that the model reads.
        tokens_out: Of tokens that it writes, thoughts included.
    """

    tokens_in: float
    tokens_out: float

    def __post_init__(self) -> None:
        for name in ("tokens_in", "tokens_out"):
            price = getattr(self, name)
            if not 0 <= price < math.inf:
                raise ValueError(f"the price of {name} is {price}, need a number from 0 up")

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """Return what so many tokens cost."""
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / _MILLION


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent, over all runs that share a cache; None sets no limit.

    Attributes:
        requests: Requests sent, those repeated after a failure included.
        tokens: Tokens read and written.
        cost: Money, which needs a `Price`.
    """

    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens", "cost"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                raise ValueError(
                    f"the budget's {name} is {limit}, need a number from 0 up, or None"
                )


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent, over all runs that share a cache.

    Attributes:
        requests: Requests sent.
        tokens_in: Tokens read.
        tokens_out: Tokens written.
        cost: Money; 0 without a `Price`.
        unsettled: Requests whose cost the server never told; they count at the most they can cost.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    unsettled: int = 0


class Ledger:
    """Answers by the key of their request, and the account of requests."""

    def __init__(self, path: Path | None, budget: Budget, price: Price | None) -> None:
        if budget.cost is not None and price is None:
            raise LLMError(
                "a budget in money needs the price of tokens: Price(...), on the command line "
                "--price-in and --price-out"
            )
        self._budget = budget
        self._price = price or Price(0.0, 0.0)
        self._lock = threading.RLock()
        self._asking: dict[str, threading.Lock] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Without a name it is a temporary file, so answers do not fill the memory.
            self._db = sqlite3.connect(path or "", timeout=30, check_same_thread=False)
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _TABLES)
        except sqlite3.Error as error:
            raise LLMError(
                f"{path} is no cache of answers: {error}; name another file, or move this one away"
            ) from error
        self._spent = self._sum()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        with self._lock:
            return self._spent

    @contextmanager
    def asking(self, key: str) -> Iterator[None]:
        """Hold a key, so that of two threads with the same question one asks and one reads."""
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._asking.pop(key, None)

    def answer(self, key: str) -> dict[str, Any] | None:
        """Return the answer kept under a key, if there is one."""
        with self._lock:
            row = self._db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def enter(self, tokens_in: int, tokens_out: int) -> int:
        """Enter a request with the most it can cost, before it is sent.

        Returns:
            Its number.

        Raises:
            BudgetError: It could exceed the budget; nothing was entered.
        """
        cost = self._price.of(tokens_in, tokens_out)
        with self._lock, self._db:
            self._check(tokens_in + tokens_out, cost)
            row = (time.time(), "sent", tokens_in, tokens_out, cost)
            number = self._db.execute(
                "INSERT INTO requests (sent, state, tokens_in, tokens_out, cost) "
                "VALUES (?, ?, ?, ?, ?)",
                row,
            ).lastrowid
            self._count(1, tokens_in, tokens_out, cost, 1)
        return int(number or 0)

    def settle(self, number: int, tokens_in: int, tokens_out: int) -> None:
        """Set what a request did cost: nothing, if the server refused it."""
        with self._lock, self._db:
            self._settle(number, tokens_in, tokens_out)

    def keep(
        self, number: int, key: str, answer: dict[str, Any], tokens_in: int, tokens_out: int
    ) -> None:
        """Keep the answer to a request, and set what it did cost."""
        with self._lock, self._db:
            self._settle(number, tokens_in, tokens_out)
            row = (key, json.dumps(answer, ensure_ascii=False))
            self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", row)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget the answers under some keys; what they did cost stays in the account."""
        with self._lock, self._db:
            self._db.executemany("DELETE FROM answers WHERE key = ?", [(key,) for key in keys])

    def _settle(self, number: int, tokens_in: int, tokens_out: int) -> None:
        old = self._db.execute(
            "SELECT tokens_in, tokens_out, cost FROM requests WHERE id = ?", (number,)
        ).fetchone()
        cost = self._price.of(tokens_in, tokens_out)
        self._db.execute(
            "UPDATE requests SET state = 'settled', tokens_in = ?, tokens_out = ?, cost = ? "
            "WHERE id = ?",
            (tokens_in, tokens_out, cost, number),
        )
        self._count(0, tokens_in - old[0], tokens_out - old[1], cost - old[2], -1)

    def _count(
        self, requests: int, tokens_in: int, tokens_out: int, cost: float, unsettled: int
    ) -> None:
        spent = self._spent
        self._spent = Spent(
            spent.requests + requests,
            spent.tokens_in + tokens_in,
            spent.tokens_out + tokens_out,
            max(0.0, spent.cost + cost),
            spent.unsettled + unsettled,
        )

    def _check(self, tokens: int, cost: float) -> None:
        budget, spent = self._budget, self._spent
        used = spent.tokens_in + spent.tokens_out
        if budget.requests is not None and spent.requests + 1 > budget.requests:
            raise BudgetError(f"the budget of {budget.requests} requests is spent")
        if budget.tokens is not None and used + tokens > budget.tokens:
            raise BudgetError(
                f"the budget is {budget.tokens} tokens, {used} are spent, and the next request "
                f"can take up to {tokens}"
            )
        if budget.cost is not None and spent.cost + cost > budget.cost:
            raise BudgetError(
                f"the budget is {budget.cost:g}, {spent.cost:.4f} is spent, and the next request "
                f"can cost up to {cost:.4f}"
            )

    def _sum(self) -> Spent:
        row = self._db.execute(
            "SELECT COUNT(*), TOTAL(tokens_in), TOTAL(tokens_out), TOTAL(cost), "
            "TOTAL(state = 'sent') FROM requests"
        ).fetchone()
        return Spent(int(row[0]), int(row[1]), int(row[2]), float(row[3]), int(row[4]))
