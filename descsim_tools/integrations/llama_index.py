"""LlamaIndex: an embedding, a retriever, a reranker, a vector store and a tool.

Needs `pip install "descsim-tools[llama-index]"`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

from descsim_tools.errors import require

require("llama_index.core", "llama-index")
require("llama_index.vector_stores.chroma", "llama-index")

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.chroma.base import _to_chroma_filter
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.integrations.chroma import open_client
from descsim_tools.integrations.common import (
    SCORES,
    Reranker,
    SearchSettings,
    check_reranker,
    checked,
    find,
    hit_of,
    load_encoder,
    rerank,
    scores_of,
)
from descsim_tools.integrations.tooling import (
    TOOL_DESCRIPTION,
    TOOL_NAME,
    answer,
    arguments_schema,
)
from descsim_tools.search import DescriptionIndex
from descsim_tools.store import DEFAULT_COLLECTION, EncoderLike, Store
from descsim_tools.store.metadata import decode_metadata, encode_metadata
from descsim_tools.store.store import cosine_of, space_of
from descsim_tools.types import Hit

__all__ = [
    "DescriptionEmbedding",
    "DescriptionRerank",
    "DescriptionRetriever",
    "DescriptionVectorStore",
    "Found",
    "Reranker",
    "description_search_tool",
]


class DescriptionEmbedding(BaseEmbedding):
    """Embeds texts with the sentence encoder and queries with the description encoder.

    As a transformation, `transformations=[splitter, embedding]`, it embeds the nodes' text alone.
    An index that is given nodes without embeddings puts their metadata before the text, which
    describes the sentence's origin and not its content; so use it as a transformation too.

    Args:
        encoder: An encoder, or a preset, folder or hub id; None takes the default preset.
        device: Where it runs, such as `cpu` or `cuda`; None takes the best.
        embed_metadata: As a transformation, embed the metadata with the text.
        embed_batch_size: Texts a forward pass.
    """

    embed_metadata: bool = False

    _encoder: DescriptionEncoder = PrivateAttr()

    def __init__(
        self,
        encoder: EncoderLike = None,
        *,
        device: str | None = None,
        embed_metadata: bool = False,
        embed_batch_size: int = 32,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        loaded = load_encoder(encoder, device)
        super().__init__(
            model_name=loaded.spec.name,
            embed_batch_size=embed_batch_size,
            callback_manager=callback_manager or CallbackManager(),
        )
        self.embed_metadata = embed_metadata
        self._encoder = loaded

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex serialises."""
        return "DescriptionEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(x) for x in self._encoder.encode_descriptions([query])[0]]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors = self._encoder.encode_sentences(texts, batch_size=self.embed_batch_size)
        return [[float(x) for x in vector] for vector in vectors]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Embed nodes in place, as a transformation does."""
        vectors = self.get_text_embedding_batch(self._texts(nodes), **kwargs)
        return _embedded(nodes, vectors)

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Embed nodes in place."""
        vectors = await self.aget_text_embedding_batch(self._texts(nodes), **kwargs)
        return _embedded(nodes, vectors)

    def _texts(self, nodes: Sequence[BaseNode]) -> list[str]:
        mode = MetadataMode.EMBED if self.embed_metadata else MetadataMode.NONE
        return [node.get_content(metadata_mode=mode) for node in nodes]


