"""The search as a tool for language models: the same words and answers in every library.

The name, the description and the schema teach a model to write a description, not keywords.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from descsim_tools.types import Hit

TOOL_NAME = "search_by_description"

TOOL_DESCRIPTION = (
    "Finds sentences of a corpus that are concrete instances of an abstract description. Give one "
    "description of what the sentences should be about, in general words, as a person would "
    "describe them to somebody who has not read them. Do not give keywords, a question, or the "
    "wording you expect: the sentences share no words with a good description. Good: 'a company "
    "withdrawing a product after a safety problem'. Bad: 'product recall safety', 'Which companies "
    "recalled products?'. Search again with another description for another aspect. Returns JSON: "
    "hits, best first, each with id, score (cosine, higher is better), text and metadata. Cite a "
    "hit by its id."
)

DESCRIPTION_HELP = (
    "An abstract description of the wanted sentences: a noun phrase or a clause in general terms, "
    "such as 'a transfer of a disease between two species' or 'a ruler forced into exile'; no "
    "keywords, no question."
)

K_HELP = "How many sentences to return, best first."

MAX_K = 100
"""Most sentences that one call of a tool gives, so that a model cannot flood its own context."""


class SearchArguments(BaseModel):
    """Arguments of the search tool."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field(description=DESCRIPTION_HELP)
    k: int = Field(default=5, ge=1, le=MAX_K, description=K_HELP)


def arguments_schema(k: int) -> type[SearchArguments]:
    """Return the arguments' schema with another default for `k`.

    Raises:
        ValueError: `k` is outside 1 to `MAX_K`.
    """
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k is {k!r}, need a whole number from 1 to {MAX_K}")
    field = Field(default=k, ge=1, le=MAX_K, description=K_HELP)
    return create_model(
        SearchArguments.__name__,
        __base__=SearchArguments,
        __doc__=SearchArguments.__doc__,
        k=(int, field),
    )


def hit_to_dict(hit: Hit) -> dict[str, Any]:
    """Return a hit as a model should see it: what is not known is left out."""
    scores = {"rerank_score": hit.rerank_score, "probability": hit.probability}
    return {
        "rank": hit.rank,
        "id": hit.id,
        "score": round(hit.score, 6),
        **{name: round(value, 6) for name, value in scores.items() if value is not None},
        "text": hit.text,
        "metadata": plain(hit.metadata),
    }


def answer(description: str, hits: list[Hit]) -> str:
    """Return hits as the JSON text that a model gets."""
    payload: dict[str, Any] = {
        "description": description,
        "hits": [hit_to_dict(hit) for hit in hits],
    }
    if not hits:
        payload["note"] = "no sentence matches; try a more general description"
    return json.dumps(payload, ensure_ascii=False)


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON has it, keys in order; dates become strings."""
    loaded: dict[str, Any] = json.loads(json.dumps(dict(metadata), default=str, sort_keys=True))
    return loaded
