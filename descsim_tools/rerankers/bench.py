"""Measure rerankers against each other: `descsim bench rerank`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification

from descsim_tools.errors import RerankerError
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.base import Scores
from descsim_tools.rerankers.causal_lm import CausalLMScorer
from descsim_tools.rerankers.log_prob import LogProbReranker
from descsim_tools.rerankers.prompts import EXAMPLES
from descsim_tools.rerankers.tokens import PairTokenizer

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one way of scoring is.

    Attributes:
        way: Which one.
        pairs_per_second: Its speed.
        times_pair_by_pair: That, over the speed of the pair-by-pair way.
    """

    way: str
    pairs_per_second: float
    times_pair_by_pair: float


@dataclass(frozen=True, slots=True)
class RerankBench:
    """What a run found.

    Attributes:
        pairs: How many were scored each way.
        speeds: One a way.
        largest_difference: Between our scores and the pair-by-pair ones, in nats. Over a large
            vocabulary most of it is the latter's: their log-softmax sums in float32.
    """

    pairs: int
    speeds: tuple[Speed, ...]
    largest_difference: float


def bench_pairs(count: int) -> list[Pair]:
    """Return (description, sentence) pairs, all of each description together."""
    every = [(description, sentence) for _, description in EXAMPLES for sentence, _ in EXAMPLES]
    return [every[i % len(every)] for i in range(count)]


def bench(reranker: LogProbReranker, count: int) -> RerankBench:
    """Score the same pairs in three ways, one after the other.

    The ways are ours; pair by pair as in the SGPT scripts (one whole forward pass and one
    log-softmax over all positions a pair); and a sentence-transformers CrossEncoder of the same
    architecture and size, whose weights are random, as its speed does not depend on them.

    Args:
        reranker: With a model in this process.
        count: How many pairs.

    Raises:
        RerankerError: The model is on a server.
    """
    scorer = reranker.scorer
    if not isinstance(scorer, CausalLMScorer):
        raise RerankerError(
            f"{scorer.name} is on a server, where speed is the server's; name a model to load here"
        )
    pairs = bench_pairs(count)
    texts = PairTokenizer(scorer.tokenizer, reranker.prompt, scorer.max_length)
    lists = [(description, [sentence]) for description, sentence in pairs]
    slow, slow_scores = _timed(lambda some: _pair_by_pair(scorer, texts, some), pairs)
    ours, our_scores = _timed(
        lambda some: np.concatenate(reranker.score_many(lists[: len(some)])), pairs
    )
    cross_encoder = _cross_encoder(scorer)
    crossed, _ = _timed(
        lambda some: np.asarray(
            cross_encoder.predict(
                [(sentence, description) for description, sentence in some],
                batch_size=scorer.batch_size,
                show_progress_bar=False,
            ),
            dtype=np.float64,
        ),
        pairs,
    )
    speeds = tuple(
        Speed(way, count / seconds, slow / seconds)
        for way, seconds in (
            ("descsim-tools", ours),
            ("pair by pair", slow),
            ("CrossEncoder of equal size", crossed),
        )
    )
    return RerankBench(count, speeds, float(np.abs(our_scores - slow_scores).max()))


def _timed(score: Callable[[Sequence[Pair]], Scores], pairs: list[Pair]) -> tuple[float, Scores]:
    score(pairs[:2])
    started = perf_counter()
    scores = score(pairs)
    return perf_counter() - started, scores


def _pair_by_pair(scorer: CausalLMScorer, texts: PairTokenizer, pairs: Sequence[Pair]) -> Scores:
    scores = []
    with torch.inference_mode():
        for description, sentence in pairs:
            one, _ = texts.pair(description, sentence)
            ids = torch.tensor([[*one.context, *one.target[:-1]]], device=scorer.device)
            log_probs = torch.log_softmax(scorer.model(input_ids=ids).logits[0].float(), dim=-1)
            target = torch.tensor(one.target, device=scorer.device)
            scores.append(log_probs[-len(target) :].gather(1, target[:, None]).sum().item())
    return np.array(scores)


def _cross_encoder(scorer: CausalLMScorer) -> CrossEncoder:
    tokenizer: Any = scorer.tokenizer
    settings = scorer.model.config.to_dict()
    settings.pop("quantization_config", None)
    config = type(scorer.model.config)(**settings)
    config.num_labels = 1
    with quiet_loading(), tempfile.TemporaryDirectory() as folder:
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        config.pad_token_id = tokenizer.pad_token_id
        tokenizer.save_pretrained(folder)
        classes: Any = AutoModelForSequenceClassification
        classes.from_config(config, dtype=scorer.model.dtype).save_pretrained(folder)
        made: CrossEncoder = CrossEncoder(
            folder,
            device=scorer.device,
            max_length=scorer.max_length,
            model_kwargs={"dtype": scorer.model.dtype},
        )
    return made
