"""What a configuration can train, by its `kind`."""

from __future__ import annotations

from pathlib import Path

from descsim_tools.training.config import TrainConfig
from descsim_tools.training.folder import TrainResult, run_folder


def run(config: TrainConfig, folder: str | Path, *, progress: bool = False) -> TrainResult:
    """Train what `config.kind` says.

    Args:
        config: See `load_config`.
        folder: For the result. A run that has ended in it is not done again.
        progress: Show bars on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed, the training diverged, or the folder is another
            run's; see `run_folder`.
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
    with run_folder(config, folder) as ended:
        return ended or train(config, Path(folder), progress=progress)
