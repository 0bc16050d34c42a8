"""Collections that other programs filled with all-MiniLM-L6-v2."""

import json
from functools import cache

import numpy as np
import pytest

from descsim_tools import DescriptionEncoder, DescriptionIndex, fill
from descsim_tools.cli import main
from descsim_tools.encoders.maps import read_map
from descsim_tools.encoders.weights import find_map
from descsim_tools.errors import StoreError
from descsim_tools.store import Manifest, Store, adopt, adoption, create_store, migrate
from descsim_tools.store.store import connect
from descsim_tools.types import Record

SPACES = ["l2", "cosine", "ip"]
COUNT = 60
DESCRIPTION = "an animal that makes use of a tool"
METADATA = {"source": "a.txt", "page": 3, "share": 0.5, "ok": True, "tags": ["x", "y"]}


_load_once = cache(DescriptionEncoder.load)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    """Each call of ours loads its encoder, and so would each test."""
    monkeypatch.setattr(DescriptionEncoder, "load", _load_once)


@pytest.fixture(scope="module")
def plain():
    return DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")


@pytest.fixture(scope="module")
def query_map():
    return DescriptionEncoder.load("minilm-query-map", device="cpu")


@pytest.fixture(scope="module")
def two_maps():
    return DescriptionEncoder.load("minilm-two-maps", device="cpu")


@pytest.fixture(scope="module")
def texts(corpus_lines):
    return corpus_lines[:COUNT]


@pytest.fixture(scope="module")
def vectors(plain, texts):
    return plain.encode_sentences(texts)


def make(folder, texts, vectors, space="l2", name="notes", metadata=None, ids=None):
    """A collection as a program that knows nothing of us makes it."""
    with connect(str(folder)) as client:
        collection = client.create_collection(
            name, configuration={"hnsw": {"space": space}}, metadata=metadata
        )
        collection.add(
            ids=ids or [f"doc-{i}" for i in range(len(vectors))],
            embeddings=vectors,
            documents=texts,
            metadatas=[{**METADATA, "page": i} for i in range(len(vectors))],
        )
    return folder


def raw(folder, name="notes"):
    """All that a plain client sees of a collection, in order of the ids."""
    with connect(str(folder)) as client:
        collection = client.get_collection(name, embedding_function=None)
        rows = collection.get(include=["documents", "metadatas", "embeddings"])
        order = np.argsort(rows["ids"])
        columns = ("ids", "documents", "metadatas", "embeddings")
        content = {column: [rows[column][i] for i in order] for column in columns}
        content["embeddings"] = np.asarray(content["embeddings"])
        return content, collection.metadata, collection.configuration_json


def cosines(encoder, texts, vectors):
    """(n,) cosines of the description and stored vectors, by arithmetic of our own."""
    query = encoder.encode_descriptions([DESCRIPTION])[0].astype(float)
    rows = np.asarray(vectors, dtype=float)
    return rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)


def check_hits(hits, texts, scores):
    """Hits are the best sentences by cosine, best first."""
    best = np.argsort(-scores)[: len(hits)]
    assert [hit.text for hit in hits] == [texts[i] for i in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-5)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


# --- adopt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_an_adopted_collection_is_searched_with_exact_cosines(
    space, texts, vectors, query_map, tmp_path
):
    make(tmp_path, texts, vectors, space)
    report = adopt(tmp_path, "notes")
    assert (report.rows, report.space, report.encoder) == (COUNT, space, "minilm-query-map")
    assert report.checked == adoption.CHECKED
    assert report.lowest_similarity == pytest.approx(1, abs=1e-4)
    scores = cosines(query_map, texts, vectors)
    with DescriptionIndex.open(tmp_path, collection="notes") as index:
        assert index.encoder.fingerprint == query_map.fingerprint
        assert index.store.manifest.space == space
        for exact in (False, True):
            hits = index.search(DESCRIPTION, 7, exact=exact)
            check_hits(hits, texts, scores)
        best = hits[0]
        assert best.id == f"doc-{texts.index(best.text)}"
        assert best.metadata == {**METADATA, "page": texts.index(best.text)}
        assert index.search(DESCRIPTION, 3, where={"page": 5})[0].id == "doc-5"
    everything = DescriptionIndex.open(tmp_path, collection="notes")
    with everything as index:
        check_hits(index.search(DESCRIPTION, COUNT), texts, scores)


