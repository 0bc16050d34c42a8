import dataclasses
import datetime as dt
import os
import subprocess
import sys
import time

import chromadb
import numpy as np
import pytest
from chromadb.config import Settings
from chromadb.errors import InternalError

from descsim_tools import DescriptionIndex, Record
from descsim_tools.errors import StoreError
from descsim_tools.store import Manifest, Store
from descsim_tools.store import store as store_module

DIM = 16


def manifest(fingerprint="f" * 64, dim=DIM) -> Manifest:
    return Manifest("some-encoder", fingerprint, dim, "shared", "1.0", "0.1")


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def records_of(count: int, start: int = 0) -> list[Record]:
    return [
        Record(f"text {i}", f"id{i:05}", {"n": i, "even": i % 2 == 0})
        for i in range(start, start + count)
    ]


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "store", manifest()) as opened:
        yield opened


def brute_force(vectors, records, query, k, keep=lambda record: True):
    scores = vectors @ query
    rows = sorted(
        (-float(score), record.id)
        for score, record in zip(scores, records, strict=True)
        if keep(record)
    )
    return [id_ for _, id_ in rows[:k]]


# --- reading and writing ----------------------------------------------------------------------


def test_records_come_back_whole_and_in_the_order_asked_for(store):
    records = [
        Record("first", "a", {"when": dt.date(2020, 1, 1), "tags": ["x"], "none": None}),
        Record("second", "b"),
    ]
    store.upsert(records, vectors_of(2))
    assert store.get(["b", "missing", "a"]) == [records[1], records[0]]
    assert store.get([]) == []
    assert store.count() == 2


def test_upsert_replaces_text_vector_and_all_metadata(store):
    store.upsert([Record("old", "a", {"gone": 1, "kept": {"x": 1}})], vectors_of(1, seed=1))
    new = Record("new", "a", {"kept": 2})
    store.upsert([new], vectors_of(1, seed=2))
    assert store.get(["a"]) == [new]
    assert store.count() == 1
    hit = store.query(vectors_of(1, seed=2)[0], 1)[0]
    assert hit.score == pytest.approx(1, abs=1e-5)


def test_update_metadata_leaves_no_old_key(store):
    store.upsert([Record("t", "a", {"old": 1, "deep": [None]})], vectors_of(1))
    store.update_metadata([Record("t", "a", {"new": "x"})])
    assert store.get(["a"]) == [Record("t", "a", {"new": "x"})]


def test_writes_are_split_by_the_clients_own_limit(store, monkeypatch):
    monkeypatch.setattr(type(store._client), "get_max_batch_size", lambda self: 7)
    store.upsert(records_of(100), vectors_of(100))
    assert store.count() == 100


def test_large_gets_and_deletes_page_by_themselves(store):
    ids = [f"unknown{i}" for i in range(50_000)]
    store.upsert(records_of(10), vectors_of(10))
    assert store.get(ids) == []
    assert store.delete([*ids, "id00003", "id00003"]) == 1
    assert store.count() == 9


@pytest.mark.parametrize(
    ("records", "vectors", "match"),
    [
        (records_of(2), vectors_of(3), r"shape \(3, 16\) for 2 records, need \(2, 16\)"),
        (records_of(1), vectors_of(1)[:, :5], r"need \(1, 16\)"),
        ([Record("t")], vectors_of(1), "id of its own"),
        (records_of(1) * 2, vectors_of(2), "id of its own"),
        (records_of(1), np.full((1, DIM), np.nan, np.float32), r"\['id00000'\] are not finite"),
    ],
)
def test_bad_writes_store_nothing(store, records, vectors, match):
    with pytest.raises(ValueError, match=match):
        store.upsert(records, vectors)
    assert store.count() == 0


# --- querying ---------------------------------------------------------------------------------

FILTERS = [
    (None, lambda r: True),
    ({"even": True}, lambda r: r.metadata["even"]),
    ({"n": {"$lt": 7}}, lambda r: r.metadata["n"] < 7),
    (
        {"$and": [{"even": False}, {"n": {"$gte": 200}}]},
        lambda r: not r.metadata["even"] and r.metadata["n"] >= 200,
    ),
    ({"n": -1}, lambda r: False),
]


