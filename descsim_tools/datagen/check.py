"""`check`: what may be wrong with data, counted and shown by examples.

Only what breaks the form is an error. All else is a suspicion: a description may rightly share a
word with its sentence, and the encoder that tells what fits a sibling errs itself.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from descsim_tools.datagen.formats import EvalQuery, Group, Item, PaperRecord, read_items
from descsim_tools.datagen.words import content_words, leaks, likeness, overlap, words
from descsim_tools.encoders import DescriptionEncoder

DESCRIPTION_WORDS = (3, 40)
SENTENCE_WORDS = (6, 120)
MOST_OVERLAP = 0.5
"""A description half of whose meaningful words stand in its sentence is found by plain search."""

NEAR = 0.8
"""Share of common words from which two texts of one item are near-duplicates."""

SAMPLE = 300
_LEAST_WORDS_FOR_OVERLAP = 3
_SIDE_BATCH = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """A suspicious text.

    Attributes:
        line: In the file, from 1.
        text: What is suspicious.
        detail: Why.
        weight: The higher, the worse; only comparable within a check.
    """

    line: int
    text: str
    detail: str
    weight: float = 0.0


@dataclass
class CheckReport:
    """What a check found.

    Attributes:
        file: Name of the file.
        kind: `group`, `record` or `query`.
        items: Items read.
        sentences: Sentences in them.
        descriptions: Descriptions in them, false ones included.
        errors: Lines that are no item of the file's kind, or whose lists repeat a text or hold one
            text as true and as false.
        counts: Findings of each check.
        of: Texts that each check looked at.
        mean_overlap: Mean share of a true description's meaningful words that stand in its
            sentence.
        sampled: Items whose texts were scored by the encoder; 0 without one.
        encoder: Name of the encoder.
        balance: Counts by shape, domain and openness, texts an item, and mean lengths in words.
        examples: The worst findings of each check.
    """

    file: str
    kind: str
    items: int = 0
    sentences: int = 0
    descriptions: int = 0
    errors: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    mean_overlap: float = 0.0
    sampled: int = 0
    encoder: str | None = None
    balance: dict[str, Any] = field(default_factory=dict)
    examples: dict[str, list[Finding]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


def check(
    path: str | Path,
    *,
    encoder: DescriptionEncoder | None = None,
    sample: int = SAMPLE,
    examples: int = 3,
    seed: int = 0,
) -> CheckReport:
    """Check a file of groups, records or queries.

    Args:
        path: The file.
        encoder: Scores descriptions against siblings; None leaves that check out.
        sample: Most items to score with it, chosen at random.
        examples: Most findings to show of each check.
        seed: Of the choice.

    Raises:
        DataError: The file cannot be read or holds no item.
    """
    items, problems = read_items(path)
    kind = {Group: "group", PaperRecord: "record", EvalQuery: "query"}[type(items[0][1])]
    report = CheckReport(Path(path).name, kind, len(items))
    findings: dict[str, list[Finding]] = {"form": []}
    for problem in problems:
        findings["form"].append(Finding(problem.line, problem.excerpt, problem.reason))
    overlaps: list[float] = []
    for name, look in _CHECKS.items():
        findings[name] = []
        for line, item in items:
            for text, detail, weight in look(item):
                findings[name].append(Finding(line, text, detail, weight))
    findings["form"] += findings.pop("repeated")
    findings["repeated elsewhere"] = _repeated_elsewhere(items)
    for _, item in items:
        overlaps += [overlap(d, s) for d, true in _described(item) for s in true]
    if encoder is not None:
        chosen = items
        if len(items) > sample:
            chosen = sorted(random.Random(seed).sample(items, sample), key=lambda pair: pair[0])
        findings["fits a sibling"], scored = _siblings(chosen, encoder)
        report.sampled, report.encoder = len(chosen), encoder.spec.name
        report.of["fits a sibling"] = scored
    report.errors = len(findings["form"])
    report.sentences = sum(len(_sentences(item)) for _, item in items)
    report.descriptions = sum(len(_descriptions(item)) for _, item in items)
    report.mean_overlap = float(np.mean(overlaps)) if overlaps else 0.0
    report.counts = {name: len(found) for name, found in findings.items()}
    report.of |= _looked_at(report, len(items) + len(problems), items)
    report.balance = _balance([item for _, item in items])
    report.examples = {
        name: sorted(found, key=lambda f: (-f.weight, f.line))[:examples]
        for name, found in findings.items()
        if found
    }
    return report


_Found = Iterator[tuple[str, str, float]]


def _sentences(item: Item) -> list[str]:
    if isinstance(item, PaperRecord):
        return [item.sentence]
    if isinstance(item, EvalQuery):
        return [*item.good, *item.bad]
    return [sentence for cluster in item.clusters for sentence in cluster.sentences]


def _descriptions(item: Item) -> list[str]:
    if isinstance(item, PaperRecord):
        return [*item.good, *item.bad]
    if isinstance(item, EvalQuery):
        return [item.description]
    return [text for cluster in item.clusters for text in cluster.descriptions]


def _described(item: Item) -> list[tuple[str, tuple[str, ...]]]:
    """Return each true description with the sentences it is true of."""
    if isinstance(item, PaperRecord):
        return [(description, (item.sentence,)) for description in item.good]
    if isinstance(item, EvalQuery):
        return [(item.description, item.good)]
    return [(text, cluster.sentences) for cluster in item.clusters for text in cluster.descriptions]


def _repeated(item: Item) -> _Found:
    """Texts that stand twice in an item: in one list, or as true and as false."""
    for what, texts in (("sentence", _sentences(item)), ("description", _descriptions(item))):
        for text, times in Counter(map(_plain, texts)).items():
            if times > 1:
                yield text, f"a {what} that the item holds {times} times", float(times)


def _long_or_short(item: Item) -> _Found:
    for what, texts, (least, most) in (
        ("description", _descriptions(item), DESCRIPTION_WORDS),
        ("sentence", _sentences(item), SENTENCE_WORDS),
    ):
        for text in texts:
            count = len(words(text))
            if not least <= count <= most:
                detail = f"a {what} of {count} words, expected {least} to {most}"
                yield text, detail, max(least / max(count, 1), count / most)


def _overlapping(item: Item) -> _Found:
    for description, true in _described(item):
        if len(content_words(description)) < _LEAST_WORDS_FOR_OVERLAP:
            continue
        share, sentence = max((overlap(description, sentence), sentence) for sentence in true)
        if share >= MOST_OVERLAP:
            yield description, f"{share:.0%} of its words stand in: {sentence}", share


def _leaking(item: Item) -> _Found:
    for description, true in _described(item):
        found = sorted({word for sentence in true for word in leaks(description, sentence)})
        if found:
            yield description, f"names or numbers of its sentence: {', '.join(found)}", len(found)


def _near(item: Item) -> _Found:
    """Texts of one list that say the same; siblings are meant to be close, and not compared."""
    lists: list[tuple[str, ...]]
    if isinstance(item, Group):
        lists = [texts for c in item.clusters for texts in (c.sentences, c.descriptions)]
    else:
        lists = [item.good, item.bad]
    for texts in lists:
        for first, second in combinations(texts, 2):
            share = likeness(first, second)
            if share >= NEAR and _plain(first) != _plain(second):
                yield first, f"{share:.0%} the words of: {second}", share


_CHECKS: dict[str, Callable[[Item], _Found]] = {
    "repeated": _repeated,
    "length": _long_or_short,
    "overlap": _overlapping,
    "names and numbers": _leaking,
    "near-duplicates": _near,
}


def _repeated_elsewhere(items: list[tuple[int, Item]]) -> list[Finding]:
    """Texts that several items hold, but for case, punctuation and function words."""
    where: dict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for line, item in items:
        for text in (*_sentences(item), *_descriptions(item)):
            where[tuple(content_words(text)) or (text,)].setdefault(line, text)
    found = []
    for at in where.values():
        first = min(at)
        if len(at) > 1:
            lines = ", ".join(str(line) for line in sorted(at)[1:6])
            found.append(Finding(first, at[first], f"also in lines {lines}", float(len(at))))
    return found


def _siblings(
    items: list[tuple[int, Item]], encoder: DescriptionEncoder
) -> tuple[list[Finding], int]:
    """Texts that the encoder finds closer to what they must not fit than to what they must."""
    descriptions = sorted({text for _, item in items for text in _descriptions(item)})
    sentences = sorted({text for _, item in items for text in _sentences(item)})
    of_descriptions = encoder.encode_descriptions(descriptions, batch_size=_SIDE_BATCH)
    of_sentences = encoder.encode_sentences(sentences, batch_size=_SIDE_BATCH)
    description_row = {text: row for row, text in enumerate(descriptions)}
    sentence_row = {text: row for row, text in enumerate(sentences)}

    def scores(some: list[str], others: list[str]) -> NDArray[np.float32]:
        left = of_descriptions[[description_row[text] for text in some]]
        right = of_sentences[[sentence_row[text] for text in others]]
        return np.asarray(left @ right.T, dtype=np.float32)

    found, scored = [], 0
    for line, item in items:
        for text, own, rivals, rival in _rivals(item, scores):
            scored += 1
            if rivals > own:
                detail = f"{rivals:.2f}, its own {own:.2f}, with: {rival}"
                found.append(Finding(line, text, detail, rivals - own))
    return found, scored


def _rivals(
    item: Item, scores: Callable[[list[str], list[str]], NDArray[np.float32]]
) -> Iterator[tuple[str, float, float, str]]:
    """Yield each text with its mean score with its own, its best with a rival, and the rival."""
    if isinstance(item, PaperRecord):
        own = float(scores([*item.good], [item.sentence]).mean())
        for text, row in zip(item.bad, scores([*item.bad], [item.sentence]), strict=True):
            yield text, own, float(row[0]), item.sentence
    elif isinstance(item, EvalQuery):
        own = float(scores([item.description], [*item.good]).mean())
        of_bad = scores([item.description], [*item.bad])[0]
        for text, score in zip(item.bad, of_bad, strict=True):
            yield text, own, float(score), item.description
    else:
        for number, cluster in enumerate(item.clusters):
            others = [
                sentence
                for other, sibling in enumerate(item.clusters)
                if other != number
                for sentence in sibling.sentences
            ]
            mine = scores([*cluster.descriptions], [*cluster.sentences]).mean(axis=1)
            theirs = scores([*cluster.descriptions], others)
            for text, own_mean, row in zip(cluster.descriptions, mine, theirs, strict=True):
                best = int(row.argmax())
                yield text, float(own_mean), float(row[best]), others[best]


def _looked_at(report: CheckReport, lines: int, items: list[tuple[int, Item]]) -> dict[str, int]:
    texts = report.sentences + report.descriptions
    true = sum(len(_described(item)) for _, item in items)
    return {
        "form": lines,
        "length": texts,
        "overlap": true,
        "names and numbers": true,
        "near-duplicates": texts,
        "repeated elsewhere": texts,
    }


def _balance(items: list[Item]) -> dict[str, Any]:
    balance: dict[str, Any] = {
        "words of a sentence": _mean_words(text for item in items for text in _sentences(item)),
        "words of a description": _mean_words(
            text for item in items for text in _descriptions(item)
        ),
    }
    groups = [item for item in items if isinstance(item, Group)]
    others = [item for item in items if not isinstance(item, Group)]
    if groups:
        balance["shapes"] = dict(Counter(group.shape for group in groups).most_common())
        balance["open"] = sum(group.open for group in groups)
        domains = Counter(group.domain for group in groups)
        balance["domains"] = len(domains)
        balance["largest domains"] = dict(domains.most_common(5))
    if others:
        for side in ("good", "bad"):
            lists = [item.good if side == "good" else item.bad for item in others]
            balance[f"{side} an item"] = round(sum(map(len, lists)) / len(lists), 2)
            balance[f"words of a {side} one"] = _mean_words(t for texts in lists for t in texts)
    return balance


def _mean_words(texts: Iterator[str]) -> float:
    counts = [len(words(text)) for text in texts]
    return round(sum(counts) / len(counts), 1) if counts else 0.0


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
