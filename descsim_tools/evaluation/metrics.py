"""Measures of one ranking, and of their mean over queries.

Equal scores say nothing about order, so every measure is the mean over all orders of what is tied:
the same number each time, and neither good nor bad texts gain by where they stand in a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import ndcg_score

Floats = NDArray[np.floating]


def precision_at(k: int, scores: Floats, good: NDArray[np.bool_]) -> float:
    """Return the share of good texts among the first k by score.

    Args:
        k: From 1 to the number of texts.
        scores: (n,), higher is better.
        good: (n,), True where the text is good.

    Returns:
        In [0, 1].
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"k is {k}, need a whole number from 1 to {len(scores)}, the texts ranked")
    last = np.partition(scores, -k)[-k]
    above, tied = scores > last, scores == last
    from_tied = (k - np.count_nonzero(above)) * float(good[tied].mean())
    return (np.count_nonzero(good & above) + from_tied) / k


def ndcg_at(k: int, scores: Floats, good: NDArray[np.bool_]) -> float:
    """Return the normalised discounted cumulative gain of the first k, by scikit-learn.

    Args:
        k: At least 1.
        scores: (n,), higher is better.
        good: (n,), True (gain 1) where the text is good.

    Returns:
        In [0, 1]; 1 when all good texts come first.
    """
    return float(ndcg_score(good[None, :].astype(float), scores[None, :], k=k))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a measure and its standard error, sqrt(variance / n).

    Of values that are all 0 or 1 that is the binomial formula, sqrt(p (1 - p) / n).
    """
    if not values:
        raise ValueError("no values to take the mean of")
    return float(np.mean(values)), float(np.std(values)) / math.sqrt(len(values))
