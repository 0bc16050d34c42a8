"""Measure dev files during training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from descsim_tools.evaluation.protocol import (
    EvalItem,
    Score,
    evaluate_file,
    evaluate_groups,
    read_items,
)
from descsim_tools.lines import read_json_lines
from descsim_tools.training.config import TrainConfig
from descsim_tools.training.data import Group, read_groups

_JUDGED_BY = ("precision@5", "precision@10", "group_accuracy")


class DevMeasure:
    """Precision and group accuracy on the dev files of a configuration.

    A file whose lines have `clusters` is one of groups, any other one of the eval form.

    Attributes:
        files: Their contents by name.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.files: dict[str, list[EvalItem] | list[Group]] = {}
        for path in config.data.dev:
            name = path.name.split(".")[0]
            self.files[name] = read_groups(path) if _holds_groups(path) else read_items(path)

    def __call__(self, score: Score) -> dict[str, float]:
        """Return all figures, and as `score` the mean over the files of what each is judged by.

        That is the mean of precision@5 and @10 (where the queries have as many good sentences) or
        the group accuracy: precision@1 on a hundred queries moves by chance alone.
        """
        figures: dict[str, float] = {}
        judged = []
        for name, content in self.files.items():
            groups = [item for item in content if isinstance(item, Group)]
            items = [item for item in content if isinstance(item, EvalItem)]
            found = evaluate_groups(groups, score) if groups else evaluate_file(items, score)
            figures.update({f"{name}_{measure}": value for measure, value in found.items()})
            judged.append(float(np.mean([found[m] for m in _JUDGED_BY if m in found])))
        figures["score"] = float(np.mean(judged))
        return figures


def _holds_groups(path: Path) -> bool:
    for _, first in read_json_lines(path, "dev file"):
        return isinstance(first, dict) and "clusters" in first
    return False
