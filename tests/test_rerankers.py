"""The base class, with a reranker whose scores are known."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from descsim_tools import Hit
from descsim_tools.errors import RerankerError
from descsim_tools.rerankers import RERANKERS, LogProbReranker, Reranker, load_reranker


class ByLength(Reranker):
    """Longer sentences first, and by the description's length for telling lists apart."""

    def _score(self, description, sentences):
        return np.array([len(text) + 1000.0 * len(description) for text in sentences])


class Broken(Reranker):
    def __init__(self, scores):
        self.scores = scores

    def _score(self, description, sentences):
        return self.scores


def hit(id_, text, score=0.5, **more):
    return Hit(id_, score, 1, text, retrieval_score=score, **more)


HITS = [
    hit("b", "four", 0.9, metadata={"n": 1}),
    hit("a", "four", 0.1),
    hit("c", "the longest", -0.2, probability=0.3),
    hit("d", "x", 0.4),
]


def test_hits_are_ordered_and_keep_what_they_had():
    ranked = ByLength().rerank("dd", HITS)
    assert [h.id for h in ranked] == ["c", "a", "b", "d"]
    assert [h.rank for h in ranked] == [1, 2, 3, 4]
    assert [h.score for h in ranked] == [2011, 2004, 2004, 2001]
    assert [h.rerank_score for h in ranked] == [h.score for h in ranked]
    assert [h.retrieval_score for h in ranked] == [-0.2, 0.1, 0.9, 0.4]
    assert ranked[2].metadata == {"n": 1}
    assert ranked[0].probability is None
    assert not any(h.truncated for h in ranked)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_the_order_of_the_input_does_not_matter(order):
    assert ByLength().rerank("d", [HITS[i] for i in order]) == ByLength().rerank("d", HITS)


def test_the_input_is_not_changed():
    before = list(HITS)
    given = list(HITS)
    ranked = ByLength().rerank("d", given)
    assert given == before
    assert given[2].rerank_score is None
    assert ranked is not given
    with pytest.raises(FrozenInstanceError):
        ranked[0].score = 1


def test_the_first_score_is_kept_over_two_rerankers():
    first = ByLength().rerank("d", [Hit("a", 0.7, 1, "text")])
    assert first[0].retrieval_score == 0.7
    assert ByLength().rerank("dd", first)[0].retrieval_score == 0.7
    given = [Hit("a", 3.0, 1, "text", rerank_score=3.0)]
    assert ByLength().rerank("d", given)[0].retrieval_score is None


@pytest.mark.parametrize(("top_k", "count"), [(None, 4), (1, 1), (3, 3), (4, 4), (99, 4)])
def test_top_k(top_k, count):
    assert len(ByLength().rerank("d", iter(HITS), top_k)) == count


@pytest.mark.parametrize("top_k", [0, -1, 2.0, "2"])
def test_a_wrong_top_k(top_k):
    with pytest.raises(ValueError, match="need a whole number from 1 up, or None"):
        ByLength().rerank("d", HITS, top_k)


def test_nothing_gives_nothing():
    class Untouchable(Reranker):
        def _score(self, description, sentences):
            raise AssertionError("called without sentences")

    empty = Untouchable()
    assert empty.rerank("d", []) == []
    assert empty.rerank_many([]) == []
    assert empty.rerank_many([("d", []), ("e", [])]) == [[], []]
    scores = empty.score("d", [])
    assert scores.shape == (0,)
    assert scores.dtype == np.float64


def test_many_lists_in_one_call():
    pairs = [("d", HITS), ("e", []), ("dd", HITS[:2])]
    ranked = ByLength().rerank_many(pairs, top_k=2)
    assert ranked == [ByLength().rerank(description, hits, 2) for description, hits in pairs]
    scores = ByLength().score_many([("d", ["a", "bb"]), ("ee", iter(["ccc"]))])
    assert [row.tolist() for row in scores] == [[1001, 1002], [2003]]


@pytest.mark.parametrize(
    ("description", "sentences", "error", "match"),
    [
        ("d", "one sentence", TypeError, "got one str as sentences, need a list"),
        ("d", ["a", None], TypeError, "sentence 1 of list 0 is None"),
        ("d", ["a", " \n"], ValueError, "sentence 1 of list 0 is empty or blank"),
        (" ", ["a"], ValueError, "the description of list 0 is empty or blank"),
        (None, ["a"], TypeError, "the description of list 0 is None"),
    ],
)
def test_bad_texts_are_named(description, sentences, error, match):
    with pytest.raises(error, match=match):
        ByLength().score(description, sentences)


def test_plain_sentences_are_no_hits():
    with pytest.raises(TypeError, match=r"item 0 is 'text' \(str\), need a Hit; `score` takes"):
        ByLength().rerank("d", ["text"])


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        (np.zeros(3), r"shape \(3,\) for 2 sentences"),
        (np.zeros((2, 1)), r"shape \(2, 1\) for 2"),
        ([0.0, float("nan")], "gave nan for sentence 1"),
        ([float("-inf"), 0.0], "gave -inf for sentence 0"),
    ],
)
def test_wrong_scores_of_a_subclass_are_refused(scores, match):
    with pytest.raises(RerankerError, match=match):
        Broken(scores).score("d", ["a", "b"])


def test_the_base_needs_score():
    with pytest.raises(TypeError, match="_score"):
        Reranker()


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nonsense", "log-prob:", "", ":x"])
def test_unknown_names_list_what_there_is(name):
    with pytest.raises(
        RerankerError, match=r"no reranker '.*'; there are: cross-encoder, combined, log-prob"
    ):
        load_reranker(name)


def test_a_reranker_by_name(tiny_lm_folder):
    assert "log-prob" in RERANKERS
    loaded = load_reranker(f"log-prob:{tiny_lm_folder}", device="cpu")
    assert isinstance(loaded, LogProbReranker)
    assert loaded.scorer.name == tiny_lm_folder.name
