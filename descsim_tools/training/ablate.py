"""Compare ways to train on the same data, as the paper's Fig. 5 does for its losses."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from descsim_tools.training.config import ConfigError, TrainConfig, parse_config, read_toml
from descsim_tools.training.kinds import run
from descsim_tools.training.plots import plot_comparison


def load_settings(path: str | Path) -> dict[str, TrainConfig]:
    """Read a configuration with a table of differences for each setting under `ablate`.

    Raises:
        ConfigError: It is missing or malformed, or has no settings.
    """
    path = Path(path)
    content = read_toml(path)
    settings = content.pop("ablate", None)
    if not isinstance(settings, dict) or not settings:
        raise ConfigError(f"{path} has no settings to compare: add tables [ablate.NAME]")
    return {
        name: parse_config(
            {**_merged(content, differences), "name": name}, path.parent, f"{path}, {name}"
        )
        for name, differences in settings.items()
    }


def ablate(
    settings: Mapping[str, TrainConfig], folder: str | Path, *, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Train all settings and write the comparison.

    Args:
        settings: Configurations by name; their dev files should be the same.
        folder: Gets a folder for each, `comparison.csv` and `comparison.png`. What is there already
            is not trained again.
        progress: Show bars on standard error.

    Returns:
        Dev figures by the setting's name.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        name: run(config, folder / name, progress=progress).metrics
        for name, config in settings.items()
    }
    names = sorted({name for figures in rows.values() for name in figures})
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["setting", *names])
        writer.writeheader()
        writer.writerows({"setting": name, **figures} for name, figures in rows.items())
    drawn = [n for n in names if n.endswith(("precision@1", "precision@5", "accuracy"))]
    plot_comparison(rows, drawn, folder / "comparison.png")
    return rows


def _merged(content: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for section, values in differences.items():
        # A loss is replaced whole: the settings of one are none of another's.
        keeps = isinstance(values, dict) and section != "loss"
        merged[section] = {**content.get(section, {}), **values} if keeps else values
    return merged
