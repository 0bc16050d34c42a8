"""Rank good and bad sentences for each description, after the paper (section 5.2).

A query has a description, `good` sentences that it is true of and `bad` ones that it is not. The
first `MOST_GOOD` good ones and all bad ones are ranked by a score; precision@k is the share of good
ones among the first k, over the queries that have k good ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from descsim_tools.errors import CorpusError
from descsim_tools.evaluation.metrics import Floats, mean_and_error, ndcg_at, precision_at
from descsim_tools.lines import read_json_lines
from descsim_tools.text import is_readable

MOST_GOOD = 12
CUTOFFS = (1, 5, 10)

Score: TypeAlias = Callable[[str, Sequence[str]], Floats]
"""Scores n sentences for one description: (n,), higher is better."""


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One query of the protocol.

    Attributes:
        id: Unique in its file.
        description: What is looked for.
        good: Sentences that it is true of, at least one.
        bad: Sentences that it is not true of, at least one.
    """

    id: str
    description: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


class ScoreError(ValueError):
    """A score gave something other than a finite number a sentence."""


class EncodesBoth(Protocol):
    """What can be evaluated: `DescriptionEncoder`, or a model in training."""

    def encode_descriptions(self, descriptions: Sequence[str], /) -> NDArray[np.float32]:
        """Return (n, d) rows of length 1."""
        ...

    def encode_sentences(self, sentences: Sequence[str], /) -> NDArray[np.float32]:
        """Return (n, d) rows of length 1."""
        ...


class ClusterLike(Protocol):
    """Sentences and what is true of them; `descsim_tools.training.data.Cluster` is one."""

    @property
    def sentences(self) -> Sequence[str]:
        """The sentences."""
        ...

    @property
    def descriptions(self) -> Sequence[str]:
        """True of each of the sentences."""
        ...


class GroupLike(Protocol):
    """Clusters close in topic; `descsim_tools.training.data.Group` is one."""

    @property
    def clusters(self) -> Sequence[ClusterLike]:
        """The clusters."""
        ...


class EncoderScore:
    """Scores by the cosine of an encoder's vectors, and encodes each distinct text once.

    Args:
        encoder: Gives rows of length 1 on both sides.
    """

    def __init__(self, encoder: EncodesBoth) -> None:
        self._encoder = encoder
        self._descriptions: dict[str, NDArray[np.float32]] = {}
        self._sentences: dict[str, NDArray[np.float32]] = {}

    def prepare(self, descriptions: Iterable[str], sentences: Iterable[str]) -> None:
        """Encode all that is not known yet, in one go, which is faster than text by text."""
        encoder = self._encoder
        _encode_new(encoder.encode_descriptions, descriptions, self._descriptions)
        _encode_new(encoder.encode_sentences, sentences, self._sentences)

    def __call__(self, description: str, sentences: Sequence[str]) -> Floats:
        """Return the cosines, (n,) float32."""
        self.prepare([description], sentences)
        return np.stack([self._sentences[s] for s in sentences]) @ self._descriptions[description]


def read_items(path: str | Path) -> list[EvalItem]:
    """Read a file of the eval form: JSON lines with `id`, `description`, `good` and `bad`.

    Raises:
        CorpusError: The file is missing or empty, or a line is not of the form; it is named.
    """
    path = Path(path)
    items = [
        _item(row, f"{path}, line {number}", number)
        for number, row in read_json_lines(path, "evaluation file")
    ]
    if not items:
        raise CorpusError(f"{path} is empty")
    id_, count = Counter(item.id for item in items).most_common(1)[0]
    if count > 1:
        raise CorpusError(f"{path} uses the id {id_!r} more than once")
    return items