@pytest.mark.parametrize("space", SPACES)
def test_adoption_changes_nothing_but_the_collections_metadata(space, texts, vectors, tmp_path):
    with connect(str(tmp_path)) as client:
        # The older way to name a space, which LangChain's users still take.
        collection = client.create_collection(
            "notes", metadata={"hnsw:space": space, "owner": "me"}
        )
        collection.add(ids=list(map(str, range(COUNT))), embeddings=vectors, documents=texts)
    before, metadata, configuration = raw(tmp_path)
    adopt(tmp_path, "notes")
    after, own, same = raw(tmp_path)
    np.testing.assert_array_equal(after.pop("embeddings"), before.pop("embeddings"))
    assert after == before
    assert same == configuration
    assert {k: v for k, v in own.items() if not k.startswith("descsim_")} == metadata
    assert own["descsim_space"] == space
    assert own["descsim_encoder"] == "minilm-query-map"


def test_vectors_of_any_length_are_scored_rightly_in_cosine_space(
    texts, vectors, query_map, tmp_path
):
    lengths = np.linspace(0.2, 5, COUNT, dtype=np.float32)[:, None]
    make(tmp_path, texts, vectors * lengths, "cosine")
    adopt(tmp_path, "notes")
    with DescriptionIndex.open(tmp_path, collection="notes") as index:
        for exact in (False, True):
            hits = index.search(DESCRIPTION, 7, exact=exact)
            check_hits(hits, texts, cosines(query_map, texts, vectors))


def test_an_adopted_collection_gives_vectors_of_length_1(texts, vectors, tmp_path):
    lengths = np.linspace(0.2, 5, COUNT, dtype=np.float32)[:, None]
    sampled = set(np.linspace(0, COUNT - 1, adoption.CHECKED).astype(int))
    assert 50 not in sampled
    wanted = vectors.copy()
    lengths[50] = wanted[50] = 0
    make(tmp_path, texts, vectors * lengths, "cosine")
    adopt(tmp_path, "notes")
    with Store.open(tmp_path, collection="notes") as store:
        ids = [f"doc-{i}" for i in range(COUNT)]
        np.testing.assert_allclose(store.vectors(ids), wanted, atol=1e-5)
        assert store.vectors([]).shape == (0, vectors.shape[1])
        paged = {}
        for page, rows in store.vector_pages():
            paged.update(zip(page, rows, strict=True))
        np.testing.assert_allclose(np.stack([paged[id_] for id_ in ids]), wanted, atol=1e-5)
        assert sorted(id_ for page in store.id_pages() for id_ in page) == sorted(ids)


@pytest.mark.parametrize("space", ["l2", "ip"])
def test_one_vector_of_another_length_is_named(space, texts, vectors, tmp_path):
    changed = vectors.copy()
    changed[41] *= 1.1
    make(tmp_path, texts, changed, space)
    with pytest.raises(StoreError, match=r"'doc-41' has 1\.1; move it with `descsim migrate`"):
        adopt(tmp_path, "notes")
    assert "descsim_encoder" not in (raw(tmp_path)[1] or {})


