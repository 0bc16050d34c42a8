"""`LogProbReranker` against one pair at a time, written plainly."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2LMHeadModel

from descsim_tools import Hit
from descsim_tools.errors import RerankerError
from descsim_tools.rerankers import PROMPTS, CausalLMScorer, LogProbReranker, Prompt
from descsim_tools.rerankers.log_prob import Choice
from descsim_tools.rerankers.tokens import Continuation, PairTokenizer
from tests.tiny import (
    gemma3_lm,
    gpt2_lm,
    llama_lm,
    train_bytelevel,
    train_bytelevel_with_bos,
    train_metaspace,
)

PROMPT = Prompt(
    "test", "A sentence and what it is about.\nSentence: {sentence}\nAbout: {description}"
)
DESCRIPTIONS = ["a bridge", "the founding of a school by a ruler", "a race", "water"]


@pytest.fixture(scope="module", params=["gpt2", "llama", "gemma3"])
def lm(request, corpus_lines):
    """A tiny model of each kind of position, and its kind of tokenizer."""
    train, build = {
        "gpt2": (train_bytelevel, gpt2_lm),
        "llama": (train_metaspace, llama_lm),
        "gemma3": (train_bytelevel_with_bos, gemma3_lm),
    }[request.param]
    tokenizer = train(corpus_lines)
    return build(len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def pairs(corpus_lines):
    """60 pairs of all lengths that fit."""
    return [
        (DESCRIPTIONS[i % 4], " ".join(line.split()[: 1 + i % 13]))
        for i, line in enumerate(corpus_lines[:60])
    ]


@pytest.fixture(scope="module")
def expected(lm, pairs):
    """(60,) summed log-probabilities from the reference."""
    return [sum(reference(lm, *pair)) for pair in pairs]


def scorer(lm, **options):
    model, tokenizer = lm
    return CausalLMScorer(model, tokenizer, device="cpu", **options)


def parts(tokenizer, prompt, description, sentence):
    """Token ids of the four parts, tokenized apart; the space before a word belongs to the word."""
    encode = tokenizer.encode
    start = encode("a")[: -len(encode("a", add_special_tokens=False))]
    own_space = tokenizer.convert_ids_to_tokens(encode("a", add_special_tokens=False))[0] != "a"
    texts = []
    carried = ""
    for text in (prompt.before, sentence, prompt.between, description):
        text = carried + text
        carried = ""
        if text.endswith(" ") and text in (prompt.before, prompt.between):
            text, carried = text.rstrip(" "), " "
        texts.append(text[1:] if own_space and text.startswith(" ") else text)
    ids = [encode(text, add_special_tokens=False) if text.strip(" ") else [] for text in texts]
    return [start + ids[0], *ids[1:]]


@torch.no_grad()
def reference(lm, description, sentence, prompt=PROMPT):
    """The description's log-probabilities: one whole forward pass, no batch, no padding."""
    model, tokenizer = lm
    before, text, between, target = parts(tokenizer, prompt, description, sentence)
    context = before + text + between
    logits = model(torch.tensor([context + target])).logits[0].double()
    log_probs = torch.log_softmax(logits, -1)
    return [log_probs[len(context) - 1 + i, token].item() for i, token in enumerate(target)]


# --- the same score everywhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 7},
        {"padding": "left"},
        {"padding": "left", "batch_size": 5},
        {"share_start": False},
    ],
    ids=str,
)
def test_scores_equal_one_pair_at_a_time(lm, pairs, expected, options):
    made = scorer(lm, **options)
    assert made.keeps_few_logits
    assert made.shares_start == (options.get("padding") != "left" and "share_start" not in options)
    reranker = LogProbReranker(made, prompt=PROMPT)
    got = reranker.score_many([(description, [sentence]) for description, sentence in pairs])
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-4)
    assert np.ptp(expected) > 5


