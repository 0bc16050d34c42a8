"""What the adapters share: one search, one way to rerank, one shape of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, runtime_checkable

from descsim_tools.store.manifest import PREFIX
from descsim_tools.types import Hit

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder
    from descsim_tools.search import DescriptionIndex
    from descsim_tools.store import EncoderLike

CANDIDATES = 50
"""Hits that a reranker is given by default."""

SCORES = {
    field: PREFIX + field
    for field in ("rank", "score", "retrieval_score", "rerank_score", "probability")
}
"""Fields of a hit, and the metadata keys under which documents and nodes carry them.

No sentence's own metadata can collide with them: a store refuses keys that begin like this.
"""


@runtime_checkable
class Reranker(Protocol):
    """Scores (description, sentence) pairs jointly and orders hits by it."""

    def rerank(self, description: str, hits: list[Hit], top_k: int | None = None) -> list[Hit]:
        """Return the best `top_k` of the hits (all for None), best first, ranks from 1."""
        ...


class SearchSettings(TypedDict, total=False):
    """How the adapters search, beside the description and the number of hits.

    Attributes:
        where: Chroma's filter on metadata; a model that calls a tool cannot change it.
        min_score: Least cosine similarity of a hit.
        min_probability: Least calibrated probability of a hit; needs a reranker that gives one.
        reranker: Anything with `rerank(description, hits, top_k=None)`; orders hits anew.
        candidates: How many hits the reranker is given, 50 unless said, and at least `k`.
    """

    where: Mapping[str, Any] | None
    min_score: float | None
    min_probability: float | None
    reranker: Reranker | None
    candidates: int


def checked(settings: SearchSettings) -> SearchSettings:
    """Return settings that a search can use.

    Raises:
        TypeError: One is not known, or the reranker cannot rerank.
    """
    unknown = sorted(set(settings) - set(SearchSettings.__annotations__))
    if unknown:
        allowed = ", ".join(SearchSettings.__annotations__)
        raise TypeError(f"got the settings {', '.join(unknown)}; there are: {allowed}")
    if settings.get("reranker") is not None:
        check_reranker(settings["reranker"])
    return settings


def find(
    index: DescriptionIndex, description: str, k: int, **settings: Unpack[SearchSettings]
) -> list[Hit]:
    """Search, rerank and filter.

    Args:
        index: The store to search.
        description: What the sentences should be instances of.
        k: Most hits wanted.
        **settings: See `SearchSettings`.

    Raises:
        ValueError: The description is blank, `k` is below 1, or a least probability is asked for
            where hits have none.
    """
    if not description.strip():
        raise ValueError("the description is blank; say what you look for")
    reranker = settings.get("reranker")
    candidates = settings.get("candidates", CANDIDATES)
    wanted = max(k, candidates) if reranker is not None and isinstance(k, int) and k > 0 else k
    hits = index.search(description, wanted, where=settings.get("where"))
    min_score = settings.get("min_score")
    if min_score is not None:
        hits = [hit for hit in hits if (hit.retrieval_score or 0.0) >= min_score]
    if reranker is not None:
        hits = rerank(reranker, description, hits, None)
    min_probability = settings.get("min_probability")
    if min_probability is not None:
        unknown = [hit.id for hit in hits if hit.probability is None]
        if unknown:
            raise ValueError(
                f"min_probability is {min_probability}, but {len(unknown)} of {len(hits)} hits "
                "have no probability; give a reranker that is calibrated, or use min_score"
            )
        hits = [hit for hit in hits if (hit.probability or 0.0) >= min_probability]
    return [replace(hit, rank=rank) for rank, hit in enumerate(hits[:k], start=1)]


def rerank(
    reranker: Reranker, description: str, hits: Sequence[Hit], top_k: int | None
) -> list[Hit]:
    """Rerank copies of hits, and refuse an answer that is no selection of them.

    Raises:
        ValueError: The reranker gave back a sentence twice, or one it was not given.
    """
    if not hits:
        return []
    given = {hit.id: hit for hit in hits}
    ranked = reranker.rerank(description, list(hits), top_k)
    ids = [hit.id for hit in ranked]
    if len(set(ids)) != len(ids) or not set(ids) <= set(given):
        raise ValueError(
            f"{type(reranker).__name__} was given {len(given)} hits and returned {len(ids)} with "
            "repeated or unknown ids; a reranker returns some or all of its hits, each once"
        )
    return [
        replace(hit, rank=rank, retrieval_score=given[hit.id].retrieval_score)
        for rank, hit in enumerate(ranked, start=1)
    ]


def check_reranker(reranker: object) -> Reranker:
    """Return what can rerank.

    Raises:
        TypeError: It has no method `rerank`.
    """
    if not isinstance(reranker, Reranker):
        raise TypeError(
            f"the reranker is a {type(reranker).__name__}, need an object with a method "
            "rerank(description, hits, top_k=None)"
        )
    return reranker


def scores_of(hit: Hit) -> dict[str, Any]:
    """Return a hit's rank and scores as metadata, those that are not known as None."""
    return {key: getattr(hit, field) for field, key in SCORES.items()}


def hit_of(
    id_: str, text: str, metadata: dict[str, Any], rank: int, score: float | None = None
) -> Hit:
    """Make a hit of a document or node that comes from any retriever.

    Args:
        id_: To find it again by.
        text: The sentence.
        metadata: Its metadata; scores in it, from an adapter of ours, become the hit's.
        rank: Position in the list it came in, from 1.
        score: The first retriever's score, where it is not in the metadata.
    """
    first = metadata.get(SCORES["retrieval_score"], score)
    return Hit(
        id_,
        first if first is not None else 0.0,
        rank,
        text,
        {key: value for key, value in metadata.items() if key not in SCORES.values()},
        retrieval_score=first,
    )


def load_encoder(encoder: EncoderLike, device: str | None) -> DescriptionEncoder:
    """Return an encoder as it is, or load the one of that name; None is the default preset."""
    from descsim_tools.encoders import DEFAULT_PRESET, DescriptionEncoder

    if isinstance(encoder, DescriptionEncoder):
        return encoder
    name: str | Path = DEFAULT_PRESET if encoder is None else encoder
    return DescriptionEncoder.load(name, device=device)