def test_another_dimension_is_refused(texts, tmp_path):
    make(tmp_path, texts, np.eye(COUNT, 16, dtype=np.float32) + 0.1)
    with pytest.raises(StoreError, match=r"vectors of 16 dimensions.*have 384"):
        adopt(tmp_path, "notes")


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        (15, r"15 differ, row 'doc-\d+' most, .*; so another model filled it in part; fill a new"),
        (16, r"16 differ, .*; so another model filled the collection; fill a new"),
        (3, r"3 differ, .* filled it in part"),
        (2, r"2 differ, .*; mend or delete these rows: 'doc-0', 'doc-1' and look for more"),
    ],
)
def test_many_wrong_rows_of_the_sample_are_no_single_rows(wrong, verdict, texts, vectors, tmp_path):
    sampled = np.linspace(0, COUNT - 1, adoption.CHECKED).astype(int)[:wrong]
    changed = vectors.copy()
    changed[sampled] = -vectors[sampled]
    make(tmp_path, texts, changed)
    with pytest.raises(StoreError, match=r"in a sample of 32 of its 60 rows, " + verdict) as caught:
        adopt(tmp_path, "notes")
    assert ("mend or delete" in str(caught.value)) == (wrong <= 2)


@pytest.mark.parametrize("kind", ["shuffled", "other model", "zeros"])
def test_another_models_vectors_are_refused(kind, texts, vectors, default_encoder, tmp_path):
    wrong = {
        "shuffled": lambda: np.roll(vectors, 1, axis=0),
        "other model": lambda: default_encoder.encode_sentences(texts),
        "zeros": lambda: np.zeros_like(vectors),
    }[kind]()
    make(tmp_path, texts, wrong)
    before = raw(tmp_path)[1]
    with pytest.raises(
        StoreError, match=r"sample of 32 of its 60 rows, 32 differ, .* another model "
    ):
        adopt(tmp_path, "notes")
    with pytest.raises(StoreError, match="fill a new store from its documents"):
        migrate(tmp_path, tmp_path / "new", collection="notes")
    assert raw(tmp_path)[1] == before
    assert not (tmp_path / "new").exists()


def test_a_few_wrong_rows_are_named(texts, vectors, tmp_path):
    changed = vectors.copy()
    changed[0] = vectors[1]
    make(tmp_path, texts, changed)
    with pytest.raises(StoreError, match=r"1 differs, .*mend or delete these rows: 'doc-0'"):
        adopt(tmp_path, "notes")


def test_rows_without_a_document_are_named_and_never_found(texts, vectors, query_map, tmp_path):
    scores = cosines(query_map, texts, vectors)
    bare = np.argsort(-scores)[:3]
    with connect(str(tmp_path)) as client:
        collection = client.create_collection("notes", configuration={"hnsw": {"space": "ip"}})
        for i in range(COUNT):
            document = {} if i in bare[:2] else {"documents": " " if i == bare[2] else texts[i]}
            collection.add(ids=f"doc-{i}", embeddings=vectors[i], **document)
    report = adopt(tmp_path, "notes")
    assert report.without_document == 3
    assert sorted(report.first_without_document) == sorted(f"doc-{i}" for i in bare)
    rest = np.argsort(-scores)[3:]
    with DescriptionIndex.open(tmp_path, collection="notes") as index:
        for k in (1, 4, COUNT):
            for exact in (False, True):
                hits = index.search(DESCRIPTION, k, exact=exact)
                assert [hit.text for hit in hits] == [texts[i] for i in rest[:k]]
        assert index.store.get([f"doc-{i}" for i in bare]) == []


def test_a_collection_without_documents_is_refused(vectors, tmp_path):
    with connect(str(tmp_path)) as client:
        collection = client.create_collection("notes")
        collection.add(ids=list(map(str, range(COUNT))), embeddings=vectors)
        client.create_collection("empty")
    for name in ("notes", "empty"):
        with pytest.raises(StoreError, match="no row with a document"):
            adopt(tmp_path, name)


def test_a_store_is_not_adopted_twice(texts, vectors, tmp_path):
    make(tmp_path, texts, vectors)
    adopt(tmp_path, "notes")
    with pytest.raises(StoreError, match=r"store already, of the encoder 'minilm-query-map'"):
        adopt(tmp_path, "notes")


