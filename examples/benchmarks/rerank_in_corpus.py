"""Search a corpus that evaluation sentences were put into, with and without rerankers.

    python examples/benchmarks/rerank_in_corpus.py QUERIES CORPUS [--rerank combined] [--json]

QUERIES holds `description`, `good` and `bad`, one object a line; CORPUS has a sentence a line. All
good (at most 12 a query) and bad sentences go into one store with the corpus. Printed for each way:

    precision@1         share of descriptions whose first hit is one of their good sentences
    valid-recall@10     share of a description's good sentences among the first 10, higher is better
    invalid-recall@10   share of its bad sentences among the first 10, lower is better

(the last two after *Description-Based Text Similarity*, A.4). A corpus may hold instances of its
own, which count as neither good nor bad, so precision@1 is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from descsim_tools import DescriptionIndex, Hit, Record, fill
from descsim_tools.evaluation import read_items
from descsim_tools.evaluation.protocol import MOST_GOOD, EvalItem

K = 10


def measure(items: Sequence[EvalItem], found: Sequence[list[Hit]]) -> dict[str, float]:
    """Return the three figures, means over the queries."""
    first, valid, invalid = [], [], []
    for item, hits in zip(items, found, strict=True):
        good, bad = set(item.good[:MOST_GOOD]), set(item.bad)
        texts = [hit.text for hit in hits]
        first.append(bool(texts) and texts[0] in good)
        valid.append(len(good & set(texts)) / len(good))
        invalid.append(len(bad & set(texts)) / len(bad))
    return {
        "precision@1": sum(first) / len(items),
        f"valid-recall@{K}": sum(valid) / len(items),
        f"invalid-recall@{K}": sum(invalid) / len(items),
    }


def main() -> int:
    """Fill, search and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queries", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rerank", action="append", help="may be given again; default: both")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    items = read_items(arguments.queries)
    lines = arguments.corpus.read_text(encoding="utf-8").splitlines()
    judged = [text for item in items for text in (*item.good[:MOST_GOOD], *item.bad)]
    texts = dict.fromkeys(text for text in [*judged, *lines] if text.strip())
    ways: list[str | None] = [None, *(arguments.rerank or ["cross-encoder", "combined"])]
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        fill((Record(text) for text in texts), folder)
        with DescriptionIndex.open(folder) as index:
            for way in ways:
                started = perf_counter()
                found = [
                    index.search(i.description, K, rerank=way, candidates=arguments.candidates)
                    for i in items
                ]
                seconds = (perf_counter() - started) / len(items)
                rows[way or "pair alone"] = {**measure(items, found), "seconds": seconds}
    if arguments.json:
        print(json.dumps({"sentences": len(texts), "queries": len(items), "ways": rows}))
        return 0
    print(f"{len(texts):,} sentences, {len(items)} queries")
    for way, row in rows.items():
        print(f"{way:15}", *(f"{name} {value:.3f}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