def test_scores_do_not_depend_on_company_or_order(lm, pairs):
    reranker = LogProbReranker(scorer(lm), prompt=PROMPT)
    together = np.concatenate(reranker.score_many([(d, [s]) for d, s in pairs]))
    alone = [reranker.score(d, [s])[0] for d, s in pairs[:20]]
    np.testing.assert_allclose(together[:20], alone, atol=1e-4)
    shuffled = random.Random(0).sample(range(len(pairs)), len(pairs))
    moved = np.concatenate(reranker.score_many([(pairs[i][0], [pairs[i][1]]) for i in shuffled]))
    np.testing.assert_allclose(moved, together[shuffled], atol=1e-4)
    one = reranker.score(DESCRIPTIONS[1], [s for d, s in pairs if d == DESCRIPTIONS[1]])
    np.testing.assert_allclose(one, together[1::4], atol=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_every_prompt_of_the_catalogue(lm, prompt):
    tokenizer = lm[1]
    # Few-shot prompts are longer than the tiny models read.
    if len(tokenizer.encode(prompt.before)) > 100:
        assert prompt.name.startswith("few-shot")
        return
    got = LogProbReranker(scorer(lm), prompt=prompt).score(
        "a race", ["The horse won.", "The river is long."]
    )
    expected = [
        sum(reference(lm, "a race", sentence, prompt))
        for sentence in ("The horse won.", "The river is long.")
    ]
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_mean_is_the_sum_over_the_tokens(lm):
    made = scorer(lm)
    log_probs = reference(lm, DESCRIPTIONS[1], "The king built a school.")
    assert len(log_probs) > 3
    got = LogProbReranker(made, prompt=PROMPT, reduction="mean").score(
        DESCRIPTIONS[1], ["The king built a school."]
    )
    assert got[0] == pytest.approx(np.mean(log_probs), abs=1e-4)


def test_calibration_subtracts_the_score_without_a_sentence(lm):
    plain, calibrated = (
        LogProbReranker(scorer(lm), prompt=PROMPT, calibrate=flag) for flag in (False, True)
    )
    lists = [("a race", ["The horse won.", "Rust."]), ("water", ["The river is long."])]
    for (description, sentences), got in zip(lists, calibrated.score_many(lists), strict=True):
        base = sum(reference(lm, description, ""))
        expected = plain.score(description, sentences) - base
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_calibration_without_any_text_starts_from_the_start_token(lm):
    model, tokenizer = lm
    bare = LogProbReranker(scorer(lm), prompt="{sentence} {description}", calibrate=True)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    target = parts(tokenizer, Prompt("p", "{sentence} {description}"), "a race", "")[3]
    with torch.no_grad():
        logits = torch.log_softmax(model(torch.tensor([[start, *target]])).logits[0].double(), -1)
    base = sum(logits[i, token].item() for i, token in enumerate(target))
    plain = sum(reference(lm, "a race", "Rust.", Prompt("p", "{sentence} {description}")))
    assert bare.score("a race", ["Rust."])[0] == pytest.approx(plain - base, abs=1e-4)


# --- joins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "description", ["a race", "'s end", "1935", "ing", "\u00e9t\u00e9", "a", "x" * 9]
)
@pytest.mark.parametrize("join", ["", ": ", " "])
def test_the_descriptions_tokens_are_the_same_after_any_sentence(lm, join, description):
    _, tokenizer = lm
    prompt = Prompt("p", f"{{sentence}}{join}{{description}}")
    pair = PairTokenizer(tokenizer, prompt, 128)
    targets = {
        pair.pair(description, sentence)[0].target
        for sentence in ("The race", "In 19", "runn", "A 'quote'", "end\u00e9", "It is:", "a\n")
    }
    assert len(targets) == 1
    text = tokenizer.decode(list(targets.pop()), skip_special_tokens=True)
    assert text.strip() == description


