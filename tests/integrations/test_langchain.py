import asyncio
import copy
import json

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import ToolCall
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    ToolsIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests, ToolsUnitTests
from pydantic import ValidationError

from descsim_tools import DescriptionEncoder, DescriptionIndex, Record, fill
from descsim_tools.integrations.chroma import open_client
from descsim_tools.integrations.langchain import (
    DescriptionEmbeddings,
    DescriptionReranker,
    DescriptionRetriever,
    description_search_tool,
)
from tests.integrations.rerankers import (
    WHAT_CANNOT_RERANK,
    Doubling,
    Inventing,
    ShortestFirst,
)

SCORE_KEYS = {
    "descsim_rank",
    "descsim_score",
    "descsim_retrieval_score",
    "descsim_rerank_score",
    "descsim_probability",
}


@pytest.fixture
def pair(tiny_folder, other_folder) -> DescriptionEncoder:
    """Two sides with different weights, so that a test can tell which one read a text."""
    return DescriptionEncoder.load_pair(
        description=other_folder, sentence=tiny_folder, pooling=None, device="cpu"
    )


class EmbeddingsSetting:
    @pytest.fixture(autouse=True)
    def _setting(self, tiny):
        self.tiny = tiny

    @property
    def embeddings_class(self):
        return DescriptionEmbeddings

    @property
    def embedding_model_params(self):
        return {"encoder": self.tiny}


class TestEmbeddingsUnit(EmbeddingsSetting, EmbeddingsUnitTests):
    pass


class TestEmbeddings(EmbeddingsSetting, EmbeddingsIntegrationTests):
    pass