@pytest.mark.parametrize("k", [1, 10, 100, 2500, 5000])
@pytest.mark.parametrize(
    ("where", "keep"), FILTERS, ids=lambda f: str(f)[:20] if not callable(f) else ""
)
def test_exact_search_equals_brute_force(big_store, k, where, keep):
    opened, records, vectors = big_store
    query = vectors_of(1, seed=9)[0]
    hits = opened.query_exact(query, k, where)
    assert [hit.id for hit in hits] == brute_force(vectors, records, query, k, keep)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    by_id = {record.id: record for record in records}
    assert all(hit.text == by_id[hit.id].text for hit in hits)
    assert all(hit.metadata == by_id[hit.id].metadata for hit in hits)


@pytest.mark.parametrize("k", [1, 10, 100, 2500, 5000])
@pytest.mark.parametrize(
    ("where", "keep"), FILTERS, ids=lambda f: str(f)[:20] if not callable(f) else ""
)
def test_default_search_finds_all_that_match(big_store, k, where, keep):
    opened, records, vectors = big_store
    query = vectors_of(1, seed=9)[0]
    expected = brute_force(vectors, records, query, k, keep)
    found = [hit.id for hit in opened.query(query, k, where)]
    assert len(found) == len(expected)
    assert len(set(found) & set(expected)) >= 0.98 * len(expected)


def test_both_searches_give_one_score(big_store):
    opened, *_ = big_store
    query = vectors_of(1, seed=9)[0]
    exact = {hit.id: hit.score for hit in opened.query_exact(query, 50)}
    for hit in opened.query(query, 50):
        assert hit.score == pytest.approx(exact[hit.id], abs=1e-5)
        assert -1 <= hit.score <= 1.00001


def test_ties_are_ordered_by_id(store):
    one = np.repeat(vectors_of(1), 5, axis=0)
    store.upsert([Record("same", id_) for id_ in "dbaec"], one)
    for search in (store.query, store.query_exact):
        assert [hit.id for hit in search(one[0], 5)] == list("abcde")
    assert [hit.id for hit in store.query_exact(one[0], 2)] == ["a", "b"]


def test_an_empty_store_has_no_hits(store):
    assert store.query(vectors_of(1)[0], 3) == []
    assert store.query_exact(vectors_of(1)[0], 3) == []


@pytest.mark.parametrize(
    "where",
    [{"n": {"$near": 1}}, {"a": 1, "b": 2}, {"$and": []}, {"n": {"$gte": "x"}}],
    ids=["operator", "two", "none", "operand"],
)
def test_malformed_filters_are_named(store, where):
    store.upsert(records_of(30), vectors_of(30))
    for search in (store.query, store.query_exact):
        with pytest.raises(StoreError, match=r"bad filter: Expected (where|operand)"):
            search(vectors_of(1)[0], 3, where)


@pytest.fixture(scope="module")
def big_store(tmp_path_factory):
    records, vectors = records_of(2500), vectors_of(2500)
    with Store.create(tmp_path_factory.mktemp("big") / "store", manifest()) as opened:
        opened.upsert(records, vectors)
        yield opened, records, vectors


# --- identity ---------------------------------------------------------------------------------


def test_the_manifest_comes_back(store, tmp_path):
    store.close()
    with Store.open(tmp_path / "store") as again:
        assert again.manifest == manifest()


def test_another_encoder_is_refused_before_anything_is_read(store):
    store.check_encoder("some-encoder", "f" * 64)
    with pytest.raises(StoreError, match=r"filled with encoder 'some-encoder'.*not with 'other'"):
        store.check_encoder("other", "e" * 64)


def test_encoders_of_equal_size_are_told_apart(tiny, tiny_folder, other_folder, tmp_path):
    DescriptionIndex.create(tmp_path / "s", encoder=tiny).close()
    with pytest.raises(StoreError, match="not with 'other-encoder'"):
        DescriptionIndex.open(tmp_path / "s", encoder=other_folder)
    DescriptionIndex.open(tmp_path / "s", encoder=tiny_folder).close()


def test_a_local_encoder_must_be_named_again(tiny, tmp_path):
    DescriptionIndex.create(tmp_path / "s", encoder=tiny).close()
    with pytest.raises(StoreError, match=r"local encoder 'tiny-encoder'.*--encoder"):
        DescriptionIndex.open(tmp_path / "s")


def test_no_machine_path_is_kept(tiny, tiny_folder, tmp_path):
    DescriptionIndex.create(tmp_path / "s", encoder=tiny).close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    assert str(tiny_folder).encode() not in kept
    assert str(tmp_path).encode() not in kept


