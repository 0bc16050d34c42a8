"""Fill two stores from `corpus.txt` and show what each finds for six descriptions.

Left: the default encoder of descsim-tools. Right: the base model read on both sides, which is plain
sentence similarity. Run it with `make demo`, or `python examples/demo.py [FOLDER]`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from descsim_tools import DescriptionIndex, fill
from descsim_tools.encoders import DEFAULT_PRESET

CORPUS = Path(__file__).parent / "corpus.txt"
BASE = "all-minilm-l6-v2"
DESCRIPTIONS = [
    "a transfer of a disease between two species",
    "a company withdrawing a product after a safety problem",
    "a ruler losing power while abroad or being forced into exile",
    "a scientific discovery made by accident",
    "substance abuse in animals",
    "a person who became famous only after death",
]
SHOWN = 4


def main(folder: Path = Path("demo-store")) -> None:
    """Fill the stores, search them, print a table for each description."""
    console = Console()
    started = time.perf_counter()
    sides = [("descsim-tools", DEFAULT_PRESET), ("plain similarity", BASE)]
    found: list[list[list[Text]]] = []
    for _, encoder in sides:
        store = folder / encoder
        report = fill(CORPUS, store, encoder=encoder, progress=True)
        console.print(
            f"{store}: {report.stored} sentences, {report.encoded} encoded now "
            f"in {report.seconds:.0f} s"
        )
        with DescriptionIndex.open(store, encoder=encoder) as index:
            found.append(
                [
                    [Text(f"{h.score:.2f}  {h.text}") for h in index.search(description, SHOWN)]
                    for description in DESCRIPTIONS
                ]
            )
    for number, description in enumerate(DESCRIPTIONS):
        headers = [f"{side} ({encoder})" for side, encoder in sides]
        table = Table(*headers, title=description, show_lines=True, expand=True)
        for row in zip(*(hits[number] for hits in found), strict=True):
            table.add_row(*row)
        console.print(table)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    console.print(
        f'Next: .venv/bin/descsim search {folder / DEFAULT_PRESET} "an animal using a tool"'
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
