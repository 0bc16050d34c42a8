import json
import math

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from descsim_tools.cli import main
from descsim_tools.datagen.formats import Triplet, TripletSource
from descsim_tools.datagen.quality import MEASURES, measure, plot, token_nats
from descsim_tools.errors import DataError
from tests.tiny import train_bytelevel

REFERENCE = "Vervet monkeys on Saint Kitts steal cocktails from tourists on the beach."


def source(*triplets, reference="sentence", name="some"):
    return TripletSource(name, [Triplet(*triplet) for triplet in triplets], reference)


@pytest.fixture(scope="module")
def lm_folder(corpus_lines, tmp_path_factory):
    """A causal model of random weights, without a pad token, as GPT-2 has none."""
    folder = tmp_path_factory.mktemp("lm") / "gpt2"
    tokenizer = train_bytelevel(corpus_lines, max_length=512)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=512,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_repetition_and_length_by_hand(tiny):
    quality = measure(
        source(
            (REFERENCE, REFERENCE, "x y"),  # copies all: 1, same length: 0
            ("one two three four", "one two one five", "x"),  # 2 of 4, same length
            ("one two three four", "six", "x"),  # none, 1 of 4
        ),
        tiny,
    )
    repetition = quality.per_triplet["positive_text_repetition"]
    length = quality.per_triplet["length_difference_penalty"]
    assert repetition.tolist() == [1, 0.5, 0]
    assert length.tolist() == [0, 0, 0.75]
    assert quality.means["positive_text_repetition"] == pytest.approx(0.5)
    assert quality.means["length_difference_penalty"] == pytest.approx(0.25)


def test_scores_are_the_encoders(tiny):
    triplets = [("one two", "three four", "five six"), ("one two", "two one", "seven")]
    for reference in ("sentence", "description"):
        quality = measure(source(*triplets, reference=reference), tiny)
        first, second = tiny.encode_sentences, tiny.encode_descriptions
        if reference == "description":
            first, second = second, first
        left = first([t[0] for t in triplets])
        positive = (left * second([t[1] for t in triplets])).sum(axis=1)
        negative = (left * second([t[2] for t in triplets])).sum(axis=1)
        scores = quality.per_triplet["positive_score_compactness"]
        assert scores == pytest.approx(positive, abs=1e-5)
        assert quality.means["positive_score_compactness"] == pytest.approx(
            1 - positive.std(), abs=1e-5
        )
        assert quality.means["negative_text_implausibility"] == pytest.approx(
            1 - negative.mean(), abs=1e-5
        )


def test_the_measures_tell_good_from_poor_triplets(default_encoder):
    """Poor as machines write them: positives that copy, negatives from another world."""
    good = source(
        (REFERENCE, "animals that get drunk", "animals that are given water by visitors"),
        ("The vaccine was recalled after 12 patients fell ill.", "a drug withdrawn for safety",
         "a drug approved for patients"),
        ("Ada Lorn swam from Dover to Calais at the age of 61.", "an old athlete's feat",
         "a swimmer who had to give up"),
    )  # fmt: skip
    poor = source(
        *(
            (triplet.reference, f"It says: {triplet.reference}", "the boiling point of lead")
            for triplet in good.triplets
        )
    )
    better, worse = measure(good, default_encoder), measure(poor, default_encoder)
    assert better.means["positive_text_repetition"] < 0.3 < worse.means["positive_text_repetition"]
    assert better.means["positive_score_compactness"] < worse.means["positive_score_compactness"]
    assert (
        better.means["negative_text_implausibility"]
        < worse.means["negative_text_implausibility"] - 0.2
    )


def test_a_sample_is_measured(tiny):
    triplets = [(f"sentence {i}", f"text {i}", f"other {i}") for i in range(30)]
    quality = measure(source(*triplets), tiny, sample=10)
    assert (quality.triplets, quality.sampled) == (30, 10)
    assert len(quality.per_triplet["positive_text_repetition"]) == 10
    again = measure(source(*triplets), tiny, sample=10)
    assert again.to_dict() == quality.to_dict()
    with pytest.raises(ValueError, match="sample is 0"):
        measure(source(*triplets), tiny, sample=0)
    with pytest.raises(DataError, match="some holds no triplets"):
        measure(source(), tiny)


