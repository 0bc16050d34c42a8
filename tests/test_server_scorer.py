"""`ServerScorer` against a small real HTTP server whose log-probabilities are true."""

import logging
import time

import numpy as np
import pytest
import torch

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers import CausalLMScorer, LogProbReranker, ServerScorer
from descsim_tools.rerankers.server import ServerError
from descsim_tools.rerankers.tokens import Continuation
from tests.fake_server import Behaviour, serve
from tests.tiny import gpt2_lm, train_bytelevel

SENTENCES = ["The horse won the race.", "The river is long.", "Rust."] * 4


@pytest.fixture(scope="module")
def lm(corpus_lines):
    """A tiny GPT-2 that has read some English, so that it prefers a sentence to its reverse."""
    lines = [*corpus_lines, *["The sun rises in the east and sets in the west."] * 20]
    tokenizer = train_bytelevel(lines)
    torch.manual_seed(0)
    model = gpt2_lm(len(tokenizer))
    batch = torch.tensor([tokenizer.encode("The sun rises in the east and sets in the west.")])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokenizer


@pytest.fixture
def behaviour(lm):
    return Behaviour(lm[0])


@pytest.fixture
def url(behaviour):
    with serve(behaviour) as url:
        yield url


def connect(url, lm, **options):
    return ServerScorer(url, "tiny", tokenizer=lm[1], **{"max_length": 128, **options})


@pytest.mark.parametrize("dialects", [{"echo"}, {"vllm"}, {"echo", "vllm"}], ids=str)
def test_scores_equal_the_model_in_this_process(url, behaviour, lm, dialects):
    behaviour.dialects = dialects
    local = LogProbReranker(CausalLMScorer(*lm, device="cpu"), prompt="describe")
    with connect(url, lm) as scorer:
        assert scorer.dialect in dialects
        served = LogProbReranker(scorer, prompt="describe")
        for description in ("a race", "water"):
            np.testing.assert_allclose(
                served.score(description, SENTENCES), local.score(description, SENTENCES), atol=1e-4
            )
        assert served.score("a race", []).shape == (0,)


def test_token_ids_are_sent(url, behaviour, lm):
    with connect(url, lm) as scorer:
        behaviour.requests.clear()
        scorer.log_probs([Continuation((5, 6), (7, 8, 9))])
    assert [body["prompt"] for body in behaviour.requests] == [[5, 6, 7, 8, 9]]
    assert behaviour.requests[0]["model"] == "tiny"


def test_a_long_sentence_is_cut_here(url, behaviour, lm):
    with connect(url, lm, max_length=40) as scorer:
        behaviour.requests.clear()
        LogProbReranker(scorer, prompt="describe").score("a race", ["word " * 100])
    assert len(behaviour.requests[0]["prompt"]) == 40
    with (
        connect(url, lm, max_length=40) as scorer,
        pytest.raises(ValueError, match=r"got 40 \+ 1 tokens, need .* at most 40 together"),
    ):
        scorer.log_probs([Continuation((1,) * 40, (1,))])


def test_the_key_is_sent_and_never_shown(url, behaviour, lm):
    behaviour.failures = [401]
    with pytest.raises(ServerError) as error:
        connect(url, lm, api_key="secret-key", dialect="echo")
    assert behaviour.keys == ["Bearer secret-key"]
    assert "secret-key" not in str(error.value)
    connect(url, lm).close()
    assert behaviour.keys[-1] is None


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("constant", r"all \d+ log-probabilities are -1\.5"),
        ("few", r"no log-probability for every token of the prompt .*\d+ log-probabilities for"),
        ("many", r"\d+ log-probabilities for \d+ tokens"),
        ("reversed", "in reverse are more probable"),
        ("positive", "need <= 0"),
        ("null", "no log-probability for every token"),
        ("text", "could not convert string to float"),
        ("no json", "sent no JSON: b'<html>'"),
    ],
)
@pytest.mark.parametrize("dialect", ["echo", "vllm"])
def test_a_server_with_wrong_numbers_is_refused(url, behaviour, lm, fault, match, dialect):
    behaviour.fault = fault
    with pytest.raises(ServerError, match=match):
        connect(url, lm, dialect=dialect)


