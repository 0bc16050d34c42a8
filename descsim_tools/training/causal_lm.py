"""Train a causal language model for the log-probability reranker (SGPT's future work)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from descsim_tools.errors import require
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.causal_lm import CausalLMScorer
from descsim_tools.rerankers.prompts import Prompt, find_prompt
from descsim_tools.rerankers.tokens import PairTokenizer
from descsim_tools.training.config import ConfigError, TrainConfig, TrainingConfig
from descsim_tools.training.folder import TrainResult, write_result
from descsim_tools.training.listwise import PairScorer, fit_on_lists
from descsim_tools.training.losses import LIST_LOSSES, make_loss
from descsim_tools.training.trainer import (
    training_groups,
)


class TrainedCausalLM(PairScorer):
    """A language model in training.

    A pair's score is the sum of the description's token log-probabilities after a prompt that holds
    the sentence, as in `LogProbReranker`.
    """

    def __init__(
        self,
        scorer: CausalLMScorer,
        prompt: Prompt,
        loss: nn.Module,
        settings: TrainingConfig,
    ) -> None:
        super().__init__(scorer.model, loss, settings)
        # Its parameters alone, so that checkpoints are small and no tied weights are in them.
        trained = [p for p in scorer.model.parameters() if p.requires_grad]
        self.adapters = nn.ParameterList(trained)
        self._scorer = scorer
        self._prompt = prompt
        self._pairs = PairTokenizer(scorer.tokenizer, prompt, scorer.max_length)

    def length(self, pair: tuple[str, str]) -> int:
        """Return about how many characters are read for a pair, the prompt's own among them."""
        return super().length(pair) + len(self._prompt.template)

    def read(self, pairs: list[tuple[str, str]]) -> Tensor:
        """Return (n,) float32 sums of log-probabilities, in nats, in one pass."""
        made = [self._pairs.pair(description, sentence)[0] for description, sentence in pairs]
        return self._scorer.log_prob_sums(made).float()


def train(config: TrainConfig, folder: Path, *, progress: bool = False) -> TrainResult:
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
    started = time.perf_counter()
    groups = training_groups(config)
    loss = make_loss(config.loss.name, config.loss.settings, LIST_LOSSES)
    torch.manual_seed(config.training.seed)
    scorer = CausalLMScorer.load(config.model.base, dtype="float32")
    prompt = find_prompt(config.pairs.prompt)
    # Puts its layers into the very model that the scorer drives.
    adapter = peft.LoraConfig(
        r=config.model.lora_rank,
        lora_alpha=2 * config.model.lora_rank,
        target_modules="all-linear",
    )
    adapted = peft.get_peft_model(scorer.model, adapter)
    trained = TrainedCausalLM(scorer, prompt, loss, config.training)
    metrics, epoch = fit_on_lists(trained, groups, config, folder, progress=progress)
    with quiet_loading():
        adapted.merge_and_unload().save_pretrained(str(folder / "model"))
        tokenizer: Any = scorer.tokenizer
        tokenizer.save_pretrained(str(folder / "model"))
    seconds = time.perf_counter() - started
    result = TrainResult(str(folder), metrics, epoch, len(groups), seconds)
    write_result(config, result, folder)
    return result
