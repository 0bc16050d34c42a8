import asyncio
import copy
import json

import numpy as np
import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    ExactMatchFilter,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.vector_stores.chroma import ChromaVectorStore
from pydantic import ValidationError

from descsim_tools import DescriptionEncoder, DescriptionIndex, Record, fill
from descsim_tools.errors import StoreError
from descsim_tools.integrations.chroma import open_client
from descsim_tools.integrations.llama_index import (
    DescriptionEmbedding,
    DescriptionRerank,
    DescriptionRetriever,
    DescriptionVectorStore,
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
OWN = {"year": 1990, "tags": ["a", "b"], "nested": {"x": [1, None]}, "none": None, "score": "mine"}


@pytest.fixture
def pair(tiny_folder, other_folder) -> DescriptionEncoder:
    return DescriptionEncoder.load_pair(
        description=other_folder, sentence=tiny_folder, pooling=None, device="cpu"
    )


@pytest.fixture
def new_store(pair, tmp_path) -> DescriptionVectorStore:
    DescriptionIndex.create(tmp_path / "s", encoder=pair).close()
    return DescriptionVectorStore.open(tmp_path / "s")


def own(metadata):
    return {key: value for key, value in metadata.items() if key not in SCORE_KEYS}


def nodes_of(texts, embedding, **metadata):
    nodes = [TextNode(id_=f"n{i}", text=text, metadata=metadata) for i, text in enumerate(texts)]
    return embedding(nodes)


def test_each_side_reads_its_own_texts_sync_and_async(pair):
    embedding = DescriptionEmbedding(pair, embed_batch_size=2)
    texts = ["a dog barks loudly", "a cat sleeps", "the volcano erupted at night"]
    sentences, descriptions = pair.encode_sentences(texts), pair.encode_descriptions(texts)
    assert np.abs(sentences - descriptions).max() > 0.01
    close = {"atol": 1e-5}
    np.testing.assert_allclose(embedding.get_text_embedding_batch(texts), sentences, **close)
    np.testing.assert_allclose(embedding.get_text_embedding(texts[0]), sentences[0], **close)
    np.testing.assert_allclose(embedding.get_query_embedding(texts[0]), descriptions[0], **close)

    async def twins():
        return (
            await embedding.aget_text_embedding_batch(texts),
            await embedding.aget_text_embedding(texts[0]),
            await embedding.aget_query_embedding(texts[0]),
        )

    batch, one, query = asyncio.run(twins())
    np.testing.assert_allclose(batch, sentences, **close)
    np.testing.assert_allclose(one, sentences[0], **close)
    np.testing.assert_allclose(query, descriptions[0], **close)
    assert isinstance(one[0], float)
    assert embedding.model_name == "other-encoder + tiny-encoder"
    assert embedding.get_text_embedding_batch([]) == []


@pytest.mark.parametrize("embed_metadata", [False, True])
def test_metadata_is_embedded_only_if_asked(pair, embed_metadata):
    embedding = DescriptionEmbedding(pair, embed_metadata=embed_metadata)
    documents = [Document(text="a dog barks loudly", metadata={"file": "about/cats.txt"})]
    mode = MetadataMode.EMBED if embed_metadata else MetadataMode.NONE
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), embedding])
    for nodes in (
        pipeline.run(documents=documents),
        asyncio.run(pipeline.arun(documents=documents)),
    ):
        expected = pair.encode_sentences([node.get_content(mode) for node in nodes])
        np.testing.assert_allclose([node.embedding for node in nodes], expected, atol=1e-6)


def test_nodes_carry_scores_that_models_do_not_see(tiny, tmp_path):
    records = [Record("a dog barks loudly", "one", OWN), Record("a cat sleeps all day", "two")]
    fill(records, tmp_path / "s", encoder=tiny)
    with DescriptionIndex.open(tmp_path / "s", encoder=tiny) as index:
        nodes = DescriptionRetriever(index).retrieve("an animal")
        hits = index.search("an animal")
    for scored, hit in zip(nodes, hits, strict=True):
        assert (scored.node.node_id, scored.text, scored.score) == (hit.id, hit.text, hit.score)
        assert own(scored.metadata) == hit.metadata
        assert scored.metadata["descsim_retrieval_score"] == hit.score
        assert scored.metadata["descsim_rank"] == hit.rank
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            assert "descsim_" not in scored.node.get_content(mode)
    assert own(next(n for n in nodes if n.node.node_id == "one").metadata) == OWN


