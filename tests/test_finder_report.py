"""The reports: whole, escaped, and as a person sees them."""

import csv
import json
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from descsim_tools import Record
from descsim_tools.agents import write_report
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
    assert {row["decision"] for row in rows} == {""}
    for row in rows:
        row["decision"] = "no" if row["id"] == "'-0" else ""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with make_index([Record(NASTY[0], "-0")], tmp_path / "again") as index:
        again = finder_of(index).find(FORGERY, decisions=path)
    assert (again.matched, again.decided_by) == (0, {"person": 1})


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