def test_what_is_not_there_is_named(texts, vectors, tmp_path):
    make(tmp_path, texts, vectors)
    with pytest.raises(StoreError, match="no collection 'other'; it holds: notes"):
        adopt(tmp_path, "other")
    with pytest.raises(StoreError, match="no Chroma database in"):
        adopt(tmp_path / "nowhere", "notes")
    assert not (tmp_path / "nowhere").exists()


def test_an_adopted_collection_can_be_filled_on(texts, vectors, query_map, tmp_path):
    make(tmp_path, texts, vectors, "l2")
    adopt(tmp_path, "notes")
    sentence = "A crow bent a piece of wire into a hook to fetch its food."
    report = fill([Record(sentence, "new", {"a": {"b": 1}})], tmp_path, collection="notes")
    assert (report.encoder, report.encoded, report.stored) == ("minilm-query-map", 1, COUNT + 1)
    with DescriptionIndex.open(tmp_path, collection="notes") as index:
        hit = index.search(DESCRIPTION, 1)[0]
        assert (hit.id, hit.text, hit.metadata) == ("new", sentence, {"a": {"b": 1}})
        wanted = (
            query_map.encode_sentences([sentence]) @ query_map.encode_descriptions([DESCRIPTION])[0]
        )
        assert hit.score == pytest.approx(wanted[0], abs=1e-5)
    assert fill([sentence, texts[3]], tmp_path, collection="notes").already_stored == 0


def test_a_store_of_before_there_were_spaces_opens(tmp_path):
    manifest = Manifest("some-encoder", "f" * 64, 4, "shared", "1.0", "0.1")
    metadata = manifest.to_metadata()
    del metadata["descsim_space"]
    with connect(str(tmp_path)) as client:
        client.create_collection(
            "descsim", metadata=metadata, configuration={"hnsw": {"space": "cosine"}}
        )
    with Store.open(tmp_path) as store:
        assert store.manifest == manifest


def test_on_a_server(chroma_server, texts, vectors, query_map, two_maps, tmp_path):
    with connect(chroma_server) as client:
        collection = client.create_collection("adopted", metadata={"hnsw:space": "ip"})
        collection.add(ids=list(map(str, range(COUNT))), embeddings=vectors, documents=texts)
    assert adopt(chroma_server, "adopted").rows == COUNT
    with DescriptionIndex.open(chroma_server, collection="adopted") as index:
        check_hits(index.search(DESCRIPTION, 5), texts, cosines(query_map, texts, vectors))
    report = migrate(chroma_server, chroma_server, collection="adopted", target_collection="moved")
    assert report.written == COUNT
    with DescriptionIndex.open(chroma_server, collection="moved") as index:
        moved = two_maps.encode_sentences(texts)
        check_hits(index.search(DESCRIPTION, 5), texts, cosines(two_maps, texts, moved))


# --- migrate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_a_migrated_collection_is_as_if_encoded_anew(space, texts, vectors, two_maps, tmp_path):
    lengths = np.linspace(0.5, 2, COUNT, dtype=np.float32)[:, None]
    make(tmp_path / "old", texts, vectors * lengths, space)
    before = raw(tmp_path / "old")
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.rows, report.written, report.skipped) == (COUNT, COUNT, 0)
    encoded = two_maps.encode_sentences(texts)
    with DescriptionIndex.open(tmp_path / "new") as index:
        assert index.encoder.fingerprint == two_maps.fingerprint
        assert index.store.manifest.space == "cosine"
        stored = {}
        for ids, rows in index.store.vector_pages():
            stored.update(zip(ids, rows, strict=True))
        found = np.stack([stored[f"doc-{i}"] for i in range(COUNT)])
        np.testing.assert_allclose(found, encoded, atol=1e-5)
        hits = index.search(DESCRIPTION, 6)
        check_hits(hits, texts, cosines(two_maps, texts, encoded))
        assert hits[0].metadata == {**METADATA, "page": texts.index(hits[0].text)}
    after = raw(tmp_path / "old")
    np.testing.assert_array_equal(after[0].pop("embeddings"), before[0].pop("embeddings"))
    assert after == before


