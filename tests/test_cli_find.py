"""`descsim find`: output, exit codes, records, and how it is interrupted."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from descsim_tools import DescriptionIndex
from descsim_tools.agents import report
from descsim_tools.agents.record import ANSWERS
from descsim_tools.calibration import Calibration
from descsim_tools.cli import find as command
from descsim_tools.llm import LLM
from descsim_tools.rerankers import DescriptionCrossEncoder
from descsim_tools.rerankers.cross_encoder import CALIBRATION, new_cross_encoder
from tests.conftest import ROOT
from tests.fake_llm import FakeServer, Reply
from tests.finder_world import (
    FORGERY,
    Model,
    finder_of,
    kind_of,
    make_index,
    rows_of,
    verdict,
    verdicts,
)
from tests.test_cli import run

CONCEPT = "a scientific discovery made by accident"


@pytest.fixture(scope="module")
def cross_folder(tiny_folder, tmp_path_factory):
    """A cross-encoder of random weights, calibrated so that most rows are unsure."""
    from sentence_transformers.base.modules import Transformer

    folder = tmp_path_factory.mktemp("cross") / "tiny-cross"
    plain = tiny_folder.parent / "tiny-encoder-plain"
    torch.manual_seed(0)
    model = new_cross_encoder(Transformer(str(plain)))
    model.save_pretrained(str(folder))
    sentences = (ROOT / "examples/corpus.txt").read_text().splitlines()[:200]
    scores = DescriptionCrossEncoder("x", model).score(CONCEPT, sentences)
    slope = 1.0 / float(scores.std())
    Calibration(slope, -slope * float(scores.mean())).save(folder / CALIBRATION)
    return folder


@pytest.fixture
def arguments(tiny_store, tiny_folder, cross_folder):
    options = ["--encoder", tiny_folder, "--device", "cpu", "--depth", "40"]
    return ["find", tiny_store, CONCEPT, *options, "--rerank", f"cross-encoder:{cross_folder}"]


def test_it_prints_a_statement_and_writes_a_report(capsys, arguments, tmp_path):
    code, out, _ = run(capsys, *arguments, "--out", tmp_path / "r.html")
    assert code == 0
    assert "sentences examined" in out
    assert "of 912" in out
    assert "instances missed: about" in out
    assert f"written to {tmp_path / 'r.html'}" in out
    assert CONCEPT in (tmp_path / "r.html").read_text()
    code, out, _ = run(capsys, *arguments, "--json", "--out", tmp_path / "r.jsonl")
    assert code == 0
    found = json.loads(out)
    assert found["matched"] + found["rejected"] == found["examined"] == len(found["rows"])
    assert found["stored"] == 912
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").open()]
    assert lines[1:] == found["rows"]
    assert lines[0]["statement"]["missed"] == found["missed"]


def test_conditions_filters_and_decisions(capsys, arguments, tmp_path):
    (tmp_path / "d.jsonl").write_text("")
    code, out, _ = run(
        capsys, *arguments, "--none-of", "a dog", "--any-of", "a cat", "--any-of", "a ship",
        "--all-of", "x y", "--where", '{"line": {"$lte": 60}}', "--decisions", tmp_path / "d.jsonl",
        "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert found["query"] == {
        "all_of": [CONCEPT, "x y"], "any_of": ["a cat", "a ship"], "none_of": ["a dog"]
    }  # fmt: skip
    assert found["where"] == {"line": {"$lte": 60}}
    assert 0 < found["stored"] <= 60


def test_a_model_and_its_budget(capsys, arguments, tmp_path):
    def fault(seen, number):
        return verdicts(verdict(row, "yes") for row in rows_of(seen))

    with FakeServer(Model(fault)) as server:
        given = [*arguments, "--llm", "m", "--base-url", server.url, "--record", tmp_path / "r"]
        few = ["--max-requests", "2", "--max-tokens", "321"]
        code, out, _ = run(capsys, *given, *few, "--json")
        assert code == 3
        assert {one.body["max_tokens"] for one in server.seen} == {321}
        found = json.loads(out)
        assert found["ended_by"] == "budget"
        assert found["cost"]["requests"] == len(server.seen) == 2
        assert found["unjudged_for"]["budget"] > 0
        code, out, _ = run(capsys, *given, "--max-requests", "400", "--json")
        assert code == 0
        found = json.loads(out)
        assert found["unjudged"] == 0
        seen = len(server.seen)
        assert found["cost"]["requests"] == seen
        code, out, _ = run(capsys, *given, "--json")
        assert code == 0
        assert [one.text for one in server.seen[seen:]] == []
        prices = ["--budget", "0", "--price-in", "1", "--price-out", "1"]
        code, out, _ = run(capsys, *arguments, "--llm", "m", "--base-url", server.url, *prices)
        assert (code, len(server.seen)) == (3, seen)
        assert "ended by budget" in out
    assert {p.name for p in (tmp_path / "r").iterdir()} >= {
        "record.jsonl", "answers.sqlite", "transcript.jsonl"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--out", "r.pdf"], 1, "must end in .html, .jsonl, .csv"),
        (["--budget", "1"], 2, "goes with --llm"),
        (
            ["--llm", "m", "--base-url", "http://127.0.0.1:1/v1", "--price-in", "1"],
            2,
            "need each other",
        ),
        (
            ["--llm", "m", "--base-url", "http://127.0.0.1:1/v1", "--budget", "1"],
            2,
            "--budget needs --price-in and --price-out",
        ),
        (["--rerank", "none"], 2, "somebody must judge"),
        (["--rerank", "nonsense"], 1, "no reranker 'nonsense'"),
        (["--where", "{"], 2, "--where is no JSON"),
        (["--accept", "2"], 2, "not in the range"),
        (["--decisions", "none.csv"], 1, "cannot read the decisions"),
        (["--out", "nodir/r.html"], 1, "nodir; make it first"),
        (["--rerank", "log-prob"], 1, "log-prob gives scores and no probabilities"),
    ],
)
def test_misuse_is_told_in_few_lines(
    options, code, message, capsys, arguments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(capsys, *arguments, *options)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) <= 5


def test_nothing_to_look_for(capsys, tiny_store):
    for concept, message in (((), "nothing to look for"), (("  ",), "the concept is blank")):
        code, _, err = run(capsys, "find", tiny_store, *concept)
        assert code == 2
        assert message in err


@pytest.mark.parametrize(
    "options",
    [
        ["--out", "nodir/r.html"],
        ["--out", "d.csv"],
        ["--out", "index.html"],
        ["--rerank", "log-prob"],
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    options, capsys, tiny_store, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DescriptionIndex, "open", lambda *_, **__: pytest.fail("it was loaded"))
    (tmp_path / "d.csv").write_text("id,decision\n1,yes\n")
    (tmp_path / "index.html").write_text("<!DOCTYPE html>")
    code, out, err = run(capsys, "find", tiny_store, CONCEPT, *options)
    assert (code, out) == (1, "")
    assert "unexpected" not in err
    assert (tmp_path / "d.csv").read_text() == "id,decision\n1,yes\n"
    assert (tmp_path / "index.html").read_text() == "<!DOCTYPE html>"


def test_where_nothing_matched_the_nearest_are_shown(capsys, arguments):
    code, out, _ = run(capsys, *arguments, "--accept", "1")
    assert code == 0
    found = re.search(
        r"^nothing matched; --accept (0\.\d\d) would take what is shown$", out, re.MULTILINE
    )
    shown = re.findall(r"^ *\S+ +(0\.\d\d) +cross-encoder +\S", out, re.MULTILINE)
    assert len(shown) == 3
    assert shown == sorted(shown, reverse=True)
    _, out, _ = run(capsys, *arguments, "--accept", found[1], "--json")
    assert json.loads(out)["matched"] >= 3
    code, out, _ = run(capsys, *arguments, "--accept", found[1])
    assert "nothing matched" not in out


def test_with_a_model_no_other_accept_is_named(capsys, tmp_path):
    """It would change nothing: what the model rejected stays so."""
    texts = [f"{FORGERY} in town {n} p=0.{40 + n}2" for n in range(5)]
    with make_index(texts, tmp_path / "s") as index, FakeServer(Model()) as server:
        with LLM("m", base_url=server.url) as llm:
            statement = finder_of(index, llm=llm).find(FORGERY, decisions={"3": "no"})
    command._show(statement, None, has_model=True)
    out = capsys.readouterr().out
    shown = re.findall(r"^ *(\d) +(0\.\d\d) +model +\S", out, re.MULTILINE)
    assert shown == [("4", "0.44"), ("2", "0.42"), ("1", "0.41")]  # not what a person rejected
    assert "--accept" not in out
    command._show(statement, None, has_model=False)
    assert "--accept 0.41 would take what is shown" in capsys.readouterr().out


def test_decisions_can_be_given_and_written_again(capsys, arguments, tmp_path):
    path = tmp_path / "d.csv"
    code, out, _ = run(capsys, *arguments, "--out", path)
    with path.open(newline="", encoding="utf-8") as file:
        first, second, *others = csv.DictReader(file)
    first["decision"], second["decision"] = "no", "yes"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        writer.writerows([first, second, *others])
    decided = {first["id"]: "no", second["id"]: "yes"}
    code, out, err = run(capsys, *arguments, "--out", path)
    assert (code, out) == (1, "")
    assert "holds 2 decisions that the report would wipe out" in err
    assert "--decisions" in err
    code, out, err = run(capsys, *arguments, "--decisions", path, "--out", path)
    assert code == 0, err
    assert "person 2" in out
    with path.open(newline="", encoding="utf-8") as file:
        assert {row["id"]: row["decision"] for row in csv.DictReader(file) if row["decision"]} == (
            decided
        )


def test_the_statement_is_shown_though_the_report_fails(capsys, arguments, tmp_path, monkeypatch):
    def broken(statement):
        raise OSError("no space left on the device")

    monkeypatch.setattr(report, "to_html", broken)
    record = tmp_path / "r"
    code, out, err = run(capsys, *arguments, "--record", record, "--out", record / "r.html")
    assert code == 1
    assert "sentences examined" in out
    assert "written to" not in out
    assert "no report: no space left on the device; the same command with another --out" in err


def test_a_model_that_gives_nothing_usable_is_a_failure(capsys, arguments):
    with FakeServer(Model(lambda seen, number: Reply("nonsense"))) as server:
        given = [*arguments, "--llm", "m", "--base-url", server.url]
        code, out, err = run(capsys, *given)
    assert code == 1, err
    assert "ended by no answer: 20 answers in a row had no usable verdict" in out


def test_help_has_an_example(capsys):
    code, out, _ = run(capsys, "find", "--help")
    assert code == 0
    assert "Example:\n    descsim find my-store" in out
    assert command._EXIT == {"done": 0, "budget": 3, "no answer": 1}


def late(under_way, seconds):
    """A model that is slow at one kind of request."""

    def script(seen, number):
        return replace(Model()(seen, number), delay=seconds if kind_of(seen) == under_way else 0)

    return script


def interrupted(given, server, under_way):
    """Start a search, and interrupt it once such a request is under way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "descsim_tools", *map(str, given)],
        env=dict(os.environ), stderr=subprocess.PIPE, text=True,
        # A test run in the background of a shell ignores SIGINT, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    server.wait_for(1 if under_way == "plan" else 2, seconds=300)
    process.send_signal(signal.SIGINT)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("under_way", ["plan", "verdicts"])
