"""The fill's progress bar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


class FillProgress:
    """Moves a bar by what has been read, and tells the sentences encoded and their rate."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._started = time.perf_counter()

    def update(self, done: float, encoded: int) -> None:
        """Show how far the fill is.

        Args:
            done: In the corpus's unit.
            encoded: Sentences so far.
        """
        rate = encoded / (time.perf_counter() - self._started)
        text = f"{encoded:,} sentences, {rate:,.0f}/s"
        self._progress.update(self._task, completed=done, status=text)


@contextmanager
def fill_progress(total: int | None, *, shown: bool) -> Iterator[FillProgress]:
    """Show a bar on standard error, or nothing.

    Args:
        total: Size of the corpus in its unit; None shows a bar without an end.
        shown: False makes a bar that nobody sees.
    """
    columns = [
        TextColumn("encoding"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        yield FillProgress(progress, progress.add_task("", total=total, status="reading"))
