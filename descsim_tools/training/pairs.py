"""The (description, sentence) pairs that a cross-encoder learns from."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from descsim_tools.datagen.formats import Group
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.evaluation.protocol import EncodesBoth
from descsim_tools.training.config import ConfigError, PairsConfig
from descsim_tools.training.losses import ScoredPairs

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 512

Mined = Mapping[str, Sequence[str]]
"""Sentences of other groups that a description does not fit, by the description."""


class Encoded:
    """The texts of groups as an encoder reads them, to mine from and to learn from.

    Args:
        groups: Whose descriptions and sentences are encoded.
        encoder: Ranks by cosine.
        twins: Whether descriptions are read as sentences too.
    """

    def __init__(self, groups: Sequence[Group], encoder: EncodesBoth, *, twins: bool) -> None:
        self.groups = groups
        descriptions = {d: None for g in groups for c in g.clusters for d in c.descriptions}
        sentences = {s: None for g in groups for c in g.clusters for s in c.sentences}
        self.descriptions = {text: i for i, text in enumerate(descriptions)}
        self.sentences = {text: i for i, text in enumerate(sentences)}
        self.description_vectors = encoder.encode_descriptions([*descriptions])
        self.sentence_vectors = encoder.encode_sentences([*sentences])
        self.twin_vectors = encoder.encode_sentences([*descriptions]) if twins else None

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the encoder's score of each (description, sentence) pair of these groups."""
        return [
            float(self.description_vectors[self.descriptions[d]] @ self._read(s)) for d, s in pairs
        ]

    def _read(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32]
        if text in self.sentences or self.twin_vectors is None:
            vector = self.sentence_vectors[self.sentences[text]]
        else:
            vector = self.twin_vectors[self.descriptions[text]]
        return vector


@dataclass(frozen=True, slots=True)
class PairBatch:
    """The pairs drawn from some groups; see `ScoredPairs`."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    fits: list[bool] = field(default_factory=list)
    cosines: list[float] | None = None

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
            None if self.cosines is None else torch.tensor(self.cosines, device=device),
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


def mine(encoded: Encoded, ranks: tuple[int, int]) -> dict[str, list[str]]:
    """Find sentences of other groups that an encoder takes for instances.

    Args:
        encoded: What is compared.
        ranks: First and last rank kept, from 1.

    Returns:
        For each description its sentences, nearest first. A text that occurs in several groups
        belongs to the last one.
    """
    groups = encoded.groups
    described = {d: i for i, g in enumerate(groups) for c in g.clusters for d in c.descriptions}
    owners = {s: i for i, g in enumerate(groups) for c in g.clusters for s in c.sentences}
    descriptions, sentences = list(encoded.descriptions), list(encoded.sentences)
    queries, documents = encoded.description_vectors, encoded.sentence_vectors
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


class PairSource:
    """Draws the pairs of a run, with what the encoder named by `mined_by` knows about them.

    Args:
        settings: How many pairs of which sort.
        groups: All that is trained on.
        cosines: Whether the pairs bear that encoder's cosines.
        progress: Show bars.

    Raises:
        EncoderError: The encoder cannot be loaded. It is not, if nothing is wanted of it.
        ConfigError: There is nothing to mine at the ranks asked for.
    """

    def __init__(
        self, settings: PairsConfig, groups: Sequence[Group], *, cosines: bool, progress: bool
    ) -> None:
        self.settings = settings
        self.teacher: Encoded | None = None
        self.mined: Mined = {}
        if not (settings.mined or cosines):
            return
        logger.info("encoding by %s", settings.mined_by)
        encoder = _Showing(DescriptionEncoder.load(settings.mined_by), progress)
        encoded = Encoded(groups, encoder, twins=cosines and settings.twins > 0)
        if settings.mined:
            self.mined = mine(encoded, settings.mined_ranks)
            if not any(self.mined.values()):
                raise ConfigError(
                    f"no sentence is at the ranks pairs.mined_ranks = {list(settings.mined_ranks)}:"
                    f" {len(encoded.sentences)} sentences are ranked, those of a description's own "
                    "group left out. Lower the ranks, or set pairs.mined to 0"
                )
        if cosines:
            self.teacher = encoded

    def draw(self, groups: Sequence[tuple[Group, int]]) -> PairBatch:
        """Draw one step's pairs; see `draw_pairs`."""
        batch = draw_pairs(groups, self.settings, self.mined)
        return replace(batch, cosines=self.teacher.cosines(batch.pairs)) if self.teacher else batch


class _Showing:
    """An encoder that shows a bar."""

    def __init__(self, encoder: DescriptionEncoder, progress: bool) -> None:
        self.encoder = encoder
        self.progress = progress

    def encode_descriptions(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_descriptions(texts, show_progress=self.progress)

    def encode_sentences(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self.encoder.encode_sentences(texts, show_progress=self.progress)
