"""Text that is not ours, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text with escapes such as \x1b for what steers a terminal, but for line ends."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
