"""What a configuration can train, by its `kind`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descsim_tools.training.config import TrainConfig

if TYPE_CHECKING:
    from descsim_tools.training.trainer import TrainResult


def run(config: TrainConfig, folder: str | Path, *, progress: bool = False) -> TrainResult:
    """Train what `config.kind` says.

    Args:
        config: See `load_config`.
        folder: For the result.
        progress: Show bars on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed.
        EncoderError: The base cannot be loaded.
        RerankerError: The base of a `causal-lm`, or its prompt, cannot be found.
    """
    if config.kind == "maps":
        from descsim_tools.training.maps import train
    elif config.kind == "cross-encoder":
        from descsim_tools.training.cross_encoder import train
    elif config.kind == "causal-lm":
        from descsim_tools.training.causal_lm import train
    else:
        from descsim_tools.training.trainer import train
    return train(config, folder, progress=progress)
