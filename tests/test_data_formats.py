import json

import pytest

from descsim_tools.datagen.formats import (
    Cluster,
    EvalQuery,
    Group,
    PaperRecord,
    Triplet,
    parse_item,
    read_items,
    read_triplets,
    to_fields,
    triplets_of,
)
from descsim_tools.errors import DataError

GROUP = Group(
    "g1",
    (Cluster(("s1", "s2"), ("a", "b")), Cluster(("t1",), ("c",))),
    shape="edited",
    domain="rivers",
    open=True,
)
RECORD = PaperRecord("s", ("g1", "g2", "g3"), ("b1", "b2"))
QUERY = EvalQuery("q1", "d", ("g1", "g2"), ("b1",))


@pytest.mark.parametrize("item", [GROUP, RECORD, QUERY])
def test_items_survive_their_line(item):
    assert parse_item(json.dumps(to_fields(item))) == item


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[]", "a list, need an object"),
        ('{"text": "x"}', "fields 'text', need 'clusters'"),
        ('{"sentence": "s", "good": []}', "'good' is no list of texts"),
        ('{"sentence": " ", "good": ["g"], "bad": ["b"]}', "'sentence' is ' ', need a text"),
        ('{"sentence": "s", "good": ["g", 5], "bad": ["b"]}', "'good' holds 5 at position 1"),
        ('{"description": "d", "good": ["g"], "bad": ["b"]}', "'id' is None"),
        ('{"clusters": [{}]}', "no list of two or more clusters"),
        ('{"id": "x", "clusters": [1, 2]}', "cluster 0 is a int"),
        ('{"id": "x", "clusters": [{"sentences": ["s"]}, {}]}', "cluster 0: 'descriptions'"),
    ],
)
def test_what_is_no_item_is_told_why(line, message):
    with pytest.raises(DataError, match=message):
        parse_item(line)


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path):
    path = tmp_path / "d.jsonl"
    good = json.dumps(to_fields(RECORD))
    path.write_text(f"{good}\n\n{{broken\n{json.dumps(to_fields(QUERY))}\n{good}\n")
    items, problems = read_items(path)
    assert items == [(1, RECORD), (5, RECORD)]
    assert [(p.line, p.reason) for p in problems] == [
        (3, problems[0].reason),
        (4, "a query in a file of record lines"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "it is empty"), (b"{}\n", "line 1: fields"), (b"\xff\xfe\n", "no UTF-8 text")],
)
def test_files_without_items(tmp_path, content, message):
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_items(tmp_path / "d")
    with pytest.raises(DataError, match="No such file"):
        read_items(tmp_path / "none")


def test_triplets_of_each_form():
    assert list(triplets_of(RECORD)) == [
        Triplet("s", "g1", "b1"),
        Triplet("s", "g2", "b2"),
        Triplet("s", "g3", "b1"),
    ]
    assert list(triplets_of(QUERY)) == [Triplet("d", "g1", "b1"), Triplet("d", "g2", "b1")]
    assert list(triplets_of(GROUP)) == [
        Triplet("s1", "a", "c"),
        Triplet("s1", "b", "c"),
        Triplet("s2", "a", "c"),
        Triplet("s2", "b", "c"),
        Triplet("t1", "c", "a"),
    ]


def test_triplets_of_sick(tmp_path):
    rows = [
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
        '1\tA "dog" runs\tAn animal moves\t4\tENTAILMENT',
        '2\tA "dog" runs\tNo dog runs\t3\tCONTRADICTION',
        '3\tA "dog" runs\tA cat sits\t1\tNEUTRAL',
        "4\tA man sits\tA person sits\t5\tENTAILMENT",
        "5\tA cat eats\tNo cat eats\t3\tCONTRADICTION",
    ]
    path = tmp_path / "sick.txt"
    path.write_text("\n".join(rows) + "\n")
    source = read_triplets(path)
    assert source.triplets == [Triplet('A "dog" runs', "An animal moves", "No dog runs")]
    assert (source.name, source.reference) == ("sick", "sentence")
    path.write_text("\n".join(rows[:2]) + "\n")
    with pytest.raises(DataError, match="holds no triplet"):
        read_triplets(path)


def test_lines_that_give_no_triplets_are_told(tmp_path, caplog):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(to_fields(RECORD)) + "\n{broken\n")
    assert len(read_triplets(path).triplets) == 3
    assert "1 lines of" in caplog.text
    assert "the first is line 2: no JSON" in caplog.text


def test_the_sides_of_triplets(tmp_path):
    for item, side in [(RECORD, "sentence"), (QUERY, "description"), (GROUP, "sentence")]:
        (tmp_path / "d").write_text(json.dumps(to_fields(item)))
        assert read_triplets(tmp_path / "d").reference == side


def test_the_training_groups_are_read_whole(shared):
    items, problems = read_items(shared / "data/descriptions/dev.jsonl")
    assert len(items) == 234
    assert problems == []
