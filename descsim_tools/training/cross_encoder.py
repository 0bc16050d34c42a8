"""Train a cross-encoder on groups: lists of a description's own, sibling and mined sentences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from descsim_tools.encoders import PRESETS, EncoderSpec
from descsim_tools.encoders.encoder import transformer_of
from descsim_tools.encoders.loading import build_model
from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.errors import require
from descsim_tools.evaluation.metrics import Floats
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.cross_encoder import new_cross_encoder, score_pairs, write_small
from descsim_tools.training.config import TrainConfig, TrainingConfig
from descsim_tools.training.dev import DevMeasure
from descsim_tools.training.losses import LIST_LOSSES, make_loss
from descsim_tools.training.pairs import PairBatch, draw_pairs, mined_for
from descsim_tools.training.parallel import Passes
from descsim_tools.training.trainer import (
    GroupDataset,
    TrainResult,
    back_from,
    choose_trained,
    fit,
    make_folder,
    make_ready,
    merge_adapters,
    passes_of,
    precise,
    training_groups,
    write_result,
)


class TrainedCrossEncoder(nn.Module):
    """A cross-encoder and a loss, as one module that the trainer can drive."""

    def __init__(self, model: CrossEncoder, loss: nn.Module, settings: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.settings = settings
        self._passes = Passes(model, lambda: precise(settings, model))

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under `loss`."""
        return {"loss": self.loss(batch.scored(self.scores(batch.pairs)))}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 logits, with their graph; pairs of like length share a pass."""
        order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
        lengths = [sum(map(len, pairs[i])) for i in order]
        spans = passes_of(lengths, self.settings.tokens_per_pass)
        joined = self._passes(
            [partial(score_pairs, self.model, [pairs[i] for i in order[a:b]]) for a, b in spans]
        )
        return joined[back_from(order).to(joined.device)]

    @torch.no_grad()
    def score(self, description: str, sentences: Sequence[str]) -> Floats:
        """Return (n,) logits, for evaluation."""
        self.eval()
        return self.scores([(description, s) for s in sentences]).cpu().numpy()


def train(config: TrainConfig, folder: str | Path, *, progress: bool = False) -> TrainResult:
    """Train as configured; a run that was broken off in the same folder goes on.

    Args:
        config: See `load_config`, of kind `cross-encoder`.
        folder: For the result and the checkpoints. Beside what `TrainResult` names it gets
            `delta.safetensors` and `head.safetensors`, which are small, where the base is the
            bundled one.
        progress: Show a bar on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed.
        EncoderError: The base, or the encoder that mines, cannot be loaded.
    """
    require("accelerate", "train")
    folder = make_folder(folder)
    started = time.perf_counter()
    groups = training_groups(config)
    measure = DevMeasure(config)
    torch.manual_seed(config.training.seed)
    spec = PRESETS.get(config.model.base, EncoderSpec(config.name, config.model.base))
    with quiet_loading():
        model = new_cross_encoder(transformer_of(build_model(spec), "document"))
    make_ready(model)
    choose_trained(model, config.model)
    loss = make_loss(config.loss.name, config.loss.settings, LIST_LOSSES)
    trained = TrainedCrossEncoder(model, loss, config.training)
    mined = mined_for(config.pairs, groups, progress=progress)
    metrics, epoch = fit(
        trained,
        GroupDataset(groups, config.training),
        lambda drawn: {"batch": draw_pairs(drawn, config.pairs, mined)},
        (lambda: measure(trained.score)) if measure.files else None,
        config,
        folder,
        progress=progress,
    )
    merge_adapters(model)
    model.cpu().eval()
    with quiet_loading():
        model.save_pretrained(str(folder / "model"), create_model_card=False)
    if spec.sentence_model == BUNDLED:
        write_small(model, folder)
    seconds = time.perf_counter() - started
    result = TrainResult(str(folder), metrics, epoch, len(groups), seconds)
    write_result(config, result, folder)
    return result
