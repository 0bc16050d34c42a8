"""The cross-encoder that comes with the package, alone and combined with the pair."""

import json

import numpy as np
import pytest

from descsim_tools import DescriptionIndex, Record, fill
from descsim_tools.agents import FinderSettings, InstanceFinder
from descsim_tools.cli import main
from descsim_tools.evaluation.calibrate import (
    expected_calibration_error,
    judged_items,
    scores_of,
)
from descsim_tools.evaluation.protocol import EncoderScore, evaluate_file, read_items
from descsim_tools.rerankers import load_reranker
from descsim_tools.rerankers.combined import COMBINATION, Combination
from descsim_tools.rerankers.cross_encoder import shipped_folder
from tests.conftest import ROOT

CONTRAST = ROOT / "examples/training/contrast-dev.jsonl"


@pytest.fixture(scope="module")
def cross():
    return load_reranker("cross-encoder", device="cpu")


@pytest.fixture(scope="module")
def queries():
    return json.loads((ROOT / "tests/data/demo_queries.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scored(cross):
    """The contrast queries' sentences, and their logits."""
    judged = judged_items(read_items(CONTRAST))
    return judged, scores_of(judged, cross.score)


def shown_in_card(name: str, column: int) -> float:
    """Read a figure that the model card states, in percent."""
    card = shipped_folder() / "README.md"
    for line in card.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name:
            return float(cells[column].split()[0])
    raise AssertionError(f"the model card has no row {name!r}")


def test_it_is_small():
    size = sum(file.stat().st_size for file in shipped_folder().iterdir())
    assert 5_000_000 < size <= 25_000_000


def test_it_needs_no_network(no_network):
    load_reranker("combined", device="cpu").score("a treaty being signed", ["They signed it."])


@pytest.fixture(scope="module")
def cosines(scored, default_encoder):
    judged, _ = scored
    score = EncoderScore(default_encoder)
    score.prepare((j.description for j in judged), (s for j in judged for s in j.sentences))
    return scores_of(judged, score)


@pytest.mark.slow
def test_it_tells_contrasts_apart_better_than_the_pair(scored, cosines):
    judged, logits = scored
    weight = Combination.load(shipped_folder() / COMBINATION).weight
    ways = {
        1: cosines,
        2: logits,
        3: [a + weight * b for a, b in zip(logits, cosines, strict=True)],
    }
    found = {}
    for column, rows in ways.items():
        known = {j.description: row for j, row in zip(judged, rows, strict=True)}
        found[column] = evaluate_file(CONTRAST, lambda d, _, known=known: known[d])
        for name in ("precision@1", "precision@5"):
            stated = shown_in_card(f"contrast_dev P@{name[-1]}", column)
            assert 100 * found[column][name] == pytest.approx(stated, abs=1.7)
    ndcg = {column: one["ndcg@10"] for column, one in found.items()}
    assert min(ndcg[2], ndcg[3]) > ndcg[1]


@pytest.mark.slow
def test_with_the_pair_it_puts_more_instances_first_than_either(shared, cross, default_encoder):
    items = read_items(shared / "eval/abstract_sim_dev.jsonl")
    combined = load_reranker("combined", device="cpu")
    ways = {1: EncoderScore(default_encoder), 2: cross.score, 3: combined.score}
    first = {}
    for column, score in ways.items():
        first[column] = 100 * evaluate_file(items, score)["precision@1"]
        stated = shown_in_card("paper's queries, dev half (101), P@1", column)
        assert first[column] == pytest.approx(stated, abs=1.1)
    assert first[3] > max(first[1], first[2])


@pytest.mark.slow
def test_its_probabilities_are_kept(scored, cross):
    judged, logits = scored
    good = np.concatenate([j.good for j in judged])
    p = cross.calibration(np.concatenate(logits))
    assert expected_calibration_error(p, good) <= 0.1
    # It leans both ways, so that the small error is not that of saying one half to all.
    likely, unlikely = p > 0.6, p < 0.4
    assert min(likely.sum(), unlikely.sum()) > 50
    assert good[likely].mean() > good[unlikely].mean() + 0.2


def test_a_description_is_no_instance_of_itself(cross, queries):
    """It scores below what does instantiate it, for nearly all."""
    wins = []
    for query in queries:
        own, *instances = cross.score(
            query["description"], [query["description"], *query["instances"]]
        )
        wins.append(own < np.median(instances))
    assert np.mean(wins) >= 0.75


@pytest.mark.slow
def test_search_with_it_finds_more(queries, corpus_lines, default_encoder, tmp_path):
    rows = [*map(Record, corpus_lines), *(Record(query["description"]) for query in queries)]
    fill(rows, tmp_path, encoder=default_encoder)
    shares = {}
    with DescriptionIndex.open(tmp_path, encoder=default_encoder) as index:
        for name in (None, "combined"):
            found = [
                {hit.text for hit in index.search(query["description"], 5, rerank=name)}
                for query in queries
            ]
            shares[name] = np.mean(
                [len(top & set(q["instances"])) / 5 for top, q in zip(found, queries, strict=True)]
            )
    assert shares["combined"] >= shares[None]


def test_the_command_line(demo_store, capsys):
    command = ["search", str(demo_store), "an animal using a tool", "-k", "5", "--json"]
    assert main([*command, "--rerank", "combined", "--candidates", "20"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert [hit["probability"] for hit in hits] == sorted(
        (hit["probability"] for hit in hits), reverse=True
    )
    least = hits[1]["probability"]
    options = ["--rerank", "combined", "--candidates", "20", "--min-probability", str(least)]
    assert main([*command, *options]) == 0
    assert json.loads(capsys.readouterr().out)["hits"] == hits[:2]
    assert main([*command[:-1], *options]) == 0
    assert "probability" in capsys.readouterr().out
    assert main([*command, "--min-probability", "0.5"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("given", ["name", "loaded"])
def test_a_finder_goes_on_with_its_own_record(demo_store, default_encoder, tmp_path, given):
    """Its judges are called the same before and after they were loaded."""
    rerank = "combined" if given == "name" else load_reranker("combined", device="cpu")
    settings = FinderSettings(depth=20, sample=0, rounds=0)
    with DescriptionIndex.open(demo_store, encoder=default_encoder) as index:
        finder = InstanceFinder(index, rerank=rerank, settings=settings)
        assert finder.judges == ("combined",)
        first = finder.find("an animal using a tool", record=tmp_path / "r")
        assert finder.judges == first.judges == ("combined",)
        again = InstanceFinder(index, rerank="combined", settings=settings)
        for one in (finder, again):
            assert one.find("an animal using a tool", record=tmp_path / "r").rows == first.rows
