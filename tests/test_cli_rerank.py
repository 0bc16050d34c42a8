"""`descsim rerank`, `descsim bench rerank` and `descsim search --rerank`."""

import json
import re

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers import PROMPTS, LogProbReranker, Reranker
from descsim_tools.rerankers.bench import bench_pairs
from descsim_tools.rerankers.log_prob import Choice
from descsim_tools.rerankers.tuning import DevQuery, evaluate, read_dev
from tests.conftest import ROOT
from tests.fake_server import Behaviour, serve
from tests.test_cli import run

ROWS = [
    {
        "id": str(number),
        "description": description,
        "good": ["The horse won the race.", "A boat came first at Kiel."] * 7,
        "bad": ["The river is long.", "Rust.", "The race was called off."],
    }
    for number, description in enumerate(["a race being won", "someone coming first", "a victory"])
]


@pytest.fixture
def dev(tmp_path):
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + "\n")
    return path


def test_tune_tries_the_prompts_and_writes_the_best(capsys, dev, tiny_lm_folder, tmp_path):
    arguments = ["rerank", "tune", dev, "--model", tiny_lm_folder, "--device", "cpu"]
    arguments += ["--prompts", "sgpt-bare,describe,sgpt-title", "--output", tmp_path / "best.json"]
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    queries = read_dev(dev)
    for row in found["prompts"]:
        reranker = LogProbReranker.load(tiny_lm_folder, prompt=row["prompt"], device="cpu")
        truth = [[1] * 12 + [0] * 3]
        expected = [
            ndcg_score(truth, [reranker.score(q.description, [*q.good, *q.bad])], k=10)
            for q in queries
        ]
        assert row["ndcg@10"] == pytest.approx(np.mean(expected), abs=1e-6)
        assert row["queries"] == 3
    order = [row["ndcg@10"] for row in found["prompts"]]
    assert order == sorted(order, reverse=True)
    assert found["best"] == found["prompts"][0]["prompt"]
    choice = Choice.read(tmp_path / "best.json")
    assert choice.prompt == PROMPTS[found["best"]]
    assert (choice.model, choice.queries) == (str(tiny_lm_folder), 3)
    assert LogProbReranker.load(tmp_path / "best.json", device="cpu").prompt == choice.prompt
    code, out, err = run(capsys, *arguments, "--limit", "2")
    assert code == 0
    assert re.search(r"sgpt-title +\d+\.\d +\d+\.\d", out)
    assert "best of 3 on 2 descriptions: " in out
    assert "describe: nDCG@10" in err


def test_tune_on_a_server(capsys, dev, tiny_lm_folder):
    from transformers import AutoModelForCausalLM

    behaviour = Behaviour(AutoModelForCausalLM.from_pretrained(tiny_lm_folder))
    behaviour.fault = "constant"
    arguments = ["rerank", "tune", dev, "--limit", "1", "--prompts", "describe"]
    with serve(behaviour) as url:
        code, _, err = run(capsys, *arguments, "--model", url)
        assert code == 2
        assert "needs --served-model and --tokenizer" in err
        arguments += ["--served-model", "tiny", "--tokenizer", tiny_lm_folder]
        code, _, err = run(capsys, *arguments, "--model", url)
    assert code == 1
    assert "log-probabilities are -1.5" in err
    code, _, err = run(capsys, *arguments, "--model", tiny_lm_folder)
    assert code == 2
    assert "go with a URL as --model" in err


class Fixed(Reranker):
    def _score(self, description, sentences):
        return np.array([float(text) for text in sentences])


@pytest.mark.parametrize(
    ("good", "bad", "ndcg", "first"),
    [
        (("9", "8"), ("1",), 1.0, 1.0),
        (("1",), ("9",), 1 / np.log2(3), 0.0),
        (("5",), ("5",), (1 + 1 / np.log2(3)) / 2, 0.0),
        (("3", "1"), ("2",), (1 + 1 / 2) / (1 + 1 / np.log2(3)), 1.0),
    ],
)
def test_measures_are_what_one_computes_by_hand(good, bad, ndcg, first):
    got = evaluate(Fixed(), [DevQuery("x", "d", good, bad)])
    assert got == (pytest.approx(ndcg), first)


