"""The three forms of data, one JSON object a line, and triplets of any of them.

- a group: `{"id", "shape", "open", "domain", "clusters": [{"sentences", "descriptions"}, ...]}`:
  each description is true of every sentence of its cluster, and false of the other clusters'
- the paper's record: `{"sentence", "good", "bad"}`: descriptions true and false of a sentence
- an evaluation query: `{"id", "description", "good", "bad"}`: sentences that the description is
  true and false of
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from descsim_tools.errors import DataError

logger = logging.getLogger(__name__)

_EXCERPT = 200


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sentences, and descriptions that are true of each of them."""

    sentences: tuple[str, ...]
    descriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Clusters that stay close in topic while no description fits another cluster's sentences.

    Attributes:
        id: Unique in its file.
        clusters: Those of generated data are two or more; in a group of one, as made of other
            forms, there are no hard negatives.
        shape: How it was made, such as `edited`; free text.
        domain: What it is about; free text.
        open: Whether it may be published.
    """

    id: str
    clusters: tuple[Cluster, ...]
    shape: str = ""
    domain: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class PaperRecord:
    """A sentence with descriptions that are true and false of it."""

    sentence: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvalQuery:
    """A description with sentences that it is true and false of."""

    id: str
    description: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


Item = Group | PaperRecord | EvalQuery
_KINDS = {Group: "group", PaperRecord: "record", EvalQuery: "query"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that is no item: its number from 1, why, and how it begins."""

    line: int
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class Triplet:
    """A text, one that fits it and one that does not."""

    reference: str
    positive: str
    negative: str


@dataclass(frozen=True, slots=True)
class TripletSource:
    """Triplets of one origin.

    Attributes:
        name: Of the file.
        triplets: All of them.
        reference: Whether the references are sentences or descriptions.
    """

    name: str
    triplets: list[Triplet]
    reference: Literal["sentence", "description"]


def read_items(path: str | Path) -> tuple[list[tuple[int, Item]], list[Problem]]:
    """Read a file of groups, records or queries.

    Returns:
        The items with the numbers of their lines, and the lines that are none.

    Raises:
        DataError: The file is not there, or holds no item at all.
    """
    path = Path(path)
    items: list[tuple[int, Item]] = []
    problems: list[Problem] = []
    for number, line in _lines(path):
        try:
            item = parse_item(line)
        except DataError as error:
            problems.append(Problem(number, str(error), line[:_EXCERPT]))
            continue
        if items and type(item) is not type(items[0][1]):
            reason = f"a {_KINDS[type(item)]} in a file of {_KINDS[type(items[0][1])]} lines"
            problems.append(Problem(number, reason, line[:_EXCERPT]))
            continue
        items.append((number, item))
    if not items:
        why = f"; line {problems[0].line}: {problems[0].reason}" if problems else ", it is empty"
        raise DataError(f"{path} holds no group, record or query{why}")
    return items, problems


