"""Probabilities: fitting them, measuring them, and the weight of a combination."""

import numpy as np
import pytest

from descsim_tools.calibration import Calibration
from descsim_tools.evaluation.calibrate import (
    Judged,
    expected_calibration_error,
    fit_calibration,
    judged_groups,
    judged_items,
    scores_of,
    tune_weight,
)
from descsim_tools.evaluation.metrics import ndcg_at, precision_at
from descsim_tools.evaluation.protocol import EvalItem
from descsim_tools.training.data import Cluster, Group


def judged(good):
    good = np.array(good, dtype=bool)
    return Judged("d", tuple(f"s{i}" for i in range(len(good))), good)


def test_probabilities_stay_within_bounds_and_rise():
    calibration = Calibration(2.0, -1.0)
    p = calibration([-1e6, -1.0, 0.5, 3.0, 1e6])
    np.testing.assert_allclose(p, [0, 1 / (1 + np.exp(3)), 0.5, 1 / (1 + np.exp(-5)), 1])
    assert calibration(np.zeros((2, 3))).shape == (2, 3)


def test_it_is_written_and_read(tmp_path):
    calibration = Calibration(2.0, -1.0, "dev.jsonl")
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == calibration


def test_the_fit_finds_the_numbers_that_made_the_data():
    random = np.random.default_rng(0)
    truth = Calibration(1.7, 0.0)
    lists, scores = [], []
    for _ in range(400):
        row = random.normal(size=40) * 2
        lists.append(judged(random.random(40) < truth(row)))
        scores.append(row)
    fitted = fit_calibration(lists, scores, "made up")
    assert fitted.slope == pytest.approx(1.7, rel=0.1)
    assert fitted.intercept == pytest.approx(0, abs=0.1)
    assert fitted.fitted_on == "made up"
    good = np.concatenate([j.good for j in lists])
    assert expected_calibration_error(fitted(np.concatenate(scores)), good) < 0.03
    assert expected_calibration_error(Calibration(0.1, 2.0)(np.concatenate(scores)), good) > 0.2


def test_scores_the_wrong_way_round_are_refused():
    lists = [judged([1, 1, 0, 0])] * 3
    with pytest.raises(ValueError, match="better scores are worse here"):
        fit_calibration(lists, [np.array([0.0, 1.0, 2.0, 3.0])] * 3)


def test_the_calibration_error_by_hand():
    p = [0.05, 0.05, 0.95, 0.95, 1.0]
    good = [0, 1, 1, 1, 0]
    # Bin 0: 2 rows, |1/2 - 0.05|; bin 9: 3 rows, |2/3 - 2.9/3|.
    expected = (2 * 0.45 + 3 * 0.3) / 5
    assert expected_calibration_error(p, good) == pytest.approx(expected)
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0
    assert expected_calibration_error(p, good, bins=1) == pytest.approx(abs(3 / 5 - 3 / 5))


@pytest.mark.parametrize(
    ("p", "good", "match"),
    [([0.5], [1, 0], "shapes"), ([], [], "shapes"), ([1.5], [1], "outside 0 to 1")],
)
def test_what_cannot_be_measured(p, good, match):
    with pytest.raises(ValueError, match=match):
        expected_calibration_error(p, good)


def test_the_weight_that_ranks_best():
    lists = [judged([1, 0, 0]), judged([0, 1, 0])]
    logits = [np.array([0.0, 2.0, -1.0]), np.array([1.0, 0.5, 0.0])]
    cosines = [np.array([0.9, 0.1, 0.0]), np.array([0.2, 0.4, 0.1])]
    weight, gain = tune_weight(lists, logits, cosines)
    assert gain == 1
    # 0.9 w > 2 + 0.1 w and 0.5 + 0.4 w > 1 + 0.2 w
    assert weight > 2.5
    alone, gain = tune_weight(
        lists, [np.array([3.0, 0, 0]), np.array([0, 3.0, 0])], [-c for c in cosines]
    )
    assert (alone >= 0, gain) == (True, 1)
    # Where the cosine says nothing: first of two lists wrong, its instance second.
    wrong = [np.array([0.0, 3, 0]), np.array([0, 3.0, 0])]
    _, gain = tune_weight(lists, wrong, [np.zeros(3)] * 2)
    ndcg = np.mean([ndcg_at(10, a, j.good) for a, j in zip(wrong, lists, strict=True)])
    first = np.mean([precision_at(1, a, j.good) for a, j in zip(wrong, lists, strict=True)])
    assert gain == pytest.approx((ndcg + first) / 2)
    assert 0 < first < ndcg < 1


def test_queries_and_groups_are_judged():
    item = EvalItem("1", "d", tuple(f"g{i}" for i in range(14)), ("b0", "b1"))
    (row,) = judged_items([item])
    assert row.sentences == (*(f"g{i}" for i in range(12)), "b0", "b1")
    assert row.good.tolist() == [True] * 12 + [False] * 2
    group = Group(
        "g", (Cluster(("a", "b"), ("A",)), Cluster(("c",), ("C", "D")), Cluster((), ("E",)))
    )
    rows = judged_groups([group])
    assert [(r.description, r.good.tolist()) for r in rows] == [
        ("A", [True, True, False]),
        ("C", [False, False, True]),
        ("D", [False, False, True]),
    ]
    lengths = scores_of(rows, lambda d, texts: np.array([len(t) for t in texts]))
    assert [row.tolist() for row in lengths] == [[1, 1, 1]] * 3
