"""What a run refuses, tells, and leaves behind; how well it trains is in test_training.py."""

import csv
import json
import logging

import pytest
from filelock import FileLock

from descsim_tools import DescriptionEncoder
from descsim_tools.errors import CorpusError
from descsim_tools.evaluation.protocol import EncoderScore, evaluate_file
from descsim_tools.training.ablate import ablate, load_settings
from descsim_tools.training.config import ConfigError, load_config
from descsim_tools.training.data import Cluster, Group, read_groups, write_groups
from descsim_tools.training.kinds import run
from tests.conftest import ROOT

FOLDER = ROOT / "examples/training"


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    groups = read_groups(FOLDER / "open-groups.jsonl.gz")[:12]
    write_groups(groups, folder / "train.jsonl")
    write_groups(groups[:4], folder / "dev.jsonl")
    return folder


@pytest.fixture
def configure(data_folder, tiny_folder, tmp_path):
    """Write a configuration and read it; tables replace the usual ones."""

    def write(*, base=tiny_folder, head="", data="", more="", **training):
        settings = {"epochs": 2, "groups_per_batch": 6, "learning_rate": 1e-3, **training}
        lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        files = data or 'train = ["train.jsonl"]\ndev = ["dev.jsonl"]'
        path = data_folder / "run.toml"
        path.write_text(
            f'name = "tiny"\n{head}\n[data]\n{files}\n[model]\nbase = {json.dumps(str(base))}\n'
            f"{more}\n[training]\n{lines}\n"
        )
        return path

    return write


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


# --- one folder, one run ----------------------------------------------------------------------


def test_a_folder_takes_no_other_configuration_and_no_other_data(configure, data_folder, tmp_path):
    out = tmp_path / "out"
    first = run(load_config(configure()), out)
    before = files_of(out)
    other = load_config(configure(learning_rate=3e-3, epochs=3, seed=1, warmup_share=0.0))
    with pytest.raises(ConfigError, match=r"learning_rate is 0.001 there and 0.003 now.* 1 more"):
        run(other, out)
    with pytest.raises(ConfigError, match=r"loss.name is group there and paper now"):
        run(load_config(configure(more='[loss]\nname = "paper"')), out)
    content = (data_folder / "train.jsonl").read_bytes()
    try:
        (data_folder / "train.jsonl").write_bytes(content.partition(b"\n")[2])
        with pytest.raises(ConfigError, match=r"files.train 1, train.jsonl has another content"):
            run(load_config(configure()), out)
    finally:
        (data_folder / "train.jsonl").write_bytes(content)
    assert files_of(out) == before
    # The very same run has ended: it is not done again, and says what it said.
    assert run(load_config(configure()), out) == first
    assert files_of(out) == before


def test_a_folder_of_unknown_checkpoints_is_refused(configure, tmp_path):
    (tmp_path / "checkpoints/checkpoint-2").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds another run: it has no run.json"):
        run(load_config(configure()), tmp_path)


def test_a_run_that_failed_can_be_configured_anew(configure, tmp_path):
    with pytest.raises(CorpusError, match="make no batch of 60"):
        run(load_config(configure(groups_per_batch=60)), tmp_path)
    assert run(load_config(configure()), tmp_path).groups == 12


def test_one_run_at_a_time(configure, tmp_path):
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(ConfigError, match="another run is going on in"),
    ):
        run(load_config(configure()), tmp_path)


def test_another_share_of_the_base_is_mixed_into_the_same_seeds(configure, tmp_path):
    run(load_config(configure(base_share=[0.1, 0.1])), tmp_path)
    seed = files_of(tmp_path / "seed-0")
    mixed = (tmp_path / "delta.safetensors").read_bytes()
    result = run(load_config(configure(base_share=[0.5, 0.1])), tmp_path)
    assert files_of(tmp_path / "seed-0") == seed
    assert (tmp_path / "delta.safetensors").read_bytes() != mixed
    stated = json.loads((tmp_path / "result.json").read_text())
    assert stated["config"]["training"]["base_share"] == [0.5, 0.1]
    assert stated["metrics"] == result.metrics
    before = files_of(tmp_path)
    others = [
        (
            load_config(configure(base_share=[0.5, 0.1], epochs=3)),
            r"training.epochs is 2.0 there",
        ),
        (load_config(configure()), r"training.base_share is \[0.5, 0.1\] there"),
        (load_config(configure(head='kind = "maps"')), r"kind is encoder there and maps now"),
    ]
    for other, match in others:
        with pytest.raises(ConfigError, match=match):
            run(other, tmp_path)
    assert files_of(tmp_path) == before


def test_seeds_of_an_unfinished_average_are_not_mixed_with_another_run(configure, tmp_path):
    run(load_config(configure(base_share=[0.1, 0.1])), tmp_path)
    (tmp_path / "result.json").unlink()  # as if killed before the end
    with pytest.raises(ConfigError, match=r"holds another run: training.base_share is"):
        run(load_config(configure()), tmp_path)
    assert run(load_config(configure(base_share=[0.1, 0.1])), tmp_path).groups == 12


