"""What commands show at a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from descsim_tools.text import printable

_SHOWN = 1000


def literal(text: object, most: int | None = _SHOWN) -> Any:
    """Make text of a corpus fit to be shown: no markup, and no character that steers a terminal."""
    from rich.text import Text

    shown = " ".join(str(text).split())
    if most is not None and len(shown) > most:
        shown = f"{shown[:most]}... ({len(shown):,} characters)"
    return Text(printable(shown), overflow="fold")


def show(table: Any) -> None:
    """Print a table to standard output."""
    from rich.console import Console

    Console().print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line."""
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, literal(f"{value:,}" if isinstance(value, int) else value))
    show(table)