def test_retrieving_sync_and_async_agrees(tiny_index):
    retriever = DescriptionRetriever(tiny_index, k=4, where={"line": {"$lte": 100}})
    descriptions = [f"a thing of kind {i}" for i in range(8)]
    one_by_one = [retriever.retrieve(d) for d in descriptions]

    async def together():
        return await asyncio.gather(*(retriever.aretrieve(d) for d in descriptions))

    assert asyncio.run(together()) == one_by_one
    assert all(len(nodes) == 4 for nodes in one_by_one)
    assert all(n.metadata["line"] <= 100 for nodes in one_by_one for n in nodes)


def test_a_retriever_filters_and_reranks(tiny_index):
    scores = [h.score for h in tiny_index.search("a thing", 10)]
    found = DescriptionRetriever(tiny_index, min_score=scores[4]).retrieve("a thing")
    assert [n.score for n in found] == scores[:5]
    reranking = DescriptionRetriever(tiny_index, k=5, reranker=ShortestFirst(), candidates=30)
    hits = {h.id: h for h in tiny_index.search("a thing", 30)}
    shortest = sorted(hits.values(), key=lambda h: (len(h.text), h.id))[:5]
    nodes = reranking.retrieve("a thing")
    assert [n.node.node_id for n in nodes] == [h.id for h in shortest]
    for node in nodes:
        assert node.score == node.metadata["descsim_rerank_score"] == -len(node.text)
        assert node.metadata["descsim_retrieval_score"] == hits[node.node.node_id].score
    with pytest.raises(ValueError, match="have no probability"):
        DescriptionRetriever(tiny_index, min_probability=0.5).retrieve("a thing")


def test_misuse_of_a_retriever(tiny_index):
    with pytest.raises(ValueError, match="need a whole number from 1 up"):
        DescriptionRetriever(tiny_index, k=0)
    with pytest.raises(TypeError, match="top_k"):
        DescriptionRetriever(tiny_index, top_k=3)
    with pytest.raises(ValueError, match="leave them out"):
        DescriptionRetriever(tiny_index).retrieve(QueryBundle("x", custom_embedding_strs=["y"]))


@pytest.mark.parametrize("reranker", WHAT_CANNOT_RERANK)
def test_what_cannot_rerank_is_refused_at_once(tiny_index, reranker):
    for make in (
        lambda: DescriptionRetriever(tiny_index, reranker=reranker),
        lambda: DescriptionRerank(reranker=reranker),
        lambda: description_search_tool(tiny_index, reranker=reranker),
    ):
        with pytest.raises((ValidationError, TypeError), match="need an object with a method"):
            make()


@pytest.mark.parametrize("reranker", [Inventing(), Doubling()])
def test_a_reranker_that_invents_is_refused(tiny_index, reranker):
    with pytest.raises(ValueError, match="repeated or unknown ids"):
        DescriptionRetriever(tiny_index, reranker=reranker).retrieve("a thing")


@pytest.mark.parametrize("seed", range(3))
def test_the_reranker_follows_nodes_in_any_order(tiny_index, seed):
    nodes = DescriptionRetriever(tiny_index, k=12).retrieve("a thing")
    np.random.default_rng(seed).shuffle(nodes)
    before = copy.deepcopy(nodes)
    postprocessor = DescriptionRerank(reranker=ShortestFirst(), top_k=5)
    ranked = postprocessor.postprocess_nodes(nodes, query_str="a thing")
    assert nodes == before
    assert [len(n.text) for n in ranked] == sorted(len(n.text) for n in nodes)[:5]
    first = {n.node.node_id: n for n in before}
    for rank, node in enumerate(ranked, start=1):
        assert node.metadata["descsim_rank"] == rank
        assert node.score == -len(node.text)
        assert node.metadata["descsim_retrieval_score"] == first[node.node.node_id].score
        assert node.metadata["line"] == first[node.node.node_id].metadata["line"]
    again = asyncio.run(postprocessor.apostprocess_nodes(nodes, query_str="a thing"))
    assert again == ranked


