"""`descsim generate` and `descsim data`: make training data, check it, measure it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from descsim_tools.cli.options import max_tokens_option, price_of, price_options

if TYPE_CHECKING:
    from descsim_tools.datagen.generate import GenerationReport
    from descsim_tools.datagen.recipes import Recipe

_STOPPED = 3
_SHAPES = ["triplet", "description", "edited", "passage", "rich"]


@click.group()
def generate() -> None:
    """Write training or evaluation data with a language model.

    The model is any on an OpenAI-compatible server. Its key is read from OPENAI_API_KEY; server and
    model may come from OPENAI_BASE_URL and OPENAI_MODEL. A run that was broken off, even killed,
    goes on where it was when the same command is given again: no answer is paid twice. The exit
    code is 3 if the budget ended the run.

    \b
    Example:
      descsim generate descriptions corpus.txt --out made --model gpt-5-mini --max-requests 100
      descsim generate abstract made/records.jsonl --out made-abstract --model gpt-5-mini
      descsim data check made-abstract/records.jsonl
    """


def _run_options(function: Any) -> Any:
    positive = click.IntRange(min=1)
    not_negative = click.IntRange(min=0)
    options: list[Any] = [
        click.option(
            "--out", required=True, type=click.Path(path_type=Path), help="Folder for the data."
        ),
        click.option("--model", metavar="NAME", help="As the server knows it."),
        click.option("--base-url", metavar="URL", help="Such as http://localhost:8000/v1."),
        click.option("--limit", type=positive, help="Stop after so many texts."),
        click.option("--max-requests", type=not_negative, help="Budget: most requests sent."),
        click.option("--max-total-tokens", type=not_negative, help="Budget: most tokens in all."),
        click.option(
            "--max-cost", type=click.FloatRange(min=0), help="Budget: most money; needs prices."
        ),
        price_options,
        max_tokens_option,
        click.option(
            "--temperature", type=click.FloatRange(min=0), help="By default the server's."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=120.0,
            show_default=True,
            help="Seconds for an attempt.",
        ),
        click.option(
            "--concurrency",
            type=positive,
            default=4,
            show_default=True,
            help="Requests at a time.",
        ),
        click.option("--requests-per-minute", type=positive, help="Rate limit."),
        click.option("--tokens-per-minute", type=positive, help="Rate limit."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _text_options(function: Any) -> Any:
    options = [
        click.option(
            "--text-field", default="text", show_default=True, help="Field or column of the text."
        ),
        click.option(
            "--split/--no-split",
            default=None,
            help="Find the sentences in each text; by default for folders of documents.",
        ),
        click.option(
            "--min-words", type=click.IntRange(min=0), help="Leave out texts of fewer words."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@generate.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@_text_options
@_run_options
def descriptions(
    corpus: Path,
    text_field: str,
    split: bool | None,
    min_words: int | None,
    **run: Any,
) -> int:
    """Sentences of CORPUS -> five good and five misleading descriptions of each.

    Writes records.jsonl, a line {"sentence", "good", "bad"} for each sentence. CORPUS is what
    `descsim index` reads; sentences of fewer than 6 words are left out.

    \b
    Example:
      descsim generate descriptions corpus.txt --out made --model gpt-5-mini --limit 100
    """
    from descsim_tools.datagen.recipes import DescriptionsRecipe

    texts = {"text_field": text_field, "split": split, "min_words": min_words}
    return _generate(DescriptionsRecipe(), corpus, texts, **run)


@generate.command()
@click.argument("records", type=click.Path(path_type=Path))
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.14,
    show_default=True,
    help="Share of the sentences that get them; the others are copied.",
)
@_run_options
def abstract(records: Path, share: float, **run: Any) -> int:
    """RECORDS -> the same with three more abstract descriptions for a share of them.

    RECORDS is a file that `descsim generate descriptions` wrote. Writes records.jsonl.

    \b
    Example:
      descsim generate abstract made/records.jsonl --out made-abstract --model gpt-5-mini
    """
    from descsim_tools.datagen.recipes import AbstractRecipe

    return _generate(AbstractRecipe(share), records, {}, **run)


@generate.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@_text_options
@_run_options
def sentences(
    corpus: Path, text_field: str, split: bool | None, min_words: int | None, **run: Any
) -> int:
    """Descriptions in CORPUS -> sentences that instantiate each, and its contradicting twin.

    Writes queries.jsonl, a line {"id", "description", "good", "bad"} for each description; the bad
    sentences instantiate the twin.

    \b
    Example:
      descsim generate sentences descriptions.txt --out queries --model gpt-5-mini
    """
    from descsim_tools.datagen.recipes import SentencesRecipe

    texts = {"text_field": text_field, "split": split, "min_words": min_words}
    return _generate(SentencesRecipe(), corpus, texts, **run)


@generate.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option(
    "--shape",
    type=click.Choice(_SHAPES),
    default="triplet",
    show_default=True,
    help="How many clusters, sentences and descriptions a group has.",
)
@_text_options
@_run_options
def groups(
    corpus: Path,
    shape: str,
    text_field: str,
    split: bool | None,
    min_words: int | None,
    **run: Any,
) -> int:
    """Sentences of CORPUS, for their topics -> groups of sibling clusters.

    Writes groups.jsonl. Each description of a group is true of the sentences of its own cluster
    and false of the others'.

    \b
    Example:
      descsim generate groups corpus.txt --out groups --shape edited --model gpt-5-mini
    """
    from descsim_tools.datagen.recipes import GroupsRecipe

    texts = {"text_field": text_field, "split": split, "min_words": min_words}
    return _generate(GroupsRecipe(shape), corpus, texts, **run)


@click.group()
def data() -> None:
    """Check data for training and evaluation, and measure its quality.

    Files hold groups, records {"sentence", "good", "bad"} or queries {"id", "description", "good",
    "bad"}, one a line. `stats`, `convert` and `split` are for training data: no queries, but
    labelled pairs and triplets too.

    \b
    Example:
      descsim data check made/records.jsonl
      descsim data quality made/records.jsonl SICK_train.txt --plot quality.png
    """


def _generate(
    recipe: Recipe,
    corpus: Path,
    texts: dict[str, Any],
    *,
    out: Path,
    model: str | None,
    limit: int | None,
    max_requests: int | None,
    max_total_tokens: int | None,
    max_cost: float | None,
    price_in: float | None,
    price_out: float | None,
    as_json: bool,
    **settings: Any,
) -> int:
    if (price_in is None) != (price_out is None):
        raise click.UsageError("--price-in and --price-out need each other")
    from descsim_tools.datagen.generate import generate as run
    from descsim_tools.datagen.generate import open_llm
    from descsim_tools.index_builder import open_corpus
    from descsim_tools.llm import Budget

    if not recipe.reads_records:
        open_corpus(corpus, text_field=texts["text_field"])  # fails before a folder is made
    price = price_of(price_in, price_out)
    budget = Budget(max_requests, max_total_tokens, max_cost)
    with open_llm(out, model, budget=budget, price=price, **settings) as llm:
        report = run(recipe, corpus, out, llm, limit=limit, progress=True, **texts)
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show_report(report, price is not None)
    if report.complete:
        return 0
    click.echo(f"stopped: {report.stopped}; with more, the same command goes on", err=True)
    return _STOPPED


def _show_report(report: GenerationReport, priced: bool) -> None:
    rows: list[tuple[str, str]] = [
        ("rows read", f"{report.rows:,}"),
        ("  blank", f"{report.blank_rows:,}"),
        ("  set aside", f"{report.failed_rows:,}"),
        ("texts", f"{report.sources:,}"),
        ("  duplicates", f"{report.duplicates:,}"),
        ("  too short", f"{report.short:,}"),
        ("  written", f"{report.written:,}"),
        *((f"  rejected: {kind}", f"{n:,}") for kind, n in sorted(report.rejected.items())),
        ("requests, over all runs", f"{report.requests:,}"),
        ("tokens read", f"{report.tokens_in:,}"),
        ("tokens written", f"{report.tokens_out:,}"),
    ]
    if priced:
        rows.append(("cost", f"{report.cost:.4f}"))
    show_table(["", ""], rows, title=f"{report.corpus} -> {report.output}")
    for entry in report.first_rejects[:5]:
        click.echo(f"rejected: row {entry['row']}: {entry['reason']}", err=True)
    if report.rejects:
        click.echo(f"all rejects are in {report.rejects}", err=True)


def show_table(
    head: Sequence[str], rows: Sequence[tuple[str, ...]], title: str | None = None
) -> None:
    """Print a table; all columns but the first hold numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=any(head), title=Text(title) if title else None)
    for number, name in enumerate(head):
        table.add_column(Text(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console().print(table)


@data.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--encoder", metavar="NAME", help="Tells what fits a sibling; default preset if not given."
)
@click.option("--no-encoder", is_flag=True, help="Leave that check out, which takes longest.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Most items that the encoder scores.",
)
@click.option(
    "--examples", type=click.IntRange(min=0), default=3, show_default=True, help="Of each check."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check_data(
    file: Path, encoder: str | None, no_encoder: bool, sample: int, examples: int, as_json: bool
) -> int:
    """Look for what may be wrong with the data in FILE.

    Reported are lines of a wrong form, odd lengths, descriptions that share their sentence's words,
    names or numbers, near-duplicates, texts that fit a sibling, and how balanced it all is. The
    exit code is 1 if a line has a wrong form; all else is only suspicious.

    \b
    Example:
      descsim data check groups.jsonl --examples 5
    """
    if no_encoder and encoder is not None:
        raise click.UsageError("--encoder and --no-encoder exclude each other")
    from descsim_tools.datagen.formats import read_items

    read_items(file)  # fails before a model is loaded
    from descsim_tools.datagen.check import check

    loaded = None if no_encoder else _encoder(encoder)
    report = check(file, encoder=loaded, sample=sample, examples=examples)
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
        return int(report.errors > 0)
    rows: list[tuple[str, ...]] = []
    for name, found in report.counts.items():
        of = report.of.get(name, 0)
        rows.append((name, f"{found:,}", f"{of:,}", f"{found / of:.1%}" if of else ""))
    title = f"{report.file}: {report.items:,} items of kind {report.kind}"
    show_table(["check", "found", "of", "share"], rows, title=title)
    facts = {"mean overlap": f"{report.mean_overlap:.1%}", **report.balance}
    if report.encoder is not None:
        facts["scored"] = f"{report.sampled:,} items by {report.encoder}"
    for name, fact in facts.items():
        if isinstance(fact, dict):
            fact = ", ".join(f"{key or 'none'} {value:,}" for key, value in fact.items())
        click.echo(f"{name}: {fact}")
    for name, found_ones in report.examples.items():
        for finding in found_ones:
            click.echo(f"\n{name}, line {finding.line}: {finding.text}\n  {finding.detail}")
    return int(report.errors > 0)


@data.command("quality")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--encoder", metavar="NAME", help="Tells similarities; default preset if not given.")
@click.option(
    "--lm", metavar="NAME", help="Folder or hub id of a causal model, for the last measure."
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Most triplets of a file that are measured.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="File for a plot, such as q.png.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def quality_of_data(
    files: tuple[Path, ...],
    encoder: str | None,
    lm: str | None,
    sample: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare the triplets of FILES by four measures.

    A triplet is a text, one that fits it and one that does not. FILES hold groups, records or
    queries, or SICK's tab-separated pairs, which people wrote. The measures: how many of its words
    the positive repeats, how much the lengths differ, how alike the positives' scores are, and how
    far off the negatives are.

    \b
    Example:
      descsim data quality made/records.jsonl groups.jsonl SICK_train.txt --plot quality.png
    """
    from descsim_tools.datagen.formats import read_triplets

    sources = [read_triplets(file) for file in files]  # fails before a model is loaded
    from descsim_tools.datagen.quality import MEASURES, measure
    from descsim_tools.datagen.quality import plot as draw

    loaded = _encoder(encoder)
    qualities = [measure(source, loaded, lm=lm, sample=sample) for source in sources]
    if plot is not None:
        draw(qualities, plot)
    if as_json:
        click.echo(json.dumps([quality.to_dict() for quality in qualities]))
        return
    shown = [name for name in MEASURES if name in qualities[0].means]
    head = ["", *(quality.source for quality in qualities)]
    rows: list[tuple[str, ...]] = [
        ("triplets", *(f"{quality.triplets:,}" for quality in qualities)),
        ("measured", *(f"{quality.sampled:,}" for quality in qualities)),
    ]
    for name in shown:
        rows.append((MEASURES[name], *(f"{q.means[name]:.3f}" for q in qualities)))
        rows.append(("  deviation", *(f"{q.deviations[name]:.3f}" for q in qualities)))
    show_table(head, rows)


def _encoder(name: str | None) -> Any:
    from descsim_tools.encoders import DEFAULT_PRESET, DescriptionEncoder

    return DescriptionEncoder.load(name or DEFAULT_PRESET)