def test_a_server_without_log_probs_is_refused_for_both_dialects(url, behaviour, lm):
    behaviour.dialects = set()
    with pytest.raises(ServerError, match=r"echo: the answer has no .* vllm: .*such as vLLM"):
        connect(url, lm)
    assert len(behaviour.requests) == 2


def test_a_wrong_path(url, lm):
    with pytest.raises(ServerError, match="answered 404: no such path"):
        connect(url.removesuffix("/v1"), lm)


@pytest.mark.parametrize("failure", [429, 500, 503, "drop"])
def test_passing_failures_are_tried_again_and_logged(url, behaviour, lm, failure, caplog):
    with connect(url, lm, concurrency=1) as scorer:
        expected = scorer.log_probs([Continuation((1, 2), (3, 4))])
        behaviour.failures = [failure, failure]
        with caplog.at_level(logging.WARNING, logger="descsim_tools"):
            got = scorer.log_probs([Continuation((1, 2), (3, 4))])
    np.testing.assert_array_equal(got, expected)
    assert "try 1 of 3 failed" in caplog.text
    assert "try 2 of 3 failed" in caplog.text


def test_tries_are_bounded(url, behaviour, lm):
    with connect(url, lm, tries=2, concurrency=1) as scorer:
        behaviour.failures = [500] * 10
        behaviour.requests.clear()
        with pytest.raises(ServerError, match=r"answered 500: .*on demand"):
            scorer.log_probs([Continuation((1, 2), (3, 4))])
    assert len(behaviour.requests) == 2


def test_a_refusal_is_not_tried_again(url, behaviour, lm):
    with connect(url, lm, concurrency=1) as scorer:
        behaviour.failures = [400] * 10
        behaviour.requests.clear()
        with pytest.raises(ServerError, match="answered 400"):
            scorer.log_probs([Continuation((1, 2), (3, 4))] * 20)
    assert len(behaviour.requests) < 20


@pytest.mark.parametrize(
    ("failure", "match"), [("hang", "did not answer within"), ("trickle", "did not end its answer")]
)
def test_a_hanging_server_fails_in_time(url, behaviour, lm, failure, match):
    with connect(url, lm, timeout=20, tries=2, concurrency=1) as scorer:
        scorer._timeout = scorer._client.timeout = 0.5
        behaviour.failures = [failure] * 2
        started = time.perf_counter()
        with pytest.raises(ServerError, match=match):
            scorer.log_probs([Continuation((1, 2), (3, 4))])
        assert time.perf_counter() - started < 8


def test_no_server():
    with pytest.raises(ServerError, match=r"no connection to http://127\.0\.0\.1:9/v1/completions"):
        ServerScorer("http://127.0.0.1:9/v1", "m", tokenizer=_Letters(), tries=1)


class _Letters:
    bos_token_id = eos_token_id = None

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())

    def convert_ids_to_tokens(self, ids):
        return [chr(i) for i in ids]


def test_concurrency_is_as_asked(url, behaviour, lm):
    with connect(url, lm, concurrency=3) as scorer:
        behaviour.delay = 0.05
        behaviour.most_at_once = 0
        scorer.log_probs([Continuation((1, 2), (3, 4))] * 12)
    assert behaviour.most_at_once == 3


@pytest.mark.parametrize(
    "option", [{"tries": 0}, {"concurrency": 0}, {"max_length": 1}, {"timeout": 0}], ids=str
)
def test_wrong_options(option, lm):
    with pytest.raises(ValueError, match=next(iter(option))):
        connect("http://127.0.0.1:9/v1", lm, **option)


def test_a_tokenizer_by_name(url, lm, tmp_path):
    lm[1].save_pretrained(tmp_path / "tok")
    with ServerScorer(url, "tiny", tokenizer=tmp_path / "tok", max_length=128) as scorer:
        assert scorer.tokenizer.encode("a race") == lm[1].encode("a race")
    with pytest.raises(RerankerError, match="cannot load the tokenizer 'org/none'"):
        ServerScorer(url, "tiny", tokenizer="org/none")
    with pytest.raises(TypeError, match="got a int, need a transformers tokenizer"):
        ServerScorer(url, "tiny", tokenizer=3)
