"""Train linear maps over the vectors of an encoder that stays as it is.

All texts are encoded once; what follows is a matrix a side. Plain PyTorch, since a trainer made for
large models would spend more time on itself than on these.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.encoders.encoder import Side
from descsim_tools.encoders.maps import apply_map, write_map
from descsim_tools.encoders.presets import PRESETS, EncoderSpec
from descsim_tools.errors import require
from descsim_tools.quiet import quiet_loading
from descsim_tools.training.config import ConfigError, MapsConfig, ModelConfig, TrainConfig
from descsim_tools.training.dev import DevMeasure, score_of
from descsim_tools.training.folder import TrainResult, write_result
from descsim_tools.training.losses import EmbeddedBatch, make_loss
from descsim_tools.training.trainer import (
    GroupDataset,
    TextBatch,
    check_finite,
    check_weights,
    draw_batch,
    training_groups,
    write_log,
)

_ENCODED_AT_ONCE = 64
_FILES: dict[Side, str] = {
    "query": "description-map.safetensors",
    "document": "sentence-map.safetensors",
}


class Vectors:
    """What the base makes of the texts of a run, each distinct text encoded once."""

    def __init__(self, encoder: DescriptionEncoder, texts: Mapping[Side, Iterable[str]]) -> None:
        self._same = _reads_alike(encoder)
        self._encoder = encoder
        wanted: dict[Side, list[str]] = {side: [*dict.fromkeys(texts[side])] for side in texts}
        if self._same:
            wanted = {"document": [*dict.fromkeys(t for side in wanted.values() for t in side)]}
        # In order of length, which saves most of the padding.
        self._wanted = {side: sorted(texts, key=len) for side, texts in wanted.items()}
        self._rows: dict[Side, dict[str, int]] = {}
        self._matrix: dict[Side, Tensor] = {}

    def encode(self, *, progress: bool) -> None:
        """Encode all texts; takes minutes for tens of thousands on a CPU."""
        for side, texts in self._wanted.items():
            encode = (
                self._encoder.encode_descriptions
                if side == "query"
                else self._encoder.encode_sentences
            )
            starts = track(
                range(0, len(texts), _ENCODED_AT_ONCE),
                "encoding",
                console=Console(stderr=True),
                disable=not progress,
            )
            parts = [
                torch.from_numpy(encode(texts[i : i + _ENCODED_AT_ONCE], batch_size=64))
                for i in starts
            ]
            self._matrix[side] = torch.cat(parts)
            self._rows[side] = {text: row for row, text in enumerate(texts)}

    def of(self, texts: list[str], side: Side) -> Tensor:
        """Return the base's vectors of texts that were encoded, (n, dim) float32."""
        kept: Side = "document" if self._same else side
        rows = self._rows[kept]
        return self._matrix[kept][[rows[text] for text in texts]]


class MapPair(nn.Module):
    """A map a side over known vectors; both begin as the identity.

    Attributes:
        maps: By side, (dim, dim); a side that is left out stays the base's.
    """

    def __init__(self, vectors: Vectors, dim: int, settings: MapsConfig) -> None:
        super().__init__()
        self.vectors = vectors
        sides: list[Side] = ["query", "document"] if settings.sides == "both" else ["query"]
        self.maps = nn.ParameterDict({side: nn.Parameter(torch.eye(dim)) for side in sides})

    def embed(self, texts: list[str], side: Side) -> Tensor:
        """Return (n, dim) float32 vectors of length 1, with their graph."""
        vectors = self.vectors.of(texts, side)
        return apply_map(vectors, self.maps[side]) if side in self.maps else vectors

    def embed_batch(self, batch: TextBatch) -> EmbeddedBatch:
        """Return the mapped vectors of a batch."""
        return EmbeddedBatch(
            self.embed(batch.descriptions, "query"),
            self.embed(batch.sentences, "document"),
            self.embed(batch.twins, "document"),
            torch.tensor(batch.description_cluster),
            torch.tensor(batch.sentence_cluster),
            torch.tensor(batch.description_group),
            torch.tensor(batch.sentence_group),
        )


