"""Train an encoder on groups, with transformers' trainer."""

from __future__ import annotations

import copy
import csv
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders import PRESETS, EncoderSpec
from descsim_tools.encoders.delta import write_delta
from descsim_tools.encoders.encoder import Side, transformer_of
from descsim_tools.encoders.loading import build_model, tokenizer_of
from descsim_tools.encoders.weights import find_model
from descsim_tools.errors import CorpusError, require
from descsim_tools.evaluation.protocol import EncoderScore
from descsim_tools.quiet import quiet_loading
from descsim_tools.training.config import (
    ConfigError,
    ModelConfig,
    TrainConfig,
    TrainingConfig,
    diverged,
)
from descsim_tools.training.data import read_groups
from descsim_tools.training.dev import DevMeasure, score_of
from descsim_tools.training.folder import TrainResult, run_folder, write_result
from descsim_tools.training.losses import EmbeddedBatch, make_loss
from descsim_tools.training.parallel import Passes
from descsim_tools.training.plots import plot_history

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """The texts drawn from some groups, and where each belongs; see `EmbeddedBatch`."""

    descriptions: list[str]
    sentences: list[str]
    twins: list[str]
    description_cluster: list[int]
    sentence_cluster: list[int]
    description_group: list[int]
    sentence_group: list[int]


def draw_batch(groups: Sequence[tuple[Group, int]], settings: TrainingConfig) -> TextBatch:
    """Draw each cluster's texts for one step.

    Args:
        groups: Each with the seed of its draw, so that a batch does not depend on what was drawn
            before it, and a run that is resumed goes on as if it had not stopped.
        settings: How many texts a cluster.
    """
    batch = TextBatch([], [], [], [], [], [], [])
    cluster_number = 0
    for group_number, (group, seed) in enumerate(groups):
        drawn = random.Random(seed)
        for cluster in group.clusters:
            wanted = settings.descriptions_per_cluster + settings.twins_per_cluster
            texts = drawn.sample(cluster.descriptions, min(wanted, len(cluster.descriptions)))
            own = texts[: settings.descriptions_per_cluster]
            # A cluster of one description has no reworded one; it then stands in for itself.
            twins = texts[len(own) :] or own[: settings.twins_per_cluster]
            count = min(settings.sentences_per_cluster, len(cluster.sentences))
            sentences = drawn.sample(cluster.sentences, count)
            batch.twins.extend(twins)
            batch.descriptions.extend(own)
            batch.description_cluster.extend([cluster_number] * len(own))
            batch.description_group.extend([group_number] * len(own))
            batch.sentences.extend(sentences)
            batch.sentence_cluster.extend([cluster_number] * len(sentences))
            batch.sentence_group.extend([group_number] * len(sentences))
            cluster_number += 1
    return batch