def test_an_average_is_not_written_over_a_plain_run(configure, tmp_path):
    run(load_config(configure()), tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another run: training.average is 1 there"):
        run(load_config(configure(average=2)), tmp_path)
    assert files_of(tmp_path) == before


def test_a_checkpoint_cut_short_is_passed_over(configure, tmp_path, caplog):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(load_config(configure()), whole)
    run(load_config(configure()), broken)
    (broken / "result.json").unlink()
    newest = max((broken / "checkpoints").iterdir(), key=lambda p: int(p.name.split("-")[1]))
    (newest / "trainer_state.json").write_text("")
    with caplog.at_level(logging.WARNING):
        run(load_config(configure()), broken)
    assert "is cut short; going on from the checkpoint before it" in caplog.text
    vectors = [
        DescriptionEncoder.load(folder / "model", device="cpu").encode_sentences(["a dog", "b"])
        for folder in (whole, broken)
    ]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)


# --- what is measured -------------------------------------------------------------------------


def write_queries(path, good):
    rows = [
        {"description": f"d {i}", "good": [f"g {i} {j}" for j in range(good)], "bad": [f"b {i}"]}
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("kind", ["encoder", "maps"])
def test_queries_with_few_good_sentences_are_judged_by_ndcg(
    kind, configure, data_folder, tmp_path, capsys
):
    write_queries(data_folder / "few.jsonl", good=3)
    data = 'train = ["train.jsonl"]\ndev = ["few.jsonl"]'
    result = run(load_config(configure(head=f'kind = "{kind}"', data=data)), tmp_path)
    assert result.metrics["score"] == result.metrics["few_ndcg@10"]
    kept = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    found = evaluate_file(data_folder / "few.jsonl", EncoderScore(kept))
    assert found["ndcg@10"] == pytest.approx(result.metrics["few_ndcg@10"], abs=1e-5)


def test_dev_files_need_names_of_their_own(configure, data_folder, tmp_path):
    (data_folder / "more").mkdir(exist_ok=True)
    for name in ("more/dev.jsonl", "dev.v2.jsonl"):
        (data_folder / name).write_bytes((data_folder / "dev.jsonl").read_bytes())
    data = 'train = ["train.jsonl"]\ndev = ["dev.jsonl", "{}"]'
    with pytest.raises(ConfigError, match=r"two of data.dev are called dev; rename one"):
        run(load_config(configure(data=data.format("more/dev.jsonl"))), tmp_path)
    result = run(load_config(configure(data=data.format("dev.v2.jsonl"))), tmp_path)
    assert {"dev_group_accuracy", "dev.v2_group_accuracy"} <= result.metrics.keys()


def test_a_dev_file_without_a_choice_is_refused_at_the_start(configure, data_folder, tmp_path):
    write_groups([Group("g", (Cluster(("s",), ("d",)),))], data_folder / "single.jsonl")
    data = 'train = ["train.jsonl"]\ndev = ["single.jsonl"]'
    with pytest.raises(CorpusError, match=r"single.jsonl: no group has two clusters"):
        run(load_config(configure(data=data)), tmp_path)


def test_a_short_run_has_its_losses_in_the_log(configure, tmp_path):
    run(load_config(configure()), tmp_path)
    with (tmp_path / "log.csv").open() as file:
        losses = [row["loss"] for row in csv.DictReader(file) if row["loss"]]
    assert len(losses) == 4  # one a step
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


# --- what it starts from ----------------------------------------------------------------------


def test_a_trained_pair_can_be_trained_on(configure, tmp_path):
    run(load_config(configure()), tmp_path / "first")
    base = tmp_path / "first/model"
    run(load_config(configure(base=base, seed=1)), tmp_path / "second")
    first, second = (
        DescriptionEncoder.load(tmp_path / name / "model", device="cpu")
        for name in ("first", "second")
    )
    assert second.is_pair
    assert second.spec.name == "second/model"
    assert abs(first.encode_sentences(["a dog"]) - second.encode_sentences(["a dog"])).max() > 1e-3
    # It says what was changed of one base, which here are two.
    assert not (tmp_path / "second/delta.safetensors").exists()
    for pair in (base, "descsim-minilm"):
        with pytest.raises(ConfigError, match="is a pair, which cannot become one shared encoder"):
            run(load_config(configure(base=pair, more='sides = "shared"')), tmp_path / "third")


def test_brackets_are_trained_with(configure, tmp_path):
    run(load_config(configure(more="brackets = true")), tmp_path)
    kept = DescriptionEncoder.load(tmp_path / "model", device="cpu")
    assert kept.is_pair
    assert (tmp_path / "delta.safetensors").is_file()


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "maps"])
@pytest.mark.parametrize("batch", [12, 6, 3])  # one, two and four steps an epoch
@pytest.mark.parametrize("data", ['train = ["train.jsonl"]', ""])
def test_a_diverged_run_says_so(kind, batch, data, configure, tmp_path):
    settings = {"learning_rate": 1e30, "warmup_share": 0.0, "groups_per_batch": batch}
    config = load_config(configure(head=f'kind = "{kind}"', data=data, **settings))
    with pytest.raises(ConfigError, match=r"training diverged: .* Lower training.learning"):
        run(config, tmp_path)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("kind", "named"), [("encoder", "'word word"), ("cross-encoder", "are cut: long")]
)
def test_cut_texts_are_told(kind, named, configure, data_folder, tmp_path, caplog):
    groups = [
        *(
            Group(f"g{i}", (Cluster((f"s {i}",), ("d 1",)), Cluster(("s",), ("d 2",))))
            for i in range(5)
        ),
        Group("long", (Cluster(("word " * 600,), ("d 1",)), Cluster(("s",), ("d 2",)))),
    ]
    write_groups(groups, data_folder / "long.jsonl")
    more = '[loss]\nname = "list"\n[pairs]\nmined = 0' if kind == "cross-encoder" else ""
    settings = {"head": f'kind = "{kind}"', "data": 'train = ["long.jsonl"]', "more": more}
    with caplog.at_level(logging.WARNING):
        run(load_config(configure(**settings, epochs=0.1)), tmp_path)
    told = [record.getMessage() for record in caplog.records if "are cut" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("1 ")
    assert named in told[0]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"head": 'kind = "maps"', "more": '[loss]\nname = "group"\npreserve = 1'}, "take it out"),
        ({"more": '[loss]\nname = "group"\nheat = 1'}, "has no setting heat; it has: temperature"),
        (
            {
                "head": 'kind = "cross-encoder"',
                "more": '[loss]\nname = "list"\n[pairs]\nmined_by = "TINY"\n'
                "mined_ranks = [800, 900]",
            },
            r"no sentence is at the ranks pairs.mined_ranks = \[800, 900\]: \d+ sentences",
        ),
    ],
)
def test_what_a_kind_cannot_do_is_refused(settings, match, configure, tiny_folder, tmp_path):
    settings["more"] = settings["more"].replace("TINY", str(tiny_folder))
    with pytest.raises((ConfigError, ValueError), match=match):
        run(load_config(configure(**settings)), tmp_path)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"head": 'kind = "cross-encoder"', "more": 'sides = "pair"'}, "no use for model.sides"),
        ({"more": 'sides = "shared"\nbrackets = true'}, "brackets read each side with tokens of"),
        ({"more": "lora_rank = 4"}, 'lora_rank is of method = "lora"'),
        ({"more": 'method = "bitfit"\nfreeze_embeddings = false'}, "leaves the token embeddings"),
        (
            {"head": 'kind = "cross-encoder"', "sentences_per_cluster": 2},
            "no use for training.sentences_per_cluster",
        ),
    ],
)
def test_settings_without_effect_are_refused(settings, match, configure):
    with pytest.raises(ConfigError, match=match):
        load_config(configure(**settings))