def test_an_interrupted_search_goes_on(arguments, tmp_path, capsys, under_way):
    """What was under way is awaited, kept and in the cost; it is not paid twice."""
    record = tmp_path / "r"

    with FakeServer(late(under_way, 10)) as server:
        given = [*arguments, "--llm", "m", "--base-url", server.url, "--record", record]
        process = interrupted(given, server, under_way)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert "ending after what is under way; Ctrl-C again ends at once" in err
        assert "interrupted; the same command goes on" in err
        with LLM("m", base_url=server.url, cache=record / ANSWERS) as llm:
            assert (llm.spent.unsettled, llm.spent.requests) == (0, len(server.seen))
        server.script = Model()
        code, out, _ = run(capsys, *given, "--json")
        assert sum(kind_of(seen) == "plan" for seen in server.seen) == 1
        sent = len(server.seen)
    assert code == 0
    found = json.loads(out)
    assert found["unjudged"] == 0
    assert found["cost"]["requests"] == sent


@pytest.mark.slow
@pytest.mark.parametrize("under_way", ["plan", "verdicts"])
def test_a_second_interrupt_does_not_wait(arguments, tmp_path, capsys, under_way):
    record = tmp_path / "r"

    with FakeServer(late(under_way, 100)) as server:
        given = [*arguments, "--llm", "m", "--base-url", server.url, "--record", record]
        process = interrupted(given, server, under_way)
        while "Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        server.script = Model()
        code, out, _ = run(capsys, *given, "--json")
    assert code == 0
    assert json.loads(out)["unjudged"] == 0


