"""`CausalLMScorer`: log-probabilities from a transformers model in this process."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers.util import get_device_name
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from descsim_tools.errors import RerankerError
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.scorers import LogProbs
from descsim_tools.rerankers.tokens import Continuation, Tokenizer, as_tokenizer
from descsim_tools.rerankers.weights import ModelSource, find_causal_lm

logger = logging.getLogger(__name__)

Padding = Literal["right", "left"]
DType = Literal["float32", "bfloat16", "float16"]

_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# The output layer's result, in numbers: 256 MB on a CPU, whose caches gain nothing from more.
_MOST_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 29}
_MOST_COPIED = 1 << 22
# A shared start shorter than this costs more to copy than to compute.
_SHORTEST_SHARED = 8
_FALLBACK_LENGTH = 2048


class CausalLMScorer:
    """Scores tokens with a causal language model.

    Batches are of similar lengths and may mix descriptions. Only the target's positions go through
    the output layer. What all contexts of a call start with is computed once. An architecture that
    cannot do the latter two, found by a trial when the scorer is made, gets whole forward passes.

    Padding is put to the right, where a causal model cannot see it: so no mask is needed, and
    positions and sliding windows are those of the text alone. `padding="left"` masks it instead;
    then nothing is shared, since padding would come between the shared start and the rest.

    Attributes:
        name: What the model is called.
        model: The transformers model.
        tokenizer: Its tokenizer.
        max_length: Most tokens read at once.
        batch_size: Most pairs in one forward pass.
        padding: Where padding goes.
        shares_start: Whether a common start is computed once.
        keeps_few_logits: Whether only the target's positions go through the output layer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        device: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        padding: Padding = "right",
        share_start: bool = True,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}, need a whole number from 1 up")
        if padding not in ("right", "left"):
            raise ValueError(f"padding is {padding!r}; there are: right, left")
        self.device = device or get_device_name()
        self.model = model.to(self.device).eval()  # type: ignore[arg-type]
        self.tokenizer = as_tokenizer(tokenizer)
        self.name = name or str(model.config.name_or_path) or type(model).__name__
        self.max_length = _length(model, None)
        self.batch_size = batch_size
        self.padding: Padding = padding
        parameters = inspect.signature(model.forward).parameters
        # transformers renamed the argument in 5.2x, architecture by architecture.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._lock = Lock()
        self.keeps_few_logits = "logits_to_keep" in parameters
        self.shares_start = share_start and padding == "right"
        self._check_causal()
        self._try_shortcuts()
        self.max_length = _length(model, max_length)

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        device: str | None = None,
        dtype: DType | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        padding: Padding = "right",
        share_start: bool = True,
    ) -> CausalLMScorer:
        """Load a model.

        Args:
            name: A hub id, a folder, a `.gguf` file, or `gemma3-270m` for the one that the extra
                `local-lm` installs.
            device: Such as `cpu` or `cuda:1`; None takes the best.
            dtype: `float32`, `bfloat16` or `float16`; None takes bfloat16 on a GPU, else float32.
            max_length: Most tokens read at once; None takes the model's own limit.
            batch_size: Most pairs in one forward pass.
            padding: Where padding goes, see the class.
            share_start: Whether to compute a common start once.

        Raises:
            RerankerError: The model cannot be found or loaded.
        """
        if dtype is not None and dtype not in _DTYPES:
            raise RerankerError(f"no dtype {dtype!r}; there are: {', '.join(_DTYPES)}")
        device = device or get_device_name()
        precise = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
        source = find_causal_lm(str(name))
        model, tokenizer = _load(source, _DTYPES[precise])
        return cls(
            model,
            tokenizer,
            name=source.name,
            device=device,
            max_length=max_length,
            batch_size=batch_size,
            padding=padding,
            share_start=share_start,
        )

    def log_probs(self, continuations: Sequence[Continuation]) -> list[LogProbs]:
        """Return the log-probability of each target token, see `Scorer.log_probs`.

        Raises:
            ValueError: A continuation is longer than `max_length`, or a part of it empty.
        """
        for number, one in enumerate(continuations):
            length = len(one.context) + len(one.target)
            if length > self.max_length or not one.context or not one.target:
                raise ValueError(
                    f"continuation {number} has {len(one.context)} + {len(one.target)} tokens, "
                    f"need at least 1 of each and at most {self.max_length} together"
                )
        results: list[LogProbs] = [np.zeros(0)] * len(continuations)
        with self._lock, torch.inference_mode():
            shared = self._shared_start(continuations)
            start = self._start(continuations[0].context[:shared]) if shared else None
            for batch in self._batches(continuations):
                rows = self._batch([continuations[i] for i in batch], shared, start)
                for i, row in zip(batch, rows, strict=True):
                    results[i] = row
        return results

    def log_prob_sums(self, continuations: Sequence[Continuation]) -> torch.Tensor:
        """Return the sums over each target, (n,) float64, with their graph: for training.

        One forward pass, whose length the caller bounds; see `log_probs` for what may be given.
        """
        lengths = [len(one.target) for one in continuations]
        parts = torch.split(self._values(continuations, 0, None), lengths)
        return torch.stack([part.sum() for part in parts])

    def _batches(self, continuations: Sequence[Continuation]) -> Iterator[list[int]]:
        """Group by length, so that little is padded, within the room for logits."""
        budget = _MOST_LOGITS["cuda" if self.device.startswith("cuda") else "cpu"]
        most = max(1, budget // self._vocabulary)
        order = sorted(
            range(len(continuations)),
            key=lambda i: (
                len(continuations[i].context) + len(continuations[i].target),
                len(continuations[i].target),
            ),
            reverse=True,
        )
        batch: list[int] = []
        positions = longest = 0
        for i in order:
            one = continuations[i]
            longest = max(longest, len(one.context) + len(one.target) - 1)
            kept = len(one.target)
            full = (len(batch) + 1) * longest if not self.keeps_few_logits else positions + kept
            if batch and (len(batch) == self.batch_size or full > most):
                yield batch
                batch, positions = [], 0
                longest = len(one.context) + len(one.target) - 1
            batch.append(i)
            positions += kept
        if batch:
            yield batch

    def _shared_start(self, continuations: Sequence[Continuation]) -> int:
        """Return how many tokens all contexts start with; 0 if they are not worth sharing."""
        if not self.shares_start or len(continuations) < 2:
            return 0
        first = min(one.context for one in continuations)
        last = max(one.context for one in continuations)
        # The last token of a context gives the target's first probability, so it is never shared.
        most = min(len(one.context) for one in continuations) - 1
        length = 0
        while length < min(most, len(first), len(last)) and first[length] == last[length]:
            length += 1
        return length if length >= _SHORTEST_SHARED else 0

    def _start(self, tokens: Sequence[int]) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([tokens], device=self.device)
        few = {"logits_to_keep": 1} if self.keeps_few_logits else {}
        self.model(input_ids=ids, use_cache=True, **{self._cache_argument: cache}, **few)
        return cache

    def _batch(
        self, batch: Sequence[Continuation], shared: int, start: DynamicCache | None
    ) -> list[LogProbs]:
        values = self._values(batch, shared, start).cpu().numpy()
        ends = np.cumsum([len(one.target) for one in batch])
        return list(np.split(values, ends[:-1]))

    def _values(
        self, batch: Sequence[Continuation], shared: int, start: DynamicCache | None
    ) -> torch.Tensor:
        """Return the target tokens' log-probabilities, row after row."""
        # A target's last token is predicted, and never read.
        rows = [[*one.context[shared:], *one.target[:-1]] for one in batch]
        longest = max(map(len, rows))
        shape = (len(rows), longest)
        ids = torch.zeros(shape, dtype=torch.long)
        real = torch.zeros(shape, dtype=torch.bool)
        wanted = torch.zeros(shape, dtype=torch.bool)
        for i, (row, one) in enumerate(zip(rows, batch, strict=True)):
            end = longest if self.padding == "left" else len(row)
            ids[i, end - len(row) : end] = torch.tensor(row)
            real[i, end - len(row) : end] = True
            wanted[i, end - len(one.target) : end] = True
        wanted = wanted.to(self.device)
        logits = self._logits(ids.to(self.device), real.to(self.device), wanted, start)
        target = torch.tensor([token for one in batch for token in one.target], device=self.device)
        return _log_softmax_at(logits, target)

    def _logits(
        self,
        ids: torch.Tensor,
        real: torch.Tensor,
        wanted: torch.Tensor,
        start: DynamicCache | None,
    ) -> torch.Tensor:
        """Return the logits at the wanted positions, row after row: (positions, vocabulary)."""
        arguments: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if self.padding == "left":
            arguments["attention_mask"] = real.long()
            if self._takes_positions:
                arguments["position_ids"] = (real.long().cumsum(1) - 1).clamp(min=0)
        if start is not None:
            cache = copy.deepcopy(start)
            cache.batch_repeat_interleave(len(ids))
            arguments |= {self._cache_argument: cache, "use_cache": True}
        if not self.keeps_few_logits:
            logits: torch.Tensor = self.model(**arguments).logits[wanted]
        else:
            logits = self.model(**arguments, logits_to_keep=wanted).logits
            # Some versions keep a dimension for the batch.
            logits = logits.reshape(-1, logits.shape[-1])
        return logits

    def _check_causal(self) -> None:
        """Refuse a model that sees what comes after a token, such as an encoder."""
        ids = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 7]], device=self.device) % self._vocabulary
        with torch.inference_mode():
            first, second = self.model(input_ids=ids, use_cache=False).logits[:, :3].float()
        # Against the spread of the logits, since an untrained model's are all close to zero.
        tolerance = 1e-4 if self.model.dtype == torch.float32 else 0.02
        if (first - second).abs().max() > tolerance * first.std():
            raise RerankerError(
                f"{self.name} ({type(self.model).__name__}) is no causal language model: what "
                "follows a token changes its probability. Take a decoder such as GPT-2."
            )

    def _try_shortcuts(self) -> None:
        """Compare the fast ways with a whole forward pass, and leave out what differs."""
        wide = _SHORTEST_SHARED + 2
        numbers = [(7 * i + 3) % self._vocabulary for i in range(2 * wide)]
        pairs = [
            Continuation(tuple(numbers[:wide]), tuple(numbers[wide : wide + 2])),
            Continuation((*numbers[: wide - 1], *numbers[-3:]), tuple(numbers[wide : wide + 3])),
        ]
        few, shares = self.keeps_few_logits, self.shares_start
        self.keeps_few_logits = self.shares_start = False
        expected = np.concatenate(self.log_probs(pairs))
        self.keeps_few_logits = few
        if few and not _close(self._tried(pairs, "few logits"), expected, self.model.dtype):
            self.keeps_few_logits = False
        self.shares_start = shares
        if shares and not _close(self._tried(pairs, "a shared start"), expected, self.model.dtype):
            self.shares_start = False
        for wanted, got, what in (
            (few, self.keeps_few_logits, "logits of few positions"),
            (shares, self.shares_start, "a shared start"),
        ):
            if wanted and not got:
                logger.info("%s cannot do %s; scoring is slower, not worse", self.name, what)

    def _tried(self, pairs: list[Continuation], what: str) -> LogProbs | None:
        try:
            return np.concatenate(self.log_probs(pairs))
        # An architecture may fail in any way at what it was not written for.
        except Exception:
            logger.info("%s failed at %s", self.name, what, exc_info=True)
            return None