def parse_item(line: str) -> Item:
    """Read a line.

    Raises:
        DataError: It is none of the three forms.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"a {type(fields).__name__}, need an object")
    if "clusters" in fields:
        return _group(fields)
    if "sentence" in fields:
        good, bad = _texts(fields, "good"), _texts(fields, "bad")
        return PaperRecord(_text(fields, "sentence"), good, bad)
    if "description" in fields:
        good, bad = _texts(fields, "good"), _texts(fields, "bad")
        return EvalQuery(_text(fields, "id"), _text(fields, "description"), good, bad)
    raise DataError(
        f"fields {', '.join(map(repr, fields))}, need 'clusters' (a group), 'sentence' (a record) "
        "or 'description' (a query)"
    )


def to_fields(item: Item) -> dict[str, Any]:
    """Return an item as its line holds it."""
    if isinstance(item, PaperRecord):
        return {"sentence": item.sentence, "good": [*item.good], "bad": [*item.bad]}
    if isinstance(item, EvalQuery):
        fields = {"id": item.id, "description": item.description}
        return {**fields, "good": [*item.good], "bad": [*item.bad]}
    clusters = [
        {"sentences": [*cluster.sentences], "descriptions": [*cluster.descriptions]}
        for cluster in item.clusters
    ]
    head = {"id": item.id, "shape": item.shape, "open": item.open, "domain": item.domain}
    return {**head, "clusters": clusters}


def read_triplets(path: str | Path) -> TripletSource:
    """Read triplets from a file of items, or from SICK's tab-separated pairs.

    Each positive gives one triplet; the negatives take turns. Of SICK, a sentence that both entails
    a second one and contradicts a third gives a triplet.

    Raises:
        DataError: The file is not there or holds no triplet.
    """
    path = Path(path)
    first = next(_lines(path), (0, ""))[1]
    if first.startswith("pair_ID\t"):
        triplets = list(_sick(path))
        source = TripletSource(path.stem, triplets, "sentence")
    else:
        items, problems = read_items(path)
        if problems:
            logger.warning(
                "%d lines of %s are left out, the first is line %d: %s; `descsim data check` shows "
                "them", len(problems), path, problems[0].line, problems[0].reason,
            )  # fmt: skip
        triplets = [triplet for _, item in items for triplet in triplets_of(item)]
        side: Literal["sentence", "description"] = (
            "description" if isinstance(items[0][1], EvalQuery) else "sentence"
        )
        source = TripletSource(path.stem, triplets, side)
    if not triplets:
        raise DataError(
            f"{path} holds no triplet: nothing in it has both a positive and a negative"
        )
    return source


def triplets_of(item: Item) -> Iterator[Triplet]:
    """Yield a triplet for each positive of an item; the negatives take turns."""
    if isinstance(item, PaperRecord):
        yield from _turns(item.sentence, item.good, item.bad)
    elif isinstance(item, EvalQuery):
        yield from _turns(item.description, item.good, item.bad)
    else:
        for number, cluster in enumerate(item.clusters):
            others = [
                description
                for other, sibling in enumerate(item.clusters)
                if other != number
                for description in sibling.descriptions
            ]
            for sentence in cluster.sentences:
                yield from _turns(sentence, cluster.descriptions, tuple(others))


def _turns(
    reference: str, positives: tuple[str, ...], negatives: tuple[str, ...]
) -> Iterator[Triplet]:
    # An empty list of negatives gives no triplets, so this must not be strict.
    for positive, negative in zip(positives, cycle(negatives), strict=False):
        yield Triplet(reference, positive, negative)


def _sick(path: Path) -> Iterator[Triplet]:
    judged: dict[str, tuple[list[str], list[str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            entailed, contradicted = judged.setdefault(row["sentence_A"], ([], []))
            if row["entailment_judgment"] == "ENTAILMENT":
                entailed.append(row["sentence_B"])
            elif row["entailment_judgment"] == "CONTRADICTION":
                contradicted.append(row["sentence_B"])
    for sentence, (entailed, contradicted) in judged.items():
        yield from _turns(sentence, tuple(entailed), tuple(contradicted))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error.reason}; convert it first") from error


def _group(fields: dict[str, Any]) -> Group:
    clusters = fields["clusters"]
    if not isinstance(clusters, list) or len(clusters) < 2:
        raise DataError("'clusters' is no list of two or more clusters")
    made = []
    for number, cluster in enumerate(clusters):
        if not isinstance(cluster, dict):
            raise DataError(f"cluster {number} is a {type(cluster).__name__}, need an object")
        try:
            made.append(Cluster(_texts(cluster, "sentences"), _texts(cluster, "descriptions")))
        except DataError as error:
            raise DataError(f"cluster {number}: {error}") from error
    return Group(
        _text(fields, "id"),
        tuple(made),
        str(fields.get("shape") or ""),
        str(fields.get("domain") or ""),
        fields.get("open") is True,
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{name!r} is {value!r}, need a text")
    return value


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or not values:
        raise DataError(f"{name!r} is no list of texts")
    for position, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{name!r} holds {value!r} at position {position}, need a text")
    return tuple(values)
