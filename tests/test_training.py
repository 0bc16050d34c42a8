import csv
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from transformers import AutoModel

from descsim_tools import DescriptionEncoder
from descsim_tools.cli import main
from descsim_tools.encoders.delta import merge_delta, write_delta
from descsim_tools.encoders.encoder import transformer_of
from descsim_tools.errors import CorpusError, EncoderError
from descsim_tools.training.ablate import ablate, load_settings
from descsim_tools.training.config import ConfigError, ModelConfig, TrainingConfig, load_config
from descsim_tools.training.data import Cluster, Group, read_groups, write_groups
from descsim_tools.training.kinds import run as train
from descsim_tools.training.losses import GroupLoss
from descsim_tools.training.trainer import TrainedPair, choose_trained, draw_batch
from tests.conftest import ROOT

FOLDER = ROOT / "examples/training"
TEXTS = ["A dog bit a man.", "The treaty was signed in spring.", "Rust ate the bridge."]


@pytest.fixture(scope="module")
def groups():
    return read_groups(FOLDER / "open-groups.jsonl.gz")[:24]


@pytest.fixture(scope="module")
def data_folder(groups, tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    write_groups(groups, folder / "train.jsonl")
    write_groups(groups[:6], folder / "dev-groups.jsonl")
    lines = (FOLDER / "contrast-dev.jsonl").read_text(encoding="utf-8").splitlines(True)
    (folder / "dev.jsonl").write_text("".join(lines[:6]), encoding="utf-8")
    return folder


def config_file(folder, base, name="run.toml", model="", training="", loss='name = "group"'):
    path = folder / name
    path.write_text(
        f'name = "tiny"\n[data]\ntrain = ["train.jsonl"]\ndev = ["dev.jsonl", "dev-groups.jsonl"]\n'
        f"[model]\nbase = {json.dumps(str(base))}\n{model}\n[loss]\n{loss}\n"
        f"[training]\nepochs = 2\ngroups_per_batch = 8\nlearning_rate = 1e-3\n{training}\n"
    )
    return path


# --- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["descsim-minilm", "paper"])
def test_ready_configurations_are_valid(name):
    config = load_config(FOLDER / f"{name}.toml")
    assert all(file.is_file() for file in [*config.data.train, *config.data.dev])


def test_the_papers_recipe():
    config = load_config(FOLDER / "paper.toml")
    assert config.loss.settings == {"margin": 1.0, "temperature": 0.1, "alpha": 0.1}
    settings = config.training
    assert (settings.epochs, settings.groups_per_batch, settings.learning_rate) == (30, 128, 2.5e-5)
    assert settings.weight_decay == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("epochs = 0", r"training.epochs: Input should be greater than 0"),
        ("epoch = 3", r"training.epoch: Extra inputs are not permitted"),
        ('precision = "fp8"', r"training.precision: Input should be 'auto', 'fp32' or 'bf16'"),
        ("epochs = ", "is no TOML"),
    ],
)
def test_bad_settings_are_named(change, match, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(f'name = "x"\n[data]\ntrain = ["t"]\n[training]\n{change}\n')
    with pytest.raises(ConfigError, match=match):
        load_config(path)


def test_a_missing_configuration(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "nope.toml")


def test_too_few_groups_are_named(data_folder, tiny_folder, tmp_path):
    path = config_file(data_folder, tiny_folder, "few.toml", training="# ")
    content = path.read_text().replace("groups_per_batch = 8", "groups_per_batch = 80")
    path.write_text(content)
    with pytest.raises(CorpusError, match=r"24 groups to train on.*make no batch of 80"):
        train(load_config(path), tmp_path)


# --- drawing and embedding --------------------------------------------------------------------


def test_a_draw_depends_on_its_seed_alone(groups):
    settings = TrainingConfig(sentences_per_cluster=2)
    first = draw_batch([(groups[0], 1), (groups[1], 2)], settings)
    again = draw_batch([(groups[0], 1), (groups[1], 2)], settings)
    other = draw_batch([(groups[0], 3), (groups[1], 4)], settings)
    assert first == again
    assert first != other
    clusters = sum(len(group.clusters) for group in groups[:2])
    assert sorted(set(first.description_cluster)) == list(range(clusters))
    assert len(first.twins) == clusters
    for description, number in zip(first.descriptions, first.description_cluster, strict=True):
        cluster = [c for group in groups[:2] for c in group.clusters][number]
        assert description in cluster.descriptions
        assert first.twins[number] in cluster.descriptions
        assert first.twins[number] != description


def test_a_record_without_sentences_for_its_bad_descriptions():
    record = Group("r", (Cluster(("s",), ("good",)), Cluster((), ("bad",))))
    batch = draw_batch([(record, 0), (record, 1)], TrainingConfig())
    assert batch.sentences == ["s", "s"]
    assert batch.descriptions == ["good", "bad"] * 2


def test_training_reads_texts_as_the_encoder_does(tiny):
    """In passes of any size, on both sides."""
    for tokens in (64, 4096):
        settings = TrainingConfig(tokens_per_pass=tokens, precision="fp32")
        pair = TrainedPair(tiny.model, GroupLoss(), settings)
        for side, encode in (
            ("query", tiny.encode_descriptions),
            ("document", tiny.encode_sentences),
        ):
            with torch.no_grad():
                vectors = pair.eval().embed(TEXTS, side).numpy()
            np.testing.assert_allclose(vectors, encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("method", ["full", "lora", "bitfit", "last-layer"])
def test_what_is_trained(method, tiny_folder):
    model = DescriptionEncoder.load(tiny_folder, device="cpu").model
    choose_trained(model, ModelConfig(method=method))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    expected = {
        "full": lambda n: "embeddings." not in n,
        "lora": lambda n: "lora_" in n,
        "bitfit": lambda n: n.endswith("bias"),
        "last-layer": lambda n: ".layer.1." in n,
    }[method]
    assert all(expected(name) for name in trained)


# --- runs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_run(data_folder, tiny_folder, tmp_path_factory):
    """An unbroken run, and its configuration."""
    folder = tmp_path_factory.mktemp("whole")
    path = config_file(data_folder, tiny_folder, "whole.toml", training='precision = "fp32"')
    return path, folder, train(load_config(path), folder)


def test_a_run_writes_all_it_promises(whole_run, tiny):
    _, folder, result = whole_run
    assert {"dev_precision@1", "dev-groups_group_accuracy", "score"} <= set(result.metrics)
    assert result.groups == 24
    content = json.loads((folder / "result.json").read_text())
    assert content["metrics"] == result.metrics
    assert str(folder) not in (folder / "result.json").read_text()
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["eval_score"] for row in rows if row["eval_score"]]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    trained = DescriptionEncoder.load(folder / "model", device="cpu")
    assert trained.is_pair
    assert not np.allclose(trained.encode_sentences(TEXTS), tiny.encode_sentences(TEXTS), atol=1e-3)


def test_the_delta_rebuilds_the_trained_pair(whole_run, tiny_folder):
    _, folder, _ = whole_run
    trained = DescriptionEncoder.load(folder / "model", device="cpu")
    base = DescriptionEncoder.load_pair(
        description=tiny_folder, sentence=tiny_folder, pooling=None, device="cpu"
    )
    sides = {side: transformer_of(base.model, side).model for side in ("query", "document")}
    merge_delta(sides, folder / "delta.safetensors")
    for encode in ("encode_descriptions", "encode_sentences"):
        cosine = (getattr(base, encode)(TEXTS) * getattr(trained, encode)(TEXTS)).sum(axis=1)
        assert (cosine > 0.9999).all()


def test_training_lowers_the_loss(whole_run):
    _, folder, _ = whole_run
    with (folder / "log.csv").open() as file:
        row = [row for row in csv.DictReader(file) if row["train_loss"]][-1]
    assert float(row["train_loss"]) > 0


BROKEN = """
import sys
from descsim_tools.training.config import load_config
from descsim_tools.training.kinds import run as train
train(load_config(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_result(whole_run, tmp_path):
    path, folder, result = whole_run
    command = [sys.executable, "-c", BROKEN, path, tmp_path]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 300
    # The trainer writes this file last in a checkpoint; this one is of the first epoch of two.
    while not list(tmp_path.glob("checkpoints/checkpoint-3/trainer_state.json")):
        assert time.time() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = train(load_config(path), tmp_path)
    assert again.metrics == pytest.approx(result.metrics, abs=1e-6)
    whole = DescriptionEncoder.load(folder / "model", device="cpu")
    resumed = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(
        resumed.encode_descriptions(TEXTS), whole.encode_descriptions(TEXTS), atol=1e-5
    )


def test_the_same_seed_gives_the_same_result(whole_run, tmp_path):
    path, _, result = whole_run
    assert train(load_config(path), tmp_path).metrics == pytest.approx(result.metrics, abs=1e-6)


def test_seeds_and_the_base_can_be_averaged(whole_run, data_folder, tiny_folder, tmp_path):
    _, folder, _ = whole_run
    training = 'precision = "fp32"\naverage = 2\nbase_share = [0.25, 0.5]'
    path = config_file(data_folder, tiny_folder, "average.toml", training=training)
    result = train(load_config(path), tmp_path)
    members = [DescriptionEncoder.load(tmp_path / f"seed-{i}/model", device="cpu") for i in (0, 1)]
    mean = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    base = load_config(path).model.base
    pair = DescriptionEncoder.load_pair(description=base, sentence=base, pooling=None)
    states = [encoder.model.state_dict() for encoder in (*members, pair, mean)]
    for name, value in states[3].items():
        tuned = (states[0][name] + states[1][name]) / 2
        share = 0.5 if ".document." in name else 0.25
        torch.testing.assert_close(value, (1 - share) * tuned + share * states[2][name])
    whole = DescriptionEncoder.load(folder / "model", device="cpu")
    np.testing.assert_allclose(
        members[0].encode_sentences(TEXTS), whole.encode_sentences(TEXTS), atol=1e-5
    )
    assert set(result.metrics) >= {"dev_precision@1", "score"}
    assert (tmp_path / "delta.safetensors").is_file()
    shared = 'sides = "shared"'
    path = config_file(data_folder, tiny_folder, "shared.toml", model=shared, training=training)
    with pytest.raises(ConfigError, match=r"base_share is \[0.25, 0.5\], need equal ones"):
        load_config(path)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ('sides = "shared"', 'name = "paper"'),
        ('method = "lora"', 'name = "pna"\npositive_score = 0.9'),
        ('method = "bitfit"', 'name = "paper-infonce"'),
        ('method = "last-layer"', 'name = "paper-triplet"'),
    ],
)
def test_ways_to_train(model, loss, data_folder, tiny_folder, tmp_path):
    path = config_file(
        data_folder, tiny_folder, "way.toml", model=model, loss=loss, training="accumulate = 2"
    )
    result = train(load_config(path), tmp_path)
    assert 0 <= result.metrics["dev_precision@1"] <= 1
    trained = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    assert trained.is_pair == ("shared" not in model)
    assert trained.encode_descriptions(TEXTS).shape == (3, 32)


def test_losses_can_be_compared(data_folder, tiny_folder, tmp_path):
    path = config_file(data_folder, tiny_folder, "ablate.toml")
    path.write_text(
        path.read_text() + '[ablate.one.loss]\nname = "paper"\n[ablate.two.training]\nepochs = 1\n'
    )
    settings = load_settings(path)
    assert settings["one"].loss.name == "paper"
    assert settings["two"].training.epochs == 1
    assert settings["two"].training.groups_per_batch == 8
    rows = ablate(settings, tmp_path)
    assert set(rows) == {"one", "two"}
    with (tmp_path / "comparison.csv").open() as file:
        assert [row["setting"] for row in csv.DictReader(file)] == ["one", "two"]
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_an_ablation_needs_settings(data_folder, tiny_folder):
    with pytest.raises(ConfigError, match="no settings to compare"):
        load_settings(config_file(data_folder, tiny_folder, "none.toml"))


def test_the_command_line(data_folder, tiny_folder, tmp_path, capsys):
    path = config_file(data_folder, tiny_folder, "cli.toml")
    assert main(["train", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 24
    assert (tmp_path / "out/model").is_dir()
    assert main(["data", "stats", str(data_folder / "train.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 24
    assert main(["data", "stats", str(data_folder / "train.jsonl")]) == 0
    assert main(["train", str(tmp_path / "nope.toml"), "--out", str(tmp_path)]) == 1


# --- deltas -----------------------------------------------------------------------------------


def test_a_delta_of_another_architecture_is_refused(whole_run, tiny_folder):
    _, folder, _ = whole_run
    plain = AutoModel.from_pretrained(tiny_folder)
    with pytest.raises(EncoderError, match="does not fit the base"):
        merge_delta({"other": plain}, folder / "delta.safetensors")


def test_what_was_not_trained_is_not_kept(tiny_folder, tmp_path):
    base, tuned = (AutoModel.from_pretrained(tiny_folder) for _ in range(2))
    with torch.no_grad():
        tuned.encoder.layer[1].output.dense.weight += 0.1
    write_delta(base, {"query": tuned}, tmp_path / "d.safetensors")
    from safetensors.torch import load_file

    name = "query/encoder.layer.1.output.dense.weight"
    assert set(load_file(tmp_path / "d.safetensors")) == {name, name + ":scale"}
