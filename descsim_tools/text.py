"""Text that is not ours: looked at, and made fit to be shown."""

from __future__ import annotations

from typing import Any


def is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8; one with half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_readable(value: Any) -> bool:
    """Whether a value is a text that a model can read: a string, not blank, and Unicode."""
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def printable(text: str) -> str:
    r"""Return a text with escapes such as \x1b for what steers a terminal, but for line ends."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
