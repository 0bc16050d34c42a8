"""Kill a fill at random moments with SIGKILL, resume it, and compare with an unbroken one.

    python examples/benchmarks/kill_and_resume.py CORPUS FOLDER [--kills 10] [--seed 0]

FOLDER gets two stores. Exit code 0 if ids, texts and vectors are equal and only missing rows were
encoded.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from descsim_tools.store import Store


def contents(store: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Return text and vector of every row by id."""
    with Store.open(store) as opened:
        rows: dict[str, tuple[str, np.ndarray]] = {}
        for ids, vectors in opened.vector_pages():
            records = {record.id: record.text for record in opened.get(ids)}
            rows |= {i: (records[i], vector) for i, vector in zip(ids, vectors, strict=True)}
        return rows


def main() -> int:
    """Run the comparison and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    broken, whole = options.folder / "broken", options.folder / "whole"

    def command(store: Path) -> list[str]:
        descsim = [sys.executable, "-m", "descsim_tools"]
        return [*descsim, "index", str(options.corpus), "--store", str(store), "--json"]

    started = time.perf_counter()
    report = json.loads(subprocess.run(command(whole), capture_output=True, check=True).stdout)
    seconds = time.perf_counter() - started
    print(f"unbroken fill: {report['stored']} rows in {seconds:.0f} s")
    drawn = random.Random(options.seed)
    for kill in range(options.kills):
        process = subprocess.Popen(
            command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pause = drawn.uniform(0.05, 2.0 / options.kills) * seconds + (seconds - report["seconds"])
        try:
            process.wait(pause)
            print(f"kill {kill + 1}: the fill had ended before")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            stored = 0
            if Store.has_collection(broken):
                with Store.open(broken) as opened:
                    stored = opened.count()
            print(f"kill {kill + 1}: after {pause:.1f} s, {stored} rows stored")
    with Store.open(broken) as opened:
        stored = opened.count()
    last = json.loads(subprocess.run(command(broken), capture_output=True, check=True).stdout)
    print(f"last fill: {last['already_stored']} rows stored before, {last['encoded']} encoded")
    left, right = contents(whole), contents(broken)
    texts = left.keys() == right.keys() and all(right[i][0] == left[i][0] for i in left)
    apart = max(float(np.abs(right[i][1] - left[i][1]).max()) for i in left) if texts else np.inf
    missing = last["encoded"] == len(left) - stored
    print(f"same ids and texts: {texts}; largest difference of a vector's number: {apart:.1e}")
    print(f"only missing rows were encoded: {missing}")
    return 0 if texts and missing and apart < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
