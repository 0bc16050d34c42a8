"""Find all instances among Wikipedia sentences, and compare with what is known.

    python examples/benchmarks/find_in_wikitext.py QUERIES CORPUS [--store DIR] [--rerank combined]
        [--llm MODEL --base-url URL]

QUERIES is a file of {"id", "description", "good", "bad"} a line, CORPUS a text file of a sentence a
line. All sentences go into one store, and each description is looked for in it. Recall and
precision count a query's own good and bad sentences alone: whether the other sentences are
instances is not known. Other cuts are tried on the probabilities of the same search, whose
expansion is that of the first cut. With a language model, what it left unjudged is not matched,
and its figures stand in a line of their own: the cuts are those of the cross-encoder all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from descsim_tools import DescriptionIndex, Record, fill
from descsim_tools.agents import FinderSettings, InstanceFinder, Row, Statement
from descsim_tools.agents.estimate import reestimate
from descsim_tools.agents.statement import Missed
from descsim_tools.evaluation import EvalItem, read_items
from descsim_tools.llm import LLM, Budget

CUTS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Outcome:
    """One description at one cut."""

    recall: float
    precision: float
    missed: int
    estimate: float
    low: int
    high: int

    @property
    def covered(self) -> bool:
        """Whether the interval holds the number of the query's good sentences not matched."""
        return self.low <= self.missed <= self.high


def sentences(items: list[EvalItem], corpus: Path) -> list[Record]:
    """Return every sentence once; its id is its text's place in the list."""
    texts = [text for item in items for text in (*item.good, *item.bad)]
    texts += corpus.read_text(encoding="utf-8").splitlines()
    unique = dict.fromkeys(text.strip() for text in texts if text.strip())
    return [Record(text, str(number)) for number, text in enumerate(unique)]


def outcome(item: EvalItem, statement: Statement, accept: float) -> Outcome:
    """Measure a search as if it had cut elsewhere."""
    matched = {row.text for row in statement.rows if _probability(row) >= accept}
    return _outcome(item, matched, reestimate(statement, accept))


def _outcome(item: EvalItem, matched: set[str], missed: Missed) -> Outcome:
    good = {text.strip() for text in item.good}
    bad = {text.strip() for text in item.bad} - good
    found, wrong = len(good & matched), len(bad & matched)
    return Outcome(
        found / len(good),
        found / (found + wrong) if found + wrong else 1.0,
        len(good) - found,
        missed.estimate,
        missed.low,
        missed.high,
    )


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Average over descriptions."""
    return {
        "recall": float(np.mean([o.recall for o in outcomes])),
        "precision": float(np.mean([o.precision for o in outcomes])),
        "covered": float(np.mean([o.covered for o in outcomes])),
        "missed": float(np.mean([o.missed for o in outcomes])),
        "estimate": float(np.mean([o.estimate for o in outcomes])),
        "low": float(np.mean([o.low for o in outcomes])),
        "high": float(np.mean([o.high for o in outcomes])),
    }


def main() -> int:
    """Run the comparison and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--store", type=Path, help="Folder to keep the store in.")
    parser.add_argument("--rerank", default="combined", help="Name of a calibrated reranker.")
    parser.add_argument("--accept", type=float, default=FinderSettings().accept)
    parser.add_argument("--depth", type=int, default=FinderSettings().depth)
    parser.add_argument("--limit", type=int, help="Only so many descriptions.")
    parser.add_argument("--llm", help="A language model that judges what stays uncertain.")
    parser.add_argument("--base-url", help="Of its server; default is OPENAI_BASE_URL.")
    parser.add_argument("--max-requests", type=int, help="To it, for all descriptions.")
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")
    options = parser.parse_args()
    items = read_items(options.queries)
    with tempfile.TemporaryDirectory() as temporary:
        store = options.store or Path(temporary) / "store"
        fill(sentences(items, options.corpus), store, progress=True)
        with ExitStack() as opened:
            index = opened.enter_context(DescriptionIndex.open(store))
            llm = None
            if options.llm is not None:
                budget = Budget(requests=options.max_requests)
                # A local model on a CPU answers slowly, and one request at a time.
                llm = LLM(
                    options.llm,
                    base_url=options.base_url,
                    budget=budget,
                    max_tokens=512,
                    timeout=600,
                    concurrency=1,
                )
                opened.enter_context(llm)
            found = run(index, items[: options.limit], options, llm)
    report(found, options.json)
    return 0


