"""`LLM`: ask a model on an OpenAI-compatible server, and know what became of it."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import openai
import tenacity
from pydantic import BaseModel

from descsim_tools.errors import LLMError
from descsim_tools.llm.errors import (
    CancelledError,
    CutError,
    EmptyError,
    InvalidError,
    NoAnswerError,
    NoModelError,
    OutputError,
    RefusalError,
    RequestRefusedError,
)
from descsim_tools.llm.ledger import Budget, Ledger, Price, Spent
from descsim_tools.llm.limiter import RateLimiter, sleep_unless
from descsim_tools.llm.structured import (
    OutputMode,
    instruction,
    parse,
    response_format,
    well_formed,
    without_thoughts,
)
from descsim_tools.llm.transcript import Transcript
from descsim_tools.text import printable

# The HTTP library that this release of openai is built on: its errors pass through unwrapped.
http = importlib.import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")

logger = logging.getLogger(__name__)

Message = Mapping[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""

T = TypeVar("T", bound=BaseModel)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Call:
    """What goes along with a call through all that it asks.

    Attributes:
        used: Keys of the answers that it has used, and whether each was in the cache.
        cancelled: Whether its caller waits no more.
    """

    cancelled: Callable[[], bool] = lambda: False
    used: dict[str, bool] = field(default_factory=dict)


_NO_KEY = "no-key"
_CONNECT_SECONDS = 10.0
_OVERHEAD_TOKENS = 64  # what a chat template puts around the messages
_RETRIED = (408, 409, 425, 429)
_NO_SUCH_OPTION = (400, 404, 405, 415, 422, 501)
_SORRY = re.compile(
    r"\W*(i.?m (very )?sorry|i am sorry|sorry[,.]|i cannot|i can.t|i am unable|i won.t|as an ai\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote.

    Attributes:
        text: Its text, thoughts left out; never empty.
        model: Name that the server gave.
        finish_reason: Why it ended: `stop`, `length` or what else the server says.
        tokens_in: Tokens read.
        tokens_out: Tokens written.
        cached: Whether it was read from the cache, at no cost.
    """

    text: str
    model: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    cached: bool


