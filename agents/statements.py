"""Statements of a model: whether their citations are right, and the text they make."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from descsim_tools.agents.answers import Citation
from descsim_tools.agents.citations import find_quote, is_too_short
from descsim_tools.agents.rag_prompts import Statement
from descsim_tools.types import Hit

# What looks like a citation, in the words of a model: [1], [s2, s3], (s1), 【1†source】
_MARKS = re.compile(
    r"\s*(\[\s*s?\d{1,3}(\s*[,;]\s*s?\d{1,3})*\s*\]|\(\s*s\d+(\s*[,;]\s*s\d+)*\s*\)|【[^】]*】)",
    re.IGNORECASE,
)


def faults_of(statements: Mapping[int, Statement], sources: Mapping[str, Hit]) -> dict[int, str]:
    """Return what is wrong with statements, by their number; those that are right are left out."""
    faults = {number: fault_of(statement, sources) for number, statement in statements.items()}
    return {number: fault for number, fault in faults.items() if fault is not None}


def fault_of(statement: Statement, sources: Mapping[str, Hit]) -> str | None:
    """Return what is wrong with a statement, or None if each of its citations is right."""
    if not one_line(without_marks(statement.text)):
        return "the statement has no text"
    if not statement.quotes:
        return "the statement cites no source"
    for cited in statement.quotes:
        if cited.source not in sources:
            return f"there is no source {cited.source!r}"
        text = sources[cited.source].text
        if find_quote(cited.quote, text) is None:
            return f"source {cited.source} does not hold the words {cited.quote!r}"
        if is_too_short(cited.quote, text):
            return f"the quote {cited.quote!r} is too short to support anything"
    return None


def composed(
    statements: Sequence[Statement], sources: Mapping[str, Hit]
) -> tuple[str, tuple[Citation, ...]]:
    """Return the text of right statements with marks, and the citations they stand for."""
    cited: dict[tuple[str, tuple[int, int]], Citation] = {}
    parts = []
    for statement in statements:
        marks: dict[str, None] = {}
        for quote in statement.quotes:
            hit = sources[quote.source]
            span = find_quote(quote.quote, hit.text)
            if span is None:
                raise ValueError(f"the quote {quote.quote!r} was not checked")
            words = hit.text[slice(*span)]
            new = Citation(len(cited) + 1, hit.id, hit.text, words, span, hit.metadata, hit.score)
            marks[f"[{cited.setdefault((hit.id, span), new).number}]"] = None
        parts.append(f"{one_line(without_marks(statement.text))} {''.join(marks)}")
    return " ".join(parts), tuple(cited.values())


def without_marks(text: str) -> str:
    """Return a model's words without what looks like a citation; only ours are checked."""
    return _MARKS.sub("", text)


def one_line(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())
