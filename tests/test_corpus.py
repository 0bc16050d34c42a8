import datetime as dt
import json

import pytest

from descsim_tools import Record
from descsim_tools.errors import CorpusError
from descsim_tools.index_builder import open_corpus


def rows_of(corpus, **options):
    return list(open_corpus(corpus, **options).rows())


def texts_of(corpus, **options):
    return [row.record.text for row in rows_of(corpus, **options) if row.record]


def write(path, content: str | bytes):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"one\ntwo\n",
        b"one\r\ntwo\r\n",
        b"\xef\xbb\xbfone\ntwo",
        b"  one \n\ttwo\n",
    ],
    ids=["lf", "crlf", "bom", "space"],
)
def test_lines(content, tmp_path):
    rows = rows_of(write(tmp_path / "c.txt", content))
    assert [row.record.text for row in rows] == ["one", "two"]
    assert rows[1].record.metadata == {"source": "c.txt", "line": 2}
    assert rows[1].done == pytest.approx(len(content), abs=5)


def test_blank_lines_are_neither_records_nor_problems(tmp_path):
    rows = rows_of(write(tmp_path / "c.txt", "one\n\n  \ntwo\n"))
    assert [(row.number, bool(row.record), row.problem) for row in rows] == [
        (1, True, None),
        (2, False, None),
        (3, False, None),
        (4, True, None),
    ]


def test_a_megabyte_in_one_line(tmp_path):
    line = "word " * 200_000
    assert texts_of(write(tmp_path / "c.txt", line)) == [line.strip()]


# --- what cannot be read at all ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("c.txt", b"", "is empty"),
        ("c.txt", b"abc\0def", "is a binary file"),
        ("c.jsonl", b"\x89PNG\r\n\0\0", "is a binary file"),
        ("c.txt", "text".encode("utf-16"), "is UTF-16"),
        ("c.csv", b"a,b\n1,2\n", r"no column 'text'; it has: 'a', 'b'.*--text-field"),
        ("c.pdf", b"%PDF", r"ends in '.pdf', known are .csv, .jsonl"),
        ("c", b"text", r"ends in 'nothing'"),
        ("c.parquet", b"no parquet", "is no parquet file"),
    ],
)
def test_files_that_cannot_be_read(name, content, match, tmp_path):
    with pytest.raises(CorpusError, match=match):
        open_corpus(write(tmp_path / name, content))


def test_a_missing_file(tmp_path):
    with pytest.raises(CorpusError, match="there is no corpus"):
        open_corpus(tmp_path / "nope.txt")


@pytest.mark.parametrize("corpus", [3, None, {"text": "a"}])
def test_no_corpus(corpus):
    with pytest.raises(CorpusError, match="need a path or an iterable"):
        open_corpus(corpus)


# --- records ----------------------------------------------------------------------------------


