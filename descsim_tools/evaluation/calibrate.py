"""Fit and measure probabilities that a sentence is an instance of a description."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression

from descsim_tools.calibration import Calibration
from descsim_tools.evaluation.metrics import Floats, ndcg_at, precision_at
from descsim_tools.evaluation.protocol import MOST_GOOD, EvalItem, GroupLike, Score

BINS = 10
WEIGHTS = tuple(map(float, range(61)))
"""Weights of the cosine that are tried."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A description's sentences, and which are instances.

    Attributes:
        description: Its text.
        sentences: n of them.
        good: (n,) bool.
    """

    description: str
    sentences: tuple[str, ...]
    good: NDArray[np.bool_]


def judged_items(items: Iterable[EvalItem]) -> list[Judged]:
    """Return queries with the sentences that the paper's protocol ranks."""
    return [
        Judged(
            item.description,
            (*item.good[:MOST_GOOD], *item.bad),
            np.arange(len(item.good[:MOST_GOOD]) + len(item.bad)) < len(item.good[:MOST_GOOD]),
        )
        for item in items
    ]


def judged_groups(groups: Iterable[GroupLike]) -> list[Judged]:
    """Return each description of groups with all sentences of its group."""
    judged: list[Judged] = []
    for group in groups:
        sentences = tuple(s for cluster in group.clusters for s in cluster.sentences)
        owner = np.repeat(
            np.arange(len(group.clusters)), [len(c.sentences) for c in group.clusters]
        )
        for number, cluster in enumerate(group.clusters):
            good = owner == number
            if good.any() and not good.all():
                judged.extend(Judged(d, sentences, good) for d in cluster.descriptions)
    return judged


def scores_of(judged: Sequence[Judged], score: Score) -> list[Floats]:
    """Score each description's sentences, each (n,)."""
    return [np.asarray(score(j.description, j.sentences)) for j in judged]


def fit_calibration(
    judged: Sequence[Judged], scores: Sequence[Floats], fitted_on: str = ""
) -> Calibration:
    """Fit Platt's two numbers by maximum likelihood, each description weighing the same.

    Within a description, instances and others weigh the same too, so that a probability of one half
    means: as often right as wrong where half of the sentences are instances.

    Args:
        judged: What was scored.
        scores: For each (n,), higher is better.
        fitted_on: Told by the result.

    Raises:
        ValueError: The scores do not rise with the share of instances.
    """
    values = np.concatenate(scores)[:, None]
    good = np.concatenate([j.good for j in judged])
    weights = np.concatenate([_weights(j.good) for j in judged])
    model = LogisticRegression(C=np.inf).fit(values, good, sample_weight=weights)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope <= 0:
        raise ValueError(f"better scores are worse here (slope {slope:.3g}): nothing to calibrate")
    return Calibration(slope, intercept, fitted_on)


def expected_calibration_error(
    probabilities: ArrayLike, good: ArrayLike, *, bins: int = BINS
) -> float:
    """Return how far probabilities are from the shares they promise; lower is better.

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017), Eq. 3: the mean over bins of
    equal width of |share of instances - mean probability|, weighted by the bins' counts.

    Args:
        probabilities: (n,) in [0, 1].
        good: (n,) bool.
        bins: How many.

    Returns:
        In [0, 1].
    """
    p, truth = np.asarray(probabilities, dtype=float), np.asarray(good, dtype=float)
    if p.shape != truth.shape or p.ndim != 1 or not len(p):
        raise ValueError(f"shapes {p.shape} and {truth.shape}; need two of the same (n,), n > 0")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("a probability is outside 0 to 1")
    number = np.minimum((p * bins).astype(int), bins - 1)
    gaps = np.bincount(number, weights=truth - p, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def tune_weight(
    judged: Sequence[Judged],
    logits: Sequence[Floats],
    cosines: Sequence[Floats],
    weights: Sequence[float] = WEIGHTS,
) -> tuple[float, float]:
    """Find how much the cosine should count beside the logit.

    By the mean of nDCG@10 and precision@1: the first hit is looked at most, and is what the two
    disagree about most.

    Args:
        judged: What was scored.
        logits: For each (n,) by a cross-encoder.
        cosines: For each (n,) by an encoder pair.
        weights: To try.

    Returns:
        The weight, the middle one of the best where several are equal, and its measure in [0, 1].
    """

    def gain(scores: Floats, good: NDArray[np.bool_]) -> float:
        return (ndcg_at(10, scores, good) + precision_at(1, scores, good)) / 2

    gains = [
        np.mean(
            [gain(a + weight * b, j.good) for j, a, b in zip(judged, logits, cosines, strict=True)]
        )
        for weight in weights
    ]
    best = np.flatnonzero(np.isclose(gains, max(gains)))
    return weights[best[len(best) // 2]], float(max(gains))


def _weights(good: NDArray[np.bool_]) -> Floats:
    weights: Floats = np.where(good, 0.5 / good.sum(), 0.5 / (~good).sum())
    return weights
