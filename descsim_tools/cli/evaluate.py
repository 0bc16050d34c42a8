"""`descsim eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from descsim_tools.evaluation.metrics import Floats


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--encoder", metavar="NAME", help="Preset, folder or hub id; by default the default preset."
)
@click.option("--rerank", metavar="NAME", help="Measure a reranker instead, such as combined.")
@click.option("--device", metavar="NAME", help="Such as cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print unrounded shares as JSON.")
def evaluate(
    file: Path, encoder: str | None, rerank: str | None, device: str | None, as_json: bool
) -> None:
    """Measure an encoder or a reranker on FILE.

    FILE is one of: JSON lines with `description`, `good` and `bad`, for precision@k and nDCG@10
    (the first 12 good sentences and all bad ones are ranked together, as in the paper); JSON lines
    of groups (`clusters`), for the share of descriptions whose nearest sentence is of their own
    cluster; a folder of STS sets, for Spearman's correlation on the sentence side: files
    sts12-NAME.tsv to sts16-NAME.tsv (score, sentence, sentence) and sick-r.test.txt with SICK's own
    header. A calibrated reranker's expected calibration error (`ece`, lower is better) is told too.

    \b
    Example:
      descsim eval queries.jsonl --encoder all-minilm-l6-v2
      descsim eval queries.jsonl --encoder my-model --json
      descsim eval queries.jsonl --rerank combined
    """
    form = "sts" if file.is_dir() else _form(file)  # fails before a model is loaded
    if rerank is not None and (encoder is not None or form == "sts"):
        raise click.UsageError("--rerank goes with a file of queries or groups, without --encoder")
    if rerank is not None:
        name, result = _evaluate_reranker(file, form, rerank, device)
        facts = {"file": str(file), "reranker": name}
    else:
        facts, result = _evaluate_encoder(file, form, encoder, device)
        name = facts["encoder"]
    if as_json:
        click.echo(json.dumps({**facts, **result}, ensure_ascii=False))
    else:
        _show(f"{name} on {file.name}", result)


def _evaluate_encoder(
    file: Path, form: str, encoder: str | None, device: str | None
) -> tuple[dict[str, str], dict[str, float]]:
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
    facts = {"file": str(file), "encoder": loaded.spec.name, "fingerprint": loaded.fingerprint}
    return facts, result


def _evaluate_reranker(
    file: Path, form: str, name: str, device: str | None
) -> tuple[str, dict[str, float]]:
    import numpy as np

    from descsim_tools.evaluation import evaluate_file, evaluate_groups, read_items
    from descsim_tools.evaluation.calibrate import (
        expected_calibration_error,
        judged_groups,
        judged_items,
        scores_of,
    )
    from descsim_tools.rerankers import load_reranker
    from descsim_tools.training.data import read_groups

    items = read_items(file) if form == "items" else []
    groups = read_groups(file) if form == "groups" else []
    judged = judged_groups(groups) if groups else judged_items(items)
    reranker = load_reranker(name, device=device)
    scores = scores_of(judged, reranker.score)
    known = {(j.description, j.sentences): row for j, row in zip(judged, scores, strict=True)}

    def score(description: str, sentences: Sequence[str]) -> Floats:
        row = known.get((description, tuple(sentences)))
        return reranker.score(description, sentences) if row is None else row

    result = evaluate_groups(groups, score) if groups else evaluate_file(items, score)
    if reranker.calibration is not None:
        good = np.concatenate([j.good for j in judged])
        result["ece"] = expected_calibration_error(
            reranker.calibration(np.concatenate(scores)), good
        )
    return name, result


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
        error, queries = result.get(f"{name}_error"), result.get(f"{name}_queries", count)
        table.add_row(
            name,
            f"{100 * value:.1f}",
            "" if error is None else f"{100 * error:.1f}",
            f"{queries:,.0f}",
        )
    Console().print(table)
