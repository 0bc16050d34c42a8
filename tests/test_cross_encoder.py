"""The cross-encoder: scoring, what it is trained on, and training it."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import Transformer

from descsim_tools import Hit
from descsim_tools.calibration import Calibration
from descsim_tools.cli import main
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.errors import RerankerError
from descsim_tools.rerankers import CombinedReranker, DescriptionCrossEncoder, load_reranker
from descsim_tools.rerankers.combined import COMBINATION, Combination
from descsim_tools.rerankers.cross_encoder import (
    CALIBRATION,
    new_cross_encoder,
    read_small,
    write_small,
)
from descsim_tools.training.config import ConfigError, PairsConfig, load_config
from descsim_tools.training.data import Cluster, Group, read_groups, write_groups
from descsim_tools.training.kinds import run
from descsim_tools.training.losses import ListLoss
from descsim_tools.training.pairs import Encoded, PairSource, draw_pairs, mine
from tests.conftest import ROOT

FOLDER = ROOT / "examples/training"
DESCRIPTION = "a transfer of a disease between two species"
SENTENCES = [
    "A bat passed the virus to a civet.",
    "The treaty was signed in spring.",
    "Rust ate the bridge over the river, which had stood there for well over a hundred years.",
    "It rained.",
]


@pytest.fixture(scope="module")
def cross(tiny_cross_folder):
    return DescriptionCrossEncoder.load(tiny_cross_folder, device="cpu")


# --- scoring ----------------------------------------------------------------------------------


def test_scores_are_the_models_own(cross, tiny_cross_folder):
    plain = CrossEncoder(str(tiny_cross_folder), device="cpu", trust_remote_code=True)
    logits = plain.predict([(DESCRIPTION, s) for s in SENTENCES], activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(cross.score(DESCRIPTION, SENTENCES), logits, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_score_does_not_depend_on_its_company(cross, tiny_cross_folder, batch_size):
    alone = [cross.score(DESCRIPTION, [s])[0] for s in SENTENCES]
    assert len({round(score, 3) for score in alone}) == len(SENTENCES)
    other = DescriptionCrossEncoder.load(tiny_cross_folder, device="cpu", batch_size=batch_size)
    np.testing.assert_allclose(other.score(DESCRIPTION, SENTENCES[::-1]), alone[::-1], atol=1e-4)
    first, second = other.score_many([("a fire", SENTENCES[:1]), (DESCRIPTION, SENTENCES)])
    np.testing.assert_allclose(second, alone, atol=1e-4)
    assert first[0] == pytest.approx(cross.score("a fire", SENTENCES[:1])[0], abs=1e-4)


def test_a_long_sentence_loses_its_end_and_says_so(cross):
    start = "A bat passed the virus to a civet. " * 10
    hits = [Hit("long", 0.1, 1, start + "It rained."), Hit("other", 0.1, 2, start + "Rust.")]
    ranked = cross.rerank(DESCRIPTION, [*hits, Hit("short", 0.1, 3, SENTENCES[0])])
    found = {hit.id: hit for hit in ranked}
    assert [found[i].truncated for i in ("long", "other", "short")] == [True, True, False]
    assert found["long"].score == pytest.approx(found["other"].score, abs=1e-4)


def test_a_description_that_leaves_no_room_is_refused(cross):
    with pytest.raises(RerankerError, match=r"the description has \d+ tokens, .* at most \d+"):
        cross.score("a bat that is ill " * 40, ["It rained."])


def test_what_cannot_be_loaded(tiny_folder, tmp_path):
    with pytest.raises(RerankerError, match="cannot load the cross-encoder '/nope'"):
        DescriptionCrossEncoder.load("/nope", device="cpu")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RerankerError, match="cannot load the cross-encoder"):
        DescriptionCrossEncoder.load(tmp_path, device="cpu")
    with pytest.raises(RerankerError, match=r"cannot load .* on nodevice"):
        load_reranker(f"cross-encoder:{tiny_folder}", device="nodevice")
    with pytest.raises(ValueError, match="batch_size is 0"):
        DescriptionCrossEncoder("x", CrossEncoder, batch_size=0)


def test_several_labels_are_refused(tmp_path, tokenizer):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=3,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RerankerError, match="scores 3 labels, need one"):
        DescriptionCrossEncoder.load(tmp_path, device="cpu")


# --- probabilities ----------------------------------------------------------------------------


@pytest.fixture
def calibrated_folder(tiny_cross_folder, tmp_path):
    shutil.copytree(tiny_cross_folder, tmp_path, dirs_exist_ok=True)
    Calibration(2.0, -0.5, "tests").save(tmp_path / CALIBRATION)
    Combination("all-minilm-l6-v2", 3.0, 1.5, 0.25, "tests").save(tmp_path / COMBINATION)
    return tmp_path


def test_a_calibrated_one_gives_probabilities(cross, calibrated_folder):
    hits = [Hit(str(i), 0.1 * i, i + 1, s) for i, s in enumerate(SENTENCES)]
    assert all(hit.probability is None for hit in cross.rerank(DESCRIPTION, hits))
    ranked = DescriptionCrossEncoder.load(calibrated_folder, device="cpu").rerank(DESCRIPTION, hits)
    for hit in ranked:
        assert hit.probability == pytest.approx(1 / (1 + np.exp(-(2 * hit.score - 0.5))))


def test_the_combination_adds_the_cosine(cross, calibrated_folder):
    combined = load_reranker(f"combined:{calibrated_folder}", device="cpu")
    assert isinstance(combined, CombinedReranker)
    hits = [Hit(str(i), 0.2 * i, i + 1, s) for i, s in enumerate(SENTENCES)]
    logits = cross.score(DESCRIPTION, SENTENCES)
    for hit in combined.rerank(DESCRIPTION, hits):
        expected = logits[int(hit.id)] + 3 * 0.2 * int(hit.id)
        assert hit.score == pytest.approx(expected, abs=1e-4)
        assert hit.retrieval_score == 0.2 * int(hit.id)
        assert hit.probability == pytest.approx(1 / (1 + np.exp(-(1.5 * hit.score + 0.25))))
    without = [Hit("x", 1.0, 1, "It rained.", rerank_score=1.0)]
    with pytest.raises(RerankerError, match="hit x has no retrieval score"):
        combined.rerank(DESCRIPTION, without)


def test_the_combination_encodes_plain_sentences_itself(calibrated_folder, cross):
    from descsim_tools import DescriptionEncoder

    combined = CombinedReranker.load(calibrated_folder, device="cpu")
    base = DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")
    cosines = base.encode_sentences(SENTENCES) @ base.encode_descriptions([DESCRIPTION])[0]
    expected = cross.score(DESCRIPTION, SENTENCES) + 3 * cosines
    np.testing.assert_allclose(combined.score(DESCRIPTION, SENTENCES), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (CALIBRATION, "{", "is no calibration"),
        (CALIBRATION, '{"slope": 1}', "is no calibration"),
        (CALIBRATION, '{"slope": -1, "intercept": 0}', "slope -1.0.*need slope > 0"),
        (COMBINATION, '{"weight": 1}', "is no combination"),
        (COMBINATION, "[]", "is no combination"),
        (
            COMBINATION,
            '{"encoder": "x", "weight": NaN, "slope": 1, "intercept": 0}',
            "weight is nan.*descsim rerank calibrate",
        ),
    ],
)
def test_damaged_files_are_named(calibrated_folder, name, content, match):
    (calibrated_folder / name).write_text(content)
    with pytest.raises(RerankerError, match=match):
        load_reranker(f"combined:{calibrated_folder}", device="cpu")


def test_a_combination_goes_with_its_encoder_alone(tiny_index, calibrated_folder):
    with pytest.raises(RerankerError, match="tuned for the scores of all-minilm-l6-v2, and the st"):
        tiny_index.search(DESCRIPTION, rerank=f"combined:{calibrated_folder}")
    tiny_index.search(DESCRIPTION, rerank=f"cross-encoder:{calibrated_folder}", candidates=5)


def test_search_with_a_least_probability(tiny_index, calibrated_folder):
    tuned_for = tiny_index.encoder.spec.name
    Combination(tuned_for, 3.0, 1.5, 0.25, "tests").save(calibrated_folder / COMBINATION)
    name = f"combined:{calibrated_folder}"
    everything = tiny_index.search(DESCRIPTION, k=20, rerank=name, candidates=20)
    least = everything[4].probability
    some = tiny_index.search(DESCRIPTION, k=20, rerank=name, candidates=20, min_probability=least)
    assert some == everything[:5]
    assert tiny_index.search(DESCRIPTION, rerank=name, min_probability=1.0) == []
    with pytest.raises(ValueError, match="no probability with no reranker; take rerank='comb"):
        tiny_index.search(DESCRIPTION, min_probability=0.5)
    with pytest.raises(ValueError, match="min_probability is 2"):
        tiny_index.search(DESCRIPTION, rerank=name, min_probability=2)


def test_a_least_probability_needs_a_calibrated_reranker(tiny_index, cross):
    with pytest.raises(ValueError, match="no probability with DescriptionCrossEncoder"):
        tiny_index.search(DESCRIPTION, rerank=cross, min_probability=0.5)


# --- what it is trained on --------------------------------------------------------------------

TWO = Group(
    "two",
    (
        Cluster(("a1", "a2", "a3"), ("A1", "A2", "A3")),
        Cluster(("b1", "b2"), ("B1", "B2")),
    ),
)
THREE = Group("three", tuple(Cluster((f"{x}1",), (f"{x}D", f"{x}E")) for x in "xyz"))


def test_pairs_are_drawn_in_both_directions():
    mined = {d: ("m1", "m2", "m3") for c in TWO.clusters for d in c.descriptions}
    batch = draw_pairs([(TWO, 5), (THREE, 6)], PairsConfig(), mined)
    again = draw_pairs([(TWO, 5), (THREE, 6)], PairsConfig(), mined)
    assert batch == again
    rows = {}
    for pair, row, column, fits in zip(
        batch.pairs, batch.rows, batch.columns, batch.fits, strict=True
    ):
        rows.setdefault(row, []).append((*pair, column, fits))
    assert len(rows) == 5
    for row in (0, 1):
        letter = rows[row][0][0].lower()[0]
        texts = [text for _, text, _, _ in rows[row]]
        assert sum(text[0] in "ab" for text in texts) == 4
        assert sum(text[0] == "m" for text in texts) == 2
        assert sum(text[0] == letter.upper() for text in texts) == 1
        for description, text, column, fits in rows[row]:
            assert fits == (text[0] == letter and text[0].islower())
            assert (column == -1) == (text[0] not in "ab")
            assert text != description
    # The same sentence has the same column under each of its group's descriptions.
    columns = {(text, column) for row in (0, 1) for _, text, column, _ in rows[row] if column >= 0}
    assert len(columns) == 4
    assert sorted(column for _, column in columns) == [0, 1, 2, 3]
    assert {column for row in (2, 3, 4) for *_, column, _ in rows[row]} == {4, 5, 6, -1}


def test_a_cluster_without_sentences_or_descriptions():
    record = Group("r", (Cluster(("s",), ("good",)), Cluster((), ("bad",)), Cluster(("t",), ())))
    batch = draw_pairs([(record, 0)], PairsConfig(), {})
    assert batch.pairs == [("good", "s"), ("good", "t"), ("bad", "s"), ("bad", "t")]
    assert batch.fits == [True, False, False, False]


class Points:
    """Texts are angles, in degrees."""

    def encode_descriptions(self, texts, /):
        angles = np.radians([float(text.strip("d")) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    encode_sentences = encode_descriptions


def test_mining_takes_the_wanted_ranks_of_other_groups():
    groups = [
        Group("a", (Cluster(("0", "1"), ("d0",)),)),
        Group("b", (Cluster(("2", "40"), ("d39",)),)),
        Group("c", (Cluster(("5", "7", "80"), ("d81",)),)),
    ]
    encoded = Encoded(groups, Points(), twins=False)
    assert mine(encoded, (2, 3)) == {"d0": ["5", "7"], "d39": ["5", "1"], "d81": ["2", "1"]}
    assert mine(encoded, (4, 50))["d81"] == ["0"]


def test_drawn_pairs_bear_the_encoders_cosines(tiny_folder):
    settings = PairsConfig(mined_by=str(tiny_folder), mined_ranks=(1, 2))
    source = PairSource(settings, [TWO, THREE], cosines=True, progress=False)
    batch = source.draw([(TWO, 5), (THREE, 6)])
    encoder = DescriptionEncoder.load(str(tiny_folder))
    descriptions, texts = zip(*batch.pairs, strict=True)
    expected = np.sum(
        encoder.encode_descriptions(descriptions) * encoder.encode_sentences(texts), axis=1
    )
    assert any(text in description for description, text in batch.pairs for text in "ABD")
    np.testing.assert_allclose(batch.cosines, expected, atol=1e-5)
    scored = batch.scored(torch.zeros(len(batch.pairs)))
    assert scored.cosines.tolist() == pytest.approx(batch.cosines)
    untaught = PairSource(settings, [TWO, THREE], cosines=False, progress=False)
    assert untaught.draw([(TWO, 5), (THREE, 6)]) == replace(batch, cosines=None)


# --- training ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross")
    groups = read_groups(FOLDER / "open-groups.jsonl.gz")[:16]
    write_groups(groups, folder / "train.jsonl")
    write_groups(groups[:3], folder / "dev-groups.jsonl")
    lines = (FOLDER / "contrast-dev.jsonl").read_text(encoding="utf-8").splitlines(True)
    (folder / "dev.jsonl").write_text("".join(lines[:4]), encoding="utf-8")
    return folder


def config_file(folder, base, name="cross.toml", more=""):
    path = folder / name
    path.write_text(
        f'name = "tiny-cross"\nkind = "cross-encoder"\n[data]\ntrain = ["train.jsonl"]\n'
        f'dev = ["dev.jsonl", "dev-groups.jsonl"]\n[model]\nbase = {json.dumps(str(base))}\n'
        f'[loss]\nname = "list"\n[pairs]\nmined_by = {json.dumps(str(base))}\n{more}\n'
        '[training]\nepochs = 3\ngroups_per_batch = 4\nlearning_rate = 3e-3\nprecision = "fp32"\n'
    )
    return path


@pytest.fixture(scope="module")
def whole_run(data_folder, tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path = config_file(data_folder, tiny_folder)
    return path, folder, run(load_config(path), folder)


def test_the_ready_configuration_is_valid():
    config = load_config(FOLDER / "descsim-minilm-cross.toml")
    assert config.kind == "cross-encoder"
    assert all(file.is_file() for file in [*config.data.train, *config.data.dev])


def test_a_run_writes_all_it_promises(whole_run, data_folder):
    _, folder, result = whole_run
    assert {"dev_precision@1", "dev-groups_group_accuracy", "score"} <= set(result.metrics)
    assert json.loads((folder / "result.json").read_text())["metrics"] == result.metrics
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "log.csv").is_file()
    trained = DescriptionCrossEncoder.load(folder, device="cpu")
    group = read_groups(data_folder / "train.jsonl")[0]
    texts = [s for cluster in group.clusters for s in cluster.sentences]
    scores = trained.score(group.clusters[0].descriptions[0], texts)
    assert len({round(score, 4) for score in scores}) == len(texts)


def test_training_learns_what_fits(whole_run, data_folder, tiny_folder):
    """On what it was trained on, a tiny model loses less than at its start."""
    _, folder, _ = whole_run
    groups = read_groups(data_folder / "train.jsonl")
    torch.manual_seed(0)
    start = DescriptionCrossEncoder("start", new_cross_encoder(Transformer(str(tiny_folder))))
    trained = DescriptionCrossEncoder.load(folder, device="cpu")
    batch = draw_pairs([(g, i) for i, g in enumerate(groups)], PairsConfig(mined=0), {})

    def lost(model):
        scores = model.score_many([(d, [s]) for d, s in batch.pairs])
        return float(ListLoss()(batch.scored(torch.tensor(np.concatenate(scores)))))

    assert lost(trained) < lost(start) - 0.3


def test_the_same_seed_gives_the_same_result(whole_run, tmp_path):
    path, folder, result = whole_run
    assert run(load_config(path), tmp_path).metrics == pytest.approx(result.metrics, abs=1e-6)
    first, second = (DescriptionCrossEncoder.load(f, device="cpu") for f in (folder, tmp_path))
    np.testing.assert_allclose(
        first.score(DESCRIPTION, SENTENCES), second.score(DESCRIPTION, SENTENCES), atol=1e-5
    )


def test_without_mined_negatives_no_encoder_is_needed(data_folder, tiny_folder, tmp_path):
    path = config_file(data_folder, tiny_folder, "unmined.toml", "mined = 0")
    path.write_text(path.read_text().replace(f"mined_by = {json.dumps(str(tiny_folder))}", ""))
    assert run(load_config(path), tmp_path).groups == 16


def test_an_encoder_teaches(data_folder, tiny_folder, tmp_path):
    """Its cosines reach the loss, and training brings the lists closer to them."""
    losses = {}
    for name, loss in (("taught", '"list"\ndistill = 300.0'), ("untaught", '"list"')):
        path = config_file(data_folder, tiny_folder, f"{name}.toml")
        text = path.read_text().replace('"list"', loss)
        path.write_text(text.replace("epochs = 3", "epochs = 12").replace("3e-3", "1e-3"))
        run(load_config(path), tmp_path / name)
        with (tmp_path / name / "log.csv").open() as file:
            losses[name] = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    taught, untaught = losses["taught"], losses["untaught"]
    assert taught[0] > untaught[0] + 3
    # The divergence falls too, and not only what falls without it.
    assert taught[0] - taught[-1] > 2 * (untaught[0] - untaught[-1])


def test_another_kinds_loss_is_refused(data_folder, tiny_folder, tmp_path):
    path = config_file(data_folder, tiny_folder, "loss.toml")
    path.write_text(path.read_text().replace('name = "list"', 'name = "pna"'))
    with pytest.raises(ValueError, match="no loss 'pna' for this kind"):
        run(load_config(path), tmp_path)


def test_bad_settings_are_named(data_folder, tiny_folder):
    path = config_file(data_folder, tiny_folder, "bad.toml", "mined_ranks = [5, 1]")
    with pytest.raises(ConfigError, match="mined_ranks"):
        load_config(path)
    path = config_file(data_folder, tiny_folder, "bad.toml", "negatives = 3")
    with pytest.raises(ConfigError, match=r"pairs.negatives: Extra inputs are not permitted"):
        load_config(path)


def test_the_command_line(whole_run, tmp_path, capsys):
    path, folder, _ = whole_run
    assert main(["train", str(path), "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 16
    dev = path.parent / "dev.jsonl"
    encoder = load_config(path).model.base
    assert main(["eval", str(dev), "--rerank", f"cross-encoder:{tmp_path}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"precision@1", "ndcg@10", "reranker"} <= set(shown)
    assert "ece" not in shown
    dev_groups = path.parent / "dev-groups.jsonl"
    command = ["rerank", "calibrate", str(tmp_path), str(dev), str(dev_groups)]
    assert main([*command, "--encoder", str(encoder), "--json"]) == 0
    out, err = capsys.readouterr()
    fitted = json.loads(out)
    assert f"fitted on {fitted['pairs']} pairs only" in err
    assert fitted["calibration"]["fitted_on"] == "dev.jsonl, dev-groups.jsonl"
    assert 0 <= fitted["ece"] <= 1
    tuned = fitted["combination"]["weight"]
    given = [*command, "--encoder", str(encoder), "--weight", str(tuned + 7), "--json"]
    assert main(given) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["combination"]["weight"] == tuned + 7
    assert other["calibration"] == fitted["calibration"]
    assert other["gain"] <= fitted["gain"] + 1e-9
    assert main(["eval", str(dev_groups), "--rerank", f"combined:{tmp_path}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert 0 <= shown["ece"] <= 1
    assert {"group_accuracy", "descriptions"} <= set(shown)
    assert main(["eval", str(dev), "--rerank", "combined", "--encoder", "x"]) == 2
    assert main(["eval", str(dev), "--rerank", "nope"]) == 1
    assert folder != tmp_path


# --- small files ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_small_files_rebuild_the_model(tmp_path):
    """Over the bundled base, one byte a weight."""
    from descsim_tools.encoders.presets import BUNDLED
    from descsim_tools.encoders.weights import find_model

    torch.manual_seed(0)
    model = new_cross_encoder(Transformer(str(find_model(BUNDLED))))
    with torch.no_grad():
        for name, parameter in model[0].named_parameters():
            if "layer." in name:
                parameter += 0.01 * torch.randn_like(parameter)
    write_small(model, tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 25_000_000
    first = DescriptionCrossEncoder("first", model).score(DESCRIPTION, SENTENCES)
    again = DescriptionCrossEncoder("again", read_small(tmp_path)).score(DESCRIPTION, SENTENCES)
    np.testing.assert_allclose(first, again, atol=0.02)
    assert np.std(first) > 0.02
