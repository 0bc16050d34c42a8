"""Plots of training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from descsim_tools.errors import require


def plot_history(history: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw the training loss and the dev score over the epochs, and the epoch that was kept."""
    figure, left = _figure()
    losses = [(entry["epoch"], entry["loss"]) for entry in history if "loss" in entry]
    scores = [(entry["epoch"], entry["eval_score"]) for entry in history if "eval_score" in entry]
    left.set_xlabel("epoch")
    left.set_ylabel("training loss")
    if losses:
        left.plot(*zip(*losses, strict=True), marker=".", color="tab:gray", label="training loss")
    if scores:
        right = left.twinx()
        right.set_ylabel("dev score")
        right.plot(*zip(*scores, strict=True), marker="o", color="tab:blue", label="dev score")
        best = max(scores, key=lambda entry: float(entry[1]))
        ring = {"marker": "o", "markersize": 11, "fillstyle": "none", "linestyle": "", "color": "k"}
        right.plot(*best, **ring, label="kept")
    _legend_above(figure)
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})


def plot_comparison(
    rows: Mapping[str, Mapping[str, float]], measures: Sequence[str], path: str | Path
) -> None:
    """Draw the measures of several runs as groups of bars, with their standard errors.

    Args:
        rows: Figures by the run's name, errors as `NAME_error`.
        measures: Which of them to draw.
        path: A .png file.
    """
    figure, axes = _figure()
    width = 0.8 / max(1, len(rows))
    for number, (name, figures) in enumerate(rows.items()):
        places = [i + number * width for i in range(len(measures))]
        errors = [figures.get(f"{m}_error", 0.0) for m in measures]
        bars = {"yerr": errors, "error_kw": {"elinewidth": 0.8, "ecolor": "0.3"}, "label": name}
        axes.bar(places, [figures[m] for m in measures], width, **bars)
    ticks = [i + 0.4 - width / 2 for i in range(len(measures))]
    axes.set_xticks(ticks, measures, rotation=20, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel("share")
    _legend_above(figure)
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})


def _legend_above(figure: Any) -> None:
    figure.legend(loc="outside upper center", ncols=5, frameon=False)


def _figure() -> tuple[Any, Any]:
    # The object interface, since pyplot would choose a display and keep every figure alive.
    figure = require("matplotlib.figure", "train").Figure(figsize=(8, 4.5), layout="constrained")
    return figure, figure.subplots()
