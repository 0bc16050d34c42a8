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
    """
    if config.kind == "maps":
        from descsim_tools.training.maps import train
    else:
        from descsim_tools.training.trainer import train
    return train(config, folder, progress=progress)
