"""Rerankers: score (description, sentence) pairs jointly.

The names below are imported on first use, so that listing prompts loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descsim_tools.rerankers.base import Reranker
    from descsim_tools.rerankers.causal_lm import CausalLMScorer
    from descsim_tools.rerankers.combined import CombinedReranker
    from descsim_tools.rerankers.cross_encoder import DescriptionCrossEncoder
    from descsim_tools.rerankers.log_prob import LogProbReranker, Reduction
    from descsim_tools.rerankers.prompts import PROMPTS, Prompt
    from descsim_tools.rerankers.registry import RERANKERS, load_reranker
    from descsim_tools.rerankers.server import ServerScorer

_HOMES = {
    "PROMPTS": "prompts",
    "RERANKERS": "registry",
    "CausalLMScorer": "causal_lm",
    "CombinedReranker": "combined",
    "DescriptionCrossEncoder": "cross_encoder",
    "LogProbReranker": "log_prob",
    "Prompt": "prompts",
    "Reduction": "log_prob",
    "Reranker": "base",
    "ServerScorer": "server",
    "load_reranker": "registry",
}

__all__ = [
    "PROMPTS",
    "RERANKERS",
    "CausalLMScorer",
    "CombinedReranker",
    "DescriptionCrossEncoder",
    "LogProbReranker",
    "Prompt",
    "Reduction",
    "Reranker",
    "ServerScorer",
    "load_reranker",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
