"""Statements of a model: whether their citations are right, and the text they make."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from descsim_tools.agents.answers import Citation
from descsim_tools.agents.citations import find_quote, is_too_short, visible
from descsim_tools.agents.rag_prompts import Statement
from descsim_tools.types import Hit

# What looks like a citation, in the words of a model: [1], [s2, s3], [1-3], [^1], [Source 3],
# (s1), 【1†source】. Glued to a word, as in a[0], it is none, unless the script has no spaces.
_NUMBER = r"(?:(?:sources?|[s#^])[\s.:]*)?\d{1,3}"
_BETWEEN = r"[\s,;:.&~\-\u2010-\u2015\u2212\u3001\uff0c-\uff0e\uff1a\uff1b\uff5e]"
_NUMBERS = rf"{_BETWEEN}*{_NUMBER}(?:{_BETWEEN}+{_NUMBER})*{_BETWEEN}*"
_CLOSED = r"[\]\uff3d\u3011\u3015\u3017\u27e7\u2773]"
_UNGLUED = r"(?:(?<![\w\])])|(?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]))"
_MARKS = re.compile(
    rf" ?(?:{_UNGLUED}(?: ?\[{_NUMBERS}{_CLOSED})+"
    rf"|[\uff3b\u3010\u3014\u3016\u27e6\u2772]{_NUMBERS}{_CLOSED}"
    r"|\u3010[^\u3010\u3011]{0,60}\u2020[^\u3010\u3011]{0,60}\u3011"
    r"|\(\s*s\d+(?:\s*[,;]\s*s\d+)*\s*\))",
    re.IGNORECASE,
)


def faults_of(statements: Mapping[int, Statement], sources: Mapping[str, Hit]) -> dict[int, str]:
    """Return what is wrong with statements, by their number; those that are right are left out."""
    faults = {number: fault_of(statement, sources) for number, statement in statements.items()}
    return {number: fault for number, fault in faults.items() if fault is not None}


def fault_of(statement: Statement, sources: Mapping[str, Hit]) -> str | None:
    """Return what is wrong with a statement, or None if each of its citations is right."""
    if not own_words(statement.text):
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
        parts.append(f"{own_words(statement.text)} {''.join(marks)}")
    return " ".join(parts), tuple(cited.values())


def own_words(text: str) -> str:
    """Return what a model says, on one line, without citations, as only ours are checked.

    Characters that nobody sees go first: they could hide a mark from us and not from the reader.
    """
    return one_line(_MARKS.sub("", one_line(visible(text))))


def one_line(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())