def test_only_twelve_good_sentences_count(dev):
    assert [len(query.good) for query in read_dev(dev)] == [12, 12, 12]
    assert [query.id for query in read_dev(dev, 2)] == ["0", "1"]
    assert read_dev(dev, 99) == read_dev(dev)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "row 1 of .* is not of the form"),
        ("[]", "is not of the form"),
        ('{"id": 1, "description": "d", "good": ["a"]}', r"KeyError\('bad'\)"),
        ('{"id": 1, "description": "d", "good": "a", "bad": ["b"]}', "need strings"),
        ('{"id": 1, "description": " ", "good": ["a"], "bad": ["b"]}', "not blank"),
        ('{"id": 1, "description": "d", "good": ["a"], "bad": []}', "has 1 good and 0 bad"),
        ("", "holds no row"),
    ],
)
def test_wrong_rows_are_named(line, match, tmp_path):
    (tmp_path / "dev.jsonl").write_text(f"{line}\n")
    with pytest.raises(RerankerError, match=match):
        read_dev(tmp_path / "dev.jsonl")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rerank", "tune", "none.jsonl", "--model", "gpt2"], 1, "cannot read none.jsonl"),
        (["rerank", "tune", "d.jsonl"], 2, "Missing option '--model'"),
        (["rerank", "tune", "d.jsonl", "--model", "m", "--prompts", "no"], 1, "no prompt 'no'"),
        (["rerank", "tune", "d.jsonl", "--model", "m", "--output", "x.txt"], 2, "ends in .json"),
        (["bench", "rerank", "--model", "m", "--prompt", "no"], 1, "cannot load 'm'"),
        (["bench", "rerank", "--model", "m", "--pairs", "1"], 2, "1 is not in the range"),
        (["search", "s", "x", "--rerank", "log-prob", "--candidates", "0"], 2, "not in the range"),
    ],
)
def test_misuse_is_told_in_few_lines(arguments, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) <= 5


def test_prompts_are_listed(capsys):
    _, out, _ = run(capsys, "rerank", "prompts", "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list(PROMPTS)
    assert sum(row["default"] for row in rows) == 1
    code, out, _ = run(capsys, "rerank", "prompts")
    assert code == 0
    assert "    Sentence: {sentence}" in out


def test_bench_compares_three_ways(capsys, tiny_lm_folder):
    arguments = ["bench", "rerank", "--model", tiny_lm_folder, "--device", "cpu"]
    arguments += ["--prompt", "describe", "--pairs", "20"]
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["pairs"] == 20
    assert found["largest_difference"] < 1e-4
    ways = {row["way"]: row for row in found["speeds"]}
    assert list(ways) == ["descsim-tools", "pair by pair", "CrossEncoder of equal size"]
    base = ways["pair by pair"]["pairs_per_second"]
    for row in ways.values():
        assert row["times_pair_by_pair"] == pytest.approx(row["pairs_per_second"] / base)
    code, out, _ = run(capsys, *arguments)
    assert "CrossEncoder of equal size" in out
    assert "differ by at most" in out


def test_bench_pairs_are_as_many_as_asked():
    assert len(bench_pairs(7)) == 7
    assert len(bench_pairs(200)) == 200
    assert len(set(bench_pairs(64))) == 64


def test_search_with_a_reranker(capsys, tiny_folder, tiny_lm_folder, tmp_path):
    store, tuned = tmp_path / "s", tmp_path / "tuned.json"
    Choice(str(tiny_lm_folder), PROMPTS["describe"], 0.5, 3).save(tuned)
    corpus = tmp_path / "c.txt"
    lines = (ROOT / "examples/corpus.txt").read_text().splitlines()[:40]
    corpus.write_text("\n".join(lines))
    assert run(capsys, "index", corpus, "--store", store, "--encoder", tiny_folder)[0] == 0
    arguments = ["search", store, "a race", "--encoder", tiny_folder, "-k", "4", "--device", "cpu"]
    arguments += ["--rerank", f"log-prob:{tuned}", "--candidates", "30"]
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    hits = json.loads(out)["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4]
    reranker = LogProbReranker.load(tuned, device="cpu")
    for hit in hits:
        expected = reranker.score("a race", [hit["text"]])[0]
        assert hit["score"] == hit["rerank_score"] == pytest.approx(expected, abs=1e-4)
        assert -1 <= hit["retrieval_score"] <= 1
        assert hit["truncated"] is False
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert f"{hits[0]['score']:.3f}" in out
    code, _, err = run(capsys, *arguments[:-3], "nonsense")
    assert code == 1
    assert "no reranker 'nonsense'; there are: cross-encoder, combined, log-prob" in err


@pytest.mark.parametrize(
    "command", [["rerank", "tune"], ["rerank", "prompts"], ["bench", "rerank"]], ids=" ".join
)
def test_every_command_has_an_example(command, capsys):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert f"Example:\n    descsim {' '.join(command)}" in out
