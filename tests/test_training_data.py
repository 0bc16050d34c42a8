import gzip
import json
from dataclasses import replace

import pytest

from descsim_tools.cli import main
from descsim_tools.errors import CorpusError
from descsim_tools.training.data import (
    Cluster,
    Group,
    read_groups,
    split_groups,
    statistics,
    to_records,
    to_triplets,
    write_groups,
)
from tests.conftest import ROOT

OPEN = ROOT / "examples/training/open-groups.jsonl.gz"

GROUP = Group(
    "g1",
    (Cluster(("s1", "s2"), ("d1", "d2")), Cluster(("s3",), ("d3",))),
    shape="edited",
    domain="law",
    open=True,
)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["g.jsonl", "g.jsonl.gz"])
def test_groups_round_trip_and_their_bytes_repeat(name, tmp_path):
    write_groups([GROUP], tmp_path / name)
    assert read_groups(tmp_path / name) == [GROUP]
    first = (tmp_path / name).read_bytes()
    write_groups([GROUP], tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_the_papers_records(tmp_path):
    rows = [
        {"sentence": "s", "good": ["a", "b"], "bad": ["c"]},
        {"sentence": "t", "good": '["x"]', "bad": "[]"},  # as the hub's columns hold them
    ]
    groups = read_groups(write_lines(tmp_path / "r.jsonl", rows))
    assert [group.clusters for group in groups] == [
        (Cluster(("s",), ("a", "b")), Cluster((), ("c",))),
        (Cluster(("t",), ("x",)),),
    ]


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("names", [None, ("sentence1", "sentence2", "gold_label")])
def test_labelled_pairs_of_one_premise_make_a_group(numbers, names, tmp_path, caplog):
    label = (lambda name, number: number) if numbers else (lambda name, number: name)
    rows = [
        {"premise": "p", "hypothesis": "h1", "label": label("entailment", 0)},
        {"premise": "p", "hypothesis": "h2", "label": label("contradiction", 2)},
        {"premise": "p", "hypothesis": "h3", "label": label("-", -1)},
        {"premise": "q", "hypothesis": "h4", "label": label("neutral", 1)},
        {"premise": "r", "hypothesis": "h5", "label": label("entailment", 0)},
    ]
    if names:  # SNLI's own
        rows = [dict(zip(names, row.values(), strict=True)) for row in rows]
    groups = read_groups(write_lines(tmp_path / "p.jsonl", rows))
    # q has no hypothesis that it entails, so there is nothing to learn from it.
    assert [group.clusters for group in groups] == [
        (Cluster(("p",), ("h1",)), Cluster((), ("h2",))),
        (Cluster(("r",), ("h5",)),),
    ]
    assert "1 premises without an entailed" in caplog.text
    assert "the first on line 4" in caplog.text


def test_pairs_of_which_nothing_is_entailed(tmp_path):
    rows = [{"premise": "p", "hypothesis": "h", "label": "neutral"}]
    with pytest.raises(CorpusError, match="has no group: no premise has an entailed hypothesis"):
        read_groups(write_lines(tmp_path / "p.jsonl", rows))


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"sentence": None, "good": ["a"], "bad": ["b"]}, "'sentence' is None, need a non-empty"),
        ({"sentence": "s", "good": ["a", 3], "bad": []}, "'good' is no list"),
        ({"sentence": "s", "good": "[a", "bad": []}, "'good' is no list"),
        ({"anchor": "a", "positive": {"x": 1}, "negative": "n"}, "'positive' is {'x': 1}"),
        ({"anchor": "a", "positive": "p", "negative": " "}, "'negative' is ' '"),
        ({"anchor": "a", "positive": "p", "negative": "\ud800"}, "need a non-empty Unicode"),
        ({"premise": "p", "hypothesis": 1, "label": 0}, "'hypothesis' is 1"),
        ({"premise": "p", "hypothesis": "h", "label": [0]}, r"label \[0\], need one of"),
        ({"clusters": []}, "no list of clusters, or empty"),
        ({"clusters": None}, "no list of clusters, or empty"),
        ({"clusters": ["s"]}, "a cluster is no object"),
        ({"clusters": [{"sentences": "[s", "descriptions": ["d"]}]}, "'sentences' is no list"),
        ({"clusters": [{"sentences": ["\udfff"], "descriptions": ["d"]}]}, "'sentences' is no"),
    ],
)
def test_what_is_no_text_is_named(row, match, tmp_path):
    with pytest.raises(CorpusError, match=f"line 1: .*{match}"):
        read_groups(write_lines(tmp_path / "g.jsonl", [row]))


def test_triplets(tmp_path):
    rows = [{"anchor": "a", "positive": "p", "negative": "n"}]
    groups = read_groups(write_lines(tmp_path / "t.jsonl", rows))
    assert groups[0].clusters == (Cluster(("a",), ("p",)), Cluster((), ("n",)))


