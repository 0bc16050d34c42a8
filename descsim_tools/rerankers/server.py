"""`ServerScorer`: log-probabilities from an OpenAI-compatible completions server.

Two dialects tell the log-probabilities of a prompt's tokens: `echo` with `logprobs` (OpenAI's own
completions API, llama.cpp's and others), and vLLM's `prompt_logprobs`. Many servers accept the
request and leave the numbers out, so a server is tried before it is used.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.scorers import LogProbs
from descsim_tools.rerankers.tokens import Continuation, Tokenizer, as_tokenizer

logger = logging.getLogger(__name__)

_PROBE = "The sun rises in the east and sets in the west."
_LONGEST_ANSWER = 64 * 1024 * 1024


class Dialect(StrEnum):
    """How a server is asked for the log-probabilities of a prompt's tokens."""

    ECHO = "echo"
    VLLM = "vllm"


class ServerError(RerankerError):
    """A server does not answer, refuses, or its answer cannot be used."""


class _PassingError(ServerError):
    """A failure that may be over at the next try: no connection, a time-out, 429, 5xx."""


class ServerScorer:
    """Scores tokens with a language model behind HTTP.

    Texts are tokenized here and sent as token ids, so exactly the wanted tokens are scored. When
    made, it sends two short prompts and refuses a server that gives no log-probabilities, too many
    or too few, constants, or prefers reversed words to a sentence.

    Args:
        url: Base of the API, such as `http://localhost:8000/v1`.
        model: Name of the model on the server.
        tokenizer: The model's own: a transformers tokenizer, a hub id, or a folder.
        api_key: Sent as a bearer token.
        dialect: `echo` or `vllm`; None tries both.
        max_length: Most tokens the server reads at once.
        timeout: Most seconds for one try of one request; connecting may take as long again.
        tries: Most tries of a request; only connection failures, time-outs, 429 and 5xx are tried
            again.
        concurrency: Most requests under way at once.

    Attributes:
        name: Name of the model on the server.
        tokenizer: As above.
        max_length: As above.
        dialect: The one in use.

    Raises:
        ServerError: The server does not answer or cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        tokenizer: Tokenizer | str | Path,
        api_key: str | None = None,
        dialect: Dialect | str | None = None,
        max_length: int = 2048,
        timeout: float = 30.0,
        tries: int = 3,
        concurrency: int = 4,
    ) -> None:
        for what, value, least in (
            ("max_length", max_length, 2),
            ("tries", tries, 1),
            ("concurrency", concurrency, 1),
        ):
            if value < least:
                raise ValueError(f"{what} is {value!r}, need a whole number from {least} up")
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout!r}, need seconds above 0")
        self.name = model
        self.max_length = max_length
        self.tokenizer = _tokenizer(tokenizer)
        self._url = f"{url.rstrip('/')}/completions"
        self._timeout = timeout
        self._tries = tries
        self._concurrency = concurrency
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(timeout=timeout, headers=headers)
        try:
            self.dialect = self._probe([Dialect(dialect)] if dialect else [*Dialect])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ServerScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def log_probs(self, continuations: Sequence[Continuation]) -> list[LogProbs]:
        """Return the log-probability of each target token, see `Scorer.log_probs`.

        Raises:
            ServerError: A request failed at every try, or an answer cannot be used.
        """
        # The first failure ends the call; requests that wait are then never sent.
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="descsim-server")
        try:
            return list(pool.map(self._log_probs, continuations))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _log_probs(self, one: Continuation) -> LogProbs:
        return self._ask(one, self.dialect)

    def _probe(self, dialects: list[Dialect]) -> Dialect:
        ids = self.tokenizer.encode(_PROBE, add_special_tokens=True)
        plain = Continuation(tuple(ids[:2]), tuple(ids[2:]))
        mixed = Continuation(tuple(ids[:2]), tuple(reversed(ids[2:])))
        reasons = []
        for dialect in dialects:
            try:
                known, reversed_ = (self._ask(one, dialect) for one in (plain, mixed))
                _check_probe(known, reversed_)
                return dialect
            except _PassingError:
                raise
            except ServerError as error:
                reasons.append(f"{dialect}: {error}")
        raise ServerError(
            f"{self._url} cannot be used with the model {self.name!r}. {'; '.join(reasons)}. Take "
            "a server that tells the log-probabilities of prompt tokens, such as vLLM, and check "
            "that the tokenizer is the model's own."
        )

    def _ask(self, one: Continuation, dialect: Dialect) -> LogProbs:
        ids = [*one.context, *one.target]
        if len(ids) > self.max_length or not one.context or not one.target:
            raise ValueError(
                f"got {len(one.context)} + {len(one.target)} tokens, need at least 1 of each and "
                f"at most {self.max_length} together"
            )
        body: dict[str, Any] = {
            "model": self.name,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
        }
        if dialect is Dialect.ECHO:
            body |= {"echo": True, "logprobs": 1}
        else:
            body["prompt_logprobs"] = 1
        answer = self._post(body)
        read = _read_echo if dialect is Dialect.ECHO else _read_vllm
        try:
            values = read(answer["choices"][0], ids)[len(one.context) :]
            result = np.array([float(value) for value in values])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerError(
                f"the answer has no log-probability for every token of the prompt ({error!r})"
            ) from error
        if not np.isfinite(result).all() or (result > 1e-6).any():
            raise ServerError(f"the answer has log-probabilities such as {max(result)}, need <= 0")
        return result

    def _post(self, body: dict[str, Any]) -> Any:
        retrying = Retrying(
            stop=stop_after_attempt(self._tries),
            wait=wait_exponential(multiplier=0.2, max=5.0) + wait_random(0, 0.1),
            retry=retry_if_exception_type(_PassingError),
            before_sleep=self._log_retry,
            reraise=True,
        )
        return retrying(self._post_once, body)

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        logger.warning("try %d of %d failed: %s", state.attempt_number, self._tries, error)

    def _post_once(self, body: dict[str, Any]) -> Any:
        deadline = time.monotonic() + self._timeout
        try:
            with self._client.stream("POST", self._url, json=body) as response:
                content = b""
                # A server may send a byte now and then, and so outlast the client's own time-out.
                for part in response.iter_bytes():
                    content += part
                    if time.monotonic() > deadline:
                        raise _PassingError(
                            f"{self._url} did not end its answer within {self._timeout:g} s"
                        )
                    if len(content) > _LONGEST_ANSWER:
                        raise ServerError(f"{self._url} sent more than {_LONGEST_ANSWER} bytes")
        except httpx.TimeoutException as error:
            raise _PassingError(
                f"{self._url} did not answer within {self._timeout:g} s; is the server busy, or "
                "the timeout too short?"
            ) from error
        except httpx.TransportError as error:
            raise _PassingError(f"no connection to {self._url}: {error}") from error
        except httpx.InvalidURL as error:
            raise ServerError(f"{self._url} is no URL: {error}") from error
        if response.is_success:
            return _json(content, self._url)
        shown = content[:300].decode("utf-8", "replace").strip()
        failure = f"{self._url} answered {response.status_code}: {shown}"
        if response.status_code == 429 or response.status_code >= 500:
            raise _PassingError(failure)
        raise ServerError(failure)


def _json(content: bytes, url: str) -> Any:
    import json

    try:
        return json.loads(content)
    except ValueError as error:
        raise ServerError(f"{url} sent no JSON: {content[:100]!r}") from error


def _read_echo(choice: Any, ids: list[int]) -> list[Any]:
    """Return one value a prompt token; the first has none, and generated tokens follow."""
    values: list[Any] = choice["logprobs"]["token_logprobs"]
    # Servers differ in whether they count the one generated token.
    if len(values) not in (len(ids), len(ids) + 1):
        raise ValueError(f"{len(values)} log-probabilities for {len(ids)} tokens")
    return values[: len(ids)]


def _read_vllm(choice: Any, ids: list[int]) -> list[Any]:
    entries: list[Any] = choice["prompt_logprobs"]
    if len(entries) != len(ids):
        raise ValueError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    return [
        None if entry is None else entry[str(token)]["logprob"]
        for token, entry in zip(ids, entries, strict=True)
    ]


def _check_probe(known: LogProbs, mixed: LogProbs) -> None:
    if np.ptp(known) < 1e-6:
        raise ServerError(f"all {len(known)} log-probabilities are {known[0]}")
    if not math.fsum(known) > math.fsum(mixed):
        raise ServerError(
            f"the words of a sentence in reverse are more probable ({mixed.sum():.1f} nats) than "
            f"the sentence ({known.sum():.1f}), so the numbers belong to other tokens"
        )


def _tokenizer(tokenizer: Tokenizer | str | Path) -> Tokenizer:
    if not isinstance(tokenizer, str | Path):
        return as_tokenizer(tokenizer)
    from transformers import AutoTokenizer

    try:
        return as_tokenizer(AutoTokenizer.from_pretrained(tokenizer))
    # transformers raises many unrelated types for a name or folder it cannot use.
    except Exception as error:
        raise RerankerError(
            f"cannot load the tokenizer {str(tokenizer)!r} ({type(error).__name__}); name a hub id "
            "or a folder that holds the model's tokenizer"
        ) from error
