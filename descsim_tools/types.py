"""What travels between the rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """A text of a corpus, as it is stored.

    Attributes:
        text: One sentence or passage.
        id: Stable id, unique in a store; None lets the fill derive one from the text.
        metadata: Anything JSON can hold, and dates; keys are strings.
    """

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """An indexed sentence found for a description.

    Attributes:
        id: Id of the sentence in the store.
        score: What the result is ordered by, higher is better: the retrieval score, or the rerank
            score once a reranker has ordered it.
        rank: Position in the result, from 1.
        text: The sentence.
        metadata: The metadata stored with it.
        retrieval_score: Cosine similarity of description and sentence, in [-1, 1].
        rerank_score: The reranker's own score, in its own unit; None if none was used.
        probability: Calibrated probability that the sentence is an instance; None if not known.
        truncated: Whether the reranker read only the end of the sentence, as it was too long.
    """

    id: str
    score: float
    rank: int
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    retrieval_score: float | None = None
    rerank_score: float | None = None
    probability: float | None = None
    truncated: bool = False
