"""Rerankers by name, for `DescriptionIndex.search` and the command line.

To add one, add a row to `_LOADERS`. A loader imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.base import Reranker


def _log_prob(source: str | None, device: str | None) -> Reranker:
    from descsim_tools.rerankers.log_prob import LogProbReranker

    if source is None:
        return LogProbReranker.load(device=device)
    return LogProbReranker.load(source, device=device)


def _cross_encoder(source: str | None, device: str | None) -> Reranker:
    from descsim_tools.rerankers.cross_encoder import DescriptionCrossEncoder

    return DescriptionCrossEncoder.load(source, device=device)


def _combined(source: str | None, device: str | None) -> Reranker:
    from descsim_tools.rerankers.combined import CombinedReranker

    return CombinedReranker.load(source, device=device)


_LOADERS: dict[str, Callable[[str | None, str | None], Reranker]] = {
    "cross-encoder": _cross_encoder,
    "combined": _combined,
    "log-prob": _log_prob,
}

RERANKERS = tuple(_LOADERS)


def load_reranker(name: str, *, device: str | None = None) -> Reranker:
    """Load a reranker by name.

    Args:
        name: One of `RERANKERS`, alone or with a model of its kind after a colon: `cross-encoder`,
            `cross-encoder:my-model`, `combined`, `log-prob:gpt2`, `log-prob:tuned.json`.
        device: Such as `cpu` or `cuda`; None takes the best.

    Raises:
        RerankerError: There is none of that name, or its model cannot be loaded.
    """
    kind, colon, source = name.partition(":")
    if kind not in _LOADERS or (colon and not source):
        raise RerankerError(
            f"no reranker {name!r}; there are: {', '.join(RERANKERS)}, each alone or followed by "
            "a colon and a model"
        )
    return _LOADERS[kind](source or None, device)
