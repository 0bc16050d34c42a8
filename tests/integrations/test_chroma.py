import json
import shutil
import subprocess
import sys

import chromadb
import numpy as np
import pytest

from descsim_tools import DescriptionEncoder, DescriptionIndex
from descsim_tools.encoders import DEFAULT_PRESET
from descsim_tools.errors import EncoderError, StoreError
from descsim_tools.integrations.chroma import (
    DescriptionEmbeddingFunction,
    open_client,
    open_collection,
)

TEXTS = ["a dog barks loudly", "a cat sleeps all day", "the volcano erupted at night"]


@pytest.fixture
def pair(tiny_folder, other_folder) -> DescriptionEncoder:
    return DescriptionEncoder.load_pair(
        description=other_folder, sentence=tiny_folder, pooling=None, device="cpu"
    )


def filled(folder, encoder, name="plain"):
    collection = chromadb.PersistentClient(folder).create_collection(
        name, embedding_function=DescriptionEmbeddingFunction(encoder)
    )
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    return collection


def test_each_side_has_its_encoder_in_cosine_space(pair, tmp_path):
    collection = filled(tmp_path, pair)
    assert collection.configuration_json["hnsw"]["space"] == "cosine"
    found = collection.query(query_texts=["an animal"], n_results=3)
    cosines = pair.encode_sentences(TEXTS) @ pair.encode_descriptions(["an animal"])[0]
    order = np.argsort(-cosines)
    assert found["ids"][0] == [["a", "b", "c"][i] for i in order]
    np.testing.assert_allclose(1 - np.array(found["distances"][0]), cosines[order], atol=1e-5)
    stored = collection.get(ids=["a"], include=["embeddings"])["embeddings"]
    np.testing.assert_allclose(stored, pair.encode_sentences(TEXTS[:1]), atol=1e-6)


def test_another_space_is_refused(tiny, tmp_path):
    client = chromadb.PersistentClient(tmp_path)
    with pytest.warns(UserWarning, match="space l2 is not supported by descsim"):
        client.create_collection(
            "squared",
            embedding_function=DescriptionEmbeddingFunction(tiny),
            configuration={"hnsw": {"space": "l2"}},
        )
    with pytest.raises(StoreError, match="measures by 'l2', not by cosine"):
        open_collection(client, "squared", encoder=tiny)


def test_the_configuration_has_no_path(tiny, tiny_folder, tmp_path):
    collection = filled(tmp_path, str(tiny_folder))
    kept = collection.configuration_json["embedding_function"]
    assert kept["config"] == {"encoder": "tiny-encoder", "fingerprint": tiny.fingerprint}
    assert str(tiny_folder) not in json.dumps(collection.configuration_json)
    database = b"".join(path.read_bytes() for path in tmp_path.glob("*.sqlite3"))
    assert b"descsim" in database
    assert str(tiny_folder.parent).encode() not in database