def test_a_migrated_vector_is_the_stored_one_times_the_map(texts, vectors, tmp_path):
    make(tmp_path, texts, vectors)
    migrate(tmp_path, tmp_path, collection="notes", target_collection="moved")
    weight = read_map(find_map("minilm-maps/sentence-map.safetensors")).numpy()
    rows = vectors @ weight.T
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    with Store.open(tmp_path, collection="moved") as store:
        for ids, found in store.vector_pages():
            wanted = rows[[int(id_.removeprefix("doc-")) for id_ in ids]]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    with pytest.raises(StoreError, match="cannot be moved onto itself"):
        migrate(tmp_path, tmp_path / ".", collection="notes", target_collection="notes")


def test_a_broken_migration_goes_on(texts, vectors, tmp_path, monkeypatch):
    make(tmp_path / "old", texts, vectors)
    monkeypatch.setattr(adoption, "_PAGE", 16)
    upsert, written = Store.upsert, []

    def failing(self, records, rows):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append([record.id for record in records])
        upsert(self, records, rows)

    monkeypatch.setattr(Store, "upsert", failing)
    with pytest.raises(KeyboardInterrupt):
        migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    monkeypatch.setattr(Store, "upsert", upsert)
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.rows, report.written, report.already_there) == (COUNT, COUNT - 32, 32)
    again = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (again.written, again.already_there) == (0, COUNT)
    with Store.open(tmp_path / "new") as store:
        assert store.count() == COUNT


def test_a_document_that_changed_since_is_moved_again(plain, texts, vectors, tmp_path):
    make(tmp_path / "old", texts, vectors)
    migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    sentence = "A crow bent a piece of wire into a hook."
    with connect(str(tmp_path / "old")) as client:
        client.get_collection("notes", embedding_function=None).update(
            ids="doc-7", documents=sentence, embeddings=plain.encode_sentences([sentence])
        )
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.written, report.replaced, report.already_there) == (1, 1, COUNT - 1)
    with Store.open(tmp_path / "new") as store:
        assert store.get(["doc-7"])[0].text == sentence


def test_metadata_that_changed_since_are_moved_again(texts, vectors, tmp_path):
    make(tmp_path / "old", texts, vectors)
    migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    with connect(str(tmp_path / "old")) as client:
        collection = client.get_collection("notes", embedding_function=None)
        collection.update(ids="doc-7", metadatas={"source": "b.txt", "share": None})
        # What is equal in Python and is not in a filter.
        collection.update(ids="doc-1", metadatas={"page": 1.0})
        collection.add(ids="later", documents=texts[0], embeddings=vectors[0])
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.rows, report.written, report.replaced) == (COUNT + 1, 3, 2)
    assert report.already_there == COUNT - 2
    with Store.open(tmp_path / "new") as store:
        first, seventh = store.get(["doc-1", "doc-7"])
        wanted = {**METADATA, "source": "b.txt", "page": 7}
        del wanted["share"]
        assert seventh.metadata == wanted
        assert type(first.metadata["page"]) is float
    again = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (again.written, again.replaced, again.already_there) == (0, 0, COUNT + 1)


def test_rows_deleted_since_are_kept_and_counted(capsys, texts, vectors, tmp_path):
    make(tmp_path / "old", texts, vectors)
    assert migrate(tmp_path / "old", tmp_path / "new", collection="notes").kept == 0
    with connect(str(tmp_path / "old")) as client:
        client.get_collection("notes", embedding_function=None).delete(ids=["doc-3", "doc-4"])
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.rows, report.already_there, report.kept) == (COUNT - 2, COUNT - 2, 2)
    assert sorted(report.first_kept) == ["doc-3", "doc-4"]
    with Store.open(tmp_path / "new") as store:
        assert store.count() == COUNT
    _, out, err = run(
        capsys, "migrate", tmp_path / "old", tmp_path / "new", "--collection", "notes"
    )
    assert "rows kept that are not in the source" in out
    assert "kept, though not in the source: 'doc-3', 'doc-4'" in err


