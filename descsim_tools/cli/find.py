"""`descsim find`: all instances of a concept, with a statement of completeness."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from descsim_tools.agents.settings import FinderSettings
from descsim_tools.cli.options import (
    chosen_encoder,
    encoder_options,
    max_tokens_option,
    parsed_where,
    price_of,
    price_options,
)
from descsim_tools.errors import DescsimError

if TYPE_CHECKING:
    from descsim_tools.agents import Event, InstanceFinder, Row, Statement
    from descsim_tools.agents.finder import FindOptions
    from descsim_tools.llm import LLM

_DEFAULTS = FinderSettings()
_BY_BUDGET = 3
_INTERRUPTED = 130
_FAILED = 1
_EXIT = {"done": 0, "budget": _BY_BUDGET, "no answer": 1}
_UNJUDGED_SHOWN = 20
_NEAREST_SHOWN = 3


@click.command()
@click.argument("store", metavar="DIR|URL")
@click.argument("concept", required=False)
@click.option("--all-of", multiple=True, metavar="TEXT", help="Must fit too; may be repeated.")
@click.option("--any-of", multiple=True, metavar="TEXT", help="One of these must fit.")
@click.option("--none-of", multiple=True, metavar="TEXT", help="None of these may fit.")
@click.option("--where", metavar="JSON", help="Filter on metadata, such as '{\"year\": 1990}'.")
@click.option(
    "--llm", "model", metavar="MODEL", help="Model that plans, and judges what is unsure."
)
@click.option("--base-url", metavar="URL", help="Its server, such as http://localhost:8000/v1.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="MONEY",
    help="The most it may cost; needs --price-in and --price-out.",
)
@price_options
@click.option("--max-requests", type=click.IntRange(min=0), help="Budget: most requests sent.")
@click.option("--max-total-tokens", type=click.IntRange(min=0), help="Budget: most tokens in all.")
@max_tokens_option
@click.option(
    "--rerank",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Calibrated reranker: combined, cross-encoder, or auto for what fits the store's encoder; "
    "none leaves all to the model.",
)
@click.option(
    "--accept",
    type=click.FloatRange(0, 1),
    default=_DEFAULTS.accept,
    show_default=True,
    help="Without --llm, least probability of an instance.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=_DEFAULTS.depth,
    show_default=True,
    help="Sentences retrieved for each description at first.",
)
@click.option(
    "--decisions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of what a person decided (.csv or .jsonl: id, decision); overrules all.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to keep the search in; the same command then goes on where it stopped.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Report with every row, its reason and its source: .html, .jsonl or .csv.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the statement and the rows as JSON.")
@encoder_options
def find(
    store: str,
    concept: str | None,
    all_of: tuple[str, ...],
    any_of: tuple[str, ...],
    none_of: tuple[str, ...],
    where: str | None,
    decisions: Path | None,
    record: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find ALL sentences of a store that are instances of CONCEPT.

    Not the best ones but every one, with a statement of completeness: how many sentences were
    examined, matched, rejected and left unjudged, how many instances are estimated to be missed,
    who decided, and what it cost. Works without a language model; with --llm one plans the search
    and judges what the cross-encoder is not sure of. Its key is read from OPENAI_API_KEY.

    The exit code is 0 if the search is done, 3 if the budget ended it, 130 if it was interrupted,
    and 1 if the model gave nothing usable or the report could not be written.

    \b
    Example:
      descsim find my-store "people deceived by forged documents" --out report.html
      descsim find my-store "a merger of banks" --none-of "a merger that failed" --json
      descsim find my-store "a theft of art" --llm gpt-5-mini --budget 0.50 --price-in 0.25 \\
        --price-out 2 --record theft
    """
    from descsim_tools.agents.decisions import read_decisions
    from descsim_tools.agents.report import check_report, write_report

    if concept is None and not all_of and not any_of:
        raise click.UsageError("there is nothing to look for; give a concept, --all-of or --any-of")
    if concept is not None and not concept.strip():
        raise click.UsageError("the concept is blank; say what you look for")
    decided = read_decisions(decisions).words
    if out is not None:
        if record is not None and out.parent == record:
            record.mkdir(parents=True, exist_ok=True)  # the search would make it, after the check
        check_report(out, decided)
    told: FindOptions = {
        "all_of": all_of,
        "any_of": any_of,
        "none_of": none_of,
        "where": parsed_where(where),
        "decisions": decided,
        "record": record,
    }
    with _finder(store, record, **options) as finder:
        statement = _search(finder, concept, told)
    if statement is None:
        again = "the same command goes on where this one stopped"
        lost = "nothing was kept; with --record DIR the same command would go on"
        click.echo(f"interrupted; {again if record else lost}", err=True)
        return _INTERRUPTED
    unwritten: Exception | None = None
    if out is not None:
        try:
            write_report(statement, out)
        except (DescsimError, OSError, ValueError) as error:
            unwritten = error
    if as_json:
        click.echo(json.dumps(statement.to_dict(), ensure_ascii=False, default=str))
    else:
        _show(statement, None if unwritten else out, has_model=options["model"] is not None)
    if unwritten is not None:
        again = "the same command with another --out writes it without searching again"
        lost = "with --record DIR the search would have been kept"
        click.echo(f"descsim: no report: {unwritten}; {again if record else lost}", err=True)
        return _FAILED
    return _EXIT[str(statement.ended_by)]


def _search(finder: InstanceFinder, concept: str | None, told: FindOptions) -> Statement | None:
    """Find instances, and return nothing if a person interrupts it."""
    with _ended_by_interrupt() as cancel:
        told["cancel"] = cancel
        statement = _watched(finder.stream(concept, **told))
    return None if str(statement.ended_by) == "cancelled" else statement