class TrainedPair(nn.Module):
    """A sentence-transformers model and a loss, as one module that the trainer can drive."""

    def __init__(
        self, model: SentenceTransformer, loss: nn.Module, settings: TrainingConfig
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.settings = settings
        self._passes = Passes(model, lambda: precise(settings, model))
        # In a list, so that it is no part of this module's parameters and checkpoints.
        wanted = getattr(loss, "preserve", 0) > 0
        self._base = [copy.deepcopy(model).eval().requires_grad_(False)] if wanted else []
        self._base_vectors: dict[str, Tensor] = {}

    def forward(self, batch: TextBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under `loss`."""
        read = self.embed([*batch.sentences, *batch.twins], "document")
        device = read.device

        def numbers(values: list[int]) -> Tensor:
            return torch.tensor(values, device=device)

        embedded = EmbeddedBatch(
            self.embed(batch.descriptions, "query"),
            read[: len(batch.sentences)],
            read[len(batch.sentences) :],
            numbers(batch.description_cluster),
            numbers(batch.sentence_cluster),
            numbers(batch.description_group),
            numbers(batch.sentence_group),
            self._before_training([*batch.sentences, *batch.twins]) if self._base else None,
        )
        return {"loss": self.loss(embedded)}

    @torch.no_grad()
    def _before_training(self, texts: list[str]) -> Tensor:
        """Return the base's (n, dim) vectors; each text is encoded once in a run."""
        new = list(dict.fromkeys(t for t in texts if t not in self._base_vectors))
        if new:
            vectors = self._base[0].encode_document(
                new, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
            )
            self._base_vectors.update(zip(new, vectors.clone(), strict=True))
        return torch.stack([self._base_vectors[t] for t in texts])

    def score(self) -> EncoderScore:
        """Return a score with the weights of now, for evaluation."""
        self.eval()
        return score_of(self)

    def embed(self, texts: list[str], side: Side) -> Tensor:
        """Return (n, dim) float32 vectors of length 1, with their graph.

        Texts of like length share a pass, which saves most of the padding.
        """
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        lengths = [len(texts[i]) for i in order]
        device = next(self.model.parameters()).device
        prompt = self.model.prompts.get(side) or None

        def read(chosen: list[str]) -> Tensor:
            features = self.model.preprocess(chosen, prompt=prompt, task=side)
            moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in features.items()}
            vectors: Tensor = self.model(moved, task=side)["sentence_embedding"].float()
            return vectors

        spans = passes_of(lengths, self.settings.tokens_per_pass)
        joined = self._passes([partial(read, [texts[i] for i in order[a:b]]) for a, b in spans])
        return nn.functional.normalize(joined[back_from(order).to(device)], dim=1)


def passes_of(lengths: Sequence[int], tokens: int) -> list[tuple[int, int]]:
    """Cut a batch into passes.

    Args:
        lengths: Of the texts in characters, ascending; a token has about four.
        tokens: Most of a pass, padding included; a longer text has a pass of its own.

    Returns:
        (start, end) of each pass.
    """
    spans, start = [], 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * (lengths[end] // 4 + 8) > tokens:
            spans.append((start, end))
            start = end
    return spans


def back_from(order: Sequence[int]) -> Tensor:
    """Return where each item went, (n,) int: what undoes a reordering."""
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order, dtype=torch.long)] = torch.arange(len(order))
    return back


