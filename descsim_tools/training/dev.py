"""Measure dev files during training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders.encoder import Side
from descsim_tools.errors import CorpusError
from descsim_tools.evaluation.protocol import (
    EncoderScore,
    EvalItem,
    Score,
    ScoreError,
    evaluate_file,
    evaluate_groups,
    has_choice,
    read_items,
)
from descsim_tools.lines import read_json_lines
from descsim_tools.training.config import ConfigError, TrainConfig, diverged
from descsim_tools.training.data import read_groups

_PASS = 256
_JUDGED_BY = ("precision@5", "precision@10", "group_accuracy")
_ELSE = "ndcg@10"


class DevMeasure:
    """Precision and group accuracy on the dev files of a configuration.

    A file whose lines have `clusters` is one of groups, any other one of the eval form.

    Attributes:
        files: Their contents by name.

    Raises:
        CorpusError: A file is missing or malformed, or there is nothing in it to choose between.
        ConfigError: Two files have the same name.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.files: dict[str, list[EvalItem] | list[Group]] = {}
        for path in config.data.dev:
            name = path.name.removesuffix(".gz").removesuffix(".jsonl")
            if name in self.files:
                raise ConfigError(f"two of data.dev are called {name}; rename one of them")
            self.files[name] = _read_dev_groups(path) if _holds_groups(path) else read_items(path)

    def __call__(self, score: Score) -> dict[str, float]:
        """Return all figures, and as `score` the mean over the files of what each is judged by.

        That is the mean of precision@5 and @10 (where any query has as many good sentences, else
        nDCG@10) or the group accuracy: precision@1 on a hundred queries moves by chance alone.

        Raises:
            ConfigError: The scores are no numbers, since the training has diverged.
        """
        figures: dict[str, float] = {}
        judged = []
        for name, content in self.files.items():
            groups = [item for item in content if isinstance(item, Group)]
            items = [item for item in content if isinstance(item, EvalItem)]
            try:
                found = evaluate_groups(groups, score) if groups else evaluate_file(items, score)
            except ScoreError as error:
                raise diverged(str(error)) from error
            figures.update({f"{name}_{measure}": value for measure, value in found.items()})
            by = [m for m in _JUDGED_BY if m in found] or [_ELSE]
            judged.append(float(np.mean([found[m] for m in by])))
        figures["score"] = float(np.mean(judged))
        return figures

    def texts(self) -> tuple[list[str], list[str]]:
        """Return the descriptions and the sentences of all files."""
        descriptions: list[str] = []
        sentences: list[str] = []
        for item in (item for content in self.files.values() for item in content):
            if isinstance(item, EvalItem):
                descriptions.append(item.description)
                sentences += [*item.good, *item.bad]
            else:
                descriptions += [d for cluster in item.clusters for d in cluster.descriptions]
                sentences += [s for cluster in item.clusters for s in cluster.sentences]
        return descriptions, sentences


def _read_dev_groups(path: Path) -> list[Group]:
    groups = read_groups(path)
    if not any(map(has_choice, groups)):
        raise CorpusError(
            f"{path}: no group has two clusters with sentences, so there is nothing to choose "
            "between"
        )
    return groups


def _holds_groups(path: Path) -> bool:
    for _, first in read_json_lines(path, "dev file"):
        return isinstance(first, dict) and "clusters" in first
    return False


class Embeds(Protocol):
    """What is measured: an encoder in training."""

    def embed(self, texts: list[str], side: Side) -> Tensor:
        """Return (n, dim) float32 vectors of length 1."""
        ...


def score_of(trained: Embeds) -> EncoderScore:
    """Return a score with the weights of now."""
    return EncoderScore(_Encodes(trained))


class _Encodes:
    def __init__(self, trained: Embeds) -> None:
        self.trained = trained

    def encode_descriptions(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self._encode(texts, "query")

    def encode_sentences(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self._encode(texts, "document")

    @torch.no_grad()
    def _encode(self, texts: Sequence[str], side: Side) -> NDArray[np.float32]:
        parts = [
            self.trained.embed(list(texts[start : start + _PASS]), side).cpu().numpy()
            for start in range(0, len(texts), _PASS)
        ]
        return np.concatenate(parts)
