"""Read files of JSON lines, compressed or not, and name what is wrong with them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from descsim_tools.errors import CorpusError


def read_json_lines(path: Path, what: str) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each line that is not blank.

    Args:
        path: A file of JSON lines in UTF-8, compressed if its name ends in .gz.
        what: What it should be, for messages, such as `training file`.

    Raises:
        CorpusError: The file is missing, a folder, damaged, no UTF-8, or a line is no JSON.
    """
    if path.is_dir():
        raise CorpusError(f"{path} is a folder, need a {what}")
    if not path.is_file():
        raise CorpusError(f"there is no {what} {path}")
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parsed(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is no UTF-8 text, near line {number + 1}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is cut short or damaged: {error}") from error


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{where}: no JSON: {error}") from error
    except RecursionError as error:
        raise CorpusError(f"{where}: JSON nested too deeply") from error