def test_conversion():
    assert list(to_records([GROUP])) == [
        {"sentence": "s1", "good": ["d1", "d2"], "bad": ["d3"]},
        {"sentence": "s2", "good": ["d1", "d2"], "bad": ["d3"]},
        {"sentence": "s3", "good": ["d3"], "bad": ["d1", "d2"]},
    ]
    triplets = list(to_triplets([GROUP]))
    assert len(triplets) == 6
    assert triplets[0] == {"anchor": "s1", "positive": "d1", "negative": "d3"}


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{broken", "line 2: no JSON"),
        ("[1]", "line 2: a list, need an object"),
        ('{"clusters": [{"sentences": ["s"]}]}', "line 2: no field 'descriptions'"),
        ('{"clusters": [{"sentences": [], "descriptions": ["d"]}]}', "'sentences' is empty"),
        ('{"clusters": [{"sentences": [" "], "descriptions": ["d"]}]}', "no list of non-empty"),
        ('{"id": "g1", "clusters": [{"sentences": ["s"], "descriptions": ["d"]}]}', "'g1' more"),
    ],
)
def test_bad_lines_are_named(line, match, tmp_path):
    write_groups([GROUP], tmp_path / "g.jsonl")
    with (tmp_path / "g.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CorpusError, match=match):
        read_groups(tmp_path / "g.jsonl")


@pytest.mark.parametrize(
    ("content", "match"),
    [("", "is empty"), ('{"x": 1}\n', "known forms are: clusters; sentence, good, bad")],
)
def test_files_of_no_known_form(content, match, tmp_path):
    (tmp_path / "g.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=match):
        read_groups(tmp_path / "g.jsonl")
    with pytest.raises(CorpusError, match="there is no training file"):
        read_groups(tmp_path / "nope.jsonl")


def test_bad_labels_are_named(tmp_path):
    rows = [{"premise": "p", "hypothesis": "h", "label": "maybe"}]
    with pytest.raises(CorpusError, match="label 'maybe', need one of 'entailment'"):
        read_groups(write_lines(tmp_path / "p.jsonl", rows))


def test_splits_are_by_group_and_repeat():
    groups = [Group(str(i), GROUP.clusters) for i in range(100)]
    train, dev = split_groups(groups, 0.2, seed=3)
    assert (len(train), len(dev)) == (80, 20)
    assert sorted(train + dev, key=lambda g: int(g.id)) == groups
    assert split_groups(groups, 0.2, seed=3) == (train, dev)
    assert split_groups(groups, 0.2, seed=4) != (train, dev)
    with pytest.raises(ValueError, match="dev_share is 2"):
        split_groups(groups, 2)


def test_the_commands_convert_and_split(tmp_path, capsys):
    source = tmp_path / "all.jsonl"
    write_groups([replace(GROUP, id=f"g{i}") for i in range(10)], source)

    def run(*arguments):
        code = main(["data", *map(str, arguments)])
        return code, capsys.readouterr()

    for form, count in (("records", 30), ("triplets", 60), ("groups", 10)):
        code, said = run("convert", source, "--to", form, "--out", tmp_path / f"{form}.jsonl.gz")
        assert (code, said.out.partition(" written")[0]) == (0, f"{count} {form}")
    assert read_groups(tmp_path / "groups.jsonl.gz") == read_groups(source)
    assert read_groups(tmp_path / "records.jsonl.gz")[0].clusters == (
        Cluster(("s1",), ("d1", "d2")),
        Cluster((), ("d3",)),
    )
    assert len(read_groups(tmp_path / "triplets.jsonl.gz")) == 60
    code, said = run("convert", source, "--to", "records", "--out", source)
    assert code == 2
    assert "all.jsonl exists; name a new file" in said.err
    lone = write_lines(tmp_path / "lone.jsonl", [{"sentence": "s", "good": ["a"], "bad": []}])
    code, said = run("convert", lone, "--to", "triplets", "--out", tmp_path / "none.jsonl")
    assert code == 1
    assert "gives no triplets" in said.err
    assert not (tmp_path / "none.jsonl").exists()

    sides = ["--train", tmp_path / "t.jsonl", "--dev", tmp_path / "d.jsonl"]
    assert run("split", source, "--dev-share", 0.3, "--seed", 1, *sides)[0] == 0
    train, dev = read_groups(tmp_path / "t.jsonl"), read_groups(tmp_path / "d.jsonl")
    assert (train, dev) == split_groups(read_groups(source), 0.3, seed=1)
    assert run("split", source, *sides)[0] == 2  # both exist
    code, said = run("split", lone, "--train", tmp_path / "x", "--dev", tmp_path / "y")
    assert (code, "leaves one side empty" in said.err) == (1, True)
    code, said = run("split", source, "--train", tmp_path / "x", "--dev", tmp_path / "x")
    assert (code, "name the same file" in said.err) == (2, True)


def test_statistics():
    facts = statistics([GROUP])
    assert facts["groups"] == facts["open_groups"] == 1
    assert (facts["clusters"], facts["sentences"], facts["descriptions"]) == (2, 3, 3)
    assert facts["shapes"] == {"edited": 1}
    assert statistics([])["words_a_sentence"] == 0.0


def test_the_committed_groups_are_all_open():
    groups = read_groups(OPEN)
    assert len(groups) == 4163
    assert all(group.open for group in groups)
    assert all(len(group.clusters) > 1 for group in groups)


def test_no_committed_group_is_in_a_dev_file():
    texts = {t for g in read_groups(OPEN) for c in g.clusters for t in c.sentences}
    folder = ROOT / "examples/training"
    dev = {
        t
        for name in ("open-groups-dev.jsonl.gz", "short-groups-dev.jsonl.gz")
        for g in read_groups(folder / name)
        for c in g.clusters
        for t in c.sentences
    }
    for line in (folder / "contrast-dev.jsonl").read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        dev |= {*item["good"], *item["bad"]}
    assert not texts & dev


def test_no_other_group_is_committed(shared):
    """Groups that are not open speak of real people; none of their texts may be in the project."""
    closed = {
        text
        for name in ("train", "dev")
        for group in read_groups(shared / f"data/descriptions/{name}.jsonl")
        if not group.open
        for cluster in group.clusters
        for text in cluster.sentences
    }
    for path in sorted((ROOT / "examples").rglob("*.jsonl*")):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            content = file.read()
        found = {s for g in [content] for s in closed if s in g}
        assert not found, path
