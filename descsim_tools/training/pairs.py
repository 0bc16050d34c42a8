"""The (description, sentence) pairs that a cross-encoder learns from."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.evaluation.protocol import EncodesBoth
from descsim_tools.training.config import PairsConfig
from descsim_tools.training.losses import ScoredPairs

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 512

Mined = Mapping[str, Sequence[str]]
"""Sentences of other groups that a description does not fit, by the description."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """The pairs drawn from some groups; see `ScoredPairs`."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    fits: list[bool] = field(default_factory=list)

    def add(self, pair: tuple[str, str], row: int, column: int, *, fits: bool) -> None:
        """Append one pair."""
        self.pairs.append(pair)
        self.rows.append(row)
        self.columns.append(column)
        self.fits.append(fits)

    def scored(self, scores: Tensor) -> ScoredPairs:
        """Join the pairs' (n,) scores with what is known of them, for a loss."""
        device = scores.device
        return ScoredPairs(
            scores,
            torch.tensor(self.rows, device=device),
            torch.tensor(self.columns, device=device),
            torch.tensor(self.fits, device=device),
        )


def draw_pairs(
    groups: Sequence[tuple[Group, int]], settings: PairsConfig, mined: Mined
) -> PairBatch:
    """Draw one description a cluster and pair it with the group's sentences and with negatives.

    Args:
        groups: Each with the seed of its draw, so that a batch does not depend on what was drawn
            before it.
        settings: How many pairs of which sort.
        mined: See `mine`; may lack a description.
    """
    batch = PairBatch()
    row = column = 0
    for group, seed in groups:
        drawn = random.Random(seed)
        wanted = max(1, settings.sentences_per_group // len(group.clusters))
        sentences = [_sample(drawn, c.sentences, wanted) for c in group.clusters]
        for number, cluster in enumerate(group.clusters):
            if not cluster.descriptions:
                continue
            description, *twins = _sample(drawn, cluster.descriptions, 1 + settings.twins)
            first = column
            for owner, texts in enumerate(sentences):
                for offset, text in enumerate(texts):
                    batch.add((description, text), row, first + offset, fits=owner == number)
                first += len(texts)
            for text in [*twins, *_sample(drawn, mined.get(description, ()), settings.mined)]:
                batch.add((description, text), row, -1, fits=False)
            row += 1
        column += sum(len(texts) for texts in sentences)
    return batch


def mine(
    groups: Sequence[Group], encoder: EncodesBoth, ranks: tuple[int, int]
) -> dict[str, list[str]]:
    """Find sentences of other groups that an encoder takes for instances.

    Args:
        groups: Whose descriptions and sentences are compared.
        encoder: Ranks by cosine.
        ranks: First and last rank kept, from 1.

    Returns:
        For each description its sentences, nearest first. A text that occurs in several groups
        belongs to the last one.
    """
    described = {d: i for i, g in enumerate(groups) for c in g.clusters for d in c.descriptions}
    owners = {s: i for i, g in enumerate(groups) for c in g.clusters for s in c.sentences}
    descriptions, sentences = list(described), list(owners)
    queries = encoder.encode_descriptions(descriptions)
    documents = encoder.encode_sentences(sentences)
    owner = np.array([owners[s] for s in sentences])
    first, last = ranks[0] - 1, min(ranks[1], len(sentences))
    found = {}
    for start in range(0, len(descriptions), _ROWS_AT_ONCE):
        part = descriptions[start : start + _ROWS_AT_ONCE]
        scores = queries[start : start + _ROWS_AT_ONCE] @ documents.T
        scores[np.array([described[d] for d in part])[:, None] == owner] = -np.inf
        nearest = np.argpartition(-scores, last - 1, axis=1)[:, :last]
        nearest.sort(axis=1)  # so that ties stay in the order of the sentences
        by_score = np.argsort(-np.take_along_axis(scores, nearest, 1), axis=1, kind="stable")
        order = np.take_along_axis(nearest, by_score, 1)[:, first:]
        for description, row, best in zip(part, scores, order, strict=True):
            found[description] = [sentences[i] for i in best if np.isfinite(row[i])]
    return found


def _sample(drawn: random.Random, texts: Sequence[str], count: int) -> list[str]:
    return drawn.sample(texts, min(count, len(texts)))


def mined_for(settings: PairsConfig, groups: Sequence[Group], *, progress: bool) -> Mined:
    """Mine negatives as configured; nothing is loaded if none are wanted.

    Raises:
        EncoderError: The encoder that mines cannot be loaded.
    """
    if not settings.mined:
        return {}
    logger.info("mining negatives by %s", settings.mined_by)
    encoder = DescriptionEncoder.load(settings.mined_by)
    return mine(groups, _Showing(encoder, progress), settings.mined_ranks)


class _Showing:
    """An encoder that shows a bar."""

    def __init__(self, encoder: DescriptionEncoder, progress: bool) -> None:
        self.encoder = encoder
        self.progress = progress

    def encode_descriptions(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_descriptions(texts, show_progress=self.progress)

    def encode_sentences(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_sentences(texts, show_progress=self.progress)
