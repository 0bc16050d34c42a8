"""Contrastive groups, the readers of other forms, and conversion between them.

The form that everything is trained on is the group: clusters of sentences and descriptions, where
every description of a cluster is true of every sentence of the same cluster and false of those of
the group's other clusters. The paper's record (a sentence with good and bad descriptions), pairs
labelled as in SNLI, and triplets are read as groups too.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from descsim_tools.datagen.formats import Cluster, Group
from descsim_tools.errors import CorpusError
from descsim_tools.lines import read_json_lines
from descsim_tools.text import is_readable

logger = logging.getLogger(__name__)


def read_groups(path: str | Path) -> list[Group]:
    """Read training data, whatever its form, as groups.

    Args:
        path: A .jsonl or .jsonl.gz file. Each line is a group (`clusters`), a record of the paper
            (`sentence`, `good`, `bad`), a labelled pair as in SNLI (`premise`, `hypothesis`,
            `label`, or SNLI's own `sentence1`, `sentence2`, `gold_label`; consecutive lines of one
            premise make a group, unless nothing is entailed by it, which is logged) or a triplet
            (`anchor`, `positive`, `negative`; the anchor is the sentence).

    Raises:
        CorpusError: The file is missing, a line has none of these forms or holds what is no text,
            and is named, or no group is left.
    """
    path = Path(path)
    rows = list(_rows(path))
    if not rows:
        raise CorpusError(f"{path} is empty")
    form = _form_of(rows[0][1], path, rows[0][0])
    groups = form(rows, path)
    if not groups:
        raise CorpusError(f"{path} has no group: no premise has an entailed hypothesis")
    repeated = [id_ for id_, count in Counter(g.id for g in groups).items() if count > 1]
    if repeated:
        raise CorpusError(f"{path} uses the id {repeated[0]!r} more than once")
    return groups


def write_groups(groups: Iterable[Group], path: str | Path) -> None:
    """Write groups; see `write_rows`."""
    write_rows(map(asdict, groups), path)


def write_rows(rows: Iterable[Mapping[str, Any]], path: str | Path) -> None:
    """Write JSON lines, compressed if the name ends in .gz; the same bytes each time."""
    path = Path(path)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def to_records(groups: Iterable[Group]) -> Iterator[dict[str, Any]]:
    """Yield the paper's records: each sentence with its own and its siblings' descriptions."""
    for group in groups:
        for number, cluster in enumerate(group.clusters):
            others = [c for i, c in enumerate(group.clusters) if i != number]
            bad = [description for other in others for description in other.descriptions]
            for sentence in cluster.sentences:
                yield {"sentence": sentence, "good": list(cluster.descriptions), "bad": bad}


def to_triplets(groups: Iterable[Group]) -> Iterator[dict[str, str]]:
    """Yield (anchor sentence, its description, a sibling's description), all combinations."""
    for record in to_records(groups):
        for good in record["good"]:
            for bad in record["bad"]:
                yield {"anchor": record["sentence"], "positive": good, "negative": bad}


def split_groups(
    groups: Sequence[Group], dev_share: float, *, seed: int = 0
) -> tuple[list[Group], list[Group]]:
    """Split by group at random, so that no cluster has siblings on the other side.

    Args:
        groups: To be split.
        dev_share: Between 0 and 1.
        seed: Of the shuffle.

    Returns:
        Training and dev groups, each in the given order.
    """
    if not 0 <= dev_share <= 1:
        raise ValueError(f"dev_share is {dev_share}, need a share between 0 and 1")
    chosen = set(random.Random(seed).sample(range(len(groups)), round(dev_share * len(groups))))
    train = [group for i, group in enumerate(groups) if i not in chosen]
    return train, [group for i, group in enumerate(groups) if i in chosen]


def statistics(groups: Sequence[Group]) -> dict[str, Any]:
    """Count groups, clusters and texts, by shape too, and give mean lengths in words."""
    sentences = [t for g in groups for c in g.clusters for t in c.sentences]
    descriptions = [t for g in groups for c in g.clusters for t in c.descriptions]
    return {
        "groups": len(groups),
        "open_groups": sum(group.open for group in groups),
        "clusters": sum(len(group.clusters) for group in groups),
        "sentences": len(sentences),
        "distinct_sentences": len(set(sentences)),
        "descriptions": len(descriptions),
        "distinct_descriptions": len(set(descriptions)),
        "words_a_sentence": mean(len(t.split()) for t in sentences) if sentences else 0.0,
        "words_a_description": mean(len(t.split()) for t in descriptions) if descriptions else 0.0,
        "shapes": dict(Counter(group.shape or "none" for group in groups)),
    }


_Rows = Sequence[tuple[int, Mapping[str, Any]]]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, row in read_json_lines(path, "training file"):
        if not isinstance(row, dict):
            raise CorpusError(f"{path}, line {number}: a {type(row).__name__}, need an object")
        yield number, row


def _form_of(
    row: Mapping[str, Any], path: Path, number: int
) -> Callable[[_Rows, Path], list[Group]]:
    for fields, form in _FORMS.items():
        if all(field in row for field in fields):
            return form
    known = "; ".join(", ".join(fields) for fields in _FORMS)
    raise CorpusError(f"{path}, line {number}: fields {', '.join(row)}; known forms are: {known}")


def _group_rows(rows: _Rows, path: Path) -> list[Group]:
    groups = []
    for number, row in rows:
        clusters = row.get("clusters")
        if not isinstance(clusters, list) or not clusters:
            raise CorpusError(f"{path}, line {number}: 'clusters' is no list of clusters, or empty")
        if not all(isinstance(cluster, dict) for cluster in clusters):
            raise CorpusError(
                f"{path}, line {number}: a cluster is no object with 'sentences' and 'descriptions'"
            )
        groups.append(
            Group(
                str(row.get("id", f"line-{number}")),
                tuple(
                    Cluster(
                        _texts(cluster, "sentences", path, number),
                        _texts(cluster, "descriptions", path, number),
                    )
                    for cluster in clusters
                ),
                shape=str(row.get("shape", "")),
                domain=str(row.get("domain", "")),
                open=bool(row.get("open", False)),
            )
        )
    return groups


def _record_rows(rows: _Rows, path: Path) -> list[Group]:
    groups = []
    for number, row in rows:
        good = Cluster((_text(row, "sentence", path, number),), _texts(row, "good", path, number))
        bad = _texts(row, "bad", path, number, may_be_empty=True)
        # No sentence is known that the bad descriptions fit, so their cluster has none.
        clusters = (good, Cluster((), bad)) if bad else (good,)
        groups.append(Group(str(row.get("id", f"line-{number}")), clusters, shape="record"))
    return groups


def _pair_rows(
    rows: _Rows,
    path: Path,
    names: tuple[str, str, str] = ("premise", "hypothesis", "label"),
) -> list[Group]:
    """Entailed hypotheses describe the premise; neutral and contradicting ones do not."""
    groups: list[Group] = []
    without: list[int] = []  # lines of premises of which nothing is entailed
    good: list[str] = []
    bad: list[str] = []

    def close(premise: str, number: int) -> None:
        if good:
            clusters = [Cluster((premise,), tuple(good))]
            if bad:
                clusters.append(Cluster((), tuple(bad)))
            groups.append(Group(f"line-{number}", tuple(clusters), shape="pair"))
        else:
            without.append(number)
        good.clear()
        bad.clear()

    last: tuple[str, int] | None = None
    for number, row in rows:
        premise, hypothesis = (_text(row, name, path, number) for name in names[:2])
        if last is not None and premise != last[0]:
            close(*last)
            last = None
        last = last or (premise, number)
        label = _need(row, names[2], path, number)
        if not isinstance(label, int | str) or label not in _LABELS:
            raise CorpusError(
                f"{path}, line {number}: label {label!r}, need one of "
                f"{', '.join(map(repr, _LABELS))}"
            )
        if _LABELS[label] is not None:
            (good if _LABELS[label] else bad).append(hypothesis)
    if last is not None:
        close(*last)
    if without:
        logger.warning(
            "%s: %d premises without an entailed %s are left out, the first on line %d",
            path, len(without), names[1], without[0],
        )  # fmt: skip
    return groups


def _snli_rows(rows: _Rows, path: Path) -> list[Group]:
    return _pair_rows(rows, path, ("sentence1", "sentence2", "gold_label"))


_LABELS: dict[Any, bool | None] = {
    "entailment": True,
    "neutral": False,
    "contradiction": False,
    0: True,
    1: False,
    2: False,
    -1: None,  # SNLI's rows without agreement
    "-": None,
}


def _triplet_rows(rows: _Rows, path: Path) -> list[Group]:
    return [
        Group(
            f"line-{number}",
            (
                Cluster(
                    (_text(row, "anchor", path, number),), (_text(row, "positive", path, number),)
                ),
                Cluster((), (_text(row, "negative", path, number),)),
            ),
            shape="triplet",
        )
        for number, row in rows
    ]


_FORMS: dict[tuple[str, ...], Callable[[_Rows, Path], list[Group]]] = {
    ("clusters",): _group_rows,
    ("sentence", "good", "bad"): _record_rows,
    ("premise", "hypothesis", "label"): _pair_rows,
    ("sentence1", "sentence2", "gold_label"): _snli_rows,
    ("anchor", "positive", "negative"): _triplet_rows,
}


def _need(row: Mapping[str, Any], field: str, path: Path, number: int) -> Any:
    if field not in row:
        raise CorpusError(f"{path}, line {number}: no field {field!r}, only {', '.join(row)}")
    return row[field]


def _text(row: Mapping[str, Any], field: str, path: Path, number: int) -> str:
    value = _need(row, field, path, number)
    if not is_readable(value):
        raise CorpusError(
            f"{path}, line {number}: {field!r} is {value!r}, need a non-empty Unicode string"
        )
    return str(value)


def _texts(
    row: Mapping[str, Any], field: str, path: Path, number: int, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    value = _need(row, field, path, number)
    texts = value
    # The hub's copy of the paper's data keeps its lists as JSON text.
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError):
            texts = json.loads(value)
    if not isinstance(texts, list) or not all(map(is_readable, texts)):
        raise CorpusError(
            f"{path}, line {number}: {field!r} is no list of non-empty Unicode strings"
        )
    if not texts and not may_be_empty:
        raise CorpusError(f"{path}, line {number}: {field!r} is empty")
    return tuple(texts)
