import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from descsim_tools.cli import main
from descsim_tools.errors import CorpusError
from descsim_tools.evaluation import (
    EncoderScore,
    EvalItem,
    evaluate_file,
    evaluate_groups,
    group_accuracy,
    read_items,
)
from descsim_tools.evaluation.metrics import mean_and_error, ndcg_at, precision_at
from descsim_tools.evaluation.sts import anisotropy, evaluate_sts, read_sts
from descsim_tools.training.data import Cluster, Group


def table_score(table):
    """A score that reads its numbers from a dict of (description, sentence)."""
    return lambda description, texts: np.array([table[description, text] for text in texts])


def over_all_orders(scores, good, measure):
    """Mean of a measure over every order that sorts by score."""
    values = [
        measure([good[i] for i in order])
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return sum(values) / len(values)


# --- measures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "scores", [[5, 4, 3, 2, 1], [1, 1, 1, 1, 1], [2, 1, 2, 1, 1], [0, 3, 3, 3, 9]]
)
@pytest.mark.parametrize("good", [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 0, 0]])
def test_measures_equal_the_mean_over_all_orders_of_ties(k, scores, good):
    mask = np.array(good, dtype=bool)
    ideal = sum(1 / math.log2(i + 2) for i in range(min(k, sum(good))))
    found = precision_at(k, np.array(scores, float), mask)
    assert found == pytest.approx(over_all_orders(scores, good, lambda row: sum(row[:k]) / k))
    gain = over_all_orders(
        scores, good, lambda row: sum(g / math.log2(i + 2) for i, g in enumerate(row[:k])) / ideal
    )
    assert ndcg_at(k, np.array(scores, float), mask) == pytest.approx(gain)


@pytest.mark.parametrize("k", [0, 4])
def test_a_cutoff_beyond_the_texts_is_refused(k):
    with pytest.raises(ValueError, match=f"k is {k}, need a whole number from 1 to 3"):
        precision_at(k, np.arange(3.0), np.array([True, False, False]))


def test_the_standard_error_is_the_binomial_one():
    mean, error = mean_and_error([1.0] * 30 + [0.0] * 70)
    assert mean == pytest.approx(0.3)
    assert error == pytest.approx(math.sqrt(0.3 * 0.7 / 100))
    with pytest.raises(ValueError, match="no values"):
        mean_and_error([])


# --- the protocol -----------------------------------------------------------------------------

ITEMS = [
    EvalItem("a", "d1", ("g1", "g2"), ("b1", "b2")),
    EvalItem("b", "d2", ("g3",), ("b3",)),
]
SCORES = {
    **{("d1", "g1"): 0.9, ("d1", "b1"): 0.8, ("d1", "g2"): 0.7, ("d1", "b2"): 0.1},
    **{("d2", "g3"): 0.2, ("d2", "b3"): 0.3},
}


def test_precision_counts_the_queries_that_have_k_good_ones():
    found = evaluate_file(ITEMS, table_score(SCORES), cutoffs=(1, 2, 3))
    assert found["queries"] == 2
    assert found["precision@1"] == pytest.approx(0.5)
    assert found["precision@1_queries"] == 2
    assert found["precision@2"] == pytest.approx(0.5)
    assert found["precision@2_queries"] == 1
    assert not any("@3" in key for key in found)


def test_only_the_first_twelve_good_sentences_are_ranked():
    item = EvalItem("a", "d", tuple(f"g{i}" for i in range(20)), ("b",))
    asked = []

    def score(description, texts):
        asked.append(list(texts))
        return np.arange(len(texts))[::-1]

    evaluate_file([item], score)
    assert asked == [[*(f"g{i}" for i in range(12)), "b"]]


def test_a_score_that_tells_nothing_apart_gets_what_chance_gets():
    items = [EvalItem("a", "d", ("g1", "g2", "g3"), ("b1",))]
    found = evaluate_file(items, lambda description, texts: np.zeros(len(texts)))
    assert found["precision@1"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    "score",
    [
        lambda description, texts: np.zeros((len(texts), 1)),
        lambda description, texts: np.zeros(1),
        lambda description, texts: np.full(len(texts), np.nan),
    ],
)
def test_a_broken_score_is_refused(score):
    with pytest.raises(ValueError, match="need one finite number a sentence"):
        evaluate_file(ITEMS, score)


def test_nothing_to_evaluate():
    with pytest.raises(ValueError, match="no items"):
        evaluate_file([], table_score({}))
    with pytest.raises(ValueError, match="nothing to choose"):
        evaluate_groups([Group("g", (Cluster(("s",), ("d",)),))], table_score({}))


