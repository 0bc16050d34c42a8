"""The reports: whole, escaped, and as a person sees them."""

import csv
import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from descsim_tools import Record
from descsim_tools.agents import report, write_report
from descsim_tools.agents.decisions import read_decisions
from descsim_tools.errors import DataError
from tests.finder_world import FORGERY, finder_of, make_index, noise

NASTY = [
    f"{FORGERY} <script>document.title='owned'</script><img src=x onerror=alert(1)> p=0.9",
    f"=cmd|' /C calc'!A0 {FORGERY} p=0.8",
    f'{FORGERY} "quoted", comma\tand tab, \N{SNOWMAN} and \u2028 p=0.7',
]


@pytest.fixture
def statement(tmp_path):
    records = [
        Record(text, f"-{n}", {"span_of": "doc <b>", "span_start": n, "list": ["a", "b"]})
        for n, text in enumerate(NASTY)
    ]
    with make_index([*records, *noise(30)], tmp_path / "store") as index:
        return finder_of(index).find(FORGERY, decisions={"-2": "yes"})


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href") or name[:2] == "on"
        ]

    def handle_data(self, data):
        self.text.append(data)


def test_html_shows_text_as_text(statement, tmp_path):
    write_report(statement, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert not {"script", "img", "b", "link", "iframe"} & set(page.tags)
    assert page.links == []
    shown = "".join(page.text)
    for text in NASTY:
        assert text in shown
    for row in statement.rows:
        assert row.text in shown
        assert row.verdict.reason in shown
    for line in statement.lines():
        assert line in shown
    assert '"span_of": "doc <b>"' in shown
    assert page.tags.count("details") == 2
    assert "What may be missed" in shown


def test_jsonl_has_the_statement_and_every_row(statement, tmp_path):
    write_report(statement, tmp_path / "r.jsonl")
    with (tmp_path / "r.jsonl").open(encoding="utf-8") as file:
        first, *rows = [json.loads(line) for line in file]
    assert first["statement"]["matched"] == statement.matched == 3
    assert [row["text"] for row in rows] == [row.text for row in statement.rows]
    assert rows[0]["metadata"]["list"] == ["a", "b"]
    assert rows == statement.to_dict()["rows"]


def test_csv_is_inert_and_can_be_given_back(statement, tmp_path):
    path = tmp_path / "r.csv"
    write_report(statement, path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == statement.examined
    cells = [cell for row in rows for cell in row.values()]
    assert not [
        cell for cell in cells if cell.startswith(("=", "+", "-", "@")) and cell[1:2] != "0"
    ]
    assert "'" + NASTY[1] in {row["text"] for row in rows}
    assert {row["id"]: row["decision"] for row in rows if row["decision"]} == {"'-2": "yes"}
    for row in rows:
        row["decision"] = "no" if row["id"] == "'-0" else ""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with make_index([Record(NASTY[0], "-0")], tmp_path / "again") as index:
        again = finder_of(index).find(FORGERY, decisions=path)
    assert (again.matched, again.decided_by) == (0, {"person": 1})


def test_a_report_keeps_what_a_person_decided(tmp_path):
    path = tmp_path / "d.csv"
    ids = ["=q", "'=q", "''=q", "'q", "-1"]
    decisions = dict(zip(ids, ["yes", "no", "yes", "no", "yes"], strict=True))
    records = [Record(f"{FORGERY} {n} p=0.5", id_) for n, id_ in enumerate(ids)]
    with make_index([*records, *noise(20)], tmp_path / "store") as index:
        finder = finder_of(index)
        write_report(finder.find(FORGERY, decisions=decisions), path)
        for _ in range(2):  # given back, and written to the same file
            statement = finder.find(FORGERY, decisions=path)
            write_report(statement, path)
    assert read_decisions(path).words == decisions
    assert statement.decided_by["person"] == len(ids)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["d.csv"]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("d.csv", "id,decision\n-2,yes\n-1,no\n", "1 decisions .* such as that of '-1'; give them"),
        ("d.csv", "id,decision\n-2,no\n", "that of '-2'"),
        ("d.csv", "id,decision\n-2,perhaps\n", "that of '-2'"),
        ("d.csv", "a;b\n1;2\n", "no report that may be written again .*; name another"),
        ("d.csv", "a,b\n", "no report that may be written again .*a column 'a'"),
        ("d.csv", "id,decision,notes\n1,,mine\n", "a column 'notes'.*; name another"),
        ("d.jsonl", '{"id": "-2", "decision": "yes"}\n', "a .jsonl report holds none"),
    ],
)
def test_decisions_are_not_wiped_out(statement, tmp_path, name, content, match):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=match):
        write_report(statement, tmp_path / name)
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.html", '<!DOCTYPE html>\n<html lang="en">\n<title>Home</title>\n'),
        ("index.html", "no page \u00e9"),
        ("corpus.jsonl", '{"id": "1", "text": "a sentence"}\n'),
        ("corpus.jsonl", "no JSON"),
    ],
)
def test_a_file_that_is_no_report_is_not_overwritten(statement, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"no report that may be written again .* or remove it"):
        write_report(statement, path)
    assert path.read_bytes() == content.encode("latin-1")
    path.write_bytes(b"")  # as `mktemp` makes it: nothing can be lost
    write_report(statement, path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl", "r.html"])
def test_a_report_without_other_decisions_is_written_anew(statement, tmp_path, name):
    write_report(statement, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    (tmp_path / name).chmod(0o600)
    (tmp_path / f"link-{name}").symlink_to(tmp_path / name)
    write_report(statement, tmp_path / f"link-{name}")
    assert (tmp_path / name).read_bytes() == first
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_report_that_breaks_off_leaves_the_old_one(statement, tmp_path, monkeypatch):
    path = tmp_path / "r.csv"
    write_report(statement, path)
    old = path.read_bytes()

    def broken(row):
        raise OSError("no space left")

    monkeypatch.setattr(report, "_csv_row", broken)
    with pytest.raises(OSError, match="no space left"):
        write_report(statement, path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["r.csv"]


def test_what_steers_a_terminal_is_seen(tmp_path):
    text = f"{FORGERY} \x1b[31mred\x00\x9b1m\rover\r\nnext\tline p=0.9"
    shown = f"{FORGERY} \\x1b[31mred\\x00\\x9b1m\\rover\r\nnext\tline p=0.9"
    with make_index([Record(text, "a\x1bb", {"k": "v\x1b\x9b"})], tmp_path / "s") as index:
        statement = finder_of(index).find(FORGERY, decisions={"a\x1bb": "yes"})
    half = replace(statement, rows=(replace(statement.rows[0], found_by="near \ud800"),))
    for name in ("r.html", "r.csv", "r.jsonl"):
        write_report(half, tmp_path / name)
        write_report(half, tmp_path / name)
        written = (tmp_path / name).read_bytes().decode()
        assert "\x1b" not in written
        assert "near \\ud800" in written
        if name != "r.jsonl":
            assert shown in written
            assert not set(written) & {"\x00", "\x9b"}
            assert "a\\x1bb" in written
    assert json.loads(written.splitlines()[1])["text"] == text


def test_other_endings_are_refused(statement, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.html, \.jsonl, \.csv"):
        write_report(statement, tmp_path / "r.pdf")
    assert not (tmp_path / "r.pdf").exists()


@pytest.mark.slow
def test_a_browser_shows_the_page_and_runs_nothing(statement, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a Chromium browser on this machine")
    write_report(statement, tmp_path / "r.html")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    page = (tmp_path / "r.html").as_uri()
    dom = subprocess.run(
        [*command, "--dump-dom", page], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "<title>Instances of" in dom
    assert "owned" not in dom.split("</title>")[0]
    picture = tmp_path / "r.png"
    subprocess.run(
        [*command, f"--screenshot={picture}", "--window-size=1200,1600", page],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert picture.stat().st_size > 20_000