def test_a_second_collection_is_not_moved_into_the_same_target(plain, texts, vectors, tmp_path):
    make(tmp_path / "one", texts, vectors)
    make(tmp_path / "two", texts[::-1], plain.encode_sentences(texts[::-1]))
    migrate(tmp_path / "one", tmp_path / "new", collection="notes")
    before = raw(tmp_path / "new", "descsim")[0]["documents"]
    with pytest.raises(StoreError, match=r"moved from another .*'notes'.*; name another target"):
        migrate(tmp_path / "two", tmp_path / "new", collection="notes")
    assert raw(tmp_path / "new", "descsim")[0]["documents"] == before
    # A collection stays the same wherever its folder lies and whatever it is called.
    (tmp_path / "one").rename(tmp_path / "moved")
    with connect(str(tmp_path / "moved")) as client:
        client.get_collection("notes", embedding_function=None).modify(name="called-anew")
    again = migrate(tmp_path / "moved", tmp_path / "new", collection="called-anew")
    assert (again.written, again.already_there) == (0, COUNT)


def test_a_target_without_a_mark_is_known_by_its_ids(texts, vectors, two_maps, tmp_path):
    make(tmp_path / "one", texts, vectors)
    make(tmp_path / "two", texts, vectors, ids=[f"other-{i}" for i in range(COUNT)])
    create_store(tmp_path / "empty", two_maps)[0].close()
    create_store(tmp_path / "half", two_maps)[0].close()
    with Store.open(tmp_path / "half") as store:
        store.upsert([Record(texts[2], "doc-2")], two_maps.encode_sentences(texts[2:3]))
    with pytest.raises(StoreError, match=r"does not say which .* 1 of its rows .*'doc-2'; name an"):
        migrate(tmp_path / "two", tmp_path / "half", collection="notes")
    for name, there in (("empty", 0), ("half", 1)):
        report = migrate(tmp_path / "one", tmp_path / name, collection="notes")
        assert (report.written, report.replaced) == (COUNT, there)
        with pytest.raises(StoreError, match="moved from another collection"):
            migrate(tmp_path / "two", tmp_path / name, collection="notes")
        with Store.open(tmp_path / name) as store:
            assert store.manifest.source_name == "notes"
            assert store.manifest.encoder == "minilm-two-maps"


def test_rows_that_cannot_be_moved_are_named(texts, vectors, tmp_path):
    changed = vectors.copy()
    changed[51] = 0
    make(tmp_path / "old", texts, changed)
    with connect(str(tmp_path / "old")) as client:
        collection = client.get_collection("notes", embedding_function=None)
        collection.delete(ids="doc-20")
        collection.add(ids="bare", embeddings=vectors[20])
    sampled = set(np.linspace(0, COUNT - 1, adoption.CHECKED).astype(int))
    assert 50 not in sampled  # where doc-51 lies once doc-20 is gone
    report = migrate(tmp_path / "old", tmp_path / "new", collection="notes")
    assert (report.rows, report.written, report.skipped) == (COUNT, COUNT - 2, 2)
    assert sorted(map(str, report.first_skipped)) == sorted(
        map(
            str,
            [
                {"id": "bare", "reason": "it has no document"},
                {"id": "doc-51", "reason": "its vector has length 0.0"},
            ],
        )
    )


@pytest.mark.parametrize("name", ["all-minilm-l6-v2", "minilm-query-map"])
def test_our_own_stores_are_moved(name, plain, query_map, texts, two_maps, tmp_path):
    encoder = plain if name == "all-minilm-l6-v2" else query_map
    records = [Record(text, metadata={"deep": {"list": [None, i]}}) for i, text in enumerate(texts)]
    fill(records, tmp_path / "old", encoder=encoder)
    report = migrate(tmp_path / "old", tmp_path / "new", collection="descsim")
    assert report.written == COUNT
    with DescriptionIndex.open(tmp_path / "new") as index:
        hits = index.search(DESCRIPTION, 5)
        scores = cosines(two_maps, texts, two_maps.encode_sentences(texts))
        check_hits(hits, texts, scores)
        assert hits[0].metadata == {"deep": {"list": [None, texts.index(hits[0].text)]}}