def test_token_nats_do_not_depend_on_the_batch(lm_folder, corpus_lines):
    texts = [*corpus_lines[:20], "a"]
    together = token_nats(texts, lm_folder)
    alone = np.concatenate([token_nats([text], lm_folder) for text in texts[:5]])
    assert together[:5] == pytest.approx(alone, abs=1e-4)
    # Random weights know nothing: about as many nats as a choice among all tokens.
    assert np.nanmean(together) == pytest.approx(math.log(1500), rel=0.1)


def test_a_text_that_cannot_be_scored_is_left_out(tiny, lm_folder):
    both = source(("r", "a", "b"), ("r", "two three", "four five"))
    quality = measure(both, tiny, lm=lm_folder)
    assert len(quality.per_triplet["negative_text_implausibility_lm"]) == 1
    assert math.isfinite(quality.means["negative_text_implausibility_lm"])
    with pytest.raises(DataError, match="no text of two tokens"):
        measure(source(("r", "a", "b")), tiny, lm=lm_folder)


def test_a_language_model_that_is_none(tiny, tmp_path):
    with pytest.raises(DataError, match="cannot load a causal language model"):
        measure(source(("one", "two", "three")), tiny, lm=tmp_path / "none")


def test_the_plot_is_drawn(tiny, lm_folder, tmp_path):
    first = measure(source(("a b", "c d", "e f"), ("a", "b", "c"), name="x"), tiny, lm=lm_folder)
    second = measure(source(("a b", "c d", "e f"), name="y"), tiny)
    for suffix, magic in [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]:
        plot([first, second], tmp_path / f"q.{suffix}")
        assert (tmp_path / f"q.{suffix}").read_bytes().startswith(magic)
    svg = (tmp_path / "q.svg").stat().st_size
    assert svg > 5000


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_compares_sources(tmp_path, capsys, tiny_folder):
    (tmp_path / "made.jsonl").write_text(
        json.dumps({"sentence": REFERENCE, "good": ["drunk animals"], "bad": ["sober animals"]})
    )
    (tmp_path / "human.txt").write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        "1\tA dog runs\tA dog is running\t5\tENTAILMENT\n"
        "2\tA dog runs\tNo dog is running\t3\tCONTRADICTION\n"
    )
    files = [tmp_path / "made.jsonl", tmp_path / "human.txt"]
    arguments = ["data", "quality", *files, "--encoder", tiny_folder]
    code, out, _ = run(capsys, *arguments, "--plot", tmp_path / "q.png")
    assert code == 0
    for title in list(MEASURES.values())[:4]:
        assert title in out
    assert (tmp_path / "q.png").stat().st_size > 10_000
    code, out, _ = run(capsys, *arguments, "--json")
    figures = json.loads(out)
    assert [row["source"] for row in figures] == ["made", "human"]
    assert figures[1]["means"]["positive_text_repetition"] == pytest.approx(0.5)


def test_misuse_of_the_command(tmp_path, capsys):
    assert run(capsys, "data", "quality")[0] == 2
    code, _, err = run(capsys, "data", "quality", tmp_path / "none.jsonl")
    assert code == 1
    assert "No such file" in err


@pytest.mark.parametrize("name", ["check", "quality"])
def test_the_commands_have_examples(capsys, name):
    code, out, _ = run(capsys, "data", name, "--help")
    assert code == 0
    assert f"Example:\n    descsim data {name}" in out


def test_sick_is_read_as_the_human_source(shared):
    from descsim_tools.datagen.formats import read_triplets

    assert len(read_triplets(shared / "eval/sts/sick-r.train.txt").triplets) == 148
