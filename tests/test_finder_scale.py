"""The finder over 100,000 sentences, and with a real local model that babbles."""

import time

import numpy as np
import psutil
import pytest

from descsim_tools import DescriptionIndex, Record
from descsim_tools.agents import FinderSettings, InstanceFinder
from descsim_tools.llm import LLM
from descsim_tools.store import Store
from descsim_tools.store.manifest import Manifest
from tests.finder_world import FORGERY, Known, Words, finder_of, make_index, marked, noise

pytestmark = pytest.mark.slow


def test_a_hundred_thousand_sentences(tmp_path):
    encoder = Words(32)
    drawn = np.random.default_rng(0)
    with Store.create(tmp_path / "s", Manifest.of(encoder)) as store:
        for start in range(0, 100_000, 5000):
            vectors = drawn.normal(size=(5000, encoder.dim)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            records = [Record(f"nothing {start + n}", str(start + n)) for n in range(5000)]
            store.upsert(records, vectors)
        texts = [f"{FORGERY} in town {n} p=0.9" for n in range(40)]
        near = [Record(text, f"good{n}") for n, text in enumerate(texts)]
        store.upsert(near, encoder.encode_sentences(texts))
        index = DescriptionIndex(store, encoder)
        before = psutil.Process().memory_info().rss
        started = time.monotonic()
        statement = finder_of(index, settings=FinderSettings()).find(FORGERY)
        seconds = time.monotonic() - started
        grown = psutil.Process().memory_info().rss - before
    assert statement.stored == 100_040
    assert statement.matched == 40
    assert statement.examined < 2000
    assert sum(band.size for band in statement.missed.bands) >= 99_000
    assert grown < 400e6
    assert seconds < 300


def test_a_model_that_babbles_leaves_rows_unjudged(tiny_server, tmp_path):
    url, model = tiny_server
    unsure = [f"{FORGERY} in town {n} p=0.5" for n in range(3)]
    sure = f"{FORGERY} p=0.95"
    with (
        make_index([sure, *unsure, *noise(5)], tmp_path / "s") as index,
        LLM(model, base_url=url, max_tokens=16) as llm,
    ):
        settings = FinderSettings(depth=4, sample=0, rounds=0)
        finder = InstanceFinder(index, rerank=Known(marked), llm=llm, settings=settings)
        statement = finder.find(FORGERY)
    assert [row.text for row in statement.instances] == [sure]
    assert statement.unjudged == 3
    assert set(statement.unjudged_for) <= {"cut", "invalid", "empty"}
    assert statement.plan.note
    assert statement.cost.tokens_out > 0
