"""`Reranker`: scores (description, sentence) pairs jointly, and orders hits by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from descsim_tools.calibration import Calibration
from descsim_tools.errors import RerankerError
from descsim_tools.types import Hit

Scores = NDArray[np.float64]


class Reranker(ABC):
    """Base of all rerankers: a subclass scores, this class does the rest.

    A subclass must have `_score`. It may also override `_score_many`, if it can mix descriptions in
    one batch, `_score_hits`, if it uses more of a hit than its text, and `_truncated`, if it reads
    less than a whole sentence.

    Attributes:
        calibration: Turns its scores into probabilities; None if it was not calibrated.
        encoder_name: Of the encoder whose retrieval scores it uses; None if it uses none.
    """

    calibration: Calibration | None = None
    encoder_name: str | None = None

    def check_encoder(self, name: str) -> None:
        """Make sure that hits of an encoder's store can be reranked.

        Args:
            name: Of the encoder that found them.

        Raises:
            RerankerError: The reranker was tuned for another one's retrieval scores.
        """
        if self.encoder_name not in (None, name):
            raise RerankerError(
                f"this {type(self).__name__} was tuned for the scores of {self.encoder_name}, and "
                f"the store has those of {name}, which mean something else; take "
                "rerank='cross-encoder', which uses none, or tune it anew with `descsim rerank "
                f"calibrate MODEL DEV --encoder {name}`"
            )

    @abstractmethod
    def _score(self, description: str, sentences: Sequence[str]) -> Scores:
        """Score checked, non-empty input.

        Returns:
            (n,) float, in the order of `sentences`, higher is better.
        """

    def _score_many(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> list[Scores]:
        """Score several checked, non-empty lists; by default one list after the other."""
        return [self._score(description, sentences) for description, sentences in pairs]

    def _score_hits(self, lists: Sequence[tuple[str, list[Hit]]]) -> list[Scores]:
        """Score checked hits; by default their texts alone."""
        return self.score_many([(d, [hit.text for hit in hits]) for d, hits in lists])

    def _truncated(self, description: str, sentences: Sequence[str]) -> Sequence[bool]:
        """Tell of each sentence whether only a part of it was read."""
        return [False] * len(sentences)

    def score(self, description: str, sentences: Iterable[str]) -> Scores:
        """Score sentences for one description.

        Args:
            description: What the sentences should be instances of.
            sentences: The sentences.

        Returns:
            (n,) float64 in the order of `sentences`, in the reranker's own unit, higher is better;
            (0,) for no sentences.

        Raises:
            TypeError: A text is no string.
            ValueError: A text is blank.
            RerankerError: The texts cannot be scored.
        """
        return self.score_many([(description, sentences)])[0]

    def score_many(self, pairs: Iterable[tuple[str, Iterable[str]]]) -> list[Scores]:
        """Score several lists, each for a description of its own, in one call.

        A pair's score is the same as from `score`; batches may mix descriptions.

        Args:
            pairs: (description, sentences) pairs.

        Returns:
            For each pair (n,) float64, as `score` gives it.
        """
        checked = [_checked_pair(number, pair) for number, pair in enumerate(pairs)]
        full = [number for number, (_, sentences) in enumerate(checked) if sentences]
        results: list[Scores] = [np.zeros(0) for _ in checked]
        if full:
            scored = self._score_many([checked[number] for number in full])
            for number, scores in zip(full, scored, strict=True):
                results[number] = _checked_scores(scores, len(checked[number][1]), type(self))
        return results

    def rerank(self, description: str, hits: Iterable[Hit], top_k: int | None = None) -> list[Hit]:
        """Order hits by how well a description fits them.

        Args:
            description: What the sentences should be instances of.
            hits: Hits of a search, in any order; they are not changed.
            top_k: Most hits wanted; None keeps all.

        Returns:
            New hits, best first, ties by id. `score` and `rerank_score` are the reranker's score,
            `retrieval_score` is what the search gave, ranks count from 1, `truncated` tells whether
            only a part of the sentence was read. `probability` is that of a calibrated reranker's
            score, else None.

        Raises:
            TypeError: An item is no `Hit`, or the description no string.
            ValueError: A text is blank, or `top_k` is below 1.
            RerankerError: The texts cannot be scored.
        """
        return self.rerank_many([(description, hits)], top_k)[0]

    def rerank_many(
        self, pairs: Iterable[tuple[str, Iterable[Hit]]], top_k: int | None = None
    ) -> list[list[Hit]]:
        """Order several lists of hits, each for a description of its own, in one call.

        Args:
            pairs: (description, hits) pairs.
            top_k: Most hits wanted of each list; None keeps all.

        Returns:
            For each pair a new list, as `rerank` gives it.
        """
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"top_k is {top_k!r}, need a whole number from 1 up, or None for all")
        lists = [(description, _checked_hits(hits)) for description, hits in pairs]
        scores = self._score_hits(lists)
        return [
            self._ordered(description, hits, row)[:top_k]
            for (description, hits), row in zip(lists, scores, strict=True)
        ]

    def _ordered(self, description: str, hits: list[Hit], scores: Scores) -> list[Hit]:
        if not hits:
            return []
        truncated = self._truncated(description, [hit.text for hit in hits])
        unknown: list[None] = [None] * len(hits)
        probabilities = self.calibration(scores).tolist() if self.calibration else unknown
        rows = sorted(
            zip(scores.tolist(), hits, truncated, probabilities, strict=True),
            key=lambda row: (-row[0], row[1].id),
        )
        return [
            replace(
                hit,
                score=score,
                rank=rank,
                rerank_score=score,
                retrieval_score=retrieval_score(hit),
                probability=probability,
                truncated=cut,
            )
            for rank, (score, hit, cut, probability) in enumerate(rows, start=1)
        ]


def retrieval_score(hit: Hit) -> float | None:
    """Return the first score that a hit was given."""
    if hit.retrieval_score is None and hit.rerank_score is None:
        return hit.score
    return hit.retrieval_score


def _checked_hits(hits: Iterable[Any]) -> list[Hit]:
    checked = list(hits)
    for position, hit in enumerate(checked):
        if not isinstance(hit, Hit):
            raise TypeError(
                f"item {position} is {hit!r} ({type(hit).__name__}), need a Hit; `score` takes "
                "plain sentences"
            )
    return checked


def _checked_pair(number: int, pair: tuple[Any, Any]) -> tuple[str, list[str]]:
    description, sentences = pair
    if isinstance(sentences, str | bytes):
        raise TypeError(
            f"got one {type(sentences).__name__} as sentences, need a list of strings: [sentence]"
        )
    _check_text(description, f"the description of list {number}")
    checked = list(sentences)
    for position, sentence in enumerate(checked):
        _check_text(sentence, f"sentence {position} of list {number}")
    return description, checked


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r} ({type(text).__name__}), need a string")
    if not text.strip():
        raise ValueError(f"{what} is empty or blank; drop it first")


def _checked_scores(scores: Any, count: int, kind: type[Reranker]) -> Scores:
    array: Scores = np.asarray(scores, dtype=np.float64)
    if array.shape != (count,):
        raise RerankerError(
            f"{kind.__name__} gave scores of shape {array.shape} for {count} sentences, need "
            f"({count},); its `_score` is at fault"
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise RerankerError(
            f"{kind.__name__} gave {array[bad[0]]} for sentence {bad[0]}, need a finite number. "
            "Its weights are damaged, or it overflows in float16: try another copy or dtype."
        )
    return array