def test_the_reranker_takes_nodes_from_elsewhere():
    nodes = [
        NodeWithScore(node=TextNode(text=t), score=s) for t, s in (("longer", 0.9), ("s", 0.1))
    ]
    rerank = DescriptionRerank(reranker=ShortestFirst())
    ranked = rerank.postprocess_nodes(nodes, query_str="x")
    assert [n.text for n in ranked] == ["s", "longer"]
    assert [n.metadata["descsim_retrieval_score"] for n in ranked] == [0.1, 0.9]
    assert nodes[0].node.metadata == {}
    assert rerank.postprocess_nodes([], query_str="x") == []
    with pytest.raises(ValueError, match="needs the description"):
        rerank.postprocess_nodes(nodes)
    with pytest.raises(ValidationError, match="top_n"):
        DescriptionRerank(reranker=ShortestFirst(), top_n=3)


def test_an_index_over_our_vector_store(pair, new_store, tmp_path):
    embedding = DescriptionEmbedding(pair)
    documents = [
        Document(text="a dog barks loudly", doc_id="d1", metadata={"tags": ["x"], "year": 1990}),
        Document(text="a cat sleeps all day", doc_id="d2", metadata={"year": 2000}),
    ]
    index = VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=new_store),
        transformations=[SentenceSplitter(), embedding],
        embed_model=embedding,
    )
    nodes = index.as_retriever(similarity_top_k=2).retrieve("an animal")
    with DescriptionIndex.open(tmp_path / "s", encoder=pair) as ours:
        hits = ours.search("an animal")
        again = DescriptionRetriever(ours).retrieve("an animal")
    assert [n.node.node_id for n in nodes] == [h.id for h in hits]
    np.testing.assert_allclose([n.score for n in nodes], [h.score for h in hits], atol=1e-5)
    # LlamaIndex's nodes come back whole: text, metadata and the document they are part of.
    for found in (nodes, again):
        dog = next(n for n in found if "dog" in n.text)
        assert own(dog.metadata) == {"tags": ["x"], "year": 1990}
        assert dog.node.ref_doc_id == "d1"
    index.delete_ref_doc("d1")
    assert [n.text for n in index.as_retriever().retrieve("an animal")] == ["a cat sleeps all day"]


def test_llamaindexs_chroma_store_reads_what_we_filled(tiny_store, tiny_index, tiny):
    collection = open_client(tiny_store).get_collection("descsim", embedding_function=None)
    plain = VectorStoreIndex.from_vector_store(
        ChromaVectorStore(chroma_collection=collection), embed_model=DescriptionEmbedding(tiny)
    )
    ours = VectorStoreIndex.from_vector_store(
        DescriptionVectorStore.open(tiny_store), embed_model=DescriptionEmbedding(tiny)
    )
    hits = tiny_index.search("a thing", 5)
    for index in (plain, ours):
        nodes = index.as_retriever(similarity_top_k=5).retrieve("a thing")
        assert [(n.node.node_id, n.text) for n in nodes] == [(h.id, h.text) for h in hits]
        assert [n.metadata["line"] for n in nodes] == [h.metadata["line"] for h in hits]
    assert [n.metadata for n in nodes] == [h.metadata for h in hits]
    np.testing.assert_allclose([n.score for n in nodes], [h.score for h in hits], atol=1e-5)