def test_jsonl_keeps_all_fields(tmp_path):
    lines = [{"id": 7, "text": "one", "year": 1990, "tags": ["a"]}, {"text": "two"}]
    path = write(tmp_path / "c.jsonl", "\n".join(map(json.dumps, lines)))
    assert [row.record for row in rows_of(path)] == [
        Record("one", "7", {"year": 1990, "tags": ["a"]}),
        Record("two"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "broken', "no JSON"),
        ("[1]", "a list, need an object"),
        ('"text"', "a str, need an object"),
        ('{"title": "x"}', "no field 'text', only 'title'"),
        ('{"text": null}', "the text is null"),
        ('{"text": 3}', "the text is a int"),
        ('{"text": "x", "id": [1]}', r"the id [1]"),
        ('{"text": "x", "id": ""}', "the id ''"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_read(line, problem, tmp_path):
    path = write(tmp_path / "c.jsonl", f'{{"text": "one"}}\n{line}\n{{"text": "three"}}\n')
    rows = rows_of(path)
    assert [row.number for row in rows] == [1, 2, 3]
    assert rows[1].record is None
    assert problem in rows[1].problem
    assert [row.record.text for row in (rows[0], rows[2])] == ["one", "three"]


def test_other_fields_can_hold_text_and_id(tmp_path):
    path = write(tmp_path / "c.jsonl", '{"body": "one", "key": "k1", "text": "meta"}')
    assert [row.record for row in rows_of(path, text_field="body", id_field="key")] == [
        Record("one", "k1", {"text": "meta"})
    ]


def test_csv(tmp_path):
    content = 'id,text,year\r\n1,"a, ""quoted""\nline",1990\r\n2,two,\r\n'
    rows = rows_of(write(tmp_path / "c.csv", "\ufeff" + content))
    assert [row.record for row in rows] == [
        Record('a, "quoted"\nline', "1", {"year": "1990"}),
        Record("two", "2", {"year": ""}),
    ]


def test_tsv_takes_quotes_as_they_are(tmp_path):
    rows = rows_of(write(tmp_path / "c.tsv", 'id\ttext\n1\t"quoted" words\n2\tan "odd one\n'))
    assert [row.record.text for row in rows] == ['"quoted" words', 'an "odd one']


def test_a_repeated_column_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="names the column 'text' more than once"):
        open_corpus(write(tmp_path / "c.csv", "id,text,text\n1,a,b\n"))


def test_a_broken_csv_row_shows_its_line(tmp_path):
    rows = rows_of(write(tmp_path / "c.csv", 'text\none\n"two" x\n'))
    assert [row.problem is None for row in rows] == [True, False]
    assert rows[1].excerpt.startswith('"two" x')


def test_csv_rows_of_the_wrong_length_are_named(tmp_path):
    rows = rows_of(write(tmp_path / "c.csv", "text,n\none,1\ntwo\nthree,3,extra\nfour,4\n"))
    assert [row.record.text if row.record else None for row in rows] == ["one", None, None, "four"]
    assert rows[1].problem == "the header names 2 fields, this row has more or fewer"


def test_csv_with_a_large_field(tmp_path):
    assert texts_of(write(tmp_path / "c.csv", "text\n" + "x" * 1_000_000)) == ["x" * 1_000_000]


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table(
        {
            "text": ["one", None, "three"],
            "when": [dt.date(2020, 1, 1), None, None],
            "tags": [["a"], [], None],
        }
    )
    parquet.write_table(table, tmp_path / "c.parquet")
    rows = rows_of(tmp_path / "c.parquet")
    assert rows[0].record == Record("one", None, {"when": dt.date(2020, 1, 1), "tags": ["a"]})
    assert rows[1].problem == "the text is null, need a string"
    assert rows[2].record.metadata == {"when": None, "tags": None}
    with pytest.raises(CorpusError, match="no column 'body'; it has: 'text', 'when', 'tags'"):
        open_corpus(tmp_path / "c.parquet", text_field="body")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r'pip install "descsim-tools\[parquet\]"'):
        open_corpus(write(tmp_path / "c.parquet", b"x"))


# --- folders and iterables --------------------------------------------------------------------


def test_a_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "b.md", "# Title\n\nOne. Two.")
    write(tmp_path / "sub/a.txt", "Three.")
    write(tmp_path / "c.html", "<p>ignored</p>")
    write(tmp_path / "d.txt", b"\0\0")
    write(tmp_path / "e.txt", "")
    corpus = open_corpus(tmp_path)
    rows = list(corpus.rows())
    assert corpus.raw
    assert [row.record.metadata["source"] for row in rows if row.record] == ["b.md", "sub/a.txt"]
    assert [row.problem is not None for row in rows] == [False, True, False, False]


def test_an_empty_folder(tmp_path):
    with pytest.raises(CorpusError, match=r"holds no .txt or .md file"):
        open_corpus(tmp_path)


def test_iterables():
    items = ["one", Record("two", "b", {"x": 1}), {"text": "three", "id": 3, "y": 2}, "", 5]
    rows = rows_of(items)
    assert [row.record for row in rows] == [
        Record("one"),
        Record("two", "b", {"x": 1}),
        Record("three", "3", {"y": 2}),
        None,
        None,
    ]
    assert [row.problem for row in rows][3:] == [None, "a int, need an object"]
    assert open_corpus(items).total == 5
    assert open_corpus(iter(items)).total is None
    assert rows_of([Record(None)])[0].problem == "the text is a NoneType, need a string"