def test_a_join_that_the_tokenizer_would_merge(corpus_lines):
    tokenizer = train_bytelevel(corpus_lines)
    whole = tokenizer.encode("something")
    pair = PairTokenizer(tokenizer, Prompt("p", "{sentence}{description}"), 128)
    one, _ = pair.pair("thing", "some")
    assert list(one.context + one.target) != whole
    assert tokenizer.decode(list(one.target)) == "thing"


# --- long sentences ---------------------------------------------------------------------------


def long_sentence(corpus_lines):
    return " ".join(corpus_lines[:12])


def test_a_long_sentence_loses_its_left(lm, corpus_lines):
    model, tokenizer = lm
    long = long_sentence(corpus_lines)
    before, text, between, target = parts(tokenizer, PROMPT, DESCRIPTIONS[1], long)
    room = 128 - len(before) - len(between) - len(target)
    assert len(text) > 2 * room
    one, cut = PairTokenizer(tokenizer, PROMPT, 128).pair(DESCRIPTIONS[1], long)
    assert cut
    assert list(one.context) == before + text[-room:] + between
    assert list(one.target) == target
    got = LogProbReranker(scorer(lm), prompt=PROMPT).score(DESCRIPTIONS[1], [long, "Rust."])
    with torch.no_grad():
        logits = model(torch.tensor([[*one.context, *target]])).logits[0].double().log_softmax(-1)
    expected = sum(logits[len(one.context) - 1 + i, t].item() for i, t in enumerate(target))
    assert got[0] == pytest.approx(expected, abs=1e-4)
    assert got[1] == pytest.approx(sum(reference(lm, DESCRIPTIONS[1], "Rust.")), abs=1e-4)


def test_the_hit_says_so(lm, corpus_lines):
    hits = [
        Hit("long", 0.5, 1, long_sentence(corpus_lines), {"n": 1}),
        Hit("short", 0.4, 2, "Rust.", {"n": 2}),
    ]
    ranked = LogProbReranker(scorer(lm), prompt=PROMPT).rerank("a race", hits)
    assert {hit.id: hit.truncated for hit in ranked} == {"long": True, "short": False}
    assert {hit.id: hit.metadata for hit in ranked} == {"long": {"n": 1}, "short": {"n": 2}}


def test_the_longest_sentence_that_fits_is_whole(lm, corpus_lines):
    _, tokenizer = lm
    pair = PairTokenizer(tokenizer, PROMPT, 128)
    words = long_sentence(corpus_lines).split()
    flags = [pair.pair("a race", " ".join(words[:n]))[1] for n in range(1, len(words))]
    assert flags == sorted(flags)
    fitting = pair.pair("a race", " ".join(words[: flags.index(True)]))[0]
    assert len(fitting.context) + len(fitting.target) <= 128
    assert pair.truncates("a race", [" ".join(words[:n]) for n in range(1, len(words))]) == flags


@pytest.mark.parametrize("max_length", [2, 12])
def test_no_room_for_a_sentence(lm, max_length):
    reranker = LogProbReranker(scorer(lm, max_length=max_length), prompt=PROMPT)
    with pytest.raises(
        RerankerError, match=r"prompt's own text takes \d+ tokens .* larger max_len"
    ):
        reranker.score("a race", ["Rust."])


def test_max_length_is_the_models_own(lm):
    assert scorer(lm).max_length == 128
    assert scorer(lm, max_length=50).max_length == 50
    with pytest.raises(ValueError, match="max_length is 129, need a whole number from 2 to 128"):
        scorer(lm, max_length=129)


# --- shortcuts --------------------------------------------------------------------------------