def precise(settings: TrainingConfig, model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context that computes in the precision asked for."""
    device = next(model.parameters()).device.type
    if precision_of(settings) == "bf16":
        return torch.autocast(device, torch.bfloat16)
    return nullcontext()


def train(config: TrainConfig, folder: Path, *, progress: bool = False) -> TrainResult:
    """Train as configured; a run that was broken off in the same folder goes on.

    Args:
        config: See `load_config`. With `training.average` above 1 or a `base_share`, each seed's
            run lies in a folder of its own, and the result is the mean of their weights.
        folder: For the result and the checkpoints; see `run_folder`.
        progress: Show a bar on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed.
        EncoderError: The base cannot be loaded.
    """
    require("accelerate", "train")
    started = time.perf_counter()
    groups = training_groups(config)
    measure = DevMeasure(config)
    make_loss(config.loss.name, config.loss.settings)  # refused before anything heavy is loaded
    run = _train_average if config.is_average else _train_seed
    model, metrics, epoch = run(config, groups, measure, folder, progress=progress)
    _write(config, model, folder)
    seconds = time.perf_counter() - started
    result = TrainResult(str(folder), metrics, epoch, len(groups), seconds)
    write_result(config, result, folder)
    return result


def _train_average(
    config: TrainConfig, groups: list[Group], measure: DevMeasure, folder: Path, *, progress: bool
) -> tuple[SentenceTransformer, dict[str, float], float]:
    """Train several seeds and take the mean of their weights, and of the base's by its share.

    They start from the same base, so that the mean lies in the same basin and does better than each
    ("model soups", Wortsman et al., ICML 2022); the base's share gives back some of what it knew
    ("robust fine-tuning", Wortsman et al., CVPR 2022).
    """
    count = config.training.average
    models = [build_start(config)]
    for seed in range(config.training.seed, config.training.seed + count):
        settings = config.training.model_copy(
            update={"average": 1, "base_share": (0.0, 0.0), "seed": seed}
        )
        member = folder / f"seed-{seed}"
        single = config.model_copy(update={"training": settings})
        with run_folder(single, member) as ended:
            if ended is None:
                train(single, member, progress=progress)
        models.append(SentenceTransformer(str(member / "model"), local_files_only=True))
    base, *tuned = [model.state_dict() for model in models]
    mean = {}
    for name, value in base.items():
        share = config.training.base_share[".sub_modules.document." in name]
        # As a change of the base, so that what was not trained stays the same to the bit: what
        # differs is shipped.
        change = sum(state[name].float() - value.float() for state in tuned) / count
        mixed = value.float() + (1 - share) * change
        mean[name] = mixed if value.is_floating_point() else value
    models[-1].load_state_dict(mean)
    loss = make_loss(config.loss.name, config.loss.settings)
    trained = TrainedPair(models[-1], loss, config.training)
    metrics = measure(trained.score()) if measure.files else {}
    return models[-1], metrics, config.training.epochs


def _train_seed(
    config: TrainConfig, groups: list[Group], measure: DevMeasure, folder: Path, *, progress: bool
) -> tuple[SentenceTransformer, dict[str, float], float]:
    torch.manual_seed(config.training.seed)
    model = build_start(config)
    _tell_of_cuts(model, groups)
    make_ready(model)
    choose_trained(model, config.model)
    trained = TrainedPair(model, make_loss(config.loss.name, config.loss.settings), config.training)
    metrics, epoch = fit(
        trained,
        GroupDataset(groups, config.training),
        lambda drawn: {"batch": draw_batch(drawn, config.training)},
        (lambda: measure(trained.score())) if measure.files else None,
        config,
        folder,
        progress=progress,
    )
    merge_adapters(model)
    return model, metrics, epoch


def fit(
    trained: nn.Module,
    dataset: GroupDataset,
    collate: Callable[[list[Any]], dict[str, Any]],
    measure: Callable[[], dict[str, float]] | None,
    config: TrainConfig,
    folder: Path,
    *,
    progress: bool,
) -> tuple[dict[str, float], float]:
    """Train a module whose forward returns a loss, in place; go on where a run was broken off.

    Args:
        trained: Holds the best epoch's weights afterwards.
        dataset: What is drawn from.
        collate: Makes the arguments of `trained.forward` of drawn items.
        measure: Gives dev figures, with `score` to choose the epoch by; None keeps the last one.
        config: See `TrainingConfig`.
        folder: For checkpoints, `log.csv` and `curve.png`.
        progress: Show a bar on standard error.

    Returns:
        Dev figures of the kept epoch, and that epoch.
    """
    trainer = _GroupTrainer(
        model=trained,
        args=_arguments(config, folder, has_dev=measure is not None, progress=progress),
        train_dataset=dataset,
        # Asked for by the trainer; the dev files are read by `DevMeasure`.
        eval_dataset=GroupDataset([], config.training) if measure is not None else None,
        data_collator=collate,
    )
    trainer.measure = measure or dict
    # Both print every log entry to standard output, which is for results.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    bar = _SilentProgress()
    if progress:
        trainer.add_callback(bar)
    trainer.add_callback(EpochCallback(dataset))
    checkpoint = _last_checkpoint(folder)
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        bar.close()
    check_weights(trained)
    write_log(trainer.state.log_history, folder)
    kept = _kept(trainer)
    return kept.get("metrics", {}), float(kept.get("epoch", config.training.epochs))


def make_ready(model: nn.Module) -> None:
    """Set the form of attention that is fastest for short texts, and turn dropout off.

    Dropout is drawn by one thread, which takes a fifth of the time on a CPU, and in an order that
    depends on which thread is faster.
    """
    for transformer in _transformers(model):
        transformer.model.set_attn_implementation("eager")
    for dropout in (module for module in model.modules() if isinstance(module, nn.Dropout)):
        dropout.p = 0.0


class GroupDataset(Dataset[tuple[Group, int]]):
    """Groups, each with the seed of its draw in the current epoch."""

    def __init__(self, groups: Sequence[Group], settings: TrainingConfig) -> None:
        self.groups = groups
        self.seed = settings.seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> tuple[Group, int]:
        return self.groups[index], hash((self.seed, self.epoch, index))


class EpochCallback(TrainerCallback):
    """Tells the dataset which epoch begins, also after resuming."""

    def __init__(self, dataset: GroupDataset) -> None:
        self.dataset = dataset

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch; a resumed state holds a fraction."""
        self.dataset.epoch = int((state.epoch or 0) + 1e-6)


class _SilentProgress(ProgressCallback):
    """The bar without the log, which is written to a file."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Print nothing."""

    def close(self) -> None:
        """End the bar's line, also that of a run that was broken off."""
        bar: Any = self.training_bar  # which its class declares as None alone
        if bar is not None:
            bar.close()


class _GroupTrainer(Trainer):
    model: nn.Module
    measure: Callable[[], dict[str, float]]

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss, if the training has not diverged."""
        loss: Any = super().compute_loss(*args, **kwargs)  # a tensor, as no outputs are asked for
        check_finite(loss, self.state.global_step + 1)
        return loss

    def evaluate(
        self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> dict[str, float]:
        """Measure the dev files in place of a loss."""
        self.model.eval()
        with torch.no_grad():
            found = self.measure()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def check_finite(loss: Tensor, step: int) -> None:
    """Refuse to go on with a loss that is no number.

    Raises:
        ConfigError: It is none.
    """
    if not torch.isfinite(loss):
        raise diverged(f"the loss of step {step} is {loss.item()}")


def check_weights(module: nn.Module) -> None:
    """Refuse to keep weights that are no numbers.

    Raises:
        ConfigError: Some are none.
    """
    if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
        raise diverged("its weights are no finite numbers")


def choose_trained(model: nn.Module, settings: ModelConfig) -> None:
    """Set which parameters are trained."""
    for module in _transformers(model):
        if settings.method == "lora":
            peft = require("peft", "train")
            adapter = peft.LoraConfig(
                r=settings.lora_rank,
                lora_alpha=2 * settings.lora_rank,
                target_modules="all-linear",
            )
            module.model = peft.get_peft_model(module.model, adapter)
            continue
        names = [name for name, _ in module.named_parameters()]
        last = max((_layer(name) for name in names), default=-1)
        for name, parameter in module.named_parameters():
            if settings.method == "bitfit":
                parameter.requires_grad_(name.endswith("bias"))
            elif settings.method == "last-layer":
                parameter.requires_grad_(_layer(name) == last)
            else:
                embedding = "embeddings." in name or re.search(r"\bw[tp]e\b", name) is not None
                parameter.requires_grad_(not (embedding and settings.freeze_embeddings))


def _layer(name: str) -> int:
    found = re.search(r"\b(?:layers?|h|block)\.(\d+)\.", name)
    return int(found.group(1)) if found else -1


def merge_adapters(model: nn.Module) -> None:
    """Put LoRA's updates into the weights."""
    for module in _transformers(model):
        trained: Any = module.model
        if hasattr(trained, "merge_and_unload"):
            module.model = trained.merge_and_unload()


def _transformers(model: nn.Module) -> Iterator[Transformer]:
    return (module for module in model.modules() if isinstance(module, Transformer))


def build_start(config: TrainConfig) -> SentenceTransformer:
    """Load what training starts from: the base, twice where a pair is made of one encoder.

    Raises:
        EncoderError: The base cannot be loaded.
        ConfigError: It is a pair, and one shared encoder is wanted.
    """
    if config.model.sides == "shared" and _starts_from_pair(config.model):
        raise ConfigError(
            f"model.base {config.model.base!r} is a pair, which cannot become one shared encoder; "
            'set model.sides to "pair"'
        )
    with quiet_loading():
        return build_model(_spec(config.model, config.name))


def _starts_from_pair(settings: ModelConfig) -> bool:
    """Whether the base has two encoders already."""
    preset = PRESETS.get(settings.base)
    if preset is not None:
        return preset.description_model is not None or preset.delta is not None
    modules = find_model(settings.base) / "modules.json"
    if not modules.is_file():
        return False
    first: dict[str, str] = json.loads(modules.read_text(encoding="utf-8"))[0]
    return first["type"].endswith(".Router")


def _tell_of_cuts(model: SentenceTransformer, groups: Sequence[Group]) -> None:
    """Warn of texts that are longer than a side reads."""
    descriptions = [d for g in groups for cluster in g.clusters for d in cluster.descriptions]
    sentences = [s for g in groups for cluster in g.clusters for s in cluster.sentences]
    sides: dict[Side, list[str]] = {"query": descriptions, "document": sentences + descriptions}
    for side, texts in sides.items():
        transformer = transformer_of(model, side)
        limit, prompt = transformer.max_seq_length, model.prompts.get(side) or ""
        if limit is None:
            continue
        # A token stands for at least one byte, so that short texts need no counting.
        doubtful = [t for t in dict.fromkeys(texts) if 4 * len(t) + 100 > limit]
        if not doubtful:
            continue
        tokens = tokenizer_of(transformer)([prompt + t for t in doubtful], verbose=False)
        cut = [t for t, ids in zip(doubtful, tokens["input_ids"], strict=True) if len(ids) > limit]
        if cut:
            logger.warning(
                "%d texts are longer than the %s encoder reads (%d tokens) and are cut, the first: "
                "%.60r", len(cut), "description" if side == "query" else "sentence", limit, cut[0],
            )  # fmt: skip


def _spec(settings: ModelConfig, name: str) -> EncoderSpec:
    base = PRESETS.get(settings.base, EncoderSpec(name, settings.base))
    doubled = settings.sides == "pair" and not _starts_from_pair(settings)
    brackets = (("[", "]"), ("{", "}")) if settings.brackets else (None, None)
    return replace(
        base,
        name=name,
        description_model=base.sentence_model if doubled else base.description_model,
        pooling=settings.pooling or base.pooling,
        description_brackets=brackets[0],
        sentence_brackets=brackets[1],
        summary="",
    )


def training_groups(config: TrainConfig) -> list[Group]:
    """Read what is trained on.

    Raises:
        CorpusError: A file is missing or malformed, or there are too few groups for a batch.
    """
    groups = [group for file in config.data.train for group in read_groups(file)]
    kept = [g for g in groups if not g.id.startswith(tuple(config.data.leave_out))]
    if not config.data.leave_out:
        kept = groups
    if len(kept) < config.training.groups_per_batch:
        raise CorpusError(
            f"{len(kept)} groups to train on (of {len(groups)} read) make no batch of "
            f"{config.training.groups_per_batch}; lower training.groups_per_batch"
        )
    return kept


def _arguments(
    config: TrainConfig, folder: Path, *, has_dev: bool, progress: bool
) -> TrainingArguments:
    settings = config.training
    kept: dict[str, Any] = {}
    if has_dev:
        kept = {
            "eval_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_score",
            "greater_is_better": True,
        }
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.groups_per_batch,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup_share,
        weight_decay=settings.weight_decay,
        save_strategy="epoch",
        save_total_limit=2,
        seed=settings.seed,
        data_seed=settings.seed,
        logging_steps=0.01,  # of all steps
        report_to=[],
        disable_tqdm=not progress,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **kept,
    )


