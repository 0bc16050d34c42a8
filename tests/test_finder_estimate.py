"""The estimate of what is missed: does its interval hold the truth?"""

from dataclasses import replace

import numpy as np
import pytest

from descsim_tools.agents.estimate import Evidence, Survey, estimate, reestimate
from tests.finder_world import FORGERY, QUICK, finder_of, make_index, noise


def logistic(x):
    return 1 / (1 + np.exp(-x))


def draw_query(rng, *, shift):
    """Rows of one query: the probabilities that are told, and which rows are instances."""
    logits = np.concatenate([rng.normal(-1.5, 1, 60), rng.normal(-4, 1, 140)])
    truth = rng.random(200) < logistic(logits + rng.normal(0, shift))
    return logistic(logits), truth


def test_it_covers_the_truth_where_probabilities_are_off():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        told, truth = draw_query(rng, shift=0.8)
        missed = estimate([Evidence("rejected", 0, 0.5, 200, tuple(told))])
        inside += missed.low <= truth.sum() <= missed.high
    assert inside >= 180


def test_it_covers_the_truth_with_a_judged_sample():
    """Instances where the cross-encoder sees none: the sample tells."""
    rng = np.random.default_rng(2)
    inside, width = 0, []
    for _ in range(200):
        size, share = 300, rng.choice([0.0, 0.01, 0.05, 0.3])
        truth = rng.random(size) < share
        sample = rng.permutation(size)[:30]
        found = int(truth[sample].sum())
        told = tuple(np.full(size, 0.01))
        missed = estimate([Evidence("rejected", 0, 0.5, size - 30, told, 30, found)], judge="m")
        inside += missed.low <= truth.sum() - found <= missed.high
        width.append(missed.high - missed.low)
    assert inside >= 180
    assert np.mean(width) < 100


def test_more_evidence_narrows_the_interval():
    wide = estimate([Evidence("x", 0, 1, 1000, (), 10, 2)])
    narrow = estimate([Evidence("x", 0, 1, 1000, (), 200, 40)])
    assert narrow.estimate == pytest.approx(200, rel=0.05)
    assert wide.estimate == pytest.approx(200, rel=0.25)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2
    assert narrow.low < 200 < narrow.high


def test_it_is_the_same_each_time():
    bands = [Evidence("x", 0, 1, 100, (0.1,) * 20), Evidence("y", 0, 1, 50, (), 10, 1)]
    assert estimate(bands) == estimate(bands)


@pytest.mark.parametrize("count", [1, 299, 301, 5000])
def test_any_number_of_probabilities(count):
    missed = estimate([Evidence("x", 0, 1, count, (0.1,) * count)])
    assert missed.estimate == pytest.approx(0.1 * count)
    assert missed.low <= missed.estimate <= missed.high + 1


def test_what_any_row_gets_is_deducted():
    bands = [Evidence("x", 0, 1, 10_000, (0.01,) * 50)]
    assert estimate(bands).estimate == pytest.approx(100)
    assert estimate(bands, background=0.01).estimate == 0


def test_nothing_is_missed_where_nothing_is_left():
    assert (estimate([]).estimate, estimate([]).high) == (0, 0)


def test_a_survey_counts_and_draws_evenly():
    rng = np.random.default_rng(0)
    similarity = np.clip(rng.normal(0.1, 0.1, 20_000), -1, 1)
    ids = [str(n) for n in range(20_000)]
    read = similarity > 0.3
    survey = Survey(50)
    for start in range(0, 20_000, 1000):
        part = slice(start, start + 1000)
        survey.add(ids[part], similarity[part], read[part])
    strata = survey.strata()
    assert survey.rows == 20_000
    assert sum(stratum.size for stratum in strata) == (~read).sum() == survey.unread
    assert [stratum.low for stratum in strata] == sorted((s.low for s in strata), reverse=True)
    for stratum in strata:
        inside = (similarity >= stratum.low) & (similarity < stratum.high) & ~read
        assert inside.sum() == stratum.size
        assert len(set(stratum.ids)) == len(stratum.ids) <= 50
        drawn = similarity[[int(id_) for id_ in stratum.ids]]
        assert inside[[int(id_) for id_ in stratum.ids]].all()
        spread = similarity[inside].std() / np.sqrt(len(drawn))
        assert abs(drawn.mean() - similarity[inside].mean()) < 4 * spread
    assert len(strata[-1].ids) == 50
    assert sum(len(rows) for rows in survey._drawn.values()) < 50 * 4 * 30


def test_the_order_of_pages_does_not_matter():
    similarity, ids = np.linspace(-0.2, 0.2, 999), [f"id{n}" for n in range(999)]
    one, other = Survey(10), Survey(10)
    one.add(ids, similarity, [False] * 999)
    other.add(ids[::-1], similarity[::-1], [False] * 999)
    assert one.strata() == other.strata()


def test_another_cut_is_estimated_from_the_same_search(tmp_path):
    texts = [f"{FORGERY} in town {n} p=0.{30 + 2 * n}" for n in range(30)]
    with make_index([*texts, *noise(80)], tmp_path / "s") as index:
        settings = replace(QUICK, depth=40, accept=0.5)
        statement = finder_of(index, settings=settings).find(FORGERY)
        strict = finder_of(index, settings=replace(settings, accept=0.8)).find(FORGERY)
    same = reestimate(statement, 0.5)
    assert same.estimate == pytest.approx(statement.missed.estimate, rel=0.01)
    assert reestimate(statement, 0.8).estimate == pytest.approx(strict.missed.estimate, rel=0.02)
    assert reestimate(statement, 0.8).estimate > same.estimate > reestimate(statement, 0.4).estimate
    with pytest.raises(ValueError, match="no estimate"):
        reestimate(replace(statement, missed=None), 0.5)
