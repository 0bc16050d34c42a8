import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from descsim_tools import DescriptionEncoder, DescriptionIndex, Record, fill
from descsim_tools.errors import CorpusError, StoreError
from descsim_tools.index_builder import fill as fill_function
from descsim_tools.index_builder import sentences as sentences_module
from descsim_tools.index_builder.fill import BATCH_TOKENS, token_batches
from descsim_tools.index_builder.sentences import Sentence
from descsim_tools.store import Store
from tests.conftest import ROOT

fill_module = sys.modules[fill_function.__module__]


def adds_up(report) -> bool:
    parts = (
        report.encoded
        + report.already_stored
        + report.duplicates
        + report.short
        + report.failed_sentences
    )
    return report.sentences == parts


def contents(folder) -> dict:
    with Store.open(folder) as store:
        rows = store._collection.get(include=["documents", "embeddings"])
        texts = zip(rows["ids"], rows["documents"], rows["embeddings"], strict=True)
        return {id_: (text, np.asarray(vector)) for id_, text, vector in texts}


def same_contents(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for id_, (text, vector) in left.items():
        assert right[id_][0] == text
        # Another batch pads otherwise, which moves the last bit or two of a float32.
        np.testing.assert_allclose(right[id_][1], vector, atol=1e-6)


def write(path, content: str | bytes):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- the way through --------------------------------------------------------------------------


def test_every_text_lands_with_its_own_vector(tiny, corpus_lines, tmp_path):
    report = fill(corpus_lines, tmp_path / "s", encoder=tiny)
    assert report.encoded == report.stored == report.rows == len(corpus_lines)
    assert adds_up(report)
    stored = contents(tmp_path / "s")
    expected = dict(zip(corpus_lines, tiny.encode_sentences(corpus_lines), strict=True))
    assert len(stored) == len(expected)
    for text, vector in stored.values():
        np.testing.assert_allclose(vector, expected[text], atol=1e-6)


def test_a_second_fill_encodes_nothing(tiny, corpus_lines, tmp_path, monkeypatch):
    fill(corpus_lines, tmp_path / "s", encoder=tiny)
    monkeypatch.setattr(DescriptionEncoder, "encode_sentences", None)
    report = fill(corpus_lines, tmp_path / "s", encoder=tiny)
    assert (report.encoded, report.already_stored) == (0, len(corpus_lines))
    assert report.updated_metadata == 0
    assert adds_up(report)


def test_only_what_is_missing_is_encoded(tiny, corpus_lines, tmp_path):
    fill(corpus_lines[:300], tmp_path / "s", encoder=tiny)
    report = fill(corpus_lines[200:500], tmp_path / "s", encoder=tiny)
    assert (report.encoded, report.already_stored, report.stored) == (200, 100, 500)


def test_search_finds_what_was_filled(tiny, corpus_lines, tmp_path):
    fill(corpus_lines, tmp_path / "s", encoder=tiny)
    with DescriptionIndex.open(tmp_path / "s", encoder=tiny) as index:
        for exact in (False, True):
            hits = index.search(corpus_lines[17], 3, exact=exact)
            assert hits[0].text == corpus_lines[17]
            assert hits[0].score == pytest.approx(1, abs=1e-5)


def test_generators_are_read_once(tiny, tmp_path):
    report = fill((f"sentence number {i}" for i in range(50)), tmp_path / "s", encoder=tiny)
    assert report.stored == 50


def test_several_devices_share_the_work(tiny_folder, tiny, corpus_lines, tmp_path):
    fill(corpus_lines[:200], tmp_path / "one", encoder=tiny)
    fill(corpus_lines[:200], tmp_path / "two", encoder=tiny_folder, devices=["cpu", "cpu"])
    same_contents(contents(tmp_path / "one"), contents(tmp_path / "two"))


def test_progress_goes_to_standard_error(tiny, corpus_lines, tmp_path, capsys):
    fill(corpus_lines[:50], tmp_path / "s", encoder=tiny, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "50 sentences" in captured.err
    fill(corpus_lines[:50], tmp_path / "s", encoder=tiny)
    assert capsys.readouterr().err == ""


# --- sentences --------------------------------------------------------------------------------


def test_documents_are_split_and_every_part_leads_back(tiny, tmp_path):
    text = (
        "Dr. Smith went to St. Louis on Jan. 5. He met Mr. Brown of Acme Inc. there again.\n\n"
        + ("Naïve cafés in Köln open early in the\nsummer months. 日本語の文です。")
    )
    folder = tmp_path / "docs"
    folder.mkdir()
    write(folder / "a.txt", text)
    report = fill(folder, tmp_path / "s", encoder=tiny, min_words=0)
    with Store.open(tmp_path / "s") as store:
        records = store.get(list(contents(tmp_path / "s")))
    assert report.rows == 1
    assert len(records) == report.sentences >= 4
    for record in records:
        start, end = record.metadata["span_start"], record.metadata["span_end"]
        assert " ".join(text[start:end].split()) == record.text
        assert record.metadata["source"] == "a.txt"
    assert "Dr. Smith went to St. Louis on Jan. 5." in {record.text for record in records}


def test_parts_of_a_record_with_an_id_name_it(tiny, tmp_path):
    record = Record("First sentence here. Second sentence here.", "doc", {"x": [1, None]})
    fill([record], tmp_path / "s", encoder=tiny, split=True)
    with Store.open(tmp_path / "s") as store:
        first, second = store.get(["doc#0", "doc#1"])
    assert first.text == "First sentence here."
    assert second.metadata == {"x": [1, None], "span_of": "doc", "span_start": 21, "span_end": 42}


def test_one_sentence_stays_as_it_is(tiny, tmp_path):
    fill([Record("Only one sentence.", "doc")], tmp_path / "s", encoder=tiny, split=True)
    with Store.open(tmp_path / "s") as store:
        assert store.get(["doc"]) == [Record("Only one sentence.", "doc")]


@pytest.mark.parametrize(
    ("name", "content", "options", "short"),
    [
        ("c.txt", "one two three four five\none two three four five six\n", {}, 1),
        ("c.txt", "one two three four five\none two three four five six\n", {"min_words": 0}, 0),
        ("c.jsonl", '{"text": "two words"}\n{"text": "one two three"}', {}, 0),
        ("c.jsonl", '{"text": "two words"}\n{"text": "one two three"}', {"min_words": 3}, 1),
    ],
)
def test_the_word_filter_is_on_for_raw_text(name, content, options, short, tiny, tmp_path):
    report = fill(write(tmp_path / name, content), tmp_path / "s", encoder=tiny, **options)
    assert report.short == short
    assert report.stored == 2 - short
    assert adds_up(report)


def test_duplicates_are_stored_once(tiny, tmp_path):
    report = fill(["the same", "other", "the same", " the same "], tmp_path / "s", encoder=tiny)
    assert (report.encoded, report.duplicates, report.stored) == (2, 2, 2)
    assert adds_up(report)


def test_an_id_used_twice_is_named(tiny, tmp_path):
    rows = [Record("one", "a"), Record("two", "b"), Record("another", "a"), Record("one", "a")]
    report = fill(rows, tmp_path / "s", encoder=tiny)
    assert (report.encoded, report.duplicates, report.failed_sentences) == (2, 1, 1)
    assert report.first_rejects == [
        {
            "row": 3,
            "reason": "the id 'a' was already used, with another text, by row 1",
            "excerpt": "another",
        }
    ]
    assert adds_up(report)
    with Store.open(tmp_path / "s") as store:
        assert store.get(["a"]) == [Record("one", "a")]


def test_a_changed_text_is_encoded_again_and_changed_metadata_is_not(tiny, tmp_path):
    fill(
        [Record("old", "a", {"x": 1}), Record("same", "b", {"x": 1, "y": 2})],
        tmp_path / "s",
        encoder=tiny,
    )
    report = fill([Record("new", "a"), Record("same", "b", {"x": 3})], tmp_path / "s", encoder=tiny)
    assert (report.encoded, report.already_stored, report.updated_metadata) == (1, 1, 1)
    with Store.open(tmp_path / "s") as store:
        assert store.get(["a", "b"]) == [Record("new", "a"), Record("same", "b", {"x": 3})]


def test_any_metadata_comes_back(tiny, tmp_path):
    metadata = {
        "list": [1, "a", None, [2]],
        "object": {"deep": {"date": dt.date(2020, 1, 1)}},
        "none": None,
        "numpy": np.float32(0.5),
        "when": dt.datetime(2020, 1, 1, 12),
    }
    fill([Record("text", "a", metadata)], tmp_path / "s", encoder=tiny)
    with DescriptionIndex.open(tmp_path / "s", encoder=tiny) as index:
        assert index.search("text", 1)[0].metadata == metadata


# --- long sentences ---------------------------------------------------------------------------

LONG = "The committee met in the old town hall and spoke of many things at great length. " * 12


def test_long_sentences_are_split(tiny, tmp_path):
    report = fill([Record(LONG, "long"), "short"], tmp_path / "s", encoder=tiny)
    assert report.split == 1
    assert report.cut == []
    assert report.encoded == report.sentences > 3
    stored = contents(tmp_path / "s")
    parts = [stored[f"long#{i}"][0] for i in range(report.encoded - 1)]
    assert " ".join(parts).split() == LONG.split()


def test_long_sentences_can_be_cut_and_are_listed(tiny, tmp_path):
    report = fill([Record(LONG, "long"), "short"], tmp_path / "s", encoder=tiny, on_long="cut")
    assert (report.encoded, report.split, report.cut) == (2, 0, ["long"])
    assert contents(tmp_path / "s")["long"][0] == LONG.strip()


def test_long_sentences_can_be_rejected(tiny, tmp_path):
    report = fill([Record(LONG, "long"), "short"], tmp_path / "s", encoder=tiny, on_long="reject")
    assert (report.encoded, report.failed_sentences) == (1, 1)
    assert "tokens, tiny-encoder reads 64" in report.first_rejects[0]["reason"]
    assert adds_up(report)


def test_on_long_is_a_closed_choice(tiny, tmp_path):
    with pytest.raises(ValueError, match="on_long is 'drop', need one of split, cut, reject"):
        fill(["a"], tmp_path / "s", encoder=tiny, on_long="drop")
    assert not (tmp_path / "s").exists()


# --- bad input --------------------------------------------------------------------------------


def test_bad_rows_are_set_aside_and_the_rest_is_stored(tiny, tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        b'{"text": "good one"}\n{"text": broken\n{"text": "bad \xff bytes"}\n'
        b'{"text": "reserved", "descsim_x": 1}\n\n{"text": "lone \\ud800"}\n{"text": "good two"}\n',
    )
    report = fill(path, tmp_path / "s", encoder=tiny)
    assert (report.rows, report.blank_rows, report.failed_rows, report.encoded) == (7, 1, 4, 2)
    lines = (tmp_path / "s/rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [2, 3, 4, 6]
    reasons = [json.loads(line)["reason"] for line in lines]
    assert "no JSON" in reasons[0]
    assert reasons[1] == reasons[3] == "the text is no valid UTF-8"
    assert "is reserved" in reasons[2]
    assert report.rejects == str(tmp_path / "s/rejects.jsonl")


def test_bad_records_are_set_aside(tiny, tmp_path):
    loop: dict = {}
    loop["self"] = loop
    rows = ["fine", Record("x", 5), Record("y", "y", {"v": object()}), Record("z", "z", loop), 7]
    report = fill(rows, tmp_path / "s", encoder=tiny, rejects=tmp_path / "bad.jsonl")
    assert (report.failed_rows, report.stored) == (4, 1)
    reasons = [entry["reason"] for entry in report.first_rejects]
    assert "the id 5" in reasons[0]
    assert "type object" in reasons[1]
    assert "contains itself" in reasons[2]
    assert report.rejects == str(tmp_path / "bad.jsonl")


def test_vectors_that_are_not_finite_are_set_aside(tiny_folder, tmp_path, monkeypatch):
    encoder = DescriptionEncoder.load(tiny_folder, device="cpu")
    encode = encoder.encode_sentences

    def faulty(texts, **options):
        vectors = encode(texts, **options)
        vectors[[i for i, text in enumerate(texts) if text == "bad"]] = np.nan
        return vectors

    monkeypatch.setattr(encoder, "encode_sentences", faulty)
    report = fill(["good", "bad", "better"], tmp_path / "s", encoder=encoder)
    assert (report.encoded, report.failed_sentences, report.stored) == (2, 1, 2)
    assert report.first_rejects[0]["row"] == 2
    assert adds_up(report)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("c.txt", b"", "is empty"),
        ("c.csv", b"text\n", "holds no rows"),
        ("c.csv", b"title\nx\n", "no column 'text'"),
        ("c.txt", b"\0\1\2", "binary"),
    ],
)
def test_a_corpus_that_cannot_be_read_makes_no_store(name, content, match, tiny, tmp_path):
    with pytest.raises(CorpusError, match=match):
        fill(write(tmp_path / name, content), tmp_path / "s", encoder=tiny)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("content", ["\n \n\n", "{broken\n{broken\n"])
def test_a_corpus_with_nothing_to_store_says_why(content, tiny, tmp_path):
    path = write(tmp_path / "c.jsonl", content)
    with pytest.raises(CorpusError, match=r"holds nothing that can be stored: of [23] rows"):
        fill(path, tmp_path / "s", encoder=tiny)
    with Store.open(tmp_path / "s") as store:
        assert store.count() == 0


def test_an_error_of_the_source_loses_nothing_that_was_stored(tiny, tmp_path):
    fill(["kept"], tmp_path / "s", encoder=tiny)

    def broken():
        yield "new"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        fill(broken(), tmp_path / "s", encoder=tiny)
    assert fill(["kept"], tmp_path / "s", encoder=tiny).already_stored == 1


def test_a_wrong_encoder_writes_nothing(tiny, other_folder, tmp_path):
    fill(["kept"], tmp_path / "s", encoder=tiny)
    with pytest.raises(StoreError, match="not with 'other-encoder'"):
        fill(["new"], tmp_path / "s", encoder=other_folder)
    assert len(contents(tmp_path / "s")) == 1


def test_a_store_that_another_fill_made_meanwhile_is_opened(tiny, tmp_path, monkeypatch):
    fill(["theirs"], tmp_path / "s", encoder=tiny)
    answers = iter([False, True])
    monkeypatch.setattr(Store, "has_collection", lambda *_: next(answers))
    assert fill(["ours"], tmp_path / "s", encoder=tiny).stored == 2


# --- places -----------------------------------------------------------------------------------


def test_filling_a_server(tiny, corpus_lines, chroma_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"fill-{time.time_ns()}"
    rows = [*corpus_lines[:100], 5]
    report = fill(rows, chroma_server, encoder=tiny, collection=name)
    assert (report.encoded, report.failed_rows) == (100, 1)
    assert (tmp_path / "descsim-rejects.jsonl").exists()
    assert fill(rows, chroma_server, encoder=tiny, collection=name).encoded == 0
    with DescriptionIndex.open(chroma_server, encoder=tiny, collection=name) as index:
        assert index.search(corpus_lines[3], 1)[0].text == corpus_lines[3]


NOBODY = 65534


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs root")
def test_a_store_without_write_permission(tiny, corpus_lines):
    """Root may write everywhere, so the test becomes another user for a moment."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        folder = Path(base) / "s"
        fill(corpus_lines[:20], folder, encoder=tiny)
        before = contents(folder)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(StoreError, match=r"cannot write to .*needs even for reading"):
                fill(corpus_lines[:30], folder, encoder=tiny)
            with pytest.raises(StoreError, match=r"cannot write to .*needs even for reading"):
                DescriptionIndex.open(folder, encoder=tiny)
            with pytest.raises(StoreError, match=r"cannot make the folder .*Permission denied"):
                fill(corpus_lines[:20], Path(base) / "new", encoder=tiny)
        finally:
            os.seteuid(0)
        same_contents(before, contents(folder))


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="needs root")
def test_a_full_disk_leaves_the_store_intact(tiny, tiny_folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        fill(["kept one", "kept two"], disk / "s", encoder=tiny)
        before = contents(disk / "s")
        # 64 KB of metadata a row fill the disk whatever the vectors' size.
        rows = [{"text": f"row {i}", "id": f"r{i}", "pad": "x" * 65_536} for i in range(400)]
        with pytest.raises(StoreError, match="free some space"):
            fill(rows, disk / "s", encoder=tiny)
        after = contents(disk / "s")
        same_contents(before, {id_: after[id_] for id_ in before})
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# --- batches and memory -----------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 64, 4096])
def test_batches_keep_the_budget_and_lose_nothing(budget):
    lengths = np.random.default_rng(0).integers(3, 256, 500)
    sentences = [Sentence(Record("t", str(i)), i, int(n)) for i, n in enumerate(lengths)]
    batches = list(token_batches(sentences, budget))
    assert sorted(s.row for batch in batches for s in batch) == list(range(500))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(s.tokens for s in batch) <= budget
    assert list(token_batches([], budget)) == []


def test_a_forward_pass_is_bounded():
    assert BATCH_TOKENS <= 16_384


MEMORY = """
import resource, sys
from descsim_tools import DescriptionEncoder, fill
encoder = DescriptionEncoder.load(sys.argv[1], device="cpu")
count = int(sys.argv[3])
rows = (f"generated text {i} of very many" for i in range(count))
report = fill(rows, sys.argv[2], encoder=encoder)
assert report.stored == count
print(report.peak_memory_mb)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tiny_folder, tmp_path):
    """Chroma's own index takes about 0.8 KB a row; the fill adds nothing to that."""

    def peak(count):
        command = [sys.executable, "-c", MEMORY, tiny_folder, tmp_path / str(count), str(count)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(result.stdout)

    small, large = peak(15_000), peak(60_000)
    assert large <= 1.1 * small, (small, large)


# --- killed -----------------------------------------------------------------------------------

KILLED = """
import sys
import descsim_tools.index_builder
from descsim_tools.index_builder import sentences
sys.modules["descsim_tools.index_builder.fill"]._WRITE_ROWS = 16
sentences.CHUNK = 64
from descsim_tools.cli import main
sys.exit(main(["index", sys.argv[1], "--store", sys.argv[2], "--encoder", sys.argv[3], "--json"]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_where_it_was(tiny, tiny_folder, tmp_path):
    """SIGKILL at ten moments of one fill; the result equals an unbroken one."""
    corpus = ROOT / "examples/corpus.txt"
    fill(corpus, tmp_path / "whole", encoder=tiny)
    expected = contents(tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, corpus, tmp_path / "s", tiny_folder]
    random = np.random.default_rng(1)
    counts = []
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        deadline = time.time() + 60
        before = count_rows(tmp_path / "s")
        # Let it write a few rows more, so that the kills fall all along the fill.
        while process.poll() is None and count_rows(tmp_path / "s") < before + 30:
            assert time.time() < deadline
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        with Store.open(tmp_path / "s") as store:
            counts.append(store.count())
    assert counts == sorted(counts)
    stored = counts[-1]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(result.stdout)
    total = len(expected)
    assert report["already_stored"] == stored
    assert report["encoded"] == total - stored
    same_contents(expected, contents(tmp_path / "s"))
    with Store.open(tmp_path / "s") as store:
        vector = next(iter(expected.values()))[1].astype(np.float32)
        assert [hit.id for hit in store.query(vector, 1)] == [next(iter(expected))]


def count_rows(folder) -> int:
    """Count by SQLite alone, without waking the index of a store that is being written."""
    import sqlite3

    path = folder / "chroma.sqlite3"
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as db:
            return db.execute("SELECT COUNT(*) FROM embeddings").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def test_a_chunk_is_small_enough_to_lose():
    assert sentences_module.CHUNK <= 4096
