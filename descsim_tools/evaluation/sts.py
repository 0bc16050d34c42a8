"""Semantic textual similarity: does an encoder still tell how alike two sentences are?

Spearman's correlation of cosine with the human score on SemEval STS 2012 to 2016, the sets of a
year concatenated, and the test set of SICK-R, as *PNA* and SimCSE report it ("all").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from descsim_tools.errors import CorpusError
from descsim_tools.text import is_readable

Encode: TypeAlias = Callable[[Sequence[str]], NDArray[np.float32]]
"""(n, d) rows of length 1, such as `DescriptionEncoder.encode_sentences`."""

Pair: TypeAlias = tuple[float, str, str]

_YEARS = ("sts12", "sts13", "sts14", "sts15", "sts16")
_SICK = "sick-r"
_SICK_COLUMNS = ("relatedness_score", "sentence_A", "sentence_B")


def read_sts(folder: str | Path) -> dict[str, list[Pair]]:
    """Read the sets that a folder holds.

    Args:
        folder: With `sts12-*.tsv` to `sts16-*.tsv` (score, sentence, sentence; rows with an empty
            score are left out, they were never scored) and `sick-r.test.txt` (tab-separated, with a
            header).

    Returns:
        (score, sentence, sentence) by `sts12`, ..., `sts16`, `sick-r`; higher is more alike.

    Raises:
        CorpusError: There are none, or a row is malformed; it is named.
    """
    folder = Path(folder)
    sets = {year: _year(sorted(folder.glob(f"{year}-*.tsv"))) for year in _YEARS}
    sick = folder / f"{_SICK}.test.txt"
    if sick.is_file():
        sets[_SICK] = _sick(sick)
    found = {name: pairs for name, pairs in sets.items() if pairs}
    if not found:
        raise CorpusError(
            f"{folder} holds no similarity sets; need files such as sts12-MSRpar.tsv or "
            f"{_SICK}.test.txt"
        )
    return found


def evaluate_sts(folder: str | Path, encode: Encode) -> dict[str, float]:
    """Evaluate one side of an encoder; each distinct sentence is encoded once.

    Args:
        folder: See `read_sts`.
        encode: Such as `DescriptionEncoder.encode_sentences`.

    Returns:
        `spearman_sts12` and so on in [-1, 1], their mean `spearman`, and `anisotropy` of all
        sentences together. Unrounded.

    Raises:
        CorpusError: As `read_sts`, or all scores of a set are the same.
    """
    sets = read_sts(folder)
    texts = list(dict.fromkeys(t for pairs in sets.values() for _, *both in pairs for t in both))
    vectors = encode(texts)
    row = {text: i for i, text in enumerate(texts)}
    result = {}
    for name, pairs in sets.items():
        first = vectors[[row[a] for _, a, _ in pairs]]
        second = vectors[[row[b] for _, _, b in pairs]]
        cosines = (first * second).sum(axis=1)
        result[f"spearman_{name}"] = _spearman(name, [score for score, _, _ in pairs], cosines)
    return {
        "pairs": sum(map(len, sets.values())),
        **result,
        "spearman": float(np.mean(list(result.values()))),
        "anisotropy": anisotropy(vectors),
    }


def anisotropy(vectors: NDArray[np.float32], *, pairs: int = 10_000, seed: int = 0) -> float:
    """Return the mean cosine of random pairs of different rows.

    Args:
        vectors: (n, d), rows of length 1, n at least 2.
        pairs: How many are drawn, with replacement.
        seed: Of the draw.

    Returns:
        In [-1, 1]. Near 0 the vectors fill the space; near 1 they crowd in a narrow cone, so that
        cosines of unrelated sentences are high too.
    """
    count = len(vectors)
    if count < 2:
        raise ValueError(f"got {count} vectors, need at least 2 to make a pair")
    generator = np.random.default_rng(seed)
    first = generator.integers(count, size=pairs)
    second = (first + generator.integers(1, count, size=pairs)) % count
    return float((vectors[first] * vectors[second]).sum(axis=1, dtype=np.float64).mean())


def _year(files: Sequence[Path]) -> list[Pair]:
    pairs = []
    for path in files:
        for number, fields in _rows(path):
            if len(fields) < 3:
                raise CorpusError(f"{path}, line {number}: {len(fields)} fields, need 3")
            score, first, second = fields[:3]
            if score.strip():
                pairs.append(_pair(score, first, second, path, number))
    return pairs


def _sick(path: Path) -> list[Pair]:
    rows = _rows(path)
    _, header = next(iter(rows), (1, []))
    missing = [column for column in _SICK_COLUMNS if column not in header]
    if missing:
        raise CorpusError(f"{path} has no column {', '.join(missing)} in its header")
    columns = [header.index(column) for column in _SICK_COLUMNS]
    pairs = []
    for number, fields in rows[1:]:
        if len(fields) <= max(columns):
            raise CorpusError(f"{path}, line {number}: {len(fields)} fields, need {len(header)}")
        score, first, second = (fields[column] for column in columns)
        pairs.append(_pair(score, first, second, path, number))
    return pairs


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    # Not the csv module: a quotation mark in these files is just a character.
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is no UTF-8 text: {error}") from error
    return [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(lines, 1) if line.strip()]


def _pair(score: str, first: str, second: str, path: Path, number: int) -> Pair:
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CorpusError(f"{path}, line {number}: the score is {score!r}, no number")
    if not (is_readable(first) and is_readable(second)):
        raise CorpusError(f"{path}, line {number}: a sentence is empty")
    return value, first, second


def _spearman(name: str, scores: Sequence[float], cosines: NDArray[np.float32]) -> float:
    for what, values in (("human scores", scores), ("cosines", cosines.tolist())):
        if len(set(values)) == 1:
            raise CorpusError(
                f"{name}: all {len(values)} {what} are the same, so nothing correlates with them"
            )
    return float(spearmanr(scores, cosines).statistic)
