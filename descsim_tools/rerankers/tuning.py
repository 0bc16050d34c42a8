"""Find the prompt that ranks best on dev data: `descsim rerank tune`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import ndcg_score

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.base import Reranker
from descsim_tools.rerankers.log_prob import LogProbReranker
from descsim_tools.rerankers.prompts import Prompt

MOST_GOOD = 12
"""Of a description's instances this many are ranked, as in *Description-Based Text Similarity*."""


@dataclass(frozen=True, slots=True)
class DevQuery:
    """A description with sentences that do and do not instantiate it.

    Attributes:
        id: Of the description.
        description: Its text.
        good: Instances, at most `MOST_GOOD`.
        bad: Sentences that are close, and no instances.
    """

    id: str
    description: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptResult:
    """How well a prompt ranks.

    Attributes:
        prompt: The prompt.
        ndcg_at_10: Mean nDCG@10, in [0, 1], good sentences having gain 1 and bad ones 0.
        precision_at_1: Share of descriptions whose first sentence is good, in [0, 1].
        queries: How many descriptions these are over.
        pairs_per_second: Speed of scoring.
    """

    prompt: Prompt
    ndcg_at_10: float
    precision_at_1: float
    queries: int
    pairs_per_second: float


def read_dev(path: str | Path, limit: int | None = None) -> list[DevQuery]:
    """Read dev data.

    Args:
        path: A .jsonl file of `{"id", "description", "good": [...], "bad": [...]}` rows.
        limit: Take this many rows only, spread evenly over the file, so the same at every call.

    Raises:
        RerankerError: The file is missing, empty, or a row is not of that form; a row without good
            or without bad sentences says nothing about an order.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RerankerError(
            f"cannot read {path} ({error}); name a .jsonl file of rows with id, description, good "
            "and bad"
        ) from error
    queries = [_query(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not queries:
        raise RerankerError(f"{path} holds no row; it needs one a description")
    if limit is not None and limit < len(queries):
        queries = [queries[i * len(queries) // limit] for i in range(limit)]
    return queries


def evaluate(reranker: Reranker, queries: Sequence[DevQuery]) -> tuple[float, float]:
    """Rank each description's sentences.

    Returns:
        Mean nDCG@10 and mean precision@1, both in [0, 1]. A bad sentence that ties with a good one
        counts as before it in precision@1.
    """
    scored = reranker.score_many([(q.description, [*q.good, *q.bad]) for q in queries])
    gains, firsts = [], []
    for query, scores in zip(queries, scored, strict=True):
        truth = np.repeat([1, 0], [len(query.good), len(query.bad)])
        gains.append(ndcg_score(truth[None], scores[None], k=10))
        firsts.append(scores[truth == 1].max() > scores[truth == 0].max())
    return float(np.mean(gains)), float(np.mean(firsts))


def tune(
    reranker: LogProbReranker,
    queries: Sequence[DevQuery],
    prompts: Sequence[Prompt],
    on_result: Callable[[PromptResult], object] = lambda result: None,
) -> list[PromptResult]:
    """Score every prompt.

    Args:
        reranker: Its model and options are used; its prompt is not.
        queries: Dev data.
        prompts: What to try.
        on_result: Called with each result as it is there.

    Returns:
        One result a prompt, best nDCG@10 first; of equals, the one named first.
    """
    from time import perf_counter

    pairs = sum(len(q.good) + len(q.bad) for q in queries)
    results = []
    for prompt in prompts:
        started = perf_counter()
        ndcg, precision = evaluate(reranker.with_prompt(prompt), queries)
        rate = pairs / (perf_counter() - started)
        results.append(PromptResult(prompt, ndcg, precision, len(queries), rate))
        on_result(results[-1])
    return sorted(results, key=lambda result: -result.ndcg_at_10)


def _query(path: str | Path, number: int, line: str) -> DevQuery:
    try:
        row: dict[str, Any] = json.loads(line)
        good, bad = (tuple(_texts(row[key])) for key in ("good", "bad"))
        query = DevQuery(str(row["id"]), row["description"], good[:MOST_GOOD], bad)
        _texts([query.description])
    except (ValueError, KeyError, TypeError) as error:
        raise RerankerError(
            f"row {number} of {path} is not of the form "
            f'{{"id", "description", "good": [...], "bad": [...]}}: {error!r}'
        ) from error
    if not good or not bad:
        raise RerankerError(
            f"row {number} of {path} has {len(good)} good and {len(bad)} bad sentences, need at "
            "least 1 of each; leave it out"
        )
    return query


def _texts(texts: Any) -> list[str]:
    if not isinstance(texts, list) or not all(isinstance(t, str) and t.strip() for t in texts):
        raise TypeError(f"got {str(texts)[:80]}, need strings that are not blank")
    return texts