def test_stores_of_other_encoders_are_left_alone(default_encoder, texts, vectors, tmp_path):
    fill(texts[:3], tmp_path / "ours", encoder=default_encoder)
    with pytest.raises(StoreError, match=r"encoder 'descsim-minilm'.*only vectors of all-MiniLM"):
        migrate(tmp_path / "ours", tmp_path / "new", collection="descsim")
    make(tmp_path / "old", texts, vectors)
    with pytest.raises(StoreError, match="was filled with encoder 'descsim-minilm'"):
        migrate(tmp_path / "old", tmp_path / "ours", collection="notes")


# --- other libraries --------------------------------------------------------------------------


def test_a_langchain_store(plain, query_map, texts, vectors, tmp_path):
    langchain_chroma = pytest.importorskip("langchain_chroma")
    from langchain_core.embeddings import Embeddings

    from descsim_tools.integrations.langchain import DescriptionEmbeddings, DescriptionRetriever

    class MiniLM(Embeddings):
        def embed_documents(self, texts):
            return plain.encode_sentences(texts).tolist()

        def embed_query(self, text):
            return self.embed_documents([text])[0]

    with connect(str(tmp_path)) as client:
        langchain_chroma.Chroma("langchain", MiniLM(), client=client).add_texts(
            texts, [{"n": i} for i in range(COUNT)], [f"id{i}" for i in range(COUNT)]
        )
    assert adopt(tmp_path, "langchain").space == "l2"
    scores = cosines(query_map, texts, vectors)
    with DescriptionIndex.open(tmp_path, collection="langchain") as index:
        hits = index.search(DESCRIPTION, 5)
        check_hits(hits, texts, scores)
        documents = DescriptionRetriever(index=index, k=5).invoke(DESCRIPTION)
        assert [d.metadata["descsim_score"] for d in documents] == [h.score for h in hits]
        assert documents[0].metadata["n"] == texts.index(hits[0].text)
    with connect(str(tmp_path)) as client:
        store = langchain_chroma.Chroma(
            "langchain", DescriptionEmbeddings("minilm-query-map"), client=client
        )
        found = store.similarity_search(DESCRIPTION, 5)
        assert [document.page_content for document in found] == [hit.text for hit in hits]
        # LangChain goes on as before, and the manifest stays.
        before = langchain_chroma.Chroma("langchain", MiniLM(), client=client)
        assert before.similarity_search(texts[9], 1)[0].page_content == texts[9]
    Store.open(tmp_path, collection="langchain").close()


def test_a_llama_index_store(plain, query_map, texts, tmp_path):
    pytest.importorskip("llama_index.vector_stores.chroma")
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores import VectorStoreQuery
    from llama_index.vector_stores.chroma import ChromaVectorStore

    from descsim_tools.integrations import llama_index as ours

    class MiniLM(BaseEmbedding):
        def _get_text_embedding(self, text):
            return plain.encode_sentences([text])[0].tolist()

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return self._get_text_embedding(query)

    nodes = [
        TextNode(
            id_=f"node-{i}",
            text=text,
            metadata={"file_name": f"{i}.txt", "secret": "s" * 80},
            excluded_embed_metadata_keys=["secret"],
        )
        for i, text in enumerate(texts)
    ]
    with connect(str(tmp_path)) as client:
        collection = client.create_collection("llama")
        ChromaVectorStore(chroma_collection=collection).add(MiniLM()(nodes))
    # By default LlamaIndex embeds the metadata before the text.
    report = adopt(tmp_path, "llama")
    assert report.lowest_similarity == pytest.approx(1, abs=1e-4)
    content = raw(tmp_path, "llama")[0]
    scores = cosines(query_map, content["documents"], content["embeddings"])
    with DescriptionIndex.open(tmp_path, collection="llama") as index:
        check_hits(index.search(DESCRIPTION, 5), content["documents"], scores)
        best = ours.DescriptionRetriever(index, k=5).retrieve(DESCRIPTION)[0]
        number = texts.index(best.node.text)
        assert best.node.node_id == f"node-{number}"
        assert best.node.metadata["file_name"] == f"{number}.txt"
    store = ours.DescriptionVectorStore.open(tmp_path, collection="llama")
    query = query_map.encode_descriptions([DESCRIPTION])[0].tolist()
    found = store.query(VectorStoreQuery(query_embedding=query, similarity_top_k=5))
    np.testing.assert_allclose(found.similarities, np.sort(scores)[::-1][:5], atol=1e-5)