class NoShortcuts(GPT2LMHeadModel):
    """An architecture that returns all logits and ignores a cache."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None):
        return super().forward(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        )


class WrongCache(GPT2LMHeadModel):
    """An architecture that forgets where the cached tokens stood."""

    def forward(self, input_ids=None, cache=None, logits_to_keep=0, **more):
        positions = torch.arange(input_ids.shape[1])[None]
        return super().forward(
            input_ids, cache=cache, logits_to_keep=logits_to_keep, position_ids=positions, **more
        )


@pytest.mark.parametrize(
    ("kind", "few", "shares"), [(NoShortcuts, False, False), (WrongCache, True, False)]
)
def test_architectures_that_cannot_get_whole_passes(corpus_lines, pairs, kind, few, shares):
    tokenizer = train_bytelevel(corpus_lines)
    plain = gpt2_lm(len(tokenizer))
    odd = kind(plain.config)
    odd.load_state_dict(plain.state_dict())
    made = CausalLMScorer(odd.eval(), tokenizer, device="cpu")
    assert (made.keeps_few_logits, made.shares_start) == (few, shares)
    got = LogProbReranker(made, prompt=PROMPT).score_many([(d, [s]) for d, s in pairs[:30]])
    expected = [sum(reference((plain, tokenizer), *pair)) for pair in pairs[:30]]
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-4)


def test_the_output_layer_sees_the_descriptions_positions_only(lm, pairs):
    made = scorer(lm)
    rows = []
    head = made.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda m, i, out: rows.append(out.numel() // out.shape[-1]))
    try:
        LogProbReranker(made, prompt=PROMPT).score_many([(d, [s]) for d, s in pairs])
    finally:
        handle.remove()
    _, tokenizer = lm
    wanted = sum(len(parts(tokenizer, PROMPT, d, s)[3]) for d, s in pairs)
    assert sum(rows) == wanted + 1  # the shared start gives one position, which nobody reads


def test_the_shared_start_is_read_once(lm, pairs):
    made = scorer(lm, batch_size=10)
    read = []
    handle = made.model.register_forward_pre_hook(
        lambda m, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        LogProbReranker(made, prompt=PROMPT).score_many([(d, [s]) for d, s in pairs])
    finally:
        handle.remove()
    before = len(parts(lm[1], PROMPT, *pairs[0])[0])
    assert read[0][0] == 1
    assert read[0][1] >= before
    assert all(count <= 10 for count, _ in read)
    assert len(read) == 1 + 6


@pytest.mark.parametrize(
    "wrong", [Continuation((), (1,)), Continuation((1,), ()), Continuation((1,) * 128, (1,))]
)
def test_wrong_continuations(lm, wrong):
    with pytest.raises(
        ValueError, match=r"continuation 0 has .* need at least 1 of each and at most"
    ):
        scorer(lm).log_probs([wrong])


# --- loading ----------------------------------------------------------------------------------


def test_loading_a_folder(tiny_lm_folder):
    loaded = LogProbReranker.load(tiny_lm_folder, prompt="describe", device="cpu", batch_size=3)
    assert loaded.scorer.name == "tiny-lm"
    assert loaded.prompt is PROMPTS["describe"]
    assert loaded.scorer.model.dtype == torch.float32
    assert loaded.score("a race", ["The horse won."])[0] < 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(tiny_lm_folder, dtype):
    full, half = (
        LogProbReranker.load(tiny_lm_folder, prompt="describe", device="cpu", dtype=one)
        for one in ("float32", dtype)
    )
    assert half.scorer.model.dtype == getattr(torch, dtype)
    assert half.scorer.keeps_few_logits
    sentences = ["The horse won.", "The river is long."]
    np.testing.assert_allclose(
        half.score("a race", sentences), full.score("a race", sentences), rtol=0.05
    )


@pytest.mark.parametrize(
    ("source", "options", "match"),
    [
        ("org/none", {}, "cannot load 'org/none' .*HF_HUB_OFFLINE"),
        ("nowhere/at/all", {}, "no model 'nowhere/at/all'.*'gemma3-270m' is the one"),
        ("nothing.gguf", {}, "there is no file nothing.gguf"),
        ("tuned.json", {}, "there is no file tuned.json; name a file that `descsim rerank tune`"),
        ("gpt2", {"dtype": "int3"}, "no dtype 'int3'; there are: float32"),
        ("gpt2", {"prompt": "nonsense"}, "no prompt 'nonsense'; there are: sgpt-bare"),
        ("gpt2", {"reduction": "max"}, "no reduction 'max'; there are: sum, mean"),
    ],
)
def test_what_cannot_be_loaded_is_named(source, options, match):
    with pytest.raises(RerankerError, match=match):
        LogProbReranker.load(source, **options)


def test_an_empty_folder_is_no_model(tmp_path):
    with pytest.raises(RerankerError, match=r"is a folder without config\.json"):
        LogProbReranker.load(tmp_path)


def test_an_encoder_is_no_language_model(tiny_folder):
    with pytest.raises(RerankerError, match=r"'tiny-encoder' is no complete .* lacks \d+ weights"):
        LogProbReranker.load(tiny_folder, device="cpu")


def test_a_model_that_sees_ahead_is_refused(tokenizer):
    config = BertConfig(vocab_size=2000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    with pytest.raises(RerankerError, match=r"BertLMHeadModel\) is no causal language model"):
        CausalLMScorer(BertLMHeadModel(config), tokenizer, device="cpu")


@pytest.mark.parametrize(
    ("options", "match"),
    [({"batch_size": 0}, "batch_size is 0"), ({"padding": "middle"}, "there are: right, left")],
)
def test_wrong_options(lm, options, match):
    with pytest.raises(ValueError, match=match):
        scorer(lm, **options)


def test_a_tuned_choice_is_read(tiny_lm_folder, tmp_path):
    path = tmp_path / "tuned.json"
    Choice(str(tiny_lm_folder), PROMPTS["sgpt-title"], 0.7, 20).save(path)
    assert Choice.read(path) == Choice(str(tiny_lm_folder), PROMPTS["sgpt-title"], 0.7, 20)
    loaded = LogProbReranker.load(path, device="cpu")
    assert loaded.prompt == PROMPTS["sgpt-title"]
    assert LogProbReranker.load(path, prompt="describe", device="cpu").prompt.name == "describe"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "holds no tuned prompt"),
        ("[]", "holds no tuned prompt"),
        ("{}", "holds no tuned prompt"),
        ('{"format_version": 9}', "has format 9, this version reads 1"),
        ('{"format_version": 1, "model": "m"}', "holds no tuned prompt"),
    ],
)
def test_other_json_is_no_choice(content, match, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(content)
    with pytest.raises(RerankerError, match=match):
        Choice.read(path)


# --- prompts ----------------------------------------------------------------------------------


def test_the_catalogue():
    assert len({prompt.template for prompt in PROMPTS.values()}) == len(PROMPTS)
    assert all(prompt.source for prompt in PROMPTS.values())
    for prompt in PROMPTS.values():
        assert prompt.template == f"{prompt.before}{{sentence}}{prompt.between}{{description}}"


@pytest.mark.parametrize(
    "template",
    [
        "{description}",
        "{sentence}",
        "{description} {sentence}",
        "{sentence} {description}.",
        "{sentence} {sentence} {description}",
    ],
)
def test_wrong_templates(template):
    with pytest.raises(RerankerError, match=r"needs \{sentence\} once and must end in"):
        Prompt("own", template)


def test_other_braces_mean_nothing(lm):
    template = 'JSON {"a": {}} %s {sentence} {0} {description}'
    reranker = LogProbReranker(scorer(lm), prompt=template)
    assert reranker.prompt.before == 'JSON {"a": {}} %s '
    expected = sum(reference(lm, "a race", "Rust {x}.", Prompt("p", template)))
    assert reranker.score("a race", ["Rust {x}."])[0] == pytest.approx(expected, abs=1e-4)


def test_choices_hold_no_more_than_they_must(tmp_path):
    Choice("m", PROMPTS["describe"], 0.5, 3).save(tmp_path / "c.json")
    assert set(json.loads((tmp_path / "c.json").read_text())) == {
        "format_version",
        "model",
        "prompt",
        "ndcg_at_10",
        "queries",
    }