def raw_collection(folder, **options):
    client = chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))
    client.create_collection("descsim", embedding_function=None, **options)
    client.close()


def test_another_space_is_refused(tmp_path):
    raw_collection(tmp_path, metadata=manifest().to_metadata())
    with pytest.raises(StoreError, match="measures by 'l2', not by cosine"):
        Store.open(tmp_path)


def test_a_foreign_collection_is_refused(tmp_path):
    raw_collection(tmp_path, configuration={"hnsw": {"space": "cosine"}})
    with pytest.raises(StoreError, match="no manifest"):
        Store.open(tmp_path)


def test_a_later_format_is_refused(tmp_path):
    metadata = {**manifest().to_metadata(), "descsim_format_version": 99}
    raw_collection(tmp_path, metadata=metadata, configuration={"hnsw": {"space": "cosine"}})
    with pytest.raises(StoreError, match=r"store format 99.*reads format 1"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dim", None, r"'descsim_dim' is missing, need int; fill a new store"),
        ("dim", "16", r"'descsim_dim' is '16', need int"),
        ("dim", True, r"'descsim_dim' is True, need int"),
        ("encoder", None, r"'descsim_encoder' is missing, need str"),
        ("fingerprint", 5, r"'descsim_fingerprint' is 5, need str"),
        ("space", 1, r"'descsim_space' is 1, need str"),
        ("format_version", "1", r"'descsim_format_version' is '1', need int"),
    ],
)
def test_a_damaged_manifest_names_its_field(field, value, message):
    metadata = {**manifest().to_metadata(), f"descsim_{field}": value}
    if value is None:
        del metadata[f"descsim_{field}"]
    with pytest.raises(StoreError, match=r"collection in here is damaged: its field " + message):
        Manifest.from_metadata(metadata, "here")


def test_a_manifest_with_more_fields_is_read():
    assert Manifest.from_metadata({**manifest().to_metadata(), "descsim_new": 1}, "s") == manifest()
    named = dataclasses.replace(manifest(), source_id="an id", source_name="notes")
    assert Manifest.from_metadata(named.to_metadata(), "s") == named


def test_create_refuses_what_exists(store, tmp_path):
    with pytest.raises(StoreError, match="already holds a collection 'descsim'"):
        Store.create(tmp_path / "store", manifest())
    Store.create(tmp_path / "store", manifest(), collection="another").close()


def test_a_missing_store(tmp_path):
    with pytest.raises(StoreError, match=r"no store in .*descsim index CORPUS --store"):
        Store.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_missing_collection_lists_the_others(store, tmp_path):
    with pytest.raises(StoreError, match=r"no collection 'nope'; it holds: descsim"):
        Store.open(tmp_path / "store", collection="nope")


# --- closing, and other processes -------------------------------------------------------------


def test_closed_stores_say_so(store):
    store.close()
    store.close()
    for call in (store.count, lambda: store.get(["a"]), lambda: store.query(vectors_of(1)[0], 1)):
        with pytest.raises(StoreError, match="is closed; open it again"):
            call()


def test_opening_and_closing_gives_memory_back(store, tmp_path):
    store.upsert(records_of(500), vectors_of(500))
    store.close()

    def resident_mb():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def rounds(count):
        for _ in range(count):
            with Store.open(tmp_path / "store") as opened:
                opened.query(vectors_of(1)[0], 3)

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("reads resident memory from /proc")
    rounds(3)
    before = resident_mb()
    rounds(50)
    assert resident_mb() - before < 100


WRITER = """
import sys, time
import numpy as np
from tests.test_store import *
store = Store.open(sys.argv[1])
with store.writer():
    print("writing", flush=True)
    store.upsert(records_of(200, start=1000), vectors_of(200, seed=7))
    if len(sys.argv) > 2:
        sys.stdin.readline()
store.close()
print("done", flush=True)
"""


def writer_process(folder, *extra):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), *extra],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )


def test_an_open_reader_finds_what_another_process_wrote(store, tmp_path):
    store.upsert(records_of(300), vectors_of(300))
    wanted = vectors_of(200, seed=7)[5]
    assert "id01005" not in [hit.id for hit in store.query(wanted, 3)]
    process = writer_process(tmp_path / "store")
    assert process.communicate()[0].split() == ["writing", "done"]
    assert store.count() == 500
    best = store.query(wanted, 3)[0]
    assert best.id == "id01005"
    assert best.score == pytest.approx(1, abs=1e-5)