class _Failed(NoAnswerError):
    """One attempt failed in a way that another one may not.

    Attributes:
        reached: Whether there was a server.
        paid: Whether the model may have answered all the same, and be paid for it.
        retry_after: Seconds that the server asks to wait.
    """

    def __init__(
        self, message: str, *, reached: bool, paid: bool, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reached = reached
        self.paid = paid
        self.retry_after = retry_after


class _OptionRefused(RequestRefusedError):
    """The server answered 400 or the like, perhaps since it lacks an option of the request."""


class LLM:
    """A model on an OpenAI-compatible server. Threads may share it.

    A paid answer is kept on disk before it is returned, if there is a `cache`, and the same request
    is then never paid twice. An answer that cannot be used is forgotten, so that a later call asks
    again; what it did cost stays counted. Server, key and model come from the arguments or from the
    environment: OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL.

        >>> llm = LLM("gpt-5-mini", cache="answers.sqlite", budget=Budget(tokens=100_000))
        >>> llm.complete("Name a river.").text

    Attributes:
        model: Name of the model.
        server: URL of the server, without user name and password.
        concurrency: Most requests at a time; others wait.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_tokens: int = 2048,
        temperature: float | None = None,
        timeout: float = 120.0,
        attempts: int = 4,
        patience: float = 300.0,
        concurrency: int = 4,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
        cache: str | Path | None = None,
        transcript: str | Path | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            model: Name of the model, as the server knows it.
            base_url: Such as `http://localhost:8000/v1`.
            api_key: Sent to the server and kept nowhere else.
            max_tokens: Most tokens of an answer, thoughts included.
            temperature: None leaves it to the server.
            timeout: Seconds an attempt may take, from sending to the last byte.
            attempts: Most attempts at a request.
            patience: Seconds after which a request is not tried again, and the longest wait that a
                server may ask for.
            concurrency: Most requests at a time.
            requests_per_minute: None sets no limit.
            tokens_per_minute: None sets no limit.
            budget: The most that may be spent.
            price: What tokens cost.
            cache: File for answers and for the account of what was spent; None keeps both until
                the client is closed.
            transcript: File to append every exchange to, one JSON object a line.

        Raises:
            LLMError: The cache is no cache, or the budget in money has no price.
            NoModelError: There is neither a key nor a server, the server's URL is none, or there
                is no name of a model.
            ValueError: A number is out of its range.
        """
        for name, number in (
            ("max_tokens", max_tokens),
            ("attempts", attempts),
            ("concurrency", concurrency),
        ):
            if number < 1:
                raise ValueError(f"{name} is {number}, need a number from 1 up")
        for name, seconds in (("timeout", timeout), ("patience", patience)):
            if not seconds > 0:
                raise ValueError(f"{name} is {seconds}, need a number of seconds above 0")
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        api_key = api_key or os.environ.get("OPENAI_API_KEY") or None
        model = model or os.environ.get("OPENAI_MODEL") or None
        if base_url is None and api_key is None:
            raise NoModelError(
                "there is no language model to ask: neither a key nor a server is named. Set "
                "OPENAI_API_KEY, or name a server such as http://localhost:8000/v1 with "
                "base_url=..., on the command line --base-url, or OPENAI_BASE_URL"
            )
        if base_url is not None:
            _check_url(base_url)
        if model is None:
            raise NoModelError(
                "no model is named; name one that the server has with model=..., on the command "
                "line --model, or OPENAI_MODEL"
            )
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key or _NO_KEY,
            timeout=openai.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout)),
            max_retries=0,  # attempts are counted, logged and paid here
        )
        self.model = model
        self.server, password = _without_login(str(self._client.base_url))
        self.concurrency = concurrency
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._timeout = timeout
        self._attempts = attempts
        self._patience = patience
        self._slots = threading.BoundedSemaphore(concurrency)
        self._limiter = RateLimiter(requests_per_minute, tokens_per_minute)
        self._ledger = Ledger(None if cache is None else Path(cache), budget or Budget(), price)
        self._transcript = Transcript(
            None if transcript is None else Path(transcript), [api_key or "", password]
        )
        # Found out by asking, once for all requests.
        self._modes = list(OutputMode)
        self._limit_option = "max_tokens"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and files."""
        self._client.close()
        self._ledger.close()
        self._transcript.close()

    @property
    def settings(self) -> dict[str, float | None]:
        """What besides the model decides the answers."""
        return {"max_tokens": self._max_tokens, "temperature": self._temperature}

    @property
    def spent(self) -> Spent:
        """What was spent, over all runs that share the cache."""
        return self._ledger.spent

    def complete(self, messages: str | Sequence[Message], *, sample: int = 0) -> Answer:
        """Ask for text.

        Args:
            messages: A conversation; a string is the user's one message.
            sample: Number of the sample: the same messages with another number are asked again,
                with the same number they are answered from the cache.

        Raises:
            BudgetError: The request could exceed the budget.
            CutError: The answer ended at `max_tokens`.
            EmptyError: The answer has no text.
            NoAnswerError: The server gave no answer, after all retries.
            NoModelError: The server is not there, or refuses the key, the quota or the model.
            RefusalError: The model or a filter declined.
            RequestRefusedError: The server refuses this request.
        """
        request = _Request(_conversation(messages), None, sample)

        def ask(call: _Call) -> Answer:
            answer = self._ask(request, call)
            if answer.finish_reason == "length":
                raise _cut(self._max_tokens, answer.text)
            return answer

        return self._usable(ask)

    def parse(
        self,
        messages: str | Sequence[Message],
        schema: type[T],
        *,
        sample: int = 0,
        repairs: int = 1,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> T:
        """Ask for an object of a schema.

        The server is asked for the strictest form that it knows: the schema, then any JSON, then
        text. Whatever it promises, the answer is validated here.

        Args:
            messages: A conversation; a string is the user's one message.
            schema: What to return.
            sample: As in `complete`.
            repairs: How often a model that gave something invalid is told so and asked again.
            cancelled: Asked before each request and while one waits for its turn or for the next
                attempt; what is under way is awaited.

        Raises:
            CancelledError: `cancelled` said so.
            InvalidError: The answer does not fit the schema, repairs included.
            LLMError: As in `complete`.
            ValueError: `repairs` is below 0.
        """
        if repairs < 0:
            raise ValueError(f"repairs is {repairs}, need a number from 0 up")
        conversation = _conversation(messages)
        return self._usable(
            lambda call: self._parsed(conversation, schema, sample, repairs, call), cancelled
        )

    def forget(
        self, messages: str | Sequence[Message], schema: type[BaseModel], *, sample: int = 0
    ) -> None:
        """Forget what `parse` returned, since it cannot be used, so that a later call asks again.

        Args:
            messages: The conversation.
            schema: What was asked for.
            sample: As in `complete`.
        """
        conversation = _conversation(messages)
        requests = [_structured(conversation, schema, mode, sample) for mode in OutputMode]
        self._ledger.forget(map(self._key, requests))

    def _usable(
        self, ask: Callable[[_Call], R], cancelled: Callable[[], bool] = lambda: False
    ) -> R:
        """Return what a call gives, or forget the answers of which it could make nothing.

        A kill may have kept such answers, or another thread may have asked for them: those are not
        believed, but asked for once more.
        """
        call = _Call(cancelled)
        try:
            return ask(call)
        except OutputError as error:
            self._ledger.forget(call.used)
            if not any(call.used.values()):
                raise
            logger.info("asking again, since what was kept is of no use: %s", error)
        call.used.clear()
        try:
            return ask(call)
        except OutputError:
            self._ledger.forget(call.used)
            raise

    def _parsed(
        self, conversation: list[Message], schema: type[T], sample: int, repairs: int, call: _Call
    ) -> T:
        remaining = repairs
        while True:
            answer = self._ask_structured(conversation, schema, sample, call)
            try:
                return parse(answer.text, schema)
            except InvalidError as error:
                if answer.finish_reason == "length":
                    raise _cut(self._max_tokens, answer.text) from error
                if "{" not in answer.text and _SORRY.match(answer.text):
                    raise RefusalError(
                        f"the model declined: {_excerpt(answer.text)}", answer.text
                    ) from error
                if not remaining:
                    raise
                remaining -= 1
                logger.info("asking again, since %s", error)
                conversation = [
                    *conversation,
                    {"role": "assistant", "content": answer.text},
                    {"role": "user", "content": f"{error}.\n{instruction(schema)}"},
                ]

    def _ask_structured(
        self, conversation: list[Message], schema: type[BaseModel], sample: int, call: _Call
    ) -> Answer:
        requests = {mode: _structured(conversation, schema, mode, sample) for mode in OutputMode}
        for request in requests.values():  # an earlier run may have found the server to know less
            if self._ledger.answer(self._key(request)) is not None:
                return self._ask(request, call)
        first: _OptionRefused | None = None
        for mode in list(self._modes):
            try:
                kept, cached = self._fetch(requests[mode], call)
            except _OptionRefused as error:
                logger.info("the server refuses %s output: %s", mode, error)
                first = first or error
                continue
            order = list(OutputMode)
            self._modes = order[order.index(mode) :]
            return _read(kept, cached)
        raise first or AssertionError("there is no mode")

    def _ask(self, request: _Request, call: _Call) -> Answer:
        return _read(*self._fetch(request, call))

    def _fetch(self, request: _Request, call: _Call) -> tuple[dict[str, Any], bool]:
        """Return the answer to a request, and whether it was in the cache."""
        key = self._key(request)
        with self._ledger.asking(key):
            kept = self._ledger.answer(key)
            call.used[key] = kept is not None
            if kept is not None:
                return kept, True
            with self._slots:
                return self._retried(key, request, call.cancelled), False

    def _retried(
        self, key: str, request: _Request, cancelled: Callable[[], bool]
    ) -> dict[str, Any]:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Failed),
            stop=tenacity.stop_after_attempt(self._attempts)
            | tenacity.stop_before_delay(self._patience),
            sleep=lambda seconds: sleep_unless(cancelled, seconds),
            wait=_wait,
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            return retrying(self._attempt, key, request, cancelled)
        except _Failed as error:
            made = retrying.statistics.get("attempt_number", 1)
            if not error.reached:
                raise NoModelError(
                    f"no server answers at {self.server} ({made} attempts): {error}; start it, or "
                    "name another with --base-url or OPENAI_BASE_URL"
                ) from error
            raise NoAnswerError(
                f"{self.server} gave no answer in {made} attempts: {error}"
            ) from error

    def _log_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seconds = state.next_action.sleep if state.next_action else 0.0
        logger.warning(
            "attempt %d of %d failed: %s; the next one in %.1f s",
            state.attempt_number, self._attempts, error, seconds,
        )  # fmt: skip

    def _attempt(
        self, key: str, request: _Request, cancelled: Callable[[], bool]
    ) -> dict[str, Any]:
        """Send a request once, keep the answer and the account, and write both down."""
        bound = request.most_tokens()
        self._limiter.wait(bound // 4 + self._max_tokens, cancelled)
        if cancelled():
            raise CancelledError("the call was cancelled before a request was sent")
        number = self._ledger.enter(bound, self._max_tokens)
        entry: dict[str, Any] = {
            "key": key,
            "server": self.server,
            "model": self.model,
            "messages": request.messages,
            "output": request.output,
        }
        started = time.monotonic()
        try:
            payload = self._post(request)
        except LLMError as error:
            if not (isinstance(error, _Failed) and error.paid):
                self._ledger.settle(number, 0, 0)
            if isinstance(error, _Failed) and error.retry_after is not None:
                self._limiter.pause(error.retry_after)
            seconds = round(time.monotonic() - started, 3)
            self._transcript.write({**entry, "seconds": seconds, "error": str(error)})
            raise
        kept = _kept(payload, bound, self._max_tokens)
        self._ledger.keep(number, key, kept, kept["tokens_in"], kept["tokens_out"])
        self._transcript.write({**entry, "seconds": round(time.monotonic() - started, 3), **kept})
        return kept

    def _post(self, request: _Request) -> dict[str, Any]:
        """Send a request and return the body of the answer, in time or not at all."""
        try:
            return self._post_once(request)
        except _OptionRefused as error:
            if self._limit_option == "max_tokens" and "max_completion_tokens" in str(error):
                self._limit_option = "max_completion_tokens"
                return self._post_once(request)
            raise

    def _post_once(self, request: _Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in request.messages],
            self._limit_option: self._max_tokens,
        }
        if self._temperature is not None:
            body["temperature"] = self._temperature
        if request.response_format is not None:
            body["response_format"] = request.response_format
        deadline = time.monotonic() + self._timeout
        chunks: list[bytes] = []
        try:
            # Read in pieces, since the client's own time-out starts anew with every byte.
            create = self._client.chat.completions.with_streaming_response.create
            with create(**body) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if time.monotonic() > deadline:
                        late = f"no whole answer in {self._timeout:g} s"
                        raise _Failed(late, reached=True, paid=True)
        except openai.APIStatusError as error:
            raise self._refused(error) from error
        except openai.APITimeoutError as error:
            reached = _reached(error)
            late = f"no answer in {self._timeout:g} s"
            raise _Failed(late, reached=reached, paid=reached) from error
        except openai.APIConnectionError as error:
            reached = _reached(error)
            reason = f"the connection failed: {error.__cause__ or error}"
            raise _Failed(reason, reached=reached, paid=reached) from error
        except http.HTTPError as error:  # what breaks off while the body is read
            broke = f"the connection broke: {error}"
            raise _Failed(broke, reached=True, paid=True) from error
        return _decoded(b"".join(chunks))

    def _refused(self, error: openai.APIStatusError) -> Exception:
        status = error.status_code
        message = well_formed(_message(error))
        said = self._transcript.masked(f"HTTP {status}: {_excerpt(message)}")
        if status in (401, 403):
            return NoModelError(
                f"{self.server} refuses the key: {said}; set OPENAI_API_KEY to a valid one"
            )
        if status == 402 or error.code == "insufficient_quota":
            return NoModelError(f"{self.server} has no quota left for this key: {said}")
        if status == 404 and "parameter" not in said.lower():
            return NoModelError(
                f"{self.server} has no model {self.model!r}, or is no OpenAI-compatible server: "
                f"{said}; the URL should end in /v1 or the like"
            )
        if status in _RETRIED or (status >= 500 and status != 501):
            after = _retry_after(error.response.headers)
            if after is not None and after > self._patience:
                return NoAnswerError(
                    f"{self.server} asks to wait {after:g} s, which is longer than the patience of "
                    f"{self._patience:g} s: {said}"
                )
            return _Failed(said, reached=True, paid=False, retry_after=after)
        kind = _OptionRefused if status in _NO_SUCH_OPTION else RequestRefusedError
        return kind(f"{self.server} refuses the request: {said}")

    def _key(self, request: _Request) -> str:
        identity = {
            "server": self.server,
            "model": self.model,
            "messages": [dict(message) for message in request.messages],
            "response_format": request.response_format,
            "max_tokens": self._max_tokens,
            "temperature": self._temperature,
            "sample": request.sample,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Request:
    messages: list[Message]
    response_format: dict[str, Any] | None
    sample: int

    @property
    def output(self) -> str:
        return str(self.response_format["type"]) if self.response_format else "text"

    def most_tokens(self) -> int:
        """Return an upper bound: a token stands for at least one byte."""
        texts = [message["content"] for message in self.messages]
        if self.response_format is not None:
            texts.append(json.dumps(self.response_format))
        return sum(len(text.encode()) for text in texts) + _OVERHEAD_TOKENS * len(self.messages)


def _conversation(messages: str | Sequence[Message]) -> list[Message]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return list(messages)


def _structured(
    conversation: list[Message], schema: type[BaseModel], mode: OutputMode, sample: int
) -> _Request:
    messages = conversation
    if mode is not OutputMode.JSON_SCHEMA:
        *before, last = conversation
        content = f"{last['content']}\n\n{instruction(schema)}"
        messages = [*before, {**last, "content": content}]
    return _Request(messages, response_format(mode, schema), sample)


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    backoff = tenacity.wait_exponential(multiplier=0.5, max=30)(state) + random.uniform(0, 0.5)
    if isinstance(error, _Failed) and error.retry_after is not None:
        # Never sooner than asked, and not all threads at once.
        return error.retry_after + min(backoff, 0.5)
    return backoff


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait: a number, or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if seconds >= 0:  # false for NaN too
            return seconds
    return None


def _message(error: openai.APIStatusError) -> str:
    """What the server said; some releases of openai hand over the body whole, others its inside."""
    body = error.body
    inside = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(inside, dict) and isinstance(inside.get("message"), str):
        return str(inside["message"])
    return str(error.message).removeprefix(f"Error code: {error.status_code} - ")


def _reached(error: openai.APIConnectionError) -> bool:
    return not isinstance(error.__cause__, http.ConnectError | http.ConnectTimeout)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        payload = well_formed(json.loads(body))
    except (ValueError, RecursionError) as error:
        excerpt = _excerpt(body.decode(errors="replace"))
        broken = f"the answer is no JSON: {excerpt or 'nothing'}"
        raise _Failed(broken, reached=True, paid=True) from error
    choices = payload.get("choices") if isinstance(payload, dict) else None
    first = choices[0] if choices and isinstance(choices, list) else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict):
        broken = f"the answer has no message: {_excerpt(json.dumps(payload))}"
        raise _Failed(broken, reached=True, paid=True)
    return dict(payload)


def _kept(payload: dict[str, Any], bound: int, max_tokens: int) -> dict[str, Any]:
    """Return of an answer what is kept and written down."""
    choice = payload["choices"][0]
    message = choice["message"]
    content = _joined(message.get("content"))
    reasoning = _joined(message.get("reasoning_content") or message.get("reasoning"))
    usage = payload.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    # A server that does not count is taken at the most it can have used.
    written = min(len((content + reasoning).encode()), max_tokens)
    return {
        "content": content,
        "reasoning": reasoning,
        "refusal": _joined(message.get("refusal")),
        "finish_reason": str(choice.get("finish_reason") or "unknown"),
        "answered_by": str(payload.get("model") or ""),
        "max_tokens": max_tokens,
        "tokens_in": _counted(usage.get("prompt_tokens"), bound, bound),
        "tokens_out": _counted(usage.get("completion_tokens"), max_tokens, written),
    }


def _counted(tokens: Any, most: int, uncounted: int) -> int:
    """Return a server's count, so far as it can be: a wrong one must not lift the budget."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        return uncounted
    return min(tokens, most)