class TestEmbeddingsOnTheRealModel(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return DescriptionEmbeddings

    @property
    def embedding_model_params(self):
        return {"device": "cpu"}


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _setting(self, tiny_index):
        self.index = tiny_index

    @property
    def retriever_constructor(self):
        return DescriptionRetriever

    @property
    def retriever_constructor_params(self):
        return {"index": self.index}

    @property
    def retriever_query_example(self):
        return "a scientific discovery made by accident"


class ToolSetting:
    @pytest.fixture(autouse=True)
    def _setting(self, tiny_index):
        self.index = tiny_index

    @property
    def tool_constructor(self):
        return description_search_tool(self.index)

    @property
    def tool_invoke_params_example(self):
        return {"description": "a scientific discovery made by accident", "k": 2}


class TestToolUnit(ToolSetting, ToolsUnitTests):
    pass


class TestTool(ToolSetting, ToolsIntegrationTests):
    pass


def test_each_side_reads_its_own_texts(pair):
    embeddings = DescriptionEmbeddings(pair)
    text = "a vulcanologist died"
    np.testing.assert_allclose(
        embeddings.embed_query(text), pair.encode_descriptions([text])[0], atol=1e-6
    )
    np.testing.assert_allclose(
        embeddings.embed_documents([text])[0], pair.encode_sentences([text])[0], atol=1e-6
    )
    assert (
        np.abs(
            np.subtract(embeddings.embed_query(text), embeddings.embed_documents([text])[0])
        ).max()
        > 0.01
    )


def test_embeddings_of_nothing(tiny):
    assert DescriptionEmbeddings(tiny).embed_documents([]) == []
    with pytest.raises(TypeError, match="item 1 is None"):
        DescriptionEmbeddings(tiny).embed_documents(["a", None])


def test_documents_carry_scores_beside_their_own_metadata(tiny, tmp_path):
    own = {"year": 1990, "tags": ["a", "b"], "nested": {"x": [1, None]}, "score": "mine", "id": 7}
    records = [Record("a dog barks loudly", "one", own), Record("a cat sleeps all day", "two")]
    fill(records, tmp_path / "s", encoder=tiny)
    with DescriptionIndex.open(tmp_path / "s", encoder=tiny) as index:
        documents = DescriptionRetriever(index=index).invoke("an animal")
        hits = index.search("an animal")
    assert [d.id for d in documents] == [h.id for h in hits]
    assert [d.page_content for d in documents] == [h.text for h in hits]
    for document, hit in zip(documents, hits, strict=True):
        assert {k: v for k, v in document.metadata.items() if k not in SCORE_KEYS} == hit.metadata
        assert document.metadata.keys() >= SCORE_KEYS
        assert document.metadata["descsim_retrieval_score"] == hit.score
        assert document.metadata["descsim_score"] == hit.score
        assert document.metadata["descsim_rank"] == hit.rank
        assert document.metadata["descsim_rerank_score"] is None
    stored = next(d for d in documents if d.id == "one").metadata
    assert {k: v for k, v in stored.items() if k not in SCORE_KEYS} == own


def test_calls_sync_async_and_batched_agree(tiny_index):
    retriever = DescriptionRetriever(index=tiny_index, k=4)
    descriptions = [f"a thing of kind {i}" for i in range(12)]
    one_by_one = [retriever.invoke(d) for d in descriptions]
    assert retriever.batch(descriptions) == one_by_one
    assert asyncio.run(retriever.abatch(descriptions)) == one_by_one
    assert asyncio.run(retriever.ainvoke(descriptions[0], k=2)) == one_by_one[0][:2]


def test_a_call_can_ask_for_k_and_where(tiny_index):
    retriever = DescriptionRetriever(index=tiny_index, k=4, where={"line": {"$lte": 50}})
    assert len(retriever.invoke("a thing")) == 4
    assert all(d.metadata["line"] <= 50 for d in retriever.invoke("a thing"))
    found = retriever.invoke("a thing", k=3, where={"line": {"$gt": 900}})
    assert len(found) == 3
    assert all(d.metadata["line"] > 900 for d in found)


@pytest.mark.parametrize("k", [0, -1])
def test_a_bad_k(tiny_index, k):
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        DescriptionRetriever(index=tiny_index, k=k)
    with pytest.raises(ValueError, match="need a whole number from 1 up"):
        DescriptionRetriever(index=tiny_index).invoke("a thing", k=k)


def test_misspelt_settings_do_not_vanish(tiny_index):
    with pytest.raises(ValidationError, match="top_k"):
        DescriptionRetriever(index=tiny_index, top_k=3)
    with pytest.raises(TypeError, match="top_k"):
        DescriptionRetriever(index=tiny_index).invoke("a thing", top_k=3)


def test_a_least_score(tiny_index):
    scores = [h.score for h in tiny_index.search("a thing", 10)]
    retriever = DescriptionRetriever(index=tiny_index, k=10, min_score=scores[4])
    assert [d.metadata["descsim_score"] for d in retriever.invoke("a thing")] == scores[:5]


def test_a_least_probability_needs_one(tiny_index):
    retriever = DescriptionRetriever(index=tiny_index, min_probability=0.5)
    with pytest.raises(ValueError, match="have no probability; give a reranker"):
        retriever.invoke("a thing")
    calibrated = ShortestFirst(probability=lambda hit: 0.9 if len(hit.text) % 2 else 0.1)
    retriever = DescriptionRetriever(index=tiny_index, min_probability=0.5, reranker=calibrated)
    documents = retriever.invoke("a thing")
    assert documents
    assert {d.metadata["descsim_probability"] for d in documents} == {0.9}
    ranks = [d.metadata["descsim_rank"] for d in documents]
    assert ranks == list(range(1, len(documents) + 1))


def test_a_retriever_reranks(tiny_index):
    reranker = ShortestFirst()
    retriever = DescriptionRetriever(index=tiny_index, k=5, reranker=reranker, candidates=30)
    documents = retriever.invoke("a thing")
    hits = {h.id: h for h in tiny_index.search("a thing", 30)}
    assert len(reranker.seen[0][1]) == 30
    shortest = sorted(hits.values(), key=lambda h: (len(h.text), h.id))[:5]
    assert [d.id for d in documents] == [h.id for h in shortest]
    assert [d.metadata["descsim_rank"] for d in documents] == [1, 2, 3, 4, 5]
    for document in documents:
        assert document.metadata["descsim_retrieval_score"] == hits[document.id].score
        assert document.metadata["descsim_rerank_score"] == -len(document.page_content)
        assert document.metadata["descsim_score"] == -len(document.page_content)


@pytest.mark.parametrize("reranker", [Inventing(), Doubling()])
def test_a_reranker_that_invents_is_refused(tiny_index, reranker):
    with pytest.raises(ValueError, match="repeated or unknown ids"):
        DescriptionRetriever(index=tiny_index, reranker=reranker).invoke("a thing")


@pytest.mark.parametrize("reranker", WHAT_CANNOT_RERANK)
def test_what_cannot_rerank_is_refused_at_once(tiny_index, reranker):
    for make in (
        lambda: DescriptionRetriever(index=tiny_index, reranker=reranker),
        lambda: DescriptionReranker(reranker=reranker),
        lambda: description_search_tool(tiny_index, reranker=reranker),
    ):
        with pytest.raises((ValidationError, TypeError), match="need an object with a method"):
            make()


@pytest.mark.parametrize("seed", range(3))
def test_the_reranker_follows_documents_in_any_order(tiny_index, seed):
    documents = DescriptionRetriever(index=tiny_index, k=12).invoke("a thing")
    np.random.default_rng(seed).shuffle(documents)
    before = copy.deepcopy(documents)
    compressor = DescriptionReranker(reranker=ShortestFirst(), top_k=5)
    ranked = compressor.compress_documents(documents, "a thing")
    assert documents == before
    lengths = sorted(len(d.page_content) for d in documents)[:5]
    assert [len(d.page_content) for d in ranked] == lengths
    first = {d.id: d.metadata for d in before}
    for rank, document in enumerate(ranked, start=1):
        assert document.metadata["descsim_rank"] == rank
        assert document.metadata["descsim_rerank_score"] == -len(document.page_content)
        kept = document.metadata["descsim_retrieval_score"]
        assert kept == first[document.id]["descsim_retrieval_score"]
        assert document.metadata["line"] == first[document.id]["line"]
    assert asyncio.run(compressor.acompress_documents(documents, "a thing")) == ranked


def test_the_reranker_takes_documents_from_elsewhere():
    documents = [
        Document("longer one", id="same"),
        Document("short", id="same"),
        Document("mid one"),
    ]
    ranked = DescriptionReranker(reranker=ShortestFirst()).compress_documents(documents, "x")
    assert [d.page_content for d in ranked] == ["short", "mid one", "longer one"]
    assert [d.id for d in ranked] == ["same", None, "same"]
    assert ranked[0].metadata["descsim_retrieval_score"] is None
    assert DescriptionReranker(reranker=ShortestFirst()).compress_documents([], "x") == []


def test_the_tool_gives_text_to_the_model_and_hits_to_the_program(tiny_index):
    tool = description_search_tool(tiny_index, k=3, where={"line": {"$lte": 100}})
    call = ToolCall(name=tool.name, args={"description": "a thing"}, id="1", type="tool_call")
    message = tool.invoke(call)
    assert message.artifact == tiny_index.search("a thing", 3, where={"line": {"$lte": 100}})
    told = json.loads(message.content)
    assert told["description"] == "a thing"
    assert [(h["id"], h["text"]) for h in told["hits"]] == [
        (h.id, h.text) for h in message.artifact
    ]
    assert tool.invoke({"description": "a thing"}) == message.content


def test_the_tools_schema_teaches_descriptions(tiny_index):
    tool = description_search_tool(tiny_index, k=7)
    schema = tool.tool_call_schema.model_json_schema()
    assert "no keywords, no question" in schema["properties"]["description"]["description"]
    assert schema["required"] == ["description"]
    assert schema["properties"]["k"]["default"] == 7
    assert "Do not give keywords" in tool.description
    with pytest.raises(ValueError, match="need a whole number from 1 to 100"):
        description_search_tool(tiny_index, k=0)


def test_an_unknown_setting_is_named(tiny_index):
    with pytest.raises(TypeError, match=r"got the settings min_skore; there are: where, min_score"):
        description_search_tool(tiny_index, min_skore=0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"description": "  "}, "description is blank"),
        ({"description": "x", "k": 0}, "greater than or equal to 1"),
        ({"query": "x"}, "description"),
    ],
)
def test_a_model_sees_what_it_did_wrong(tiny_index, arguments, said):
    tool = description_search_tool(tiny_index)
    call = ToolCall(name=tool.name, args=arguments, id="1", type="tool_call")
    message = tool.invoke(call)
    assert message.status == "error"
    assert said in message.content