def test_a_comparison_is_no_run(configure):
    path = configure()
    path.write_text(path.read_text() + "[ablate.one.training]\nepochs = 1\n")
    with pytest.raises(ConfigError, match="has settings to compare: run `descsim train ablate`"):
        load_config(path)


def test_infinite_settings_are_refused(configure):
    path = configure()
    path.write_text(path.read_text().replace("learning_rate = 0.001", "learning_rate = inf"))
    with pytest.raises(ConfigError, match=r"training.learning_rate: Input should be a finite"):
        load_config(path)


def test_how_a_configuration_is_encoded(configure):
    path = configure()
    plain = load_config(path)
    content = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + content)
    assert load_config(path) == plain
    path.write_bytes(content + b"# \xff\n")
    with pytest.raises(ConfigError, match="is no TOML: 'utf-8' codec"):
        load_config(path)


# --- comparisons ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        ("[ablate]\nx = 3", "ablate.x is 3, need a table"),
        ('[ablate."../evil".training]\nepochs = 1', "ablate.'../evil' names a folder"),
        ("[ablate.a.data]\ndev = []\n[ablate.b.training]\nepochs = 1", "need the same data.dev"),
        ("[ablate.a.data]\ndev = []", "need the same data.dev"),
        ("[ablate.a]\ntraining = 3", "training: Input should be a valid dictionary"),
    ],
)
def test_bad_comparisons_are_named(tables, match, configure):
    path = configure()
    path.write_text(path.read_text() + tables)
    with pytest.raises(ConfigError, match=match):
        load_settings(path)


def test_a_changed_setting_is_not_shown_with_old_figures(configure, tmp_path):
    path = configure()
    content = path.read_text()
    path.write_text(content + '[ablate.one.loss]\nname = "paper"\n')
    rows = ablate(load_settings(path), tmp_path)
    assert ablate(load_settings(path), tmp_path) == rows
    path.write_text(content + '[ablate.one.loss]\nname = "paper-triplet"\n')
    with pytest.raises(ConfigError, match=r"one holds another run: loss.name is paper there"):
        ablate(load_settings(path), tmp_path)
