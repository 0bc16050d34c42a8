"""`descsim rerank`: prompts for the log-probability reranker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from descsim_tools.rerankers.prompts import DEFAULT_PROMPT, PROMPTS

if TYPE_CHECKING:
    from descsim_tools.evaluation.calibrate import Judged
    from descsim_tools.rerankers import LogProbReranker
    from descsim_tools.rerankers.tuning import PromptResult


@click.group()
def rerank() -> None:
    """Choose how sentences are reranked."""


def model_options(function: Any) -> Any:
    """Add the options that name a language model and how it runs."""
    options = [
        click.option(
            "--model",
            required=True,
            metavar="NAME|URL",
            help="Hub id, folder, .gguf file, gemma3-270m, or the URL of an OpenAI-compatible "
            "server such as http://localhost:8000/v1.",
        ),
        click.option("--served-model", metavar="NAME", help="Name of the model on the server."),
        click.option("--tokenizer", metavar="NAME", help="Hub id or folder of its tokenizer."),
        click.option("--device", metavar="NAME", help="Such as cpu or cuda."),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            help="By default bfloat16 on a GPU, else float32.",
        ),
        click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True),
        click.option("--max-length", type=click.IntRange(min=2), help="Most tokens read at once."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def load_model(
    model: str,
    served_model: str | None,
    tokenizer: str | None,
    device: str | None,
    dtype: str | None,
    batch_size: int,
    max_length: int | None,
) -> LogProbReranker:
    """Load what `model_options` name."""
    from descsim_tools.rerankers import LogProbReranker

    if not model.startswith(("http://", "https://")):
        if served_model or tokenizer:
            raise click.UsageError("--served-model and --tokenizer go with a URL as --model")
        return LogProbReranker.load(
            model, device=device, dtype=dtype, batch_size=batch_size, max_length=max_length
        )
    if not served_model or not tokenizer:
        raise click.UsageError("a URL as --model needs --served-model and --tokenizer")
    from descsim_tools.rerankers import ServerScorer

    key = os.environ.get("OPENAI_API_KEY")
    scorer = ServerScorer(
        model, served_model, tokenizer=tokenizer, api_key=key, max_length=max_length or 2048
    )
    return LogProbReranker(scorer)


@rerank.command()
@click.argument("dev", type=click.Path(path_type=Path))
@model_options
@click.option(
    "--prompts", metavar="NAME[,NAME...]", help="Only these; `descsim rerank prompts` lists all."
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many rows, spread evenly.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="File to write the choice to (.json)."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def tune(
    dev: Path,
    model: str,
    prompts: str | None,
    limit: int | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the prompt that ranks DEV best.

    DEV has one JSON object a line: id, description, good (a list of sentences that the description
    fits) and bad (a list of close ones that it does not). Every prompt is scored by nDCG@10. The
    file written with --output is read by `descsim search --rerank log-prob:FILE`.

    \b
    Example:
      descsim rerank tune dev.jsonl --model gemma3-270m --output tuned.json
    """
    if output is not None and output.suffix != ".json":
        raise click.UsageError(f"--output is {output}, need a file that ends in .json")
    from descsim_tools.rerankers.log_prob import Choice
    from descsim_tools.rerankers.prompts import find_prompt
    from descsim_tools.rerankers.tuning import read_dev
    from descsim_tools.rerankers.tuning import tune as tune_prompts

    chosen = [find_prompt(name) for name in prompts.split(",")] if prompts else [*PROMPTS.values()]
    queries = read_dev(dev, limit)
    loaded = load_model(model, **options)
    results = tune_prompts(loaded, queries, chosen, on_result=_show_progress)
    best = results[0]
    if output is not None:
        Choice(model, best.prompt, best.ndcg_at_10, best.queries).save(output)
    if as_json:
        rows = [
            {
                "prompt": result.prompt.name,
                "template": result.prompt.template,
                "ndcg@10": result.ndcg_at_10,
                "precision@1": result.precision_at_1,
                "queries": result.queries,
                "pairs_per_second": result.pairs_per_second,
            }
            for result in results
        ]
        click.echo(json.dumps({"model": model, "best": best.prompt.name, "prompts": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("prompt", "nDCG@10", "precision@1", "pairs/s", box=None)
    for result in results:
        table.add_row(
            result.prompt.name,
            f"{100 * result.ndcg_at_10:.1f}",
            f"{100 * result.precision_at_1:.1f}",
            f"{result.pairs_per_second:.1f}",
        )
    Console().print(table)
    click.echo(f"best of {len(results)} on {best.queries} descriptions: {best.prompt.name}")
    if output is not None:
        click.echo(f"written to {output}")


def _show_progress(result: PromptResult) -> None:
    click.echo(f"{result.prompt.name}: nDCG@10 {100 * result.ndcg_at_10:.1f}", err=True)


@rerank.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("dev", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--encoder", metavar="NAME", help="The pair to combine with; by default the default.")
@click.option(
    "--weight",
    type=click.FloatRange(min=0),
    help="Of the cosine beside the logit; by default the best on DEV.",
)
@click.option("--device", metavar="NAME", help="Such as cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def calibrate(
    model: Path,
    dev: tuple[Path, ...],
    encoder: str | None,
    weight: float | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Fit probabilities for the cross-encoder in the folder MODEL, and its weight beside a pair.

    Each DEV file holds queries (`description`, `good`, `bad`) or groups (`clusters`), one a line.
    Writes calibration.json and combination.json into MODEL, which `--rerank cross-encoder:MODEL`
    and `--rerank combined:MODEL` read.

    In DEV all candidates are of the subject. In a large corpus most are not, and the cosine may
    deserve more --weight: examples/benchmarks/rerank_in_corpus.py tells.

    \b
    Example:
      descsim rerank calibrate build/cross examples/training/contrast-dev.jsonl
    """
    from dataclasses import asdict

    import numpy as np

    from descsim_tools.encoders import DEFAULT_PRESET, DescriptionEncoder
    from descsim_tools.evaluation import EncoderScore
    from descsim_tools.evaluation.calibrate import (
        WEIGHTS,
        expected_calibration_error,
        fit_calibration,
        scores_of,
        tune_weight,
    )
    from descsim_tools.rerankers import DescriptionCrossEncoder
    from descsim_tools.rerankers.combined import COMBINATION, Combination
    from descsim_tools.rerankers.cross_encoder import CALIBRATION

    judged = [j for file in dev for j in _judged(file)]
    name = encoder if encoder is not None else DEFAULT_PRESET
    cross_encoder = DescriptionCrossEncoder.load(model, device=device)
    logits = scores_of(judged, cross_encoder.score)
    cosine = EncoderScore(DescriptionEncoder.load(name, device=device))
    cosine.prepare((j.description for j in judged), (s for j in judged for s in j.sentences))
    cosines = scores_of(judged, cosine)
    fitted_on = ", ".join(file.name for file in dev)
    alone = fit_calibration(judged, logits, fitted_on)
    weight, gain = tune_weight(judged, logits, cosines, WEIGHTS if weight is None else (weight,))
    mixed = [a + weight * b for a, b in zip(logits, cosines, strict=True)]
    both = fit_calibration(judged, mixed, fitted_on)
    combination = Combination(name, weight, both.slope, both.intercept, fitted_on)
    alone.save(model / CALIBRATION)
    combination.save(model / COMBINATION)
    good = np.concatenate([j.good for j in judged])
    if len(good) < _FEW_PAIRS:
        click.echo(
            f"fitted on {len(good)} pairs only: the probabilities are rough, give a few hundred",
            err=True,
        )
    facts = {
        "calibration": asdict(alone),
        "combination": asdict(combination),
        "pairs": len(good),
        "gain": gain,
        "ece": expected_calibration_error(alone(np.concatenate(logits)), good),
        "combined_ece": expected_calibration_error(both(np.concatenate(mixed)), good),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"weight of the cosine {weight:g} beside the logit; mean of nDCG@10 and precision@1 "
        f"{100 * gain:.1f}"
    )
    click.echo(
        f"calibration error on {len(good):,} pairs: {facts['ece']:.3f} alone, "
        f"{facts['combined_ece']:.3f} combined"
    )
    click.echo(f"written to {model / CALIBRATION} and {model / COMBINATION}")


_FEW_PAIRS = 200


def _judged(file: Path) -> list[Judged]:
    from descsim_tools.evaluation import read_items
    from descsim_tools.evaluation.calibrate import judged_groups, judged_items
    from descsim_tools.lines import read_json_lines
    from descsim_tools.training.data import read_groups

    first = next(read_json_lines(file, "dev file"), (0, None))[1]
    if isinstance(first, dict) and "clusters" in first:
        return judged_groups(read_groups(file))
    return judged_items(read_items(file))


@rerank.command("prompts")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_prompts(as_json: bool) -> None:
    """List the prompts of the log-probability reranker.

    \b
    Example:
      descsim rerank prompts
    """
    rows = [
        {
            "name": prompt.name,
            "default": prompt.name == DEFAULT_PROMPT,
            "template": prompt.template,
            "source": prompt.source,
        }
        for prompt in PROMPTS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        click.echo(f"{row['name']}{' (default)' if row['default'] else ''}: {row['source']}")
        for line in str(row["template"]).splitlines():
            click.echo(f"    {line}")
