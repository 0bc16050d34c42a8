"""A small world for the finder: vectors by words, probabilities by table, a model by script."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from descsim_tools import DescriptionIndex, Hit, Record
from descsim_tools.agents import FinderSettings, InstanceFinder
from descsim_tools.calibration import Calibration
from descsim_tools.rerankers import Reranker
from descsim_tools.store import Store
from descsim_tools.store.manifest import Manifest
from tests.fake_llm import Reply, Seen

DIM = 1024
FORGERY = "people deceived by forged documents"
QUICK = FinderSettings(depth=10, sample=6)


class Words:
    """An encoder whose vectors count words, so that tests know what is near."""

    spec = SimpleNamespace(name="words")
    fingerprint = "words"
    is_pair = False
    device = "cpu"

    def __init__(self, dim: int = DIM) -> None:
        self.dim = dim

    def encode_descriptions(self, texts: Iterable[str]) -> np.ndarray:
        return np.stack([self._vector(text) for text in texts])

    encode_sentences = encode_descriptions

    def _vector(self, text: str) -> np.ndarray:
        vector = np.full(self.dim, 1e-3, dtype=np.float32)
        for word in re.findall(r"\w+", text.casefold()):
            vector[zlib.crc32(word.encode()) % self.dim] += 1
        return vector / np.linalg.norm(vector)


class Known(Reranker):
    """Gives each sentence the probability that a function says, for a description."""

    calibration = Calibration(1.0, 0.0)
    name = "known"

    def __init__(self, probability: Callable[[str, str], float]) -> None:
        self.probability = probability
        self.read: list[str] = []

    def _score(self, description, sentences):
        self.read += sentences
        p = np.array([self.probability(description, text) for text in sentences])
        return np.log(p / (1 - p))


def marked(description: str, text: str) -> float:
    """The probability that a sentence has written on it: `p=0.7`; 0.02 for others."""
    found = re.search(r"p=(0\.\d+)", text)
    return float(found[1]) if found else 0.02


def make_index(texts: Iterable[str | Record], folder) -> DescriptionIndex:
    encoder = Words()
    records = [
        replace(item, id=item.id or str(number)) if isinstance(item, Record)
        else Record(item, str(number))
        for number, item in enumerate(texts)
    ]  # fmt: skip
    store = Store.create(folder, Manifest.of(encoder))
    store.upsert(records, encoder.encode_sentences([record.text for record in records]))
    return DescriptionIndex(store, encoder)


def noise(count: int) -> list[str]:
    """Sentences that have to do with nothing."""
    drawn = np.random.default_rng(0)
    words = [f"w{number}" for number in range(200)]
    return [" ".join(drawn.choice(words, 8)) for _ in range(count)]


def rows_of(seen: Seen) -> list[dict[str, str]]:
    """The rows that a judge is asked about."""
    lines = seen.text.split("<rows>\n")[-1].split("\n</rows>")[0].splitlines()
    return [json.loads(line) for line in lines]


def kind_of(seen: Seen) -> str:
    """What the model is asked for: a plan, further descriptions or verdicts."""
    asked = seen.text
    return "verdicts" if "<rows>" in asked else "more" if "<instances>" in asked else "plan"


def verdict(row: dict[str, str], said: str, evidence: str | None = None) -> dict[str, str]:
    shown = row["text"] if evidence is None else evidence
    return {"id": row["id"], "verdict": said, "evidence": shown if said == "yes" else "",
            "reason": f"it is {said}"}  # fmt: skip


class Model:
    """Plans nothing more than asked, and says yes to rows with `true` in them.

    `fault` may answer a request for verdicts in its own way, or return None.
    """

    def __init__(self, fault: Callable[[Seen, int], Reply | None] | None = None) -> None:
        self.fault = fault
        self.plan = {"conditions": [{"number": 1, "descriptions": []}], "does_not_count": []}
        self.more: list[str] = []
        self.asked: list[list[str]] = []

    def __call__(self, seen: Seen, number: int) -> Reply:
        kind = kind_of(seen)
        if kind == "plan":
            return Reply(json.dumps(self.plan))
        if kind == "more":
            return Reply(json.dumps({"descriptions": self.more}))
        rows = rows_of(seen)
        self.asked.append([row["text"] for row in rows])
        wrong = self.fault(seen, len(self.asked) - 1) if self.fault else None
        return wrong or verdicts(verdict(row, self.says(row["text"])) for row in rows)

    @staticmethod
    def says(text: str) -> str:
        return "yes" if "true" in text else "unsure" if "doubtful" in text else "no"


def verdicts(rows: Iterable[dict[str, str]]) -> Reply:
    return Reply(json.dumps({"rows": list(rows)}))


def by_text(statement) -> dict[str, str]:
    return {row.text: str(row.status) for row in statement.rows}


def hit(id_: str, text: str) -> Hit:
    return Hit(id_, 0.0, 1, text)


def finder_of(index, probability=marked, **options) -> InstanceFinder:
    return InstanceFinder(index, rerank=Known(probability), **{"settings": QUICK, **options})