def train(config: TrainConfig, folder: Path, *, progress: bool = False) -> TrainResult:
    """Train maps as configured; on one machine the same configuration gives the same maps.

    Args:
        config: See `load_config`; its kind is `maps`.
        folder: For the result.
        progress: Show bars on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed, or the training diverged.
        EncoderError: The base cannot be loaded.
    """
    require("matplotlib", "train")
    started = time.perf_counter()
    groups = training_groups(config)
    measure = DevMeasure(config)
    loss = make_loss(config.loss.name, config.loss.settings)
    if getattr(loss, "preserve", 0) > 0:
        raise ConfigError(
            "loss.preserve is for encoders in training, and maps leave theirs as it is; take it out"
        )
    encoder = DescriptionEncoder.from_spec(_base(config.model, config.name))
    vectors = Vectors(encoder, _texts(groups, measure))
    vectors.encode(progress=progress)
    pair = MapPair(vectors, encoder.dim, config.maps)
    history, metrics, epoch = fit(pair, groups, measure, config, progress=progress)
    write_log(history, folder)
    _write(pair, encoder.spec, folder)
    seconds = time.perf_counter() - started
    result = TrainResult(str(folder), metrics, epoch, len(groups), seconds)
    write_result(config, result, folder)
    return result


def fit(
    pair: MapPair,
    groups: list[Group],
    measure: DevMeasure,
    config: TrainConfig,
    *,
    progress: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, float], float]:
    """Train a pair of maps in place, and leave it as it was when the dev files were best.

    Returns:
        The log, the dev figures of what was kept, and the epoch it was kept after.
    """
    settings = config.training
    loss_of = make_loss(config.loss.name, config.loss.settings)
    optimizer = torch.optim.AdamW(
        pair.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    batches = -(-len(groups) // settings.groups_per_batch)
    steps = max(1, round(settings.epochs * batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _share(step, steps, settings.warmup_share)
    )
    history: list[dict[str, Any]] = []
    kept: dict[str, Tensor] = {}
    metrics: dict[str, float] = {}
    best = settings.epochs
    shown = track(
        _batches(groups, config, steps), "training", steps,
        console=Console(stderr=True), disable=not progress,
    )  # fmt: skip
    for step, batch in enumerate(shown, start=1):
        loss = loss_of(pair.embed_batch(batch))
        check_finite(loss, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        epoch = step / batches
        history.append({"step": step, "epoch": round(epoch, 4), "loss": loss.item()})
        due = step == steps or step % (batches * config.maps.dev_every) == 0
        if not due or not measure.files:
            continue
        found = measure(score_of(pair))
        history[-1] |= {f"eval_{name}": value for name, value in found.items()}
        if found["score"] > metrics.get("score", -1.0):
            metrics, best = found, epoch
            kept = {name: value.clone() for name, value in pair.state_dict().items()}
    check_weights(pair)
    if kept:
        pair.load_state_dict(kept)
    return history, metrics, best


def _batches(groups: list[Group], config: TrainConfig, steps: int) -> Iterator[TextBatch]:
    """Yield the batches of all steps; each depends on the seed and its place alone."""
    settings = config.training
    dataset = GroupDataset(groups, settings)
    while True:
        order = list(range(len(groups)))
        random.Random(hash((settings.seed, dataset.epoch))).shuffle(order)
        for start in range(0, len(order), settings.groups_per_batch):
            if not steps:
                return
            steps -= 1
            chosen = order[start : start + settings.groups_per_batch]
            yield draw_batch([dataset[index] for index in chosen], settings)
        dataset.epoch += 1


def _share(step: int, steps: int, warmup_share: float) -> float:
    """The learning rate's share of its highest: rising in the warm-up, then falling to 0."""
    warmup = round(steps * warmup_share)
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def _base(settings: ModelConfig, name: str) -> EncoderSpec:
    base = PRESETS.get(settings.base, EncoderSpec(name, settings.base))
    return replace(base, name=name, pooling=settings.pooling or base.pooling, summary="")


def _texts(groups: list[Group], measure: DevMeasure) -> dict[Side, list[str]]:
    """All texts that a side reads; descriptions are also read as sentences, as negatives."""
    descriptions = [d for g in groups for cluster in g.clusters for d in cluster.descriptions]
    sentences = [s for g in groups for cluster in g.clusters for s in cluster.sentences]
    dev_descriptions, dev_sentences = measure.texts()
    return {
        "query": descriptions + dev_descriptions,
        "document": sentences + descriptions + dev_sentences,
    }


def _reads_alike(encoder: DescriptionEncoder) -> bool:
    prompts = encoder.model.prompts
    return not encoder.is_pair and (prompts.get("query") or "") == (prompts.get("document") or "")


def _write(pair: MapPair, base: EncoderSpec, folder: Path) -> None:
    """Write the maps, and base and maps as one model."""
    for side, file in _FILES.items():
        (folder / file).unlink(missing_ok=True)
        if side in pair.maps:
            write_map(pair.maps[side], folder / file)
    paths = {side: str(folder / _FILES[side]) if side in pair.maps else None for side in _FILES}
    spec = replace(base, description_map=paths["query"], sentence_map=paths["document"])
    with quiet_loading():
        DescriptionEncoder.from_spec(spec, device="cpu").save(folder / "model")
