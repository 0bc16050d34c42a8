"""One way in for all kinds of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descsim_tools.training.config import TrainConfig

if TYPE_CHECKING:
    from descsim_tools.training.trainer import TrainResult


def run(config: TrainConfig, folder: str | Path, *, progress: bool = False) -> TrainResult:
    """Train what a configuration's `kind` says; see that kind's own function for the errors."""
    if config.kind == "cross-encoder":
        from descsim_tools.training.cross_encoder import train_cross_encoder

        return train_cross_encoder(config, folder, progress=progress)
    if config.kind == "causal-lm":
        from descsim_tools.training.causal_lm import train_causal_lm

        return train_causal_lm(config, folder, progress=progress)
    from descsim_tools.training.trainer import train

    return train(config, folder, progress=progress)