def precision_of(settings: TrainingConfig) -> str:
    """Return `bf16` or `fp32`."""
    if settings.precision != "auto":
        return settings.precision
    able = torch.cpu.get_capabilities()
    multiplies_bf16 = able.get("amx_bf16", False) or able.get("avx512_bf16", False)
    return "bf16" if torch.cuda.is_available() or multiplies_bf16 else "fp32"


def _last_checkpoint(folder: Path) -> str | None:
    """Find the newest whole checkpoint: a kill can leave one without the state written last."""
    states = list(folder.glob("checkpoints/checkpoint-*/trainer_state.json"))
    for state in sorted(states, key=lambda path: -int(path.parent.name.split("-")[1])):
        try:
            json.loads(state.read_text(encoding="utf-8"))
        except ValueError:
            logger.warning("%s is cut short; going on from the checkpoint before it", state)
            continue
        return str(state.parent)
    return None


def _kept(trainer: _GroupTrainer) -> dict[str, Any]:
    """The dev figures of the checkpoint that was kept."""
    entries = [entry for entry in trainer.state.log_history if "eval_score" in entry]
    if not entries:
        return {}
    best = max(entries, key=lambda entry: float(entry["eval_score"]))
    skipped = ("eval_runtime",)
    metrics = {
        key.removeprefix("eval_"): value
        for key, value in best.items()
        if key.startswith("eval_") and key not in skipped
    }
    return {"metrics": metrics, "epoch": best["epoch"]}


def _write(config: TrainConfig, model: SentenceTransformer, folder: Path) -> None:
    model.cpu().eval()
    with quiet_loading():
        model.save_pretrained(str(folder / "model"), create_model_card=False)
    if config.model.sides == "shared" or _starts_from_pair(config.model):
        return  # a delta is one base's two tuned copies
    base = build_model(_spec(config.model, config.name))
    sides: dict[str, nn.Module] = {
        "query": transformer_of(model, "query").model,
        "document": transformer_of(model, "document").model,
    }
    write_delta(transformer_of(base, "document").model, sides, folder / "delta.safetensors")


def write_log(history: list[dict[str, Any]], folder: Path) -> None:
    """Write losses and dev figures as a table and a plot."""
    names = sorted({name for entry in history for name in entry} - {"epoch", "step"})
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", "epoch", *names])
        writer.writeheader()
        writer.writerows(history)
    plot_history(history, folder / "curve.png")