def test_the_benchmark_runs(cross_folder, corpus_lines, tmp_path):
    """Its figures on random weights mean nothing; that they add up does."""
    queries, corpus = tmp_path / "q.jsonl", tmp_path / "c.txt"
    items = [
        {"id": str(n), "description": CONCEPT, "good": corpus_lines[n : n + 4],
         "bad": corpus_lines[n + 20 : n + 24]} for n in range(2)
    ]  # fmt: skip
    queries.write_text("".join(json.dumps(item) + "\n" for item in items))
    corpus.write_text("\n".join(corpus_lines[:80]))
    script = ROOT / "examples/benchmarks/find_in_wikitext.py"
    command = [sys.executable, script, queries, corpus, "--rerank", f"cross-encoder:{cross_folder}"]
    with FakeServer(Model()) as server:
        command += ["--llm", "m", "--base-url", server.url]
        result = subprocess.run(
            [*command, "--limit", "2", "--json"], capture_output=True, text=True, cwd=tmp_path
        )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert server.seen
    assert found["judged"]["missed"] == pytest.approx(4 * (1 - found["judged"]["recall"]))
    assert found["judged"]["decided_by"]["model"] > 0
    assert (found["descriptions"], found["stored"], found["good_examined"]) == (2, 80, 1.0)
    recalls = [row["recall"] for row in found["cuts"]]
    assert recalls == sorted(recalls, reverse=True)
    for row in found["cuts"]:
        assert row["missed"] == pytest.approx(4 * (1 - row["recall"]))
        assert row["low"] <= row["estimate"] <= row["high"]
