"""The pair that comes with the package."""

import json

import numpy as np
import pytest

from descsim_tools import DescriptionEncoder, DescriptionIndex, Record, fill
from descsim_tools.encoders import DEFAULT_PRESET
from descsim_tools.encoders.weights import find_shipped
from descsim_tools.evaluation.protocol import EncoderScore, evaluate_file, evaluate_groups
from descsim_tools.training.data import read_groups
from tests.conftest import ROOT

CARD = find_shipped("descsim-minilm/delta.safetensors").parent / "README.md"
FOLDER = ROOT / "examples/training"


@pytest.fixture(scope="module")
def base():
    return DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")


@pytest.fixture(scope="module")
def queries():
    return json.loads((ROOT / "tests/data/demo_queries.json").read_text(encoding="utf-8"))


def test_it_is_the_default_and_small(default_encoder):
    assert DEFAULT_PRESET == "descsim-minilm"
    assert default_encoder.spec.name == "descsim-minilm"
    assert default_encoder.is_pair
    assert (default_encoder.dim, default_encoder.max_tokens) == (384, 256)
    assert find_shipped("descsim-minilm/delta.safetensors").stat().st_size <= 25_000_000


def test_it_needs_no_network(no_network):
    DescriptionEncoder.load(device="cpu").encode_descriptions(["a treaty being signed"])


def test_merged_it_is_the_base_twice(default_encoder, base):
    """No module or parameter more than the base has, so that it is as fast."""
    routes = default_encoder.model[0].sub_modules
    parameters = sum(p.numel() for p in base.model.parameters())
    for route in routes.values():
        assert sum(p.numel() for p in route.parameters()) == parameters
        assert [type(module) for module in route] == [type(module) for module in base.model]


def test_the_sides_differ_from_the_base_and_from_each_other(default_encoder, base):
    text = ["A bat passed the virus to a civet."]
    plain = base.encode_sentences(text)
    sentence, description = (
        default_encoder.encode_sentences(text),
        default_encoder.encode_descriptions(text),
    )
    for left, right in ((plain, sentence), (plain, description), (sentence, description)):
        assert not np.allclose(left, right, atol=0.01)


def test_saved_it_is_an_ordinary_model(default_encoder, tmp_path):
    from sentence_transformers import SentenceTransformer

    default_encoder.save(tmp_path / "pair")
    ordinary = SentenceTransformer(str(tmp_path / "pair"), device="cpu")
    text = ["a disease passing from one species to another"]
    np.testing.assert_allclose(
        ordinary.encode_query(text), default_encoder.encode_descriptions(text), atol=1e-5
    )


def shown_in_card(name: str) -> float:
    """Read a figure that the model card states, in percent."""
    for line in CARD.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name:
            return float(cells[2].split()[0])
    raise AssertionError(f"the model card has no row {name!r}")


def test_the_model_card_states_what_is_measured(default_encoder):
    score = EncoderScore(default_encoder)
    found = evaluate_file(FOLDER / "contrast-dev.jsonl", score)
    assert 100 * found["precision@1"] == pytest.approx(shown_in_card("contrast_dev P@1"), abs=1.7)
    assert 100 * found["precision@5"] == pytest.approx(shown_in_card("contrast_dev P@5"), abs=0.7)
    groups = read_groups(FOLDER / "open-groups-dev.jsonl.gz")
    accuracy = 100 * evaluate_groups(groups, score)["group_accuracy"]
    assert accuracy == pytest.approx(shown_in_card("open group dev"), abs=0.3)


@pytest.fixture(scope="module")
def hits(default_encoder, base, queries, corpus_lines, tmp_path_factory):
    """Top five for the demo's twelve descriptions in a store that holds the descriptions too."""
    folder = tmp_path_factory.mktemp("shipped")
    rows = [*map(Record, corpus_lines), *(Record(query["description"]) for query in queries)]
    found = {}
    for encoder in (default_encoder, base):
        fill(rows, folder / encoder.spec.name, encoder=encoder)
        with DescriptionIndex.open(folder / encoder.spec.name, encoder=encoder) as index:
            found[encoder.spec.name] = [
                [hit.text for hit in index.search(query["description"], 5)] for query in queries
            ]
    return found


def precision_of_five(hits, queries) -> float:
    shares = [
        len(set(top) & set(query["instances"])) / 5
        for top, query in zip(hits, queries, strict=True)
    ]
    return float(np.mean(shares))


def test_instances_come_before_texts_that_sound_like_the_description(hits, queries):
    ours = precision_of_five(hits["descsim-minilm"], queries)
    plain = precision_of_five(hits["all-minilm-l6-v2"], queries)
    assert ours >= 0.45
    assert ours >= plain + 0.25


def test_a_description_is_no_instance_of_itself(hits, queries):
    """Plain similarity puts the description itself first, each time."""
    for top, query in zip(hits["all-minilm-l6-v2"], queries, strict=True):
        assert top[0] == query["description"]
    first = [
        top[0] != query["description"]
        for top, query in zip(hits["descsim-minilm"], queries, strict=True)
    ]
    assert np.mean(first) >= 0.75