def test_we_read_what_llamaindexs_chroma_store_wrote(pair, tmp_path):
    DescriptionIndex.create(tmp_path / "s", encoder=pair).close()
    collection = open_client(tmp_path / "s").get_collection("descsim", embedding_function=None)
    embedding = DescriptionEmbedding(pair)
    nodes = nodes_of(["a dog barks loudly", "a cat sleeps"], embedding, year=1990)
    ChromaVectorStore(chroma_collection=collection).add(nodes)
    with DescriptionIndex.open(tmp_path / "s", encoder=pair) as index:
        found = DescriptionRetriever(index).retrieve("an animal")
    assert {n.node.node_id for n in found} == {"n0", "n1"}
    assert all(own(n.metadata) == {"year": 1990} for n in found)
    cosines = (
        pair.encode_sentences([n.text for n in found]) @ pair.encode_descriptions(["an animal"]).T
    )
    np.testing.assert_allclose([n.score for n in found], cosines[:, 0], atol=1e-5)


def test_the_vector_store_gets_and_deletes(pair, new_store):
    embedding = DescriptionEmbedding(pair)
    new_store.add(nodes_of(["one text", "two texts"], embedding, **OWN))
    new_store.add(nodes_of(["one text again"], embedding, year=2000))  # n0 is replaced
    assert {n.node_id: n.text for n in new_store.get_nodes()} == {
        "n0": "one text again",
        "n1": "two texts",
    }
    assert new_store.get_nodes(["n1"])[0].metadata == OWN
    recent = MetadataFilters(
        filters=[MetadataFilter(key="year", value=1995, operator=FilterOperator.GT)]
    )
    old = MetadataFilters(filters=[ExactMatchFilter(key="year", value=1990)])
    assert new_store.get_nodes([]) == []
    assert [n.node_id for n in new_store.get_nodes(filters=recent)] == ["n0"]
    assert new_store.get_nodes(["n1"], recent) == []
    assert new_store.get_nodes(filters=[recent, old]) == []
    assert asyncio.run(new_store.aget_nodes(["n1"])) == new_store.get_nodes(["n1"])
    new_store.delete_nodes([])
    new_store.delete_nodes(["n1"], recent)
    assert len(new_store.get_nodes()) == 2
    with pytest.raises(ValueError, match=r"clear\(\) deletes all"):
        new_store.delete_nodes()
    asyncio.run(new_store.adelete_nodes(filters=old))
    assert [n.node_id for n in new_store.get_nodes()] == ["n0"]
    asyncio.run(new_store.aclear())
    assert new_store.get_nodes() == []


def test_the_vector_store_writes_by_the_clients_limit(pair, new_store, monkeypatch):
    client = new_store._collection._client
    monkeypatch.setattr(type(client), "get_max_batch_size", lambda self: 7)
    new_store.add(nodes_of([f"text number {i}" for i in range(100)], DescriptionEmbedding(pair)))
    assert len(new_store.get_nodes()) == 100


def test_a_vector_store_must_be_one_of_ours(tmp_path):
    with pytest.raises(StoreError, match="there is no store in"):
        DescriptionVectorStore.open(tmp_path)
    open_client(tmp_path).create_collection("foreign", embedding_function=None)
    with pytest.raises(StoreError, match=r"no manifest.*descsim adopt"):
        DescriptionVectorStore.open(tmp_path, collection="foreign")


def test_the_tool(tiny_index):
    tool = description_search_tool(tiny_index, k=3)
    hits = tiny_index.search("a thing", 3)
    output = tool.call(description="a thing")
    assert output.raw_output.hits == hits
    assert [h["id"] for h in json.loads(output.content)["hits"]] == [h.id for h in hits]
    assert asyncio.run(tool.acall(description="a thing", k=2)).raw_output.hits == hits[:2]
    schema = tool.metadata.get_parameters_dict()
    assert "no keywords, no question" in schema["properties"]["description"]["description"]
    assert schema["required"] == ["description"]
    assert "Do not give keywords" in tool.metadata.description
    for arguments, said in (
        ({"description": "x", "k": 0}, "greater than or equal to 1"),
        ({"query": "x"}, "description"),
        ({"description": " "}, "description is blank"),
    ):
        with pytest.raises(ValueError, match=said):
            tool.call(**arguments)


def test_the_real_model_finds_instances(real_index):
    nodes = DescriptionRetriever(real_index, k=5).retrieve(
        "monkeys that steal drinks from tourists"
    )
    assert any("monkeys" in n.text for n in nodes)
