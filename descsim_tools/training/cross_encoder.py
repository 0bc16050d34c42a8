"""Train a cross-encoder on groups: lists of a description's own, sibling and mined sentences."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders import PRESETS, EncoderSpec
from descsim_tools.encoders.encoder import transformer_of
from descsim_tools.encoders.loading import build_model, tokenizer_of
from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.errors import require
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.cross_encoder import new_cross_encoder, score_pairs, write_small
from descsim_tools.training.config import TrainConfig, TrainingConfig
from descsim_tools.training.folder import TrainResult, write_result
from descsim_tools.training.listwise import PairScorer, fit_on_lists
from descsim_tools.training.losses import LIST_LOSSES, make_loss
from descsim_tools.training.trainer import (
    choose_trained,
    make_ready,
    merge_adapters,
    training_groups,
)

logger = logging.getLogger(__name__)


class TrainedCrossEncoder(PairScorer):
    """A cross-encoder in training."""

    def __init__(self, model: CrossEncoder, loss: nn.Module, settings: TrainingConfig) -> None:
        super().__init__(model, loss, settings)
        self.model = model

    def read(self, pairs: list[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 logits in one pass."""
        return score_pairs(self.model, pairs)


def train(config: TrainConfig, folder: Path, *, progress: bool = False) -> TrainResult:
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
    started = time.perf_counter()
    groups = training_groups(config)
    loss = make_loss(config.loss.name, config.loss.settings, LIST_LOSSES)
    torch.manual_seed(config.training.seed)
    spec = PRESETS.get(config.model.base, EncoderSpec(config.name, config.model.base))
    with quiet_loading():
        model = new_cross_encoder(transformer_of(build_model(spec), "document"))
    _tell_of_cuts(model, groups)
    make_ready(model)
    choose_trained(model, config.model)
    trained = TrainedCrossEncoder(model, loss, config.training)
    metrics, epoch = fit_on_lists(trained, groups, config, folder, progress=progress)
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


def _tell_of_cuts(model: CrossEncoder, groups: Sequence[Group]) -> None:
    """Warn of groups whose longest pair of texts is longer than the model reads."""
    transformer = next(module for module in model.modules() if isinstance(module, Transformer))
    limit, tokenizer = transformer.max_seq_length, tokenizer_of(transformer)
    cut = []
    for group in groups:
        texts = (
            [d for cluster in group.clusters for d in cluster.descriptions],
            [s for cluster in group.clusters for s in cluster.sentences],
        )
        # A token stands for at least one byte, so that short texts need no counting.
        if limit is None or 4 * sum(max(map(len, side), default=0) for side in texts) <= limit:
            continue
        longest = (
            max(map(len, tokenizer(side, verbose=False)["input_ids"]), default=0)
            for side in texts
            if side
        )
        # The two of a pair share one of their special tokens.
        if sum(longest) - 1 > limit:
            cut.append(group.id)
    if cut:
        logger.warning(
            "%d groups have sentences that, behind a description, are longer than the model reads "
            "(%d tokens) and are cut: %s", len(cut), limit, ", ".join(cut[:5]),
        )  # fmt: skip