def test_a_second_writer_is_refused_and_readers_are_not(store, tmp_path):
    store.upsert(records_of(300), vectors_of(300))
    process = writer_process(tmp_path / "store", "wait")
    assert process.stdout.readline() == "writing\n"
    with pytest.raises(StoreError, match="another process is writing"):
        store.upsert(records_of(1), vectors_of(1))
    assert len(store.query(vectors_of(1)[0], 5)) == 5
    process.communicate("\n")
    store.upsert(records_of(1), vectors_of(1))
    assert store.count() == 500


def test_a_killed_writer_leaves_no_lock(store, tmp_path):
    process = writer_process(tmp_path / "store", "wait")
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.communicate()
    store.upsert(records_of(1), vectors_of(1))


def test_a_store_is_not_made_while_another_process_writes(store, tmp_path):
    process = writer_process(tmp_path / "store", "wait")
    assert process.stdout.readline() == "writing\n"
    with pytest.raises(StoreError, match="another process is writing"):
        Store.create(tmp_path / "store", manifest(), collection="another")
    process.communicate("\n")
    Store.create(tmp_path / "store", manifest(), collection="another").close()


def test_a_store_is_made_under_the_right_to_write(tmp_path, monkeypatch):
    """So the second of two that make one folder's database waits its turn."""
    tried = []

    def connecting(location):
        tried.append(location)
        with pytest.raises(StoreError, match="another process is writing"):
            Store.create(location, manifest())
        return connect(location)

    connect = store_module.connect
    monkeypatch.setattr(store_module, "connect", connecting)
    Store.create(tmp_path / "store", manifest()).close()
    assert tried == [str(tmp_path / "store")]


UNOPENED = "could not be opened: another process is writing to it just now, or its database is dam"


def test_a_damaged_database_is_told_each_time(tmp_path):
    database = tmp_path / "chroma.sqlite3"
    database.write_text("This is no database, but a text of some length.")
    for _ in range(3):
        with pytest.raises(StoreError, match=UNOPENED + r".*file is not a database.*try again"):
            Store.open(tmp_path)
    # Chroma keeps what another client of this process could not open either.
    with pytest.raises(Exception, match="not a database"):
        chromadb.PersistentClient(str(tmp_path), settings=Settings(anonymized_telemetry=False))
    with pytest.raises(StoreError, match=UNOPENED):
        Store.has_collection(tmp_path)
    database.unlink()
    Store.create(tmp_path, manifest()).close()


def test_a_database_that_another_process_makes_just_now(tmp_path, monkeypatch):
    def racing(**options):
        raise InternalError("(code: 1) table collections already exists")

    monkeypatch.setattr(chromadb, "PersistentClient", racing)
    with pytest.raises(StoreError, match=UNOPENED):
        Store.create(tmp_path, manifest())
    monkeypatch.undo()
    Store.create(tmp_path, manifest()).close()


def test_a_folder_that_cannot_be_made():
    with pytest.raises(StoreError, match="cannot make the folder"):
        Store.create("/proc/nowhere", manifest())


# --- servers ----------------------------------------------------------------------------------


def test_no_server_answers():
    with pytest.raises(StoreError, match=r"no Chroma server answers at http://127.0.0.1:9"):
        Store.open("http://127.0.0.1:9")


def test_a_store_on_a_server(chroma_server):
    name = f"test-{time.time_ns()}"
    with Store.create(chroma_server, manifest(), collection=name) as made:
        made.upsert(records_of(300), vectors_of(300))
    with Store.open(chroma_server, collection=name) as opened:
        assert opened.manifest == manifest()
        assert opened.count() == 300
        query = vectors_of(1, seed=9)[0]
        expected = brute_force(vectors_of(300), records_of(300), query, 10)
        assert [hit.id for hit in opened.query_exact(query, 10)] == expected
        assert len(set(expected) & {hit.id for hit in opened.query(query, 10)}) >= 9
        assert opened.get(["id00007"]) == [records_of(8)[7]]
        assert opened.delete(["id00007"]) == 1
    with pytest.raises(StoreError, match="has no collection 'absent'"):
        Store.open(chroma_server, collection="absent")
    with pytest.raises(StoreError, match="already holds"):
        Store.create(chroma_server, manifest(), collection=name)


def test_telemetry_is_off(store):
    assert store._client.get_settings().anonymized_telemetry is False


def test_page_size_is_below_the_smallest_limit_of_sql_variables():
    assert store_module._PAGE <= 1000
