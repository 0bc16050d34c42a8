"""Whether a quote stands in its source, and where.

White space, forms of quotation marks and dashes, and invisible characters may differ; words may
not. A quote that cuts a word or a number, such as "5 died" from "15 died", is no quote.
"""

from __future__ import annotations

import re
import unicodedata

LEAST_LETTERS = 8
"""Letters and digits of the shortest quote that supports anything, unless it is all of its source.
"""

_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc`\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        "\u2026": "...",
    }
)
# A word or a number whole: don't, 12,000.5, 15th.
_WHOLE = re.compile(r"(?:\d(?:[.,](?=\d))?|[^\W_]|[\u0300-\u036f]|(?<=[^\W\d_])'(?=[^\W\d_]))+")


def find_quote(quote: str, text: str) -> tuple[int, int] | None:
    """Return where a quote begins and ends in a text, in characters, or None if it is not there."""
    return _find(_folded(quote)[0].strip(), *_folded(text))


def find_evidence(evidence: str, text: str) -> tuple[int, int] | None:
    """As `find_quote`, for words that point at a place: case and outer dots do not matter."""
    folded, positions = _folded(text)
    wanted = _folded(evidence)[0].strip("\"' ").strip(" .")
    return _find(_lower(wanted), _lower(folded), positions)


def _find(wanted: str, folded: str, positions: list[int]) -> tuple[int, int] | None:
    for form in (wanted, wanted.strip("\"' ")):
        start = folded.find(form) if form else -1
        while start >= 0:
            end = start + len(form)
            if _cuts_nothing(folded, start, end):
                return positions[start], positions[end - 1] + 1
            start = folded.find(form, start + 1)
    return None


def is_too_short(quote: str, text: str) -> bool:
    """Return whether a quote is shorter than anything that could support a statement."""
    letters = [sum(map(str.isalnum, part)) for part in (quote, text)]
    return letters[0] < min(LEAST_LETTERS, letters[1])


def visible(text: str) -> str:
    """Return a text without characters that nobody sees: controls, marks of direction, tags."""
    return "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))


def _lower(text: str) -> str:
    """Return a text in lower case and of the same length, which a few letters would change."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _folded(text: str) -> tuple[str, list[int]]:
    """Return a text as it is compared, and the position of each of its characters in the text."""
    folded: list[str] = []
    positions: list[int] = []
    for position, character in enumerate(text):
        if character.isspace():
            form = "" if folded and folded[-1] == " " else " "
        else:
            form = visible(unicodedata.normalize("NFD", character.translate(_SAME)))
        folded.extend(form)
        positions.extend([position] * len(form))
    return "".join(folded), positions


def _cuts_nothing(text: str, start: int, end: int) -> bool:
    # Scripts without case, such as Chinese, put no space between words: there a cut cannot be told.
    masked = "".join(" " if c.isalpha() and c.lower() == c.upper() else c for c in text)
    return not any(
        whole.start() < edge < whole.end()
        for whole in _WHOLE.finditer(masked)
        for edge in (start, end)
    )