def _log_softmax_at(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return (n,) float64: the log-softmax of (n, vocabulary) logits at one token a row.

    A few rows at a time: copies as large as all logits would cost more than the arithmetic.
    """
    rows = max(1, _MOST_COPIED // logits.shape[1])
    parts = []
    for start in range(0, len(logits), rows):
        few = logits[start : start + rows].float()
        picked = few.gather(1, target[start : start + rows, None])[:, 0]
        parts.append(picked.double() - torch.logsumexp(few, dim=1).double())
    return torch.cat(parts)


def _close(got: LogProbs | None, expected: LogProbs, dtype: torch.dtype) -> bool:
    tolerance = 1e-3 if dtype == torch.float32 else 0.3
    return (
        got is not None
        and got.shape == expected.shape
        and bool(np.allclose(got, expected, rtol=tolerance, atol=tolerance))
    )


def _length(model: PreTrainedModel, wanted: int | None) -> int:
    config = model.config.get_text_config()
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    limit = next((int(value) for value in limits if value), None)
    if wanted is None:
        return limit or _FALLBACK_LENGTH
    if wanted < 2 or (limit is not None and wanted > limit):
        raise ValueError(f"max_length is {wanted!r}, need a whole number from 2 to {limit}")
    return wanted


def _load(source: ModelSource, dtype: torch.dtype) -> tuple[PreTrainedModel, Tokenizer]:
    gguf = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(source.folder, **gguf)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source.folder, dtype=dtype, output_loading_info=True, **gguf
            )
    # transformers raises many unrelated types for a name, file or architecture it cannot use.
    except Exception as error:
        raise RerankerError(
            f"cannot load {source.name!r} as a causal language model "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). Check "
            "the name and the network (HF_HUB_OFFLINE forbids it), or name a folder saved by "
            "transformers or a .gguf file."
        ) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise RerankerError(
            f"{source.name!r} is no complete causal language model: it lacks {len(missing)} "
            f"weights, such as {missing[0]}, which would be random. Name a model that was trained "
            "as one."
        )
    return model, as_tokenizer(tokenizer)
