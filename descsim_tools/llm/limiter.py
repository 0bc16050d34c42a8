"""A limit on requests and tokens a minute, shared by threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_WINDOW = 60.0
_LOOK_EVERY = 0.1


def sleep_unless(cancelled: Callable[[], bool], seconds: float) -> None:
    """Sleep, but no longer than until a caller cancels."""
    end = time.monotonic() + seconds
    while not cancelled() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY))


class RateLimiter:
    """Lets a request pass once it and those of the last minute stay within the limits.

    A request of more tokens than a minute allows passes alone.
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[Callable[[], bool], float], object] = sleep_unless,
    ) -> None:
        for name, limit in (("requests", requests_per_minute), ("tokens", tokens_per_minute)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name}_per_minute is {limit}, need a number from 1 up, or None")
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._clock = clock
        self._sleep = sleep
        self._passed: deque[tuple[float, int]] = deque()
        self._closed_until = 0.0
        self._lock = threading.Lock()

    def wait(self, tokens: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Wait until a request of so many tokens may be sent, or its caller cancels."""
        while not cancelled() and (seconds := self._try(tokens)) > 0:
            self._sleep(cancelled, seconds)

    def pause(self, seconds: float) -> None:
        """Let nothing pass for some seconds, as a server asked for."""
        with self._lock:
            self._closed_until = max(self._closed_until, self._clock() + seconds)

    def _try(self, tokens: int) -> float:
        """Let the request pass, or return for how long to wait before trying again."""
        with self._lock:
            now = self._clock()
            if now < self._closed_until:
                return self._closed_until - now
            while self._passed and now - self._passed[0][0] >= _WINDOW:
                self._passed.popleft()
            crowded = self._requests is not None and len(self._passed) >= self._requests
            used = sum(count for _, count in self._passed)
            full = self._tokens is not None and used > 0 and used + tokens > self._tokens
            if crowded or full:
                return self._passed[0][0] + _WINDOW - now
            self._passed.append((now, tokens))
            return 0.0