def test_files_are_read_whole(tmp_path):
    path = tmp_path / "eval.jsonl"
    rows = [
        {"id": 7, "description": "d", "good": ["g"], "bad": ["b", "c"]},
        {"description": "e", "good": ["g"], "bad": ["b"]},
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)))
    assert read_items(path) == [
        EvalItem("7", "d", ("g",), ("b", "c")),
        EvalItem("line-3", "e", ("g",), ("b",)),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("{", r"line 1: no JSON"),
        ("[]", r"line 1: a list; need an object with description, good and bad"),
        ('{"description": "d"}', r"line 1: fields description; need"),
        ('{"description": " ", "good": ["g"], "bad": ["b"]}', "the description is ' '"),
        ('{"description": "d", "good": "g", "bad": ["b"]}', "'good' is no list"),
        ('{"description": "d", "good": [], "bad": ["b"]}', "'good' is empty"),
        ('{"description": "d", "good": ["g"], "bad": [1]}', "'bad' is no list"),
        ('{"description": "d", "good": ["\\ud800"], "bad": ["b"]}', "'good' is no list"),
        ('{"description": "\\ud800", "good": ["g"], "bad": ["b"]}', "need a non-empty Unicode"),
        ('{"description": "d", "good": ["g", "b"], "bad": ["b"]}', "'b' is both good and bad"),
        (2 * '{"id": 1, "description": "d", "good": ["g"], "bad": ["b"]}\n', "uses the id '1'"),
    ],
)
def test_malformed_files_are_named(text, match, tmp_path):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(CorpusError, match=match):
        evaluate_file(tmp_path / "x.jsonl", table_score({}))
    with pytest.raises(CorpusError, match="no evaluation file"):
        read_items(tmp_path / "nope.jsonl")


def test_group_accuracy_asks_each_description_for_its_nearest_sentence():
    group = Group("g", (Cluster(("s1", "s2"), ("d1", "d2")), Cluster(("s3",), ("d3",))))
    alone = Group("h", (Cluster(("s9",), ("d9",)), Cluster((), ("d8",))))
    table = {(d, s): 0.0 for d in ("d1", "d2", "d3") for s in ("s1", "s2", "s3")}
    table.update({("d1", "s2"): 1.0, ("d2", "s3"): 1.0, ("d3", "s3"): 1.0})
    found = evaluate_groups([group, alone], table_score(table))
    assert found["descriptions"] == 3
    assert found["group_accuracy"] == pytest.approx(2 / 3)
    assert group_accuracy([group], table_score(table)) == pytest.approx(2 / 3)


def test_each_distinct_text_is_encoded_once():
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.tile(np.float32([0.6, 0.8]), (len(texts), 1))

    encoder = SimpleNamespace(encode_descriptions=encode, encode_sentences=encode)
    score = EncoderScore(encoder)
    repeated = [*ITEMS, EvalItem("c", "d1", ("g1",), ("b3",))]
    evaluate_file(repeated, score)
    evaluate_file(repeated, score)
    assert sorted(seen) == sorted({"d1", "d2", "g1", "g2", "g3", "b1", "b2", "b3"})
    np.testing.assert_allclose(score("d1", ["g1", "b1"]), [1, 1], atol=1e-6)


def test_an_encoders_score_is_its_cosine(tiny, corpus_lines):
    score = EncoderScore(tiny)
    found = score(corpus_lines[0], corpus_lines[1:6])
    expected = (
        tiny.encode_sentences(corpus_lines[1:6]) @ tiny.encode_descriptions(corpus_lines[:1])[0]
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


# --- sentence similarity ----------------------------------------------------------------------


@pytest.fixture
def sts_folder(tmp_path):
    folder = tmp_path / "sts"
    folder.mkdir()
    (folder / "sts12-one.tsv").write_text('5.0\tone "a\tone\n\tnever scored\ttwo\n1.0\tone\tfour\n')
    (folder / "sts12-two.tsv").write_text("3.0\tone\ttwo\n")
    (folder / "sick-r.test.txt").write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tone\ttwo\t4.5\r\n2\tone\tfour\t1\n"
    )
    (folder / "sick-r.train.txt").write_text("not read")
    return folder


def along_a_quarter_circle(texts):
    angles = {'one "a': 0.1, "one": 0.0, "two": 0.5, "four": 1.2}
    return np.float32([[math.cos(angles[t]), math.sin(angles[t])] for t in texts])


def test_sets_of_a_year_are_concatenated(sts_folder):
    sets = read_sts(sts_folder)
    assert sets["sts12"] == [(5.0, 'one "a', "one"), (1.0, "one", "four"), (3.0, "one", "two")]
    assert sets["sick-r"] == [(4.5, "one", "two"), (1.0, "one", "four")]
    found = evaluate_sts(sts_folder, along_a_quarter_circle)
    assert found["spearman_sts12"] == pytest.approx(1)
    assert found["spearman"] == pytest.approx(1)
    assert found["pairs"] == 5


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("other.tsv", "1\ta\tb", "holds no similarity sets"),
        ("sts13-x.tsv", "1\ta", r"sts13-x.tsv, line 1: 2 fields, need 3"),
        ("sts13-x.tsv", "high\ta\tb", r"line 1: the score is 'high', no number"),
        ("sts13-x.tsv", "nan\ta\tb", r"line 1: the score is 'nan', no number"),
        ("sts13-x.tsv", "1\ta\t ", r"line 1: a sentence is empty"),
        ("sts13-x.tsv", b"1\ta\t\xff", r"sts13-x.tsv is no UTF-8 text"),
        ("sick-r.test.txt", "a\tb\n", "no column relatedness_score"),
        ("sick-r.test.txt", "sentence_A\tsentence_B\trelatedness_score\na\n", "line 2: 1 fields"),
    ],
)
def test_malformed_sets_are_named(name, text, match, tmp_path):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CorpusError, match=match):
        read_sts(tmp_path)