class DescriptionRetriever(BaseRetriever):
    """Retrieves sentences that instantiate a description.

    A node has the sentence's id and metadata, and its score is the cosine similarity, or the rerank
    score with a reranker. The metadata also holds `descsim_rank`, `descsim_score`,
    `descsim_retrieval_score`, `descsim_rerank_score` and `descsim_probability` (None where not
    known), which neither embeddings nor language models get to see. A node that LlamaIndex wrote
    comes back whole.

    Args:
        index: The store to search; whoever opened it closes it.
        k: Most nodes wanted.
        **settings: `where`, `min_score`, `min_probability`, `reranker` and `candidates`, see
            `descsim_tools.integrations.common.SearchSettings`.

    Raises:
        ValueError: `k` is below 1.
        TypeError: A setting is not known, or the reranker cannot rerank.
    """

    def __init__(
        self,
        index: DescriptionIndex,
        *,
        k: int = 10,
        callback_manager: CallbackManager | None = None,
        **settings: Unpack[SearchSettings],
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}, need a whole number from 1 up")
        self.index = index
        self.k = k
        self.settings = checked(settings)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if query_bundle.custom_embedding_strs:
            raise ValueError(
                "the query bundle has custom_embedding_strs, such as a hypothetical answer; a "
                "description is searched as it is, so leave them out"
            )
        hits = find(self.index, query_bundle.query_str, self.k, **self.settings)
        return [NodeWithScore(node=_scored(_node(hit), hit), score=hit.score) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


class DescriptionRerank(BaseNodePostprocessor):
    """Orders nodes by how well a description fits them, as a node postprocessor.

    The nodes may come from any retriever. They are copied, not changed; the score they came with
    stays in their metadata as `descsim_retrieval_score`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    reranker: Any
    """Anything with `rerank(description, hits, top_k=None)`."""
    top_k: int | None = Field(default=None, ge=1)
    """Most nodes to keep; None keeps all."""

    @field_validator("reranker")
    @classmethod
    def _reranks(cls, reranker: Any) -> Any:
        try:
            return check_reranker(reranker)
        except TypeError as error:
            # pydantic turns only a ValueError into its own error
            raise ValueError(str(error)) from error

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex serialises."""
        return "DescriptionRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("reranking needs the description: pass query_str or query_bundle")
        # Nodes may share an id, so a hit is found again by its position.
        hits = [
            hit_of(
                str(position),
                scored.node.get_content(metadata_mode=MetadataMode.NONE),
                scored.node.metadata,
                position + 1,
                scored.score,
            )
            for position, scored in enumerate(nodes)
        ]
        ranked = rerank(self.reranker, query_bundle.query_str, hits, self.top_k)
        return [
            NodeWithScore(node=_scored(nodes[int(hit.id)].node, hit), score=hit.score)
            for hit in ranked
        ]


class DescriptionVectorStore(ChromaVectorStore):
    """LlamaIndex's Chroma vector store over one of our stores.

    Beside `ChromaVectorStore`, scores are cosines and not exp(-distance), nodes are written by
    upsert in as many rows at a time as the client takes, metadata may be any JSON value, and
    sentences that `descsim_tools.fill` stored come back with the metadata they had.

        >>> store = DescriptionVectorStore.open("my-store")
        ... index = VectorStoreIndex.from_vector_store(store, embed_model=DescriptionEmbedding())
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex serialises."""
        return "DescriptionVectorStore"

    @classmethod
    def open(
        cls, location: str | Path, *, collection: str = DEFAULT_COLLECTION
    ) -> DescriptionVectorStore:
        """Open a store; make a new one with `DescriptionIndex.create`.

        Args:
            location: A folder or the URL of a Chroma server.
            collection: Name of the Chroma collection.

        Raises:
            StoreError: There is none, or it is not one of ours.
        """
        Store.open(location, collection=collection).close()
        opened = open_client(location).get_collection(collection, embedding_function=None)
        return cast("DescriptionVectorStore", cls.from_collection(opened))

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Write nodes that have embeddings, replacing those of the same id."""
        ids = [node.node_id for node in nodes]
        texts = [node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes]
        vectors: list[Any] = [node.get_embedding() for node in nodes]
        rows: list[Any] = [_row(node) for node in nodes]
        size = self._collection._client.get_max_batch_size()
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self._collection.upsert(
                ids=ids[part],
                embeddings=vectors[part],
                documents=texts[part],
                metadatas=rows[part],
            )
        return ids

    def get_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | list[MetadataFilters] | None = None,
    ) -> list[BaseNode]:
        """Return the nodes of these ids that match the filters; None means any, [] means none."""
        if node_ids is not None and not node_ids:
            return []
        result = self._get(None, where=_where(filters), ids=node_ids)
        return [_restored(node) for node in result.nodes or []]

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | list[MetadataFilters] | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes of these ids that match the filters; [] deletes none.

        Raises:
            ValueError: Neither ids nor filters are given; `clear` deletes all.
        """
        where = _where(filters)
        if node_ids is None and not where:
            raise ValueError("neither node_ids nor filters are given; clear() deletes all nodes")
        if node_ids is None or node_ids:
            self._collection.delete(ids=node_ids, where=where or None)

    def clear(self) -> None:
        """Delete all nodes."""
        ids = self._collection.get(include=[])["ids"]
        size = self._collection._client.get_max_batch_size()
        for start in range(0, len(ids), size):
            self._collection.delete(ids=ids[start : start + size])

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the nearest nodes with their cosine similarity."""
        found = super().query(query, **kwargs)
        if found.similarities is not None:
            # LlamaIndex gives exp(-distance).
            space = space_of(self._collection.configuration_json)
            found.similarities = [cosine_of(-math.log(s), space) for s in found.similarities]
        found.nodes = [_restored(node) for node in found.nodes or []]
        return found


@dataclass(frozen=True)
class Found:
    """What the tool found; as text it is the JSON that a model gets."""

    description: str
    hits: list[Hit]

    def __str__(self) -> str:
        return answer(self.description, self.hits)


def description_search_tool(
    index: DescriptionIndex,
    *,
    k: int = 5,
    name: str = TOOL_NAME,
    description: str = TOOL_DESCRIPTION,
    **settings: Unpack[SearchSettings],
) -> FunctionTool:
    """Make a tool that lets an agent search by description.

    The model gets JSON text; the tool output's `raw_output` is a `Found` with the hits.

    Args:
        index: The store to search; whoever opened it closes it.
        k: How many sentences come back unless the model asks for another number.
        name: What the model calls it.
        description: What tells the model how to use it.
        **settings: As of `DescriptionRetriever`.

    Raises:
        ValueError: `k` is out of bounds.
        TypeError: A setting is not known, or the reranker cannot rerank.
    """
    schema = arguments_schema(k)
    settings = checked(settings)

    def search(**arguments: Any) -> Found:
        wanted = schema(**arguments)
        return Found(wanted.description, find(index, wanted.description, wanted.k, **settings))

    async def asearch(**arguments: Any) -> Found:
        return await asyncio.to_thread(search, **arguments)

    return FunctionTool.from_defaults(
        search, async_fn=asearch, name=name, description=description, fn_schema=schema
    )


def _embedded(nodes: Sequence[BaseNode], vectors: list[list[float]]) -> Sequence[BaseNode]:
    for node, vector in zip(nodes, vectors, strict=True):
        node.embedding = vector
    return nodes


def _node(hit: Hit) -> BaseNode:
    if "_node_content" in hit.metadata:
        return metadata_dict_to_node(dict(hit.metadata), text=hit.text)
    return TextNode(id_=hit.id, text=hit.text, metadata=dict(hit.metadata))


def _scored(node: BaseNode, hit: Hit) -> BaseNode:
    """Return a copy of a node that carries a hit's scores, hidden from models."""
    scores = scores_of(hit)
    hidden = {
        field: list(dict.fromkeys([*getattr(node, field), *scores]))
        for field in ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys")
    }
    return node.model_copy(update={"metadata": {**node.metadata, **scores}, **hidden})


def _row(node: BaseNode) -> dict[str, Any]:
    own = {key: value for key, value in node.metadata.items() if key not in SCORES.values()}
    bare = node.model_copy(update={"metadata": own})
    return encode_metadata(node_to_metadata_dict(bare, remove_text=True, flat_metadata=False))


def _restored(node: BaseNode) -> BaseNode:
    node.metadata = decode_metadata(node.metadata)
    return node


def _where(filters: MetadataFilters | list[MetadataFilters] | None) -> dict[str, Any]:
    groups = filters if isinstance(filters, list) else [filters] if filters is not None else []
    conditions = [_to_chroma_filter(group) for group in groups if group.filters]
    return {"$and": conditions} if len(conditions) > 1 else dict(*conditions)