def _joined(content: Any) -> str:
    """Return the text of a content that may be null, a string or a list of parts."""
    if isinstance(content, list):
        return "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    return content if isinstance(content, str) else ""


def _read(kept: dict[str, Any], cached: bool) -> Answer:
    """Make an answer of what was kept, unless there is none in it."""
    finish, content = kept["finish_reason"], kept["content"]
    if kept["refusal"]:
        raise RefusalError(f"the model declined: {_excerpt(kept['refusal'])}", kept["refusal"])
    if finish == "content_filter":
        raise RefusalError("the server's filter stopped the answer", content)
    text = without_thoughts(content)
    if not text and finish == "length":
        raise _cut(kept["max_tokens"], content or kept["reasoning"])
    text = text or without_thoughts(kept["reasoning"]) or kept["reasoning"].strip()
    if not text:
        raise EmptyError("the answer has no text", content)
    return Answer(text, kept["answered_by"], finish, kept["tokens_in"], kept["tokens_out"], cached)


def _cut(max_tokens: int, text: str) -> CutError:
    return CutError(
        f"the answer was cut at {max_tokens} tokens; raise max_tokens, on the command line "
        "--max-tokens",
        text,
    )


def _excerpt(text: str, length: int = 200) -> str:
    """Shorten a server's text, and escape what would steer a terminal."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= length else text[:length] + " ..."


def _check_url(url: str) -> None:
    """Refuse what no request can be sent to, which else would be tried again and again."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # no port, or brackets that are no address
        usable = False
    if not usable:
        raise NoModelError(
            f"{url.rpartition('@')[2]!r} is no URL of a server; need one that begins with http:// "
            "or https://, such as http://localhost:8000/v1; mend base_url=..., on the command line "
            "--base-url, or OPENAI_BASE_URL"
        )


def _without_login(url: str) -> tuple[str, str]:
    """Return a URL without user name and password, and the password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)).rstrip("/"), parts.password or ""
