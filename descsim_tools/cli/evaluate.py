"""`descsim eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--encoder", metavar="NAME", help="Preset, folder or hub id; by default the default preset."
)
@click.option("--device", metavar="NAME", help="Such as cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print unrounded shares as JSON.")
def evaluate(file: Path, encoder: str | None, device: str | None, as_json: bool) -> None:
    """Measure an encoder on FILE.

    FILE is one of: JSON lines with `description`, `good` and `bad`, for precision@k and nDCG@10;
    JSON lines of groups (`clusters`), for the share of descriptions whose nearest sentence is of
    their own cluster; a folder of STS and SICK-R sets, for Spearman's correlation on the sentence
    side.

    \b
    Example:
      descsim eval queries.jsonl --encoder all-minilm-l6-v2
      descsim eval queries.jsonl --encoder my-model --json
    """
    form = "sts" if file.is_dir() else _form(file)  # fails before a model is loaded
    from descsim_tools.encoders import DEFAULT_PRESET, DescriptionEncoder
    from descsim_tools.evaluation import EncoderScore, evaluate_file, evaluate_groups, read_items

    name = encoder if encoder is not None else DEFAULT_PRESET
    if form == "sts":
        from descsim_tools.evaluation.sts import evaluate_sts, read_sts

        read_sts(file)
        loaded = DescriptionEncoder.load(name, device=device)
        result = evaluate_sts(file, loaded.encode_sentences)
    elif form == "groups":
        from descsim_tools.training.data import read_groups

        groups = read_groups(file)
        loaded = DescriptionEncoder.load(name, device=device)
        result = evaluate_groups(groups, EncoderScore(loaded))
    else:
        items = read_items(file)
        loaded = DescriptionEncoder.load(name, device=device)
        result = evaluate_file(items, EncoderScore(loaded))
    if as_json:
        facts = {"file": str(file), "encoder": loaded.spec.name, "fingerprint": loaded.fingerprint}
        click.echo(json.dumps({**facts, **result}, ensure_ascii=False))
    else:
        _show(f"{loaded.spec.name} on {file.name}", result)


def _form(file: Path) -> str:
    """Tell from the first line what a file holds."""
    from descsim_tools.lines import read_json_lines

    first = next(read_json_lines(file, "file or folder to evaluate on"), (0, None))[1]
    return "groups" if isinstance(first, dict) and "clusters" in first else "items"


def _show(title: str, result: Mapping[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("measure", "%", "standard error", "queries", title=Text(title), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    count = next(iter(result.values()))  # how many were asked comes first
    for name, value in list(result.items())[1:]:
        if name.endswith(("_error", "_queries")):
            continue
        error = result.get(f"{name}_error")
        table.add_row(
            name,
            f"{100 * value:.1f}",
            "" if error is None else f"{100 * error:.1f}",
            f"{result.get(f'{name}_queries', count):,.0f}",
        )
    Console().print(table)