def evaluate_file(
    items: str | Path | Sequence[EvalItem], score: Score, *, cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Evaluate by the paper's protocol.

    Args:
        items: A file of the eval form, or its items.
        score: Ranks the sentences; `EncoderScore` for an encoder.
        cutoffs: The k of precision@k.

    Returns:
        `queries`; for each k `precision@k`, its standard error `precision@k_error` (missing for a
        single query) and how many queries have k good sentences `precision@k_queries` (all three
        missing where none has); `ndcg@10`. Shares in [0, 1], unrounded.

    Raises:
        CorpusError: The file is missing or malformed.
        ValueError: There are no items.
        ScoreError: The score gives something other than a finite number a sentence; a ValueError.
    """
    if isinstance(items, str | Path):
        items = read_items(items)
    if not items:
        raise ValueError("there are no items to evaluate")
    candidates = [[*item.good[:MOST_GOOD], *item.bad] for item in items]
    if isinstance(score, EncoderScore):
        score.prepare((i.description for i in items), (t for row in candidates for t in row))
    precisions: dict[int, list[float]] = {k: [] for k in cutoffs}
    gains = []
    for item, texts in zip(items, candidates, strict=True):
        scores = _scores(score, item.description, texts)
        good = np.arange(len(texts)) < min(len(item.good), MOST_GOOD)
        for k in cutoffs:
            if np.count_nonzero(good) >= k:
                precisions[k].append(precision_at(k, scores, good))
        gains.append(ndcg_at(10, scores, good))
    result: dict[str, float] = {"queries": len(items)}
    for k, values in precisions.items():
        if values:
            mean, error = mean_and_error(values)
            result[f"precision@{k}"] = mean
            if len(values) > 1:
                result[f"precision@{k}_error"] = error
            result[f"precision@{k}_queries"] = len(values)
    result["ndcg@10"] = mean_and_error(gains)[0]
    return result


def has_choice(group: GroupLike) -> bool:
    """Whether two clusters have sentences, so that there is something to choose between."""
    return sum(bool(cluster.sentences) for cluster in group.clusters) > 1


def evaluate_groups(groups: Iterable[GroupLike], score: Score) -> dict[str, float]:
    """Tell how often a description's nearest sentence in its group is of its own cluster.

    Descriptions of a cluster without sentences, and groups where no other cluster has any, are left
    out: there is nothing to choose between.

    Args:
        groups: Such as `descsim_tools.training.data.read_groups` gives.
        score: Ranks the sentences; `EncoderScore` for an encoder.

    Returns:
        `group_accuracy` in [0, 1], its standard error `group_accuracy_error` (missing for a single
        description), and `descriptions`, how many were asked.

    Raises:
        ValueError: No description can be asked, or the score is as in `evaluate_file`.
    """
    asked = [
        [cluster for cluster in group.clusters if cluster.sentences]
        for group in groups
        if has_choice(group)
    ]
    if isinstance(score, EncoderScore):
        clusters = [cluster for group in asked for cluster in group]
        score.prepare(
            (d for c in clusters for d in c.descriptions),
            (s for c in clusters for s in c.sentences),
        )
    values = []
    for group in asked:
        texts = [sentence for cluster in group for sentence in cluster.sentences]
        owner = np.repeat(np.arange(len(group)), [len(cluster.sentences) for cluster in group])
        for number, cluster in enumerate(group):
            for description in cluster.descriptions:
                scores = _scores(score, description, texts)
                values.append(precision_at(1, scores, owner == number))
    if not values:
        raise ValueError("no group has two clusters with sentences, so there is nothing to choose")
    mean, error = mean_and_error(values)
    errors = {"group_accuracy_error": error} if len(values) > 1 else {}
    return {"descriptions": len(values), "group_accuracy": mean, **errors}


def group_accuracy(groups: Iterable[GroupLike], score: Score) -> float:
    """Return `evaluate_groups`'s share alone, in [0, 1]."""
    return evaluate_groups(groups, score)["group_accuracy"]


def _item(row: Any, where: str, number: int) -> EvalItem:
    if not isinstance(row, dict) or not {"description", "good", "bad"} <= row.keys():
        found = f"fields {', '.join(row)}" if isinstance(row, dict) else f"a {type(row).__name__}"
        raise CorpusError(f"{where}: {found}; need an object with description, good and bad")
    description = row["description"]
    if not is_readable(description):
        raise CorpusError(
            f"{where}: the description is {description!r}, need a non-empty Unicode string"
        )
    good, bad = (_texts(row[field], field, where) for field in ("good", "bad"))
    if both := set(good) & set(bad):
        raise CorpusError(f"{where}: {min(both)!r} is both good and bad")
    return EvalItem(str(row.get("id", f"line-{number}")), description, good, bad)


def _texts(value: Any, field: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(map(is_readable, value)):
        raise CorpusError(f"{where}: {field!r} is no list of non-empty Unicode strings")
    if not value:
        raise CorpusError(f"{where}: {field!r} is empty, so there is nothing to rank")
    return tuple(value)


def _encode_new(
    encode: Callable[[Sequence[str]], NDArray[np.float32]],
    texts: Iterable[str],
    known: dict[str, NDArray[np.float32]],
) -> None:
    new = list(dict.fromkeys(text for text in texts if text not in known))
    if new:
        known.update(zip(new, encode(new), strict=True))


def _scores(score: Score, description: str, texts: Sequence[str]) -> Floats:
    scores = np.asarray(score(description, texts))
    if scores.shape != (len(texts),) or not np.isfinite(scores).all():
        raise ScoreError(
            f"the score gave shape {scores.shape} for {len(texts)} sentences (finite: "
            f"{bool(np.isfinite(scores).all())}), need one finite number a sentence"
        )
    return scores
