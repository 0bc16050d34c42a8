"""Train a cross-encoder on groups: lists of a description's own, sibling and mined sentences."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from descsim_tools.encoders import PRESETS, DescriptionEncoder, EncoderSpec
from descsim_tools.encoders.encoder import transformer_of
from descsim_tools.encoders.loading import build_model
from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.errors import require
from descsim_tools.evaluation.metrics import Floats
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.cross_encoder import new_cross_encoder, score_pairs, write_small
from descsim_tools.training.config import TrainConfig, TrainingConfig
from descsim_tools.training.data import Group
from descsim_tools.training.dev import DevMeasure
from descsim_tools.training.losses import LIST_LOSSES, ScoredPairs, make_loss
from descsim_tools.training.pairs import Mined, PairBatch, draw_pairs, mine
from descsim_tools.training.trainer import (
    GroupDataset,
    TrainResult,
    choose_trained,
    fit,
    fitting,
    make_folder,
    merge_adapters,
    plain_attention,
    precision_of,
    read_training_groups,
    write_result,
)

logger = logging.getLogger(__name__)


class TrainedCrossEncoder(nn.Module):
    """A cross-encoder and a loss, as one module that the trainer can drive."""

    def __init__(self, model: CrossEncoder, loss: nn.Module, settings: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.settings = settings
        self.bf16 = precision_of(settings) == "bf16"

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under `loss`."""
        scores = self.scores(batch.pairs)
        device = scores.device
        scored = ScoredPairs(
            scores,
            torch.tensor(batch.rows, device=device),
            torch.tensor(batch.columns, device=device),
            torch.tensor(batch.fits, device=device),
        )
        return {"loss": self.loss(scored)}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 logits, with their graph; pairs of like length share a pass."""
        order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
        lengths = [sum(map(len, pairs[i])) for i in order]
        device = next(self.model.parameters()).device
        parts, start = [], 0
        # One context for all passes, since each new one converts the weights again.
        with torch.autocast(device.type, torch.bfloat16) if self.bf16 else nullcontext():
            while start < len(order):
                size = fitting(lengths, start, self.settings.tokens_per_pass)
                chosen = [pairs[i] for i in order[start : start + size]]
                parts.append(score_pairs(self.model, chosen))
                start += size
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(parts)[back.to(device)]

    @torch.no_grad()
    def score(self, description: str, sentences: Sequence[str]) -> Floats:
        """Return (n,) logits, for evaluation."""
        return self.scores([(description, s) for s in sentences]).cpu().numpy()


def train_cross_encoder(
    config: TrainConfig, folder: str | Path, *, progress: bool = False
) -> TrainResult:
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
    groups = read_training_groups(config)
    measure = DevMeasure(config)
    torch.manual_seed(config.training.seed)
    spec = PRESETS.get(config.model.base, EncoderSpec(config.name, config.model.base))
    with quiet_loading():
        model = new_cross_encoder(transformer_of(build_model(spec), "document"))
    plain_attention(model)
    choose_trained(model, config.model)
    loss = make_loss(config.loss.name, config.loss.settings, LIST_LOSSES)
    trained = TrainedCrossEncoder(model, loss, config.training)
    mined = _mined(config, groups, progress=progress)
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


def _mined(config: TrainConfig, groups: Sequence[Group], *, progress: bool) -> Mined:
    if not config.pairs.mined:
        return {}
    logger.info("mining negatives by %s", config.pairs.mined_by)
    encoder = DescriptionEncoder.load(config.pairs.mined_by)
    return mine(groups, _Showing(encoder, progress), config.pairs.mined_ranks)


class _Showing:
    """An encoder that shows a bar."""

    def __init__(self, encoder: DescriptionEncoder, progress: bool) -> None:
        self.encoder = encoder
        self.progress = progress

    def encode_descriptions(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_descriptions(texts, show_progress=self.progress)

    def encode_sentences(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_sentences(texts, show_progress=self.progress)
