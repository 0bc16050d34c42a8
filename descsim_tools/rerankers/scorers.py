"""What `LogProbReranker` asks of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from descsim_tools.rerankers.tokens import Continuation, Tokenizer

LogProbs = NDArray[np.float64]


class Scorer(Protocol):
    """A causal language model that tells the probability of given tokens."""

    @property
    def name(self) -> str:
        """What the model is called."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        ...

    @property
    def max_length(self) -> int:
        """Most tokens it reads at once."""
        ...

    def log_probs(self, continuations: Sequence[Continuation]) -> list[LogProbs]:
        """Return the log-probability of each target token, given all tokens before it.

        Args:
            continuations: Each of at most `max_length` tokens; in any order, of any lengths.

        Returns:
            For each continuation (len(target),) float64 in nats, at most 0. It does not depend on
            the other continuations.
        """
        ...
