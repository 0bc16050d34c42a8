import json

import numpy as np
import pytest

from descsim_tools import DescriptionIndex, fill
from descsim_tools.encoders import DEFAULT_PRESET
from descsim_tools.errors import RerankerError, StoreError
from descsim_tools.rerankers import LogProbReranker, Reranker
from descsim_tools.store import Manifest, Store
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def demo_index(default_encoder, tmp_path_factory):
    """The real default encoder over the demo corpus."""
    folder = tmp_path_factory.mktemp("search") / "store"
    fill(ROOT / "examples/corpus.txt", folder, encoder=default_encoder)
    with DescriptionIndex.open(folder, encoder=default_encoder) as index:
        yield index


def test_a_store_opens_with_the_encoder_it_names(demo_index):
    with DescriptionIndex.open(demo_index.store.location) as again:
        assert again.encoder.spec.name == DEFAULT_PRESET
        assert again.search("a building", 3) == demo_index.search("a building", 3)


@pytest.mark.parametrize(
    ("description", "word"),
    [
        ("monkeys that steal drinks from tourists", "monkeys"),
        ("the house that an architect built over a waterfall", "Fallingwater"),
    ],
)
def test_real_hits(demo_index, description, word):
    assert any(word in hit.text for hit in demo_index.search(description, 5))


@pytest.fixture(scope="module")
def corpus_vectors(default_encoder, corpus_lines):
    return default_encoder.encode_sentences(corpus_lines)


@pytest.mark.parametrize("k", [1, 10, 912, 5000])
def test_exact_equals_numpy(demo_index, corpus_lines, corpus_vectors, k):
    query = demo_index.encoder.encode_descriptions(["a work of art being stolen"])[0]
    scores = corpus_vectors @ query
    order = np.argsort(-scores, kind="stable")[:k]
    hits = demo_index.search("a work of art being stolen", k, exact=True)
    assert [hit.text for hit in hits] == [corpus_lines[i] for i in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-5)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", None])
def test_k_must_be_a_whole_number(demo_index, k):
    with pytest.raises(ValueError, match="need a whole number from 1 up"):
        demo_index.search("x", k)


def test_a_blank_description(demo_index):
    with pytest.raises(ValueError, match="empty or blank"):
        demo_index.search("  ")


def test_the_input_encoder_must_fit(tiny, other_folder, tmp_path):
    store = Store.create(tmp_path / "s", Manifest.of(tiny))
    from descsim_tools import DescriptionEncoder

    with pytest.raises(StoreError, match="not with 'other-encoder'"):
        DescriptionIndex(store, DescriptionEncoder.load(other_folder))
    store.close()


# --- reranking --------------------------------------------------------------------------------


class Backwards(Reranker):
    """The worst of retrieval first: the order in which the sentences came, reversed."""

    def __init__(self):
        self.lists = []

    def _score(self, description, sentences):
        self.lists.append((description, list(sentences)))
        return np.arange(len(sentences), dtype=float)


def test_a_reranker_orders_the_candidates(demo_index):
    reranker = Backwards()
    plain = demo_index.search("a building", 30)
    hits = demo_index.search("a building", 5, rerank=reranker, candidates=30)
    assert reranker.lists == [("a building", [hit.text for hit in plain])]
    assert [hit.id for hit in hits] == [hit.id for hit in plain[:-6:-1]]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in hits] == [29, 28, 27, 26, 25]
    assert [hit.retrieval_score for hit in hits] == [hit.score for hit in plain[:-6:-1]]


@pytest.mark.parametrize(("k", "candidates", "asked"), [(3, 7, 7), (9, 2, 9), (2000, 5, 912)])
def test_at_least_k_candidates_are_asked_for(demo_index, k, candidates, asked):
    reranker = Backwards()
    hits = demo_index.search("x", k, rerank=reranker, candidates=candidates, exact=True)
    assert len(reranker.lists[0][1]) == asked
    assert len(hits) == min(k, asked)


def test_filters_hold_with_a_reranker(demo_index):
    hits = demo_index.search("x", rerank=Backwards(), where={"line": {"$lte": 3}})
    assert sorted(hit.metadata["line"] for hit in hits) == [1, 2, 3]
    assert demo_index.search("x", rerank=Backwards(), where={"line": -1}) == []


def test_a_reranker_by_name_is_loaded_once(demo_index, tiny_lm_folder, monkeypatch):
    name = f"log-prob:{tiny_lm_folder}"
    description = "a work of art being stolen"
    # The default prompt is longer than this tiny model reads.
    short = LogProbReranker.load(tiny_lm_folder, prompt="describe", device="cpu")
    loads = []
    monkeypatch.setattr(
        LogProbReranker, "load", classmethod(lambda cls, *a, **k: loads.append((a, k)) or short)
    )
    hits = demo_index.search(description, 5, rerank=name, candidates=20)
    assert hits == demo_index.search(description, 5, rerank=name, candidates=20)
    assert loads == [((str(tiny_lm_folder),), {"device": demo_index.encoder.device})]
    texts = [hit.text for hit in demo_index.search(description, 20)]
    best = sorted(short.score(description, texts), reverse=True)[:5]
    np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-4)


@pytest.mark.parametrize("candidates", [0, -3, 1.5, None])
def test_candidates_must_be_a_whole_number(demo_index, candidates):
    with pytest.raises(ValueError, match=r"candidates is .*, need a whole number from 1 up"):
        demo_index.search("x", rerank=Backwards(), candidates=candidates)


def test_an_unknown_reranker_is_named(demo_index):
    with pytest.raises(
        RerankerError, match="no reranker 'nonsense'; there are: cross-encoder, combined, log-prob"
    ):
        demo_index.search("x", rerank="nonsense")


@pytest.mark.slow
def test_recall_on_a_real_corpus(shared, default_encoder, tmp_path):
    """WikiText: default search against exact search, with dev descriptions as queries."""
    report = fill(
        shared / "corpora/wikitext2_sentences.txt", tmp_path / "s", encoder=default_encoder
    )
    assert report.rows == report.encoded == report.stored == 7970
    lines = (shared / "eval/contrast_dev.jsonl").read_text(encoding="utf-8").splitlines()
    descriptions = [json.loads(line)["description"] for line in lines]
    with DescriptionIndex.open(tmp_path / "s", encoder=default_encoder) as index:
        for where in (None, {"line": {"$lt": 2000}}):
            found = 0
            for description in descriptions:
                exact = {hit.id for hit in index.search(description, 10, exact=True, where=where)}
                found += len(exact & {hit.id for hit in index.search(description, 10, where=where)})
            assert found >= 0.98 * 10 * len(descriptions)
