"""Write a file whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written_whole(path: str | Path, *, errors: str = "strict") -> Iterator[IO[str]]:
    """Open a file beside another one, which it replaces at the end; after an error that one stays.

    Args:
        path: What is written; a link stays a link, and rights are kept.
        errors: What becomes of characters that are no UTF-8, as in `open`.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", newline="", encoding="utf-8", errors=errors) as file:
            yield file
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