def test_a_plain_client_with_our_embedding_function(texts, vectors, query_map, tmp_path):
    from descsim_tools.integrations.chroma import open_collection

    make(tmp_path, texts, vectors, "l2")
    adopt(tmp_path, "notes")
    with connect(str(tmp_path)) as client:
        collection = open_collection(client, "notes")
        found = collection.query(query_texts=[DESCRIPTION], n_results=5)
        best = np.argsort(-cosines(query_map, texts, vectors))[:5]
        assert found["documents"][0] == [texts[i] for i in best]
        collection.add(ids="added", documents="A crow bent a wire into a hook for its food.")
        vector = collection.get("added", include=["embeddings"])["embeddings"][0]
        wanted = query_map.encode_sentences(["A crow bent a wire into a hook for its food."])[0]
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


# --- the command line -------------------------------------------------------------------------


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_commands(capsys, texts, vectors, tmp_path):
    make(tmp_path / "old", texts, vectors)
    code, out, _ = run(capsys, "adopt", tmp_path / "old", "--collection", "notes", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == COUNT
    code, out, _ = run(capsys, "info", tmp_path / "old", "--collection", "notes", "--json")
    facts = json.loads(out)
    assert (facts["encoder"], facts["space"]) == ("minilm-query-map", "l2")
    arguments = [tmp_path / "old", tmp_path / "new", "--collection", "notes"]
    code, out, _ = run(capsys, "migrate", *arguments)
    assert code == 0
    assert str(COUNT) in out
    code, out, _ = run(capsys, "migrate", *arguments, "--json")
    assert json.loads(out)["already_there"] == COUNT
    for store, collection in (("old", "notes"), ("new", "descsim")):
        code, out, _ = run(
            capsys, "search", tmp_path / store, DESCRIPTION, "--collection", collection, "--json"
        )
        assert code == 0
        assert len(json.loads(out)["hits"]) == 10


def test_a_refusal_has_exit_code_1(capsys, texts, vectors, tmp_path):
    make(tmp_path, texts, np.roll(vectors, 1, axis=0))
    for command in (["adopt", tmp_path], ["migrate", tmp_path, tmp_path / "new"]):
        code, out, err = run(capsys, *command, "--collection", "notes")
        assert (code, out) == (1, "")
        assert "has cosine" in err
        code, _, err = run(capsys, *command, "--collection", "nope")
        assert code == 1
        assert "it holds: notes" in err
        assert "Example" in run(capsys, command[0], "--help")[1]


def test_a_report_names_rows_without_a_document(capsys, texts, vectors, tmp_path):
    make(tmp_path, texts, vectors)
    with connect(str(tmp_path)) as client:
        client.get_collection("notes", embedding_function=None).add(
            ids="bare", embeddings=vectors[0]
        )
    _, out, err = run(capsys, "adopt", tmp_path, "--collection", "notes")
    assert "minilm-query-map" in out
    assert "'bare'" in err


def test_a_new_store_can_be_filled_with_either_preset(texts, two_maps, query_map, tmp_path):
    for encoder in (two_maps, query_map):
        store, _ = create_store(tmp_path / encoder.spec.name, encoder)
        store.close()
        report = fill(texts[:3], tmp_path / encoder.spec.name)
        assert (report.encoder, report.stored) == (encoder.spec.name, 3)
