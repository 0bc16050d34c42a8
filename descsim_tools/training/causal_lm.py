"""Train a causal language model for the log-probability reranker (SGPT's future work)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from descsim_tools.errors import require
from descsim_tools.evaluation.metrics import Floats
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.causal_lm import CausalLMScorer
from descsim_tools.rerankers.prompts import find_prompt
from descsim_tools.rerankers.tokens import Continuation, PairTokenizer
from descsim_tools.training.config import ConfigError, TrainConfig, TrainingConfig
from descsim_tools.training.dev import DevMeasure
from descsim_tools.training.losses import LIST_LOSSES, make_loss
from descsim_tools.training.pairs import PairBatch, draw_pairs, mined_for
from descsim_tools.training.parallel import Passes
from descsim_tools.training.trainer import (
    GroupDataset,
    TrainResult,
    back_from,
    fit,
    make_folder,
    passes_of,
    precise,
    training_groups,
    write_result,
)


class TrainedCausalLM(nn.Module):
    """A language model and a loss, as one module that the trainer can drive.

    A pair's score is the sum of the description's token log-probabilities after a prompt that holds
    the sentence, as in `LogProbReranker`.
    """

    def __init__(
        self,
        scorer: CausalLMScorer,
        pairs: PairTokenizer,
        loss: nn.Module,
        settings: TrainingConfig,
    ) -> None:
        super().__init__()
        self.model = scorer.model
        self.loss = loss
        self.settings = settings
        self._passes = Passes(scorer.model, lambda: precise(settings, scorer.model))
        self._scorer = scorer
        self._pairs = pairs

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under `loss`."""
        return {"loss": self.loss(batch.scored(self.scores(batch.pairs)))}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Return (n,) log-probabilities in nats, with their graph."""
        made = [self._pairs.pair(description, sentence)[0] for description, sentence in pairs]
        order = sorted(range(len(made)), key=lambda i: len(made[i].context) + len(made[i].target))
        lengths = [4 * (len(made[i].context) + len(made[i].target)) for i in order]
        spans = passes_of(lengths, self.settings.tokens_per_pass)
        passes = [partial(self._sums, [made[i] for i in order[a:b]]) for a, b in spans]
        joined = self._passes(passes)
        return joined[back_from(order).to(joined.device)]

    def _sums(self, continuations: list[Continuation]) -> Tensor:
        return self._scorer.log_prob_sums(continuations).float()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return what is trained alone: checkpoints are small, and no tied weights are in them."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load what `state_dict` gives; the rest stays, and is not missing."""
        found = super().load_state_dict(state_dict, strict=False, assign=assign)
        trained = self.state_dict()
        missing = [name for name in found.missing_keys if name in trained]
        if strict and (missing or found.unexpected_keys):
            raise RuntimeError(f"missing: {missing}, unexpected: {found.unexpected_keys}")
        return type(found)(missing, found.unexpected_keys)

    @torch.no_grad()
    def score(self, description: str, sentences: Sequence[str]) -> Floats:
        """Return (n,) log-probabilities, for evaluation."""
        self.eval()
        return self.scores([(description, s) for s in sentences]).cpu().numpy()


def train(config: TrainConfig, folder: str | Path, *, progress: bool = False) -> TrainResult:
    """Train as configured, by LoRA; a run that was broken off in the same folder goes on.

    Args:
        config: See `load_config`, of kind `causal-lm`. `model.base` is what
            `LogProbReranker.load` takes.
        folder: For the result and the checkpoints; `folder/model` is the merged model.
        progress: Show a bar on standard error.

    Raises:
        CorpusError: A file is missing or malformed.
        ConfigError: A setting is not allowed.
        RerankerError: The base or the prompt cannot be found.
    """
    require("accelerate", "train")
    peft = require("peft", "train")
    if config.model.method != "lora":
        raise ConfigError(
            f"model.method is {config.model.method!r}; a causal-lm is trained by 'lora'"
        )
    folder = make_folder(folder)
    started = time.perf_counter()
    groups = training_groups(config)
    measure = DevMeasure(config)
    loss = make_loss(config.loss.name, config.loss.settings, LIST_LOSSES)
    torch.manual_seed(config.training.seed)
    scorer = CausalLMScorer.load(config.model.base, dtype="float32")
    prompt = find_prompt(config.pairs.prompt)
    pairs = PairTokenizer(scorer.tokenizer, prompt, scorer.max_length)
    # Puts its layers into the very model that the scorer drives.
    adapter = peft.LoraConfig(
        r=config.model.lora_rank,
        lora_alpha=2 * config.model.lora_rank,
        target_modules="all-linear",
    )
    adapted = peft.get_peft_model(scorer.model, adapter)
    mined = mined_for(config.pairs, groups, progress=progress)
    trained = TrainedCausalLM(scorer, pairs, loss, config.training)
    metrics, epoch = fit(
        trained,
        GroupDataset(groups, config.training),
        lambda drawn: {"batch": draw_pairs(drawn, config.pairs, mined)},
        (lambda: measure(trained.score)) if measure.files else None,
        config,
        folder,
        progress=progress,
    )
    with quiet_loading():
        adapted.merge_and_unload().save_pretrained(str(folder / "model"))
        tokenizer: Any = scorer.tokenizer
        tokenizer.save_pretrained(str(folder / "model"))
    seconds = time.perf_counter() - started
    result = TrainResult(str(folder), metrics, epoch, len(groups), seconds)
    write_result(config, result, folder)
    return result