@contextmanager
def _ended_by_interrupt() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C, so that a request that is paid is awaited.

    The second one kills the process, as threads that wait for a server cannot be interrupted; what
    the record and the account of requests hold is whole at any moment.
    """
    cancel = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # The bar has hidden the cursor. Not by a stream, whose writing this may have interrupted.
        cursor = b"\x1b[?25h" if os.isatty(2) else b""
        told = b"\nending after what is under way; Ctrl-C again ends at once\n"
        with suppress(OSError):
            os.write(2, cursor + told)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # as in the background of a shell
        yield cancel
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _finder(
    store: str,
    record: Path | None,
    *,
    rerank: str,
    accept: float,
    depth: int,
    encoder: str | None,
    description_encoder: str | None,
    pooling: str | None,
    device: str | None,
    collection: str,
    **llm: Any,
) -> Iterator[InstanceFinder]:
    from contextlib import ExitStack

    from descsim_tools.agents import InstanceFinder
    from descsim_tools.agents.finder import check_name
    from descsim_tools.store import Store

    if rerank != "none":
        check_name(rerank)
    Store.open(store, collection=collection).close()  # fails before a model is loaded
    with ExitStack() as stack:
        model = _llm(record, **llm)
        if model is not None:
            stack.enter_context(model)
        elif rerank == "none":
            raise click.UsageError("--rerank none needs --llm: somebody must judge")
        from descsim_tools.search import DescriptionIndex

        devices = device.split(",") if device else None
        chosen = chosen_encoder(encoder, description_encoder, pooling, devices)
        index = stack.enter_context(
            DescriptionIndex.open(
                store, encoder=chosen, collection=collection, device=devices[0] if devices else None
            )
        )
        yield InstanceFinder(
            index,
            rerank=None if rerank == "none" else rerank,
            llm=model,
            settings=FinderSettings(accept=accept, depth=depth),
        )


def _llm(
    record: Path | None,
    model: str | None,
    base_url: str | None,
    budget: float | None,
    price_in: float | None,
    price_out: float | None,
    max_requests: int | None,
    max_total_tokens: int | None,
    max_tokens: int,
) -> LLM | None:
    given = (base_url, budget, price_in, price_out, max_requests, max_total_tokens)
    if model is None:
        if any(option is not None for option in given):
            raise click.UsageError("a server, a price or a budget goes with --llm MODEL")
        return None
    price = price_of(price_in, price_out, budget)
    from descsim_tools.agents.record import ANSWERS, TRANSCRIPT
    from descsim_tools.llm import LLM, Budget

    return LLM(
        model,
        base_url=base_url,
        max_tokens=max_tokens,
        budget=Budget(requests=max_requests, tokens=max_total_tokens, cost=budget),
        price=price,
        cache=None if record is None else record / ANSWERS,
        transcript=None if record is None else record / TRANSCRIPT,
    )


def _watched(events: Iterator[Event]) -> Statement:
    """Show a bar while a search lasts, and return what it found."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("finding"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    ]
    statement = None
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, status="opening")
        for event in events:
            spent = f", {event.cost.money:.4f} spent" if event.cost.money else ""
            status = f"{event.message}; {event.matched:,} instances{spent}"
            progress.update(
                task, completed=event.decided, total=event.examined or None, status=status
            )
            statement = event.statement
    assert statement is not None  # the last event has it
    return statement


def _show(statement: Statement, out: Path | None, *, has_model: bool) -> None:
    from rich.table import Table

    from descsim_tools.agents.statement import Status
    from descsim_tools.cli.tables import literal, show

    table = Table("id", "probability", "decided by", "sentence", box=None)
    for row in statement.instances:
        table.add_row(literal(row.id), _chance(row), str(row.verdict.decided_by), literal(row.text))
    if statement.instances:
        show(table)
    unjudged = [row for row in statement.rows if row.status is Status.UNJUDGED]
    if unjudged:
        table = Table("unjudged", "probability", "why", "sentence", box=None)
        for row in unjudged[:_UNJUDGED_SHOWN]:
            why = literal(row.verdict.unjudged_for)
            table.add_row(literal(row.id), _chance(row), why, literal(row.text))
        show(table)
        if len(unjudged) > _UNJUDGED_SHOWN:
            click.echo(f"and {len(unjudged) - _UNJUDGED_SHOWN:,} more; --out FILE lists all")
    if not statement.instances:
        _show_nearest(statement, has_model=has_model)
    for line in statement.lines():
        click.echo(literal(line).plain)
    if out is not None:
        click.echo(f"written to {out}")


def _show_nearest(statement: Statement, *, has_model: bool) -> None:
    """Show the best of what was rejected, and which --accept would take it."""
    from rich.table import Table

    from descsim_tools.agents.statement import Decider, Status
    from descsim_tools.cli.tables import literal, show

    # What a person rejected stays so, and what similarity rejected no --accept brings back.
    judged = (Decider.CROSS_ENCODER, Decider.MODEL)
    rejected = [row for row in statement.rows if row.status is Status.REJECTED]
    nearest = [row for row in rejected if row.verdict.decided_by in judged][:_NEAREST_SHOWN]
    if not nearest:
        return
    table = Table("rejected", "probability", "decided by", "sentence", box=None)
    for row in nearest:
        table.add_row(literal(row.id), _chance(row), str(row.verdict.decided_by), literal(row.text))
    show(table)
    least = min(row.probability or 0.0 for row in nearest)
    accept = math.floor(100 * least) / 100  # rounded up it would leave the last one out
    if accept and not has_model:  # which would decide, whatever --accept is
        click.echo(f"nothing matched; --accept {accept:.2f} would take what is shown")


def _chance(row: Row) -> str:
    return "" if row.probability is None else f"{row.probability:.2f}"
