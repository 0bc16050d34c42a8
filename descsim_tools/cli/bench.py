"""`descsim bench`: speed, measured here and now."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from descsim_tools.cli.rerank import load_model, model_options
from descsim_tools.rerankers.prompts import DEFAULT_PROMPT


@click.group()
def bench() -> None:
    """Measure speed on this machine."""


@bench.command()
@model_options
@click.option("--prompt", default=DEFAULT_PROMPT, show_default=True, help="Name or template.")
@click.option("--pairs", default=64, show_default=True, type=click.IntRange(min=2))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def rerank(model: str, prompt: str, pairs: int, as_json: bool, **options: Any) -> None:
    """Compare the log-probability reranker with slower and other ways.

    Scores the same pairs with it, pair by pair as in the SGPT scripts, and with a
    sentence-transformers CrossEncoder of the same architecture and size.

    \b
    Example:
      descsim bench rerank --model gemma3-270m --pairs 64
    """
    from descsim_tools.rerankers.bench import bench as run

    result = run(load_model(model, **options).with_prompt(prompt), pairs)
    if as_json:
        click.echo(json.dumps(asdict(result)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("way", "pairs/s", "times pair by pair", box=None)
    for speed in result.speeds:
        rate, times = f"{speed.pairs_per_second:.2f}", f"{speed.times_pair_by_pair:.2f}"
        table.add_row(speed.way, rate, times)
    Console().print(table)
    click.echo(
        f"{result.pairs} pairs; the first two ways differ by at most "
        f"{result.largest_difference:.2g} nats"
    )