def test_langchains_chroma_reads_our_store(tiny_store, tiny_index, tiny):
    from langchain_chroma import Chroma

    chroma = Chroma("descsim", DescriptionEmbeddings(tiny), client=open_client(tiny_store))
    found = chroma.similarity_search_with_relevance_scores("a thing", k=5)
    hits = tiny_index.search("a thing", 5)
    assert [document.id for document, _ in found] == [hit.id for hit in hits]
    np.testing.assert_allclose([score for _, score in found], [h.score for h in hits], atol=1e-5)


def test_we_read_what_langchains_chroma_wrote(pair, tmp_path):
    from langchain_chroma import Chroma

    DescriptionIndex.create(tmp_path / "s", encoder=pair).close()
    chroma = Chroma("descsim", DescriptionEmbeddings(pair), client=open_client(tmp_path / "s"))
    chroma.add_documents(
        [
            Document("a dog barks loudly", id="one", metadata={"year": 1990}),
            Document("a cat sleeps all day", id="two"),
        ]
    )
    with DescriptionIndex.open(tmp_path / "s", encoder=pair) as index:
        hits = {h.id: h for h in index.search("an animal")}
        assert {i: h.text for i, h in hits.items()} == {
            "one": "a dog barks loudly",
            "two": "a cat sleeps all day",
        }
        assert hits["one"].metadata == {"year": 1990}
        assert [d.id for d in DescriptionRetriever(index=index).invoke("an animal")] == list(hits)
    query, sentence = (
        pair.encode_descriptions(["an animal"]),
        pair.encode_sentences(["a dog barks loudly"]),
    )
    assert hits["one"].score == pytest.approx(float((query @ sentence.T)[0, 0]), abs=1e-5)


def test_the_real_model_finds_instances(real_index):
    documents = DescriptionRetriever(index=real_index, k=5).invoke(
        "monkeys that steal drinks from tourists"
    )
    assert any("monkeys" in d.page_content for d in documents)