def run(
    index: DescriptionIndex, items: list[EvalItem], options: Any, llm: LLM | None
) -> dict[str, Any]:
    """Search for every description."""
    settings = FinderSettings(accept=options.accept, depth=options.depth)
    finder = InstanceFinder(index, rerank=options.rerank, llm=llm, settings=settings)
    cuts = sorted({*CUTS, options.accept})
    outcomes: dict[float, list[Outcome]] = {cut: [] for cut in cuts}
    seconds, examined, reached = [], [], []
    by_model: list[Outcome] = []
    unjudged: Counter[str] = Counter()
    decided: Counter[str] = Counter()
    for number, item in enumerate(items, start=1):
        started = time.perf_counter()
        statement = finder.find(item.description)
        seconds.append(time.perf_counter() - started)
        examined.append(statement.examined)
        texts = {row.text for row in statement.rows}
        reached.append(np.mean([text.strip() in texts for text in item.good]))
        for cut in cuts:
            outcomes[cut].append(outcome(item, statement, cut))
        now = outcomes[options.accept][-1]
        if llm is not None:
            matched = {row.text for row in statement.instances}
            now = _outcome(item, matched, statement.missed)
            by_model.append(now)
            unjudged.update(statement.unjudged_for)
            decided.update(statement.decided_by)
        print(
            f"{number}/{len(items)} recall {now.recall:.2f} precision {now.precision:.2f} "
            f"missed {now.missed}, estimated {now.estimate:.1f} ({now.low} to {now.high}), "
            f"{seconds[-1]:.1f} s: {item.description[:60]}",
            file=sys.stderr,
        )
    judged = None
    if by_model:
        judged = {**summary(by_model), "unjudged_for": unjudged, "decided_by": decided}
    return {
        "descriptions": len(items),
        "stored": index.store.count(),
        "rerank": options.rerank,
        "examined": float(np.mean(examined)),
        "good_examined": float(np.mean(reached)),
        "seconds": float(np.mean(seconds)),
        "cuts": [{"accept": cut, **summary(outcomes[cut])} for cut in cuts],
        "judged": judged,
    }


def report(found: dict[str, Any], as_json: bool) -> None:
    """Print the figures."""
    if as_json:
        print(json.dumps(found))
        return
    print(
        f"{found['descriptions']} descriptions in {found['stored']:,} sentences by "
        f"{found['rerank']}: {found['examined']:.0f} examined, among them "
        f"{100 * found['good_examined']:.1f} % of the good ones, {found['seconds']:.1f} s a query"
    )
    print("accept  recall  precision  covered  missed  estimate  interval")
    for row in found["cuts"]:
        print(
            f"{row['accept']:6.2f}  {row['recall']:6.3f}  {row['precision']:9.3f}  "
            f"{row['covered']:7.3f}  {row['missed']:6.2f}  {row['estimate']:8.2f}  "
            f"{row['low']:.1f} to {row['high']:.1f}"
        )
    if (row := found["judged"]) is not None:
        print(
            f" model  {row['recall']:6.3f}  {row['precision']:9.3f}  {row['covered']:7.3f}  "
            f"{row['missed']:6.2f}  {row['estimate']:8.2f}  {row['low']:.1f} to {row['high']:.1f}\n"
            f"decided by {dict(row['decided_by'])}, unjudged for {dict(row['unjudged_for'])}"
        )


def _probability(row: Row) -> float:
    return row.probability if row.probability is not None else 0.0


if __name__ == "__main__":
    sys.exit(main())