def test_a_set_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "sts13-x.tsv").write_bytes(b"\xef\xbb\xbf5.0\ta\tb\n")
    assert read_sts(tmp_path) == {"sts13": [(5.0, "a", "b")]}


def test_scores_that_are_all_the_same_are_refused(tmp_path):
    (tmp_path / "sts13-x.tsv").write_text("5\tone\ttwo\n5\tone\tfour\n")
    with pytest.raises(CorpusError, match="sts13: all 2 human scores are the same"):
        evaluate_sts(tmp_path, along_a_quarter_circle)
    (tmp_path / "sts13-x.tsv").write_text("5\tone\tone\n4\ttwo\ttwo\n")
    with pytest.raises(CorpusError, match="sts13: all 2 cosines are the same"):
        evaluate_sts(tmp_path, lambda texts: np.float32([[1, 0] for _ in texts]))


def test_anisotropy_is_the_mean_cosine_of_different_rows():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(300, 16)).astype(np.float32) + 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    exact = (cosines.sum() - len(vectors)) / (len(vectors) * (len(vectors) - 1))
    assert anisotropy(vectors) == pytest.approx(exact, abs=0.02)
    assert anisotropy(vectors) == anisotropy(vectors)
    assert anisotropy(vectors, seed=1) != anisotropy(vectors)
    with pytest.raises(ValueError, match="got 1 vectors, need at least 2"):
        anisotropy(vectors[:1])


# --- the command ------------------------------------------------------------------------------


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def eval_file(tmp_path, corpus_lines):
    rows = [
        {"id": str(i), "description": line, "good": [line, corpus_lines[i + 1]], "bad": ["x y"]}
        for i, line in enumerate(corpus_lines[:5])
    ]
    path = tmp_path / "eval.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_eval_prints_a_table_or_json(capsys, eval_file, tiny_folder, tiny, tmp_path):
    code, out, _ = run(capsys, "eval", eval_file, "--encoder", tiny_folder, "--json")
    assert code == 0
    found = json.loads(out)
    expected = evaluate_file(eval_file, EncoderScore(tiny))
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert found["encoder"] == "tiny-encoder"
    code, out, _ = run(capsys, "eval", eval_file, "--encoder", tiny_folder)
    assert code == 0
    assert "precision@1" in out
    assert "100.0" in out
    one = tmp_path / "one.jsonl"
    one.write_text(eval_file.read_text().splitlines()[0])
    code, out, _ = run(capsys, "eval", one, "--encoder", tiny_folder)
    row = next(line for line in out.splitlines() if "precision@1" in line)
    assert row.split()[1:] == ["100.0", "1"]  # and no standard error


def test_eval_reads_groups_and_sts(capsys, sts_folder, tiny_folder, tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_text(
        json.dumps(
            {
                "id": "g",
                "clusters": [
                    {"sentences": ["a dog barked"], "descriptions": ["a dog barked"]},
                    {"sentences": ["the sun rose"], "descriptions": ["the sun rose"]},
                ],
            }
        )
    )
    _, out, _ = run(capsys, "eval", path, "--encoder", tiny_folder, "--json")
    assert json.loads(out)["group_accuracy"] == 1
    _, out, _ = run(capsys, "eval", sts_folder, "--encoder", tiny_folder, "--json")
    assert set(json.loads(out)) >= {"spearman_sts12", "spearman_sick-r", "spearman", "anisotropy"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("nope.jsonl", "there is no file or folder"), ("bad.jsonl", "line 1: no JSON")],
)
def test_eval_fails_before_a_model_is_loaded(name, message, capsys, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{broken")
    code, out, err = run(capsys, "eval", tmp_path / name, "--encoder", "nonsense")
    assert (code, out) == (1, "")
    assert message in err


# --- the real model ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_base_model_has_its_known_figures(shared):
    from descsim_tools import DescriptionEncoder

    score = EncoderScore(DescriptionEncoder.load("all-minilm-l6-v2", device="cpu"))
    abstract = evaluate_file(shared / "eval/abstract_sim_dev.jsonl", score)
    shares = [100 * abstract[f"precision@{k}"] for k in (1, 5, 10)]
    assert shares == pytest.approx([58.4, 61.2, 61.8], abs=0.06)
    contrast = evaluate_file(shared / "eval/contrast_dev.jsonl", score)
    shares = [100 * contrast[f"precision@{k}"] for k in (1, 5)]
    assert shares == pytest.approx([60.0, 56.0], abs=0.06)
