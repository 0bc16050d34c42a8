"""Linear maps: their training, their files, and the ones that come with the package."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from descsim_tools import DescriptionEncoder
from descsim_tools.cli import main
from descsim_tools.encoders import PRESETS, EncoderSpec
from descsim_tools.encoders.maps import apply_map, read_map, write_map
from descsim_tools.encoders.weights import find_map
from descsim_tools.errors import EncoderError
from descsim_tools.evaluation.protocol import EncoderScore, evaluate_file, evaluate_groups
from descsim_tools.training.config import ConfigError, TrainConfig, load_config
from descsim_tools.training.data import Cluster, Group, read_groups, write_groups
from descsim_tools.training.kinds import run
from descsim_tools.training.maps import MapPair, fit
from tests.conftest import ROOT

FOLDER = ROOT / "examples/training"
TEXTS = ["A dog bit a man.", "The treaty was signed in spring.", "Rust ate the bridge."]
SHIPPED = ["minilm-query-map", "minilm-two-maps"]


def random_map(path, dim=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # float16 holds these numbers exactly.
    weight = (torch.randn(dim, dim, generator=generator) * 64).round() / 64
    write_map(weight, path)
    return weight.numpy()


def mapped(vectors, weight):
    rows = vectors @ weight.T
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- maps on an encoder -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    paths = {side: folder / f"{side}.safetensors" for side in ("description", "sentence")}
    return {side: (str(p), random_map(p, seed=i)) for i, (side, p) in enumerate(paths.items())}


@pytest.fixture(scope="module", params=["one", "both"])
def on_tiny(request, maps, tiny_folder):
    """The tiny encoder under a map of descriptions, alone or with one of sentences."""
    spec = EncoderSpec(
        "mapped",
        str(tiny_folder),
        description_map=maps["description"][0],
        sentence_map=maps["sentence"][0] if request.param == "both" else None,
    )
    return DescriptionEncoder.from_spec(spec, device="cpu")


def test_a_vector_is_the_bases_times_the_map(on_tiny, tiny, maps):
    plain = tiny.encode_sentences(TEXTS)
    wanted = {"description": mapped(plain, maps["description"][1]), "sentence": plain}
    if on_tiny.spec.sentence_map:
        wanted["sentence"] = mapped(plain, maps["sentence"][1])
    np.testing.assert_allclose(on_tiny.encode_descriptions(TEXTS), wanted["description"], atol=1e-5)
    np.testing.assert_allclose(on_tiny.encode_sentences(TEXTS), wanted["sentence"], atol=1e-5)
    assert on_tiny.is_pair
    assert (on_tiny.dim, on_tiny.max_tokens) == (tiny.dim, tiny.max_tokens)


def test_both_sides_share_the_base(on_tiny, tiny):
    """Beside the base there is one matrix a map, so that it is as fast and as large."""
    count = sum(p.numel() for p in on_tiny.model.parameters())
    base = sum(p.numel() for p in tiny.model.parameters())
    assert count == base + 32 * 32 * (2 if on_tiny.spec.sentence_map else 1)


def test_saved_it_is_an_ordinary_model(on_tiny, tmp_path):
    on_tiny.save(tmp_path / "model")
    ordinary = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    again = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    wanted = on_tiny.encode_descriptions(TEXTS), on_tiny.encode_sentences(TEXTS)
    found = [
        (ordinary.encode_query(TEXTS), ordinary.encode_document(TEXTS)),
        (again.encode_descriptions(TEXTS), again.encode_sentences(TEXTS)),
    ]
    for descriptions, sentences in found:
        np.testing.assert_allclose(descriptions, wanted[0], atol=1e-6)
        np.testing.assert_allclose(sentences, wanted[1], atol=1e-6)
    assert again.is_pair
    dense = [module for module in ordinary.modules() if isinstance(module, Dense)]
    assert all(module.linear.bias is None for module in dense)
    assert all(isinstance(m.activation_function, torch.nn.Identity) for m in dense)


def test_the_fingerprint_names_each_map_and_its_side(maps, tiny_folder, tiny, tmp_path):
    other = tmp_path / "other.safetensors"
    random_map(other, seed=7)
    first, second = maps["description"][0], maps["sentence"][0]
    chosen = [(None, None), (first, None), (None, first), (first, second), (str(other), None)]
    prints = [
        DescriptionEncoder.from_spec(
            EncoderSpec("x", str(tiny_folder), description_map=query, sentence_map=document),
            device="cpu",
        ).fingerprint
        for query, document in chosen
    ]
    assert len(set(prints)) == len(chosen)
    assert prints[0] == tiny.fingerprint


def test_an_encoder_without_maps_keeps_its_fingerprint():
    """That stores filled before there were maps name."""
    plain = DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")
    assert plain.fingerprint.startswith("8b01aa0671f67cd0")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda path: None, "no map .*neither a file of the package nor a path"),
        (lambda path: path.write_bytes(b"nonsense"), "cannot read the map"),
        (lambda path: save_file({"weight": torch.ones(2, 3)}, path), "holds no map"),
        (lambda path: save_file({"other": torch.eye(32)}, path), "holds no map"),
        (lambda path: write_map(torch.eye(16), path), "maps vectors of 16 dimensions.*gives 32"),
    ],
)
def test_a_bad_map_is_named(make, match, tiny_folder, tmp_path):
    path = tmp_path / "bad.safetensors"
    make(path)
    spec = EncoderSpec("x", str(tiny_folder), sentence_map=str(path))
    with pytest.raises(EncoderError, match=match):
        DescriptionEncoder.from_spec(spec, device="cpu")


# --- training ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    groups = read_groups(FOLDER / "open-groups.jsonl.gz")[:24]
    write_groups(groups, folder / "train.jsonl")
    write_groups(groups, folder / "dev-groups.jsonl")
    return folder


def config_file(folder, base, name, sides="both", more=""):
    path = folder / name
    path.write_text(
        f'name = "tiny-maps"\nkind = "maps"\n[data]\ntrain = ["train.jsonl"]\n'
        f'dev = ["dev-groups.jsonl"]\n[model]\nbase = {json.dumps(str(base))}\n{more}\n'
        f"[training]\nepochs = 6\ngroups_per_batch = 8\nlearning_rate = 1e-2\nseed = 3\n"
        f'[maps]\nsides = "{sides}"\ndev_every = 2\n'
    )
    return path


@pytest.fixture(scope="module", params=["both", "description"])
def trained(request, data_folder, tiny_folder, tmp_path_factory):
    config = load_config(
        config_file(data_folder, tiny_folder, f"{request.param}.toml", request.param)
    )
    folder = tmp_path_factory.mktemp("out")
    return run(config, folder), folder, config


@pytest.mark.parametrize("sides", ["both", "description"])
def test_a_hidden_rotation_is_found(sides):
    """Descriptions whose vectors are those of their sentences, turned by one rotation."""
    generator = torch.Generator().manual_seed(0)
    sentences = torch.nn.functional.normalize(torch.randn(120, 16, generator=generator), dim=1)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    known = {f"s{i}": row for i, row in enumerate(sentences)}
    known |= {f"d{i}": row for i, row in enumerate(sentences @ rotation)}
    clusters = [Cluster((f"s{i}",), (f"d{i}",)) for i in range(120)]
    groups = [Group(str(i), tuple(clusters[i : i + 2])) for i in range(0, 80, 2)]
    vectors = SimpleNamespace(of=lambda texts, side: torch.stack([known[t] for t in texts]))
    config = TrainConfig(
        name="x",
        kind="maps",
        data={"train": ["unread"]},
        training={"epochs": 40, "groups_per_batch": 10, "learning_rate": 1e-2},
        maps={"sides": sides},
    )
    pair = MapPair(vectors, 16, config.maps)

    def found():
        """Share of the texts not trained on that are nearest to their own sentence."""
        unseen = range(80, 120)
        with torch.no_grad():
            descriptions = pair.embed([f"d{i}" for i in unseen], "query")
            scores = descriptions @ pair.embed([f"s{i}" for i in unseen], "document").T
        return (scores.argmax(dim=1) == torch.arange(40)).float().mean()

    assert found() < 0.2
    history, metrics, epoch = fit(pair, groups, SimpleNamespace(files={}), config)
    assert found() > 0.7
    assert (metrics, epoch, len(history)) == ({}, 40, 160)


def test_training_keeps_the_best(trained):
    result, folder, config = trained
    with (folder / "log.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["loss"]) for row in rows]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    scores = {float(row["epoch"]): float(row["eval_score"]) for row in rows if row["eval_score"]}
    assert sorted(scores) == [2, 4, 6]
    assert scores[result.epoch] == max(scores.values()) == result.metrics["score"]
    groups = read_groups(config.data.dev[0])
    kept = DescriptionEncoder.load(folder / "model", device="cpu")
    found = evaluate_groups(groups, EncoderScore(kept))["group_accuracy"]
    assert found == pytest.approx(result.metrics["dev-groups_group_accuracy"], abs=0.02)


def test_what_is_written(trained, tiny, tiny_folder):
    result, folder, config = trained
    both = config.maps.sides == "both"
    weight = read_map(folder / "description-map.safetensors").numpy()
    kept = DescriptionEncoder.load(folder / "model", device="cpu")
    plain = tiny.encode_descriptions(TEXTS)
    np.testing.assert_allclose(kept.encode_descriptions(TEXTS), mapped(plain, weight), atol=1e-5)
    assert (folder / "sentence-map.safetensors").is_file() == both
    assert np.allclose(kept.encode_sentences(TEXTS), plain, atol=1e-5) != both
    content = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert content["metrics"] == result.metrics
    assert content["config"]["kind"] == "maps"
    assert content["config"]["data"]["train"] == ["train.jsonl"]
    assert str(tiny_folder.parent) not in (folder / "model/modules.json").read_text()
    assert (folder / "curve.png").stat().st_size > 1000


def test_the_same_configuration_gives_the_same_bytes(trained, tmp_path):
    result, folder, config = trained
    again = run(config, tmp_path / "again")
    assert again.metrics == result.metrics
    for path in folder.glob("*.safetensors"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    settings = config.training.model_copy(update={"seed": 4})
    other = run(config.model_copy(update={"training": settings}), tmp_path / "other")
    name = "description-map.safetensors"
    assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()
    assert other.groups == result.groups


def test_each_text_is_encoded_once(data_folder, tiny_folder, tmp_path, monkeypatch):
    seen = []
    for side in ("encode_sentences", "encode_descriptions"):
        original = getattr(DescriptionEncoder, side)

        def counted(self, texts, _original=original, **options):
            seen.extend(texts)
            return _original(self, texts, **options)

        monkeypatch.setattr(DescriptionEncoder, side, counted)
    run(load_config(config_file(data_folder, tiny_folder, "once.toml")), tmp_path)
    groups = read_groups(data_folder / "train.jsonl")
    clusters = [cluster for group in groups for cluster in group.clusters]
    assert sorted(seen) == sorted({t for c in clusters for t in (*c.sentences, *c.descriptions)})


def test_a_base_with_prompts_reads_each_side_with_its_own(
    data_folder, tiny_folder, tmp_path, monkeypatch
):
    spec = EncoderSpec(
        "prompted", str(tiny_folder), description_prompt="query: ", sentence_prompt="passage: "
    )
    monkeypatch.setitem(PRESETS, "prompted", spec)
    config = load_config(config_file(data_folder, "prompted", "prompted.toml", "description"))
    run(config, tmp_path)
    weight = read_map(tmp_path / "description-map.safetensors").numpy()
    base = DescriptionEncoder.from_spec(spec, device="cpu")
    kept = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(
        kept.encode_descriptions(TEXTS), mapped(base.encode_descriptions(TEXTS), weight), atol=1e-5
    )
    np.testing.assert_allclose(
        kept.encode_sentences(TEXTS), base.encode_sentences(TEXTS), atol=1e-5
    )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('kind = "encoder"\n[maps]\nsides = "both"', r"\[maps\] needs kind"),
        ('kind = "maps"\n[model]\nmethod = "lora"', "no use for model.method"),
        ('kind = "maps"\n[training]\naverage = 2', "no use for training.average"),
        ('kind = "maps"\n[maps]\nside = "both"', "maps.side: Extra inputs"),
        ('kind = "map"', "kind: Input should be 'encoder', 'maps', 'cross-encoder' or 'causal-lm'"),
    ],
)
def test_settings_without_effect_are_refused(content, match, tmp_path):
    kind, _, rest = content.partition("\n")
    path = tmp_path / "c.toml"
    path.write_text(f'name = "x"\n{kind}\n[data]\ntrain = ["t"]\n{rest}\n')
    with pytest.raises(ConfigError, match=match):
        load_config(path)


def test_the_command_trains_maps(capsys, data_folder, tiny_folder, tmp_path):
    path = config_file(data_folder, tiny_folder, "command.toml")
    assert main(["train", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["maps"]["dev_every"] == 2
    assert (tmp_path / "out/sentence-map.safetensors").is_file()


# --- the shipped maps -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base():
    return DescriptionEncoder.load("all-minilm-l6-v2", device="cpu")


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request):
    return DescriptionEncoder.load(request.param, device="cpu")


def test_shipped_configurations_are_the_presets():
    for name in SHIPPED:
        config = load_config(FOLDER / f"{name}.toml")
        assert config.name == name
        assert (config.maps.sides == "both") == (PRESETS[name].sentence_map is not None)


def test_shipped_files_are_small():
    folder = find_map("minilm-maps/query-map.safetensors").parent
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_500_000


def test_shipped_vectors_are_the_bases_times_the_map(shipped, base):
    plain = base.encode_sentences(TEXTS)
    for name, found in (
        (shipped.spec.description_map, shipped.encode_descriptions(TEXTS)),
        (shipped.spec.sentence_map, shipped.encode_sentences(TEXTS)),
    ):
        wanted = mapped(plain, read_map(find_map(name)).numpy()) if name else plain
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_applying_a_map_does_not_depend_on_length():
    vectors, weight = torch.randn(4, 8), torch.randn(8, 8)
    torch.testing.assert_close(apply_map(3 * vectors, weight), apply_map(vectors, weight))


def card_figure(row, name):
    card = find_map("minilm-maps/query-map.safetensors").parent / "README.md"
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in card.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    column = next(line for line in lines if name in line).index(name)
    return float(next(line for line in lines if line[0] == row)[column].split()[0])


@pytest.fixture(scope="module")
def base_precision(base):
    return evaluate_file(FOLDER / "contrast-dev.jsonl", EncoderScore(base))["precision@5"]


def test_the_model_card_states_what_is_measured(shipped, base_precision):
    score = EncoderScore(shipped)
    found = evaluate_file(FOLDER / "contrast-dev.jsonl", score)
    assert found["precision@5"] >= base_precision + 0.025
    name = shipped.spec.name
    for k, tolerance in ((1, 1.7), (5, 0.7)):
        stated = card_figure(f"contrast_dev P@{k}", name)
        assert 100 * found[f"precision@{k}"] == pytest.approx(stated, abs=tolerance)
    groups = read_groups(FOLDER / "open-groups-dev.jsonl.gz")
    accuracy = 100 * evaluate_groups(groups, score)["group_accuracy"]
    assert accuracy == pytest.approx(card_figure("open group dev", name), abs=0.3)


@pytest.mark.slow
def test_more_instances_are_found_among_descriptions(base, corpus_lines):
    """Top five for the demo's twelve descriptions, in a corpus that holds the descriptions too."""
    path = ROOT / "tests/data/demo_queries.json"
    queries = json.loads(path.read_text(encoding="utf-8"))
    texts = [*corpus_lines, *(query["description"] for query in queries)]
    plain = torch.from_numpy(base.encode_sentences(texts))

    def share_of_instances(name):
        spec = PRESETS[name]
        sides = [plain[len(corpus_lines) :], plain]
        for i, file in enumerate((spec.description_map, spec.sentence_map)):
            if file is not None:
                sides[i] = apply_map(sides[i], read_map(find_map(file)))
        best = (sides[0] @ sides[1].T).topk(5, dim=1).indices
        return np.mean(
            [
                [texts[i] in query["instances"] for i in top]
                for query, top in zip(queries, best.tolist(), strict=True)
            ]
        )

    plainly, one, both = map(share_of_instances, ["all-minilm-l6-v2", *SHIPPED])
    assert one >= plainly + 0.05
    assert both >= one + 0.1
