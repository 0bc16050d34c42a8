"""What the kinds of training that score (description, sentence) pairs share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from descsim_tools.datagen.formats import Group
from descsim_tools.evaluation.metrics import Floats
from descsim_tools.training.config import TrainConfig, TrainingConfig
from descsim_tools.training.dev import DevMeasure
from descsim_tools.training.pairs import PairBatch, PairSource
from descsim_tools.training.parallel import Passes
from descsim_tools.training.trainer import GroupDataset, back_from, fit, passes_of, precise


class PairScorer(nn.Module):
    """A model that scores pairs, and a loss, as one module that the trainer can drive.

    Args:
        trained: Whose parameters are trained; it is this module's part only if a subclass says so.
        loss: Over `ScoredPairs`.
        settings: Precision and length of a pass.
    """

    def __init__(self, trained: nn.Module, loss: nn.Module, settings: TrainingConfig) -> None:
        super().__init__()
        self.loss = loss
        self.settings = settings
        self._passes = Passes(trained, lambda: precise(settings, trained))

    @abstractmethod
    def read(self, pairs: list[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 scores of (description, sentence) pairs in one pass."""

    def length(self, pair: tuple[str, str]) -> int:
        """Return about how many characters are read for a pair."""
        return sum(map(len, pair))

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under `loss`."""
        return {"loss": self.loss(batch.scored(self.scores(batch.pairs)))}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 scores, with their graph; pairs of like length share a pass."""
        order = sorted(range(len(pairs)), key=lambda i: self.length(pairs[i]))
        lengths = [self.length(pairs[i]) for i in order]
        spans = passes_of(lengths, self.settings.tokens_per_pass)
        joined = self._passes(
            [partial(self.read, [pairs[i] for i in order[a:b]]) for a, b in spans]
        )
        return joined[back_from(order).to(joined.device)]

    @torch.no_grad()
    def score(self, description: str, sentences: Sequence[str]) -> Floats:
        """Return (n,) scores, for evaluation."""
        self.eval()
        return self.scores([(description, s) for s in sentences]).cpu().numpy()


def fit_on_lists(
    trained: PairScorer, groups: list[Group], config: TrainConfig, folder: Path, *, progress: bool
) -> tuple[dict[str, float], float]:
    """Train on the lists that are drawn from groups, as `fit` does; returns the same.

    Raises:
        EncoderError: The encoder that mines and teaches cannot be loaded.
    """
    measure = DevMeasure(config)
    taught = getattr(trained.loss, "distill", 0) > 0
    source = PairSource(config.pairs, groups, cosines=taught, progress=progress)
    return fit(
        trained,
        GroupDataset(groups, config.training),
        lambda drawn: {"batch": source.draw(drawn)},
        (lambda: measure(trained.score)) if measure.files else None,
        config,
        folder,
        progress=progress,
    )
