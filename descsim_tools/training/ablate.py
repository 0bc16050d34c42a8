"""Compare ways to train on the same data, as the paper's Fig. 5 does for its losses."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from descsim_tools.evaluation.protocol import CUTOFFS
from descsim_tools.training.config import ConfigError, TrainConfig, parse_config, read_toml
from descsim_tools.training.kinds import run
from descsim_tools.training.plots import plot_comparison

_NAME = re.compile(r"\w[\w.-]*")


def load_settings(path: str | Path) -> dict[str, TrainConfig]:
    """Read a configuration with a table of differences for each setting under `ablate`.

    Raises:
        ConfigError: It is missing or malformed, has no settings, or these have not the same dev
            files.
    """
    path = Path(path)
    content = read_toml(path)
    settings = content.pop("ablate", None)
    if not isinstance(settings, dict) or not settings:
        raise ConfigError(f"{path} has no settings to compare: add tables [ablate.NAME]")
    for name, differences in settings.items():
        if not isinstance(differences, dict):
            raise ConfigError(f"{path}: ablate.{name} is {differences!r}, need a table of settings")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: ablate.{name!r} names a folder; use letters, digits, '-' and '_'"
            )
    found = {
        name: parse_config(
            {**_merged(content, differences), "name": name}, path.parent, f"{path}, {name}"
        )
        for name, differences in settings.items()
    }
    dev = [config.data.dev for config in found.values()]
    if not dev[0] or any(files != dev[0] for files in dev):
        raise ConfigError(f"{path}: all settings need the same data.dev, to be compared by")
    return found


def ablate(
    settings: Mapping[str, TrainConfig], folder: str | Path, *, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Train all settings and write the comparison.

    Args:
        settings: Configurations by name, with the same dev files.
        folder: Gets a folder for each, `comparison.csv` and `comparison.png`. What is there already
            is not trained again.
        progress: Show bars on standard error.

    Returns:
        Dev figures by the setting's name.
    """
    folder = Path(folder)
    rows = {
        name: run(config, folder / name, progress=progress).metrics
        for name, config in settings.items()
    }
    names = sorted({name for figures in rows.values() for name in figures})
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["setting", *names])
        writer.writeheader()
        writer.writerows({"setting": name, **figures} for name, figures in rows.items())
    drawn = [n for n in names if n.endswith((*(f"precision@{k}" for k in CUTOFFS), "accuracy"))]
    plot_comparison(rows, drawn, folder / "comparison.png")
    return rows


def _merged(content: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for section, values in differences.items():
        # A loss is replaced whole: the settings of one are none of another's.
        common = content.get(section, {})
        keeps = isinstance(values, dict) and isinstance(common, dict) and section != "loss"
        merged[section] = {**common, **values} if keeps else values
    return merged