def test_another_process_queries_with_the_right_encoder(default_encoder, tmp_path):
    filled(tmp_path / "here", default_encoder)
    # Embedded Chroma keeps a folder open in this process, so the other one gets a copy elsewhere.
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    program = (
        "import chromadb, json, descsim_tools.integrations.chroma, sys\n"
        "sys.modules['onnxruntime'] = None\n"
        f"c = chromadb.PersistentClient({str(tmp_path / 'there')!r}).get_collection('plain')\n"
        "c.add(ids=['d'], documents=['a mountain spat fire'])\n"
        "print(json.dumps(c.query(query_texts=['an animal'], n_results=4)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    texts = [*TEXTS, "a mountain spat fire"]
    cosines = (
        default_encoder.encode_sentences(texts)
        @ default_encoder.encode_descriptions(["an animal"])[0]
    )
    order = np.argsort(-cosines)
    assert found["ids"][0] == [["a", "b", "c", "d"][i] for i in order]
    np.testing.assert_allclose(1 - np.array(found["distances"][0]), cosines[order], atol=1e-5)


def test_an_encoder_is_loaded_once(tmp_path, default_encoder, monkeypatch):
    filled(tmp_path, default_encoder)
    loads = []
    load = DescriptionEncoder.load

    def counted(*args, **kwargs):
        loads.append(args)
        return load(*args, **kwargs)

    monkeypatch.setattr(DescriptionEncoder, "load", counted)
    collection = chromadb.PersistentClient(tmp_path).get_collection("plain")
    for _ in range(3):
        collection.query(query_texts=["an animal"], n_results=1)
    assert len(loads) <= 1


def test_a_local_encoder_must_be_given_again(tiny, tiny_folder, tmp_path):
    filled(tmp_path, tiny)
    client = chromadb.PersistentClient(tmp_path)
    with pytest.raises(EncoderError, match="keeps no paths; open it with"):
        client.get_collection("plain").query(query_texts=["an animal"], n_results=1)
    with pytest.raises(EncoderError, match="keeps no paths; open it with"):
        open_collection(client, "plain").query(query_texts=["an animal"], n_results=1)
    again = open_collection(client, "plain", encoder=tiny_folder)
    assert len(again.query(query_texts=["an animal"], n_results=3)["ids"][0]) == 3


def test_another_encoder_of_equal_size_is_refused(tiny, other_folder, tmp_path, tiny_store):
    filled(tmp_path, tiny)
    client = chromadb.PersistentClient(tmp_path)
    with pytest.raises(StoreError, match=r"'tiny-encoder' .* not with 'other-encoder'"):
        open_collection(client, "plain", encoder=other_folder)
    with pytest.raises(StoreError, match=r"'tiny-encoder' .* not with 'other-encoder'"):
        open_collection(open_client(tiny_store), encoder=other_folder)
    function = DescriptionEmbeddingFunction(other_folder)
    with pytest.raises(ValueError, match="cannot be changed"):
        function.validate_config_update(
            DescriptionEmbeddingFunction(tiny).get_config(), function.get_config()
        )


def test_a_preset_whose_weights_changed_is_refused():
    config = {"encoder": DEFAULT_PRESET, "fingerprint": "0" * 64}
    with pytest.raises(EncoderError, match="fingerprint 000000000000; the one found here"):
        DescriptionEmbeddingFunction.build_from_config(config)(["a text"])


@pytest.mark.parametrize(
    "config", [{}, {"encoder": "x"}, {"encoder": 1, "fingerprint": "a"}, {"api_key": "s"}]
)
def test_a_foreign_configuration_is_refused(config):
    with pytest.raises(ValueError, match="need the strings encoder and fingerprint"):
        DescriptionEmbeddingFunction.build_from_config(config)


def test_plain_chroma_reads_our_store(real_index, demo_store):
    collection = open_collection(open_client(demo_store))
    description = "a scientific discovery made by accident"
    found = collection.query(query_texts=[description], n_results=5)
    hits = real_index.search(description, 5)
    assert found["ids"][0] == [hit.id for hit in hits]
    scores = 1 - np.array(found["distances"][0])
    np.testing.assert_allclose(scores, [hit.score for hit in hits], atol=1e-5)


def test_we_read_what_plain_chroma_wrote(pair, tmp_path):
    DescriptionIndex.create(tmp_path / "s", encoder=pair).close()
    collection = open_collection(open_client(tmp_path / "s"), encoder=pair)
    collection.upsert(ids=["a", "b", "c"], documents=TEXTS, metadatas=[{"n": i} for i in range(3)])
    with DescriptionIndex.open(tmp_path / "s", encoder=pair) as index:
        hits = index.search("an animal", 3)
    assert {(hit.id, hit.text, hit.metadata["n"]) for hit in hits} == {
        (id_, text, n) for n, (id_, text) in enumerate(zip("abc", TEXTS, strict=True))
    }


def test_a_collection_without_an_encoder_is_refused(tmp_path):
    client = chromadb.PersistentClient(tmp_path)
    cosine = {"hnsw": {"space": "cosine"}}
    client.create_collection("bare", embedding_function=None, configuration=cosine)
    with pytest.raises(StoreError, match="was not made by descsim-tools"):
        open_collection(client, "bare")


def test_a_server_holds_collections_too(chroma_server, tiny):
    client = open_client(chroma_server)
    collection = client.create_collection(
        "plain-on-server", embedding_function=DescriptionEmbeddingFunction(tiny)
    )
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    again = open_collection(client, "plain-on-server", encoder=tiny)
    assert len(again.query(query_texts=["an animal"], n_results=2)["ids"][0]) == 2


def test_nothing_connects_anywhere(no_network, tiny, tmp_path):
    collection = filled(tmp_path, tiny)
    assert len(collection.query(query_texts=["an animal"], n_results=2)["ids"][0]) == 2
