"""Plots of training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from descsim_tools.errors import require


def plot_history(history: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw the training loss and the dev score over the epochs."""
    figure, left = _figure()
    losses = [(entry["epoch"], entry["loss"]) for entry in history if "loss" in entry]
    scores = [(entry["epoch"], entry["eval_score"]) for entry in history if "eval_score" in entry]
    left.set_xlabel("epoch")
    left.set_ylabel("training loss")
    if losses:
        left.plot(*zip(*losses, strict=True), color="tab:gray", label="training loss")
    if scores:
        right = left.twinx()
        right.set_ylabel("dev score")
        right.plot(*zip(*scores, strict=True), marker="o", color="tab:blue", label="dev score")
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})


def plot_comparison(
    rows: Mapping[str, Mapping[str, float]], measures: Sequence[str], path: str | Path
) -> None:
    """Draw the measures of several runs as groups of bars.

    Args:
        rows: Figures by the run's name.
        measures: Which of them to draw.
        path: A .png file.
    """
    figure, axes = _figure()
    width = 0.8 / max(1, len(rows))
    for number, (name, figures) in enumerate(rows.items()):
        places = [i + number * width for i in range(len(measures))]
        axes.bar(places, [figures[m] for m in measures], width, label=name)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(measures))], measures, rotation=20)
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})


def _figure() -> tuple[Any, Any]:
    # The object interface, since pyplot would choose a display and keep every figure alive.
    figure = require("matplotlib.figure", "train").Figure(figsize=(7, 4))
    return figure, figure.subplots()
