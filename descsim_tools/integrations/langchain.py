"""LangChain: embeddings, a retriever, a reranker and a tool.

Needs `pip install "descsim-tools[langchain]"`. To use langchain-chroma's vector store over one of
our stores, give it `DescriptionEmbeddings` and the client of
`descsim_tools.integrations.chroma.open_client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from descsim_tools.errors import DescsimError, require

require("langchain_core", "langchain")

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.tools import StructuredTool, ToolException
from pydantic import ConfigDict, Field, field_validator

from descsim_tools.integrations.common import (
    CANDIDATES,
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
from descsim_tools.store import EncoderLike
from descsim_tools.types import Hit

__all__ = [
    "DescriptionEmbeddings",
    "DescriptionReranker",
    "DescriptionRetriever",
    "Reranker",
    "description_search_tool",
]


class DescriptionEmbeddings(Embeddings):
    """Embeds documents with the sentence encoder and queries with the description encoder.

    Args:
        encoder: An encoder, or a preset, folder or hub id; None takes the default preset.
        device: Where it runs, such as `cpu` or `cuda`; None takes the best.
        batch_size: Texts a forward pass.
    """

    def __init__(
        self, encoder: EncoderLike = None, *, device: str | None = None, batch_size: int = 32
    ) -> None:
        self.encoder = load_encoder(encoder, device)
        self.batch_size = batch_size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Encode sentences; each vector has length 1."""
        vectors = self.encoder.encode_sentences(texts, batch_size=self.batch_size)
        return [[float(x) for x in vector] for vector in vectors]

    def embed_query(self, text: str) -> list[float]:
        """Encode one description."""
        return [float(x) for x in self.encoder.encode_descriptions([text])[0]]


class DescriptionRetriever(BaseRetriever):
    """Retrieves sentences that instantiate a description.

    Each document has the sentence's id and its own metadata. Beside these the metadata holds
    `descsim_rank` (from 1), `descsim_score` (what the list is ordered by, higher is better),
    `descsim_retrieval_score` (cosine), `descsim_rerank_score` and `descsim_probability` (None where
    not known). `k` and `where` can also be given to a call: `invoke(description, k=3)`.

        >>> retriever = DescriptionRetriever(index=DescriptionIndex.open("my-store"), k=5)
        ... documents = retriever.invoke("a scientific discovery made by accident")
    """

    # BaseRetriever would let a misspelt field vanish.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    index: DescriptionIndex = Field(repr=False)
    """The store to search; whoever opened it closes it."""
    k: int = Field(default=10, ge=1)
    """Most documents wanted."""
    where: dict[str, Any] | None = None
    """Chroma's filter on the sentences' metadata."""
    min_score: float | None = None
    """Least cosine similarity of a document."""
    min_probability: float | None = Field(default=None, ge=0, le=1)
    """Least calibrated probability; needs a reranker that gives one."""
    reranker: Any = None
    """Anything with `rerank(description, hits, top_k=None)`."""
    candidates: int = Field(default=CANDIDATES, ge=1)
    """How many sentences the reranker is given."""

    @field_validator("reranker")
    @classmethod
    def _reranks(cls, reranker: Any) -> Any:
        return None if reranker is None else _checked(reranker)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: dict[str, Any] | None = None,
    ) -> list[Document]:
        return [_document(hit) for hit in self._find(query, k, where)]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        where: dict[str, Any] | None = None,
    ) -> list[Document]:
        hits = await run_in_executor(None, self._find, query, k, where)
        return [_document(hit) for hit in hits]

    def _find(self, query: str, k: int | None, where: dict[str, Any] | None) -> list[Hit]:
        return find(
            self.index,
            query,
            self.k if k is None else k,
            where=self.where if where is None else where,
            min_score=self.min_score,
            min_probability=self.min_probability,
            reranker=self.reranker,
            candidates=self.candidates,
        )


class DescriptionReranker(BaseDocumentCompressor):
    """Orders documents by how well a description fits them, as a document compressor.

    The documents may come from any retriever. They are copied, not changed; a retrieval score that
    one of our retrievers gave stays beside the rerank score.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    reranker: Any
    """Anything with `rerank(description, hits, top_k=None)`."""
    top_k: int | None = Field(default=None, ge=1)
    """Most documents to keep; None keeps all."""

    @field_validator("reranker")
    @classmethod
    def _reranks(cls, reranker: Any) -> Any:
        return _checked(reranker)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return the best documents, best first."""
        # Documents may share an id or have none, so a hit is found again by its position.
        hits = [
            hit_of(str(position), document.page_content, document.metadata, position + 1)
            for position, document in enumerate(documents)
        ]
        ranked = rerank(self.reranker, query, hits, self.top_k)
        return [
            documents[int(hit.id)].model_copy(
                update={"metadata": {**documents[int(hit.id)].metadata, **scores_of(hit)}}
            )
            for hit in ranked
        ]


def description_search_tool(
    index: DescriptionIndex,
    *,
    k: int = 5,
    name: str = TOOL_NAME,
    description: str = TOOL_DESCRIPTION,
    **settings: Unpack[SearchSettings],
) -> StructuredTool:
    """Make a tool that lets a chat model search by description.

    The model gets JSON text; the hits themselves are the tool message's `artifact`. Arguments that
    cannot be used come back to the model as an error it can mend.

    Args:
        index: The store to search; whoever opened it closes it.
        k: How many sentences come back unless the model asks for another number.
        name: What the model calls it.
        description: What tells the model how to use it.
        **settings: `where`, `min_score`, `min_probability`, `reranker` and `candidates`, see
            `descsim_tools.integrations.common.SearchSettings`.

    Raises:
        ValueError: `k` is out of bounds.
        TypeError: A setting is not known, or the reranker cannot rerank.
    """
    default = k
    settings = checked(settings)

    def search(description: str, k: int = default) -> tuple[str, list[Hit]]:
        try:
            hits = find(index, description, k, **settings)
        except (DescsimError, ValueError) as error:
            raise ToolException(f"The search failed: {error}") from error
        return answer(description, hits), hits

    async def asearch(description: str, k: int = default) -> tuple[str, list[Hit]]:
        return await run_in_executor(None, search, description, k)

    return StructuredTool.from_function(
        search,
        asearch,
        name=name,
        description=description,
        args_schema=arguments_schema(k),
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=_told,
    )


def _told(error: Exception) -> str:
    """Tell the model what was wrong; LangChain's own message would not say."""
    return f"The arguments cannot be used: {error}"


def _document(hit: Hit) -> Document:
    return Document(id=hit.id, page_content=hit.text, metadata={**hit.metadata, **scores_of(hit)})


def _checked(reranker: Any) -> Reranker:
    try:
        return check_reranker(reranker)
    except TypeError as error:
        # pydantic turns only a ValueError into its own error
        raise ValueError(str(error)) from error
