"""A statement as HTML, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import IO

from descsim_tools.agents.decisions import decision_of, decisions_in, quoted
from descsim_tools.agents.estimate import UNREAD
from descsim_tools.agents.files import written_whole
from descsim_tools.agents.statement import Band, Row, Statement, Status
from descsim_tools.errors import DataError

FORMATS = (".html", ".jsonl", ".csv")

_COLUMNS = (
    "id",
    "status",
    "decided_by",
    "model",
    "probability",
    "score",
    "text",
    "reason",
    "unjudged_for",
    "evidence",
    "span",
    "found_by",
    "metadata",
    "decision",
)
# What steers a terminal or cannot be written: controls but for tab and line ends, half characters.
_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]|\r(?!\n)")
_STYLE = """\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;
color:#1a1a1a}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;
text-align:left;vertical-align:top;overflow-wrap:anywhere}th{font-weight:600}
td.number{text-align:right;white-space:nowrap}mark{background:#fff1a8}
.small{color:#555;font-size:.85rem}summary{cursor:pointer;font-weight:600;margin-top:2rem}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}.small{color:#aaa}
td,th{border-color:#444}mark{background:#6b5a00;color:#fff}}
"""
_PAGE_BEGINS = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="descsim find">
"""
_PAGE = (
    _PAGE_BEGINS
    + """\
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
)
_BEGINS = {".html": _PAGE_BEGINS, ".jsonl": '{"statement": '}
"""What a report begins with, by its ending; a .csv is known by its columns."""


def write_report(statement: Statement, path: str | Path) -> None:
    r"""Write a statement with its rows, whole or not at all.

    A row that a person decided has yes or no in the column `decision`, so that a report can be
    given back as decisions and written again. Control characters of the corpus show as `\x1b`.

    Args:
        statement: What was found.
        path: Its name ends in .html (a page that needs nothing else), .jsonl (the statement in the
            first line, then a line a row) or .csv (the rows, with a column `decision` to fill in).

    Raises:
        DataError: The folder is missing, or the file is there and is no report, or holds decisions
            that would be lost.
        ValueError: The name has another ending.
        OSError: It cannot be written.
    """
    path = Path(path)
    check_report(path, {row.id: decision_of(row.verdict) for row in statement.rows})
    # What is half a character is no UTF-8; escaped it is, and means the same in JSON.
    with written_whole(path, errors="backslashreplace") as file:
        _write(statement, file, path.suffix)


def _write(statement: Statement, file: IO[str], suffix: str) -> None:
    write = {".html": to_html, ".jsonl": to_jsonl}.get(suffix)
    if write is not None:
        file.write(write(statement))
        return
    writer = csv.DictWriter(file, _COLUMNS)
    writer.writeheader()
    writer.writerows(_csv_row(row) for row in statement.rows)


def check_report(path: Path, decisions: Mapping[str, str]) -> None:
    """Refuse a file that a report cannot be written to, before there is one.

    Args:
        path: Of the report.
        decisions: Yes or no by id, those that the report will hold.

    Raises:
        DataError: The folder is missing or cannot be written, or the file is there and is no
            report, or holds other decisions, which would be lost.
        ValueError: The name has an ending that none can be written to.
    """
    check_format(path)
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise DataError(f"cannot write {path}: there is no folder {folder}; make it first")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; name a file in a folder that can be "
            "written"
        ) from error
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        what = "it is a folder" if path.is_dir() else "it may not be changed"
        raise DataError(f"cannot write {path}: {what}; name another file")
    if not path.exists():
        return
    if path.suffix != ".html":
        _check_decisions(path, decisions)
    if path.suffix == ".csv":
        _check_columns(path)
    if path.suffix in _BEGINS:
        _check_beginning(path)


def _check_decisions(path: Path, decisions: Mapping[str, str]) -> None:
    """Refuse to wipe out what a person decided."""
    try:
        held = decisions_in(path)
    except DataError as error:
        raise _no_report(path, str(error)) from error
    if path.suffix == ".jsonl":  # which has no column for them
        kept: dict[str, str] = {}
        remedy = "name another file, as a .jsonl report holds none"
    else:
        kept = {_visible(id_): word for id_, word in decisions.items()}
        remedy = "give them with decisions (on the command line --decisions), or name another file"
    lost = [id_ for id_, word in held.items() if kept.get(id_) != word]
    if lost:
        raise DataError(
            f"{path} holds {len(lost)} decisions that the report would wipe out, such as that of "
            f"{lost[0]!r}; {remedy}"
        )


def _check_columns(path: Path) -> None:
    """Refuse to wipe out columns that no report has."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        columns = next(csv.reader(file), [])
    if others := [name for name in columns if name not in _COLUMNS]:
        raise _no_report(path, f"it has a column {others[0]!r}")


def _check_beginning(path: Path) -> None:
    """Refuse to wipe out what is no report; an empty file holds nothing that could be lost."""
    begins = _BEGINS[path.suffix]
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            there = file.read(len(begins))
    except OSError as error:
        raise _no_report(path, str(error)) from error
    if there and there != begins:
        raise _no_report(path, "it does not begin as one")


def _no_report(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is there, and is no report that may be written again ({why}); name another file, "
        "or remove it"
    )


def check_format(path: Path) -> None:
    """Refuse a name whose ending is none that can be written.

    Raises:
        ValueError: It is so.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot write {path}; its name must end in {', '.join(FORMATS)}")


def to_jsonl(statement: Statement) -> str:
    """Return the statement in one line, and a line for each row."""
    facts = [{"statement": statement.to_dict(rows=False)}]
    lines = [*facts, *(row.to_dict() for row in statement.rows)]
    return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)


def to_html(statement: Statement) -> str:
    """Return a page with the statement, the reasons and the sources; nothing in it is fetched."""
    title = _escape(f"Instances of: {statement.query}")
    parts = ["<ul>", *(f"<li>{_escape(line)}</li>" for line in statement.lines()), "</ul>"]
    parts += [_plan(statement), _missed(statement)]
    for status, name in (
        (Status.MATCHED, "Instances"),
        (Status.UNJUDGED, "Unjudged, which is not no"),
        (Status.REJECTED, "Rejected"),
    ):
        rows = [row for row in statement.rows if row.status is status]
        if rows or status is Status.MATCHED:
            shown = " open" if status is not Status.REJECTED else ""
            parts.append(f"<details{shown}><summary>{name} ({len(rows):,})</summary>")
            parts += [_table(rows) if rows else "<p>None was found.</p>", "</details>"]
    return _PAGE.format(title=title, style=_STYLE, body="\n".join(parts))


def _plan(statement: Statement) -> str:
    parts = ["<h2>Searched for</h2>", "<ul>"]
    later = [text for one in statement.rounds[1:] for text in one.descriptions]
    for condition, texts in statement.plan.descriptions.items():
        others = "".join(f"<li>{_escape(text)}</li>" for text in texts if text != condition)
        parts.append(f"<li>{_escape(condition)}{f'<ul>{others}</ul>' if others else ''}</li>")
    parts += [f"<li>{_escape(text)} <span class=small>(added later)</span></li>" for text in later]
    parts.append("</ul>")
    for name, texts in (
        ("Must not fit", statement.query.none_of),
        ("Does not count", statement.plan.does_not_count),
    ):
        if texts:
            parts.append(f"<p>{name}: {_escape('; '.join(texts))}</p>")
    judges = ", then ".join(statement.judges)
    parts.append(f"<p class=small>Judged by {_escape(judges)}.</p>")
    return "\n".join(parts)


def _missed(statement: Statement) -> str:
    missed = statement.missed
    if missed is None:
        return ""
    rows = "".join(
        f"<tr><td>{_escape(_band_name(band))}</td>"
        f"<td class=number>{band.size:,}</td><td class=number>{band.read:,}</td>"
        f"<td class=number>{band.judged:,}</td><td class=number>{band.found:,}</td>"
        f"<td class=number>{band.estimate:.2f}</td></tr>"
        for band in missed.bands
    )
    head = _head("rows", "number", "read by the cross-encoder", "judged by the model",
                 "instances among these", "estimated instances left")  # fmt: skip
    return (
        "<h2>What may be missed</h2>\n"
        f"<p>About {missed.estimate:.1f} instances; {missed.confidence:.0%} interval "
        f"{missed.low:,} to {missed.high:,}{statement.not_counted}.</p>\n"
        f"<table>{head}{rows}</table>\n<p class=small>{_escape(missed.method)}</p>"
    )


def _band_name(band: Band) -> str:
    unit = "similarity" if band.name == UNREAD else "probability"
    return f"{band.name}, {unit} {band.low:.2f} to {band.high:.2f}"


def _table(rows: Iterable[Row]) -> str:
    head = _head("sentence", "why", "probability", "source")
    return f"<table>{head}{''.join(map(_row, rows))}</table>"


def _head(*names: str) -> str:
    return "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"


def _row(row: Row) -> str:
    verdict = row.verdict
    by = f"{verdict.decided_by or 'nobody'}{f' {verdict.model}' if verdict.model else ''}"
    source = json.dumps(row.to_dict()["metadata"], ensure_ascii=False)
    chance = "" if row.probability is None else f"{row.probability:.2f}"
    return (
        f"<tr><td>{_marked(row)}</td>"
        f"<td>{_escape(verdict.reason)}<br><span class=small>decided by {_escape(by)}; found by "
        f"{_escape(row.found_by)}</span></td>"
        f"<td class=number>{chance}<br><span class=small>similarity {row.score:.2f}</span></td>"
        f"<td>{_escape(row.id)}<br><span class=small>{_escape(source)}</span></td></tr>\n"
    )


def _marked(row: Row) -> str:
    if row.span is None:
        return _escape(row.text)
    start, end = row.span
    inside = f"<mark>{_escape(row.text[start:end])}</mark>"
    return _escape(row.text[:start]) + inside + _escape(row.text[end:])


def _csv_row(row: Row) -> dict[str, object]:
    fields = row.to_dict()
    fields["metadata"] = json.dumps(fields["metadata"], ensure_ascii=False)
    fields["span"] = "" if row.span is None else f"{row.span[0]}-{row.span[1]}"
    fields["decision"] = decision_of(row.verdict)
    return {name: _inert(fields[name]) for name in _COLUMNS}


def _inert(value: object) -> object:
    """Keep text of the corpus from being run by a spreadsheet, and from steering a terminal."""
    return quoted(_visible(value)) if isinstance(value, str) else value


def _escape(text: str) -> str:
    """Return a text as HTML shows it, and what nobody would see as an escape."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    r"""Return a text with escapes such as \x1b for what steers a terminal."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
