"""A statement as HTML, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from descsim_tools.agents.decisions import FORMULA
from descsim_tools.agents.estimate import UNREAD
from descsim_tools.agents.statement import Band, Missed, Row, Statement, Status

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
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
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


def write_report(statement: Statement, path: str | Path) -> None:
    """Write a statement with its rows.

    Args:
        statement: What was found.
        path: Its name ends in .html (a page that needs nothing else), .jsonl (the statement in the
            first line, then a line a row) or .csv (the rows, with a column `decision` to fill in).

    Raises:
        ValueError: The name has another ending.
        OSError: It cannot be written.
    """
    path = Path(path)
    check_format(path)
    write = {".html": to_html, ".jsonl": to_jsonl}.get(path.suffix)
    if write is not None:
        path.write_text(write(statement), encoding="utf-8")
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(_csv_row(row) for row in statement.rows)


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
    title = escape(f"Instances of: {statement.query}")
    parts = ["<ul>", *(f"<li>{escape(line)}</li>" for line in statement.lines()), "</ul>"]
    parts += [_plan(statement), _missed(statement.missed)]
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
        others = "".join(f"<li>{escape(text)}</li>" for text in texts if text != condition)
        parts.append(f"<li>{escape(condition)}{f'<ul>{others}</ul>' if others else ''}</li>")
    parts += [f"<li>{escape(text)} <span class=small>(added later)</span></li>" for text in later]
    parts.append("</ul>")
    for name, texts in (
        ("Must not fit", statement.query.none_of),
        ("Does not count", statement.plan.does_not_count),
    ):
        if texts:
            parts.append(f"<p>{name}: {escape('; '.join(texts))}</p>")
    judges = ", then ".join(statement.judges)
    parts.append(f"<p class=small>Judged by {escape(judges)}.</p>")
    return "\n".join(parts)


def _missed(missed: Missed | None) -> str:
    if missed is None:
        return ""
    rows = "".join(
        f"<tr><td>{escape(_band_name(band))}</td>"
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
        f"{missed.low:,} to {missed.high:,}.</p>\n"
        f"<table>{head}{rows}</table>\n<p class=small>{escape(missed.method)}</p>"
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
        f"<td>{escape(verdict.reason)}<br><span class=small>decided by {escape(by)}; found by "
        f"{escape(row.found_by)}</span></td>"
        f"<td class=number>{chance}<br><span class=small>similarity {row.score:.2f}</span></td>"
        f"<td>{escape(row.id)}<br><span class=small>{escape(source)}</span></td></tr>\n"
    )


def _marked(row: Row) -> str:
    if row.span is None:
        return escape(row.text)
    start, end = row.span
    inside = f"<mark>{escape(row.text[start:end])}</mark>"
    return escape(row.text[:start]) + inside + escape(row.text[end:])


def _csv_row(row: Row) -> dict[str, object]:
    fields = row.to_dict()
    fields["metadata"] = json.dumps(fields["metadata"], ensure_ascii=False)
    fields["span"] = "" if row.span is None else f"{row.span[0]}-{row.span[1]}"
    fields["decision"] = ""
    return {name: _inert(fields[name]) for name in _COLUMNS}


def _inert(value: object) -> object:
    """Keep a spreadsheet from running text of the corpus: a quote makes it text."""
    risky = isinstance(value, str) and value.startswith(FORMULA)
    return f"'{value}" if risky else value
