"""One store, and every interface gives the same ids and the same scores."""

import importlib
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from langchain_chroma import Chroma
from llama_index.core import VectorStoreIndex

from descsim_tools.integrations import langchain, llama_index
from descsim_tools.integrations.chroma import open_client, open_collection

K = 10
SUBJECTS = [
    *("a discovery", "an accident", "a theft", "a building", "an animal"),
    *("a ruler", "a company", "a disease", "a work of art", "a war"),
]
TURNS = [
    *("that surprised people", "in the distant past", "which ended badly"),
    *("involving money", "far from home"),
]
DESCRIPTIONS = [f"{subject} {turn}" for subject in SUBJECTS for turn in TURNS]


def of_documents(documents):
    return [(d.id, d.metadata["descsim_retrieval_score"]) for d in documents]


def of_nodes(nodes):
    return [(n.node.node_id, n.score) for n in nodes]


def test_interfaces_agree(real_index, demo_store, default_encoder):
    assert len(set(DESCRIPTIONS)) == 50
    expected = [[(h.id, h.score) for h in real_index.search(d, K)] for d in DESCRIPTIONS]
    client = open_client(demo_store)
    found = {}

    retriever = langchain.DescriptionRetriever(index=real_index, k=K)
    found["LangChain"] = [of_documents(found) for found in retriever.batch(DESCRIPTIONS)]

    chroma = Chroma("descsim", langchain.DescriptionEmbeddings(default_encoder), client=client)
    found["langchain-chroma"] = [
        [(d.id, s) for d, s in chroma.similarity_search_with_relevance_scores(text, K)]
        for text in DESCRIPTIONS
    ]

    llama = llama_index.DescriptionRetriever(real_index, k=K)
    found["LlamaIndex"] = [of_nodes(llama.retrieve(text)) for text in DESCRIPTIONS]

    over_chroma = VectorStoreIndex.from_vector_store(
        llama_index.DescriptionVectorStore.open(demo_store),
        embed_model=llama_index.DescriptionEmbedding(default_encoder),
    ).as_retriever(similarity_top_k=K)
    found["VectorStoreIndex"] = [of_nodes(over_chroma.retrieve(text)) for text in DESCRIPTIONS]

    rows = open_collection(client).query(query_texts=DESCRIPTIONS, n_results=K)
    found["plain Chroma"] = [
        list(zip(ids, (1 - d for d in distances), strict=True))
        for ids, distances in zip(rows["ids"], rows["distances"], strict=True)
    ]

    for interface, results in found.items():
        for description, result, right in zip(DESCRIPTIONS, results, expected, strict=True):
            where = f"{interface}: {description}"
            assert [id_ for id_, _ in result] == [id_ for id_, _ in right], where
            np.testing.assert_allclose(
                [score for _, score in result], [s for _, s in right], atol=1e-5, err_msg=where
            )


def test_nothing_connects_anywhere(no_network, tiny_store, tiny_index, tiny):
    text = "a thing"
    ids = [hit.id for hit in tiny_index.search(text, 3)]
    retrieved = langchain.DescriptionRetriever(index=tiny_index, k=3).invoke(text)
    assert [d.id for d in retrieved] == ids
    client = open_client(tiny_store)
    chroma = Chroma("descsim", langchain.DescriptionEmbeddings(tiny), client=client)
    assert [d.id for d in chroma.similarity_search(text, 3)] == ids
    nodes = llama_index.DescriptionRetriever(tiny_index, k=3).retrieve(text)
    assert [n.node.node_id for n in nodes] == ids
    rows = open_collection(client, encoder=tiny).query(query_texts=[text], n_results=3)
    assert rows["ids"][0] == ids
    assert client.get_settings().anonymized_telemetry is False


def test_threads_may_search_while_the_database_changes(tiny_index, monkeypatch):
    """A reader reopens its client when the database has changed; threads must not meet in that."""
    expected = [[h.id for h in tiny_index.search(text, 5)] for text in DESCRIPTIONS]
    changes = itertools.count()
    monkeypatch.setattr(tiny_index.store, "_stamp", lambda: (next(changes), 0))
    retriever = langchain.DescriptionRetriever(index=tiny_index, k=5)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(retriever.invoke, DESCRIPTIONS))
    assert [[d.id for d in documents] for documents in found] == expected


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index.core", "llama-index"),
        ("llama_index", "llama_index.vector_stores.chroma", "llama-index"),
        ("mcp_server", "mcp", "mcp"),
    ],
)
def test_a_missing_extra_is_named(module, library, extra, tmp_path):
    program = (
        "import sys, descsim_tools\n"
        f"sys.modules[{library!r}] = None\n"
        "try:\n"
        f"    import descsim_tools.integrations.{module}\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    wanted = (
        f'MissingExtraError {library} is not installed; run: pip install "descsim-tools[{extra}]"'
    )
    assert result.stdout.strip() == wanted


@pytest.mark.parametrize(
    "module", ["langchain", "llama_index", "chroma", "openai_tools", "mcp_server"]
)
def test_exports_are_all_there(module):
    imported = importlib.import_module(f"descsim_tools.integrations.{module}")
    assert all(getattr(imported, name) is not None for name in imported.__all__)
