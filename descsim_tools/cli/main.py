"""Commands, and how they fail: exit code 2 for misuse, 1 for failure, 130 when interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import descsim_tools
from descsim_tools.cli.adoption import adopt, migrate
from descsim_tools.cli.bench import bench as bench_commands
from descsim_tools.cli.chat import chat
from descsim_tools.cli.data import data, generate
from descsim_tools.cli.evaluate import evaluate
from descsim_tools.cli.find import find
from descsim_tools.cli.options import chosen_encoder, encoder_options, parsed_where
from descsim_tools.cli.rerank import rerank as rerank_commands
from descsim_tools.cli.tables import literal, show
from descsim_tools.cli.training import convert, split, stats, train
from descsim_tools.errors import DescsimError
from descsim_tools.text import printable

if TYPE_CHECKING:
    from descsim_tools.index_builder import FillReport
    from descsim_tools.types import Hit

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(descsim_tools.__version__, prog_name="descsim")
@click.option("--debug", is_flag=True, help="Show tracebacks and the log.")
def cli(debug: bool) -> None:
    """Search a corpus by a description of what you look for.

    \b
    Example:
      descsim index corpus.txt --store my-store
      descsim search my-store "a company withdrawing a product after a safety problem"
    """
    import logging

    # Models on this disk need no bars for loading, and our errors say what went wrong.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format="%(name)s: %(message)s"
    )


cli.add_command(rerank_commands)
cli.add_command(bench_commands)


@cli.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--store", required=True, metavar="DIR|URL", help="Folder or Chroma server to fill.")
@click.option(
    "--text-field", default="text", show_default=True, help="Field or column of the text."
)
@click.option("--id-field", default="id", show_default=True, help="Field or column of the ids.")
@click.option(
    "--split/--no-split",
    default=None,
    help="Find the sentences in each text; by default for folders of documents.",
)
@click.option(
    "--min-words",
    type=click.IntRange(min=0),
    help="Drop sentences of fewer words; by default 6 for .txt files and folders, else 0.",
)
@click.option(
    "--on-long",
    type=click.Choice(["split", "cut", "reject"]),
    default="split",
    show_default=True,
    help="What becomes of a sentence longer than the encoder reads.",
)
@click.option(
    "--rejects",
    type=click.Path(path_type=Path),
    help="File to name bad rows in; by default rejects.jsonl in the store.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@encoder_options
def index(
    corpus: Path,
    store: str,
    text_field: str,
    id_field: str,
    split: bool | None,
    min_words: int | None,
    on_long: str,
    rejects: Path | None,
    as_json: bool,
    encoder: str | None,
    description_encoder: str | None,
    pooling: str | None,
    device: str | None,
    collection: str,
) -> None:
    """Fill a store with the sentences of CORPUS.

    CORPUS is a file (.txt with a sentence or paragraph a line, .jsonl, .csv, .tsv, .parquet) or a
    folder of .txt and .md files. A fill that was broken off goes on where it was when the same
    command is given again; what is stored is not encoded twice.

    \b
    Example:
      descsim index papers.jsonl --store papers --text-field abstract --split
    """
    from descsim_tools.index_builder import fill, open_corpus

    open_corpus(corpus, text_field=text_field, id_field=id_field)  # fails before a model is loaded
    devices = device.split(",") if device else None
    report = fill(
        corpus,
        store,
        encoder=chosen_encoder(encoder, description_encoder, pooling, devices),
        collection=collection,
        text_field=text_field,
        id_field=id_field,
        split=split,
        min_words=min_words,
        on_long=on_long,
        devices=devices,
        rejects=rejects,
        progress=True,
    )
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show_report(report)


@cli.command()
@click.argument("store", metavar="DIR|URL")
@click.argument("description")
@click.option("-k", default=10, show_default=True, type=click.IntRange(min=1), help="Hits wanted.")
@click.option("--where", metavar="JSON", help="Filter on metadata, such as '{\"year\": 1990}'.")
@click.option("--exact", is_flag=True, help="Compare with every sentence.")
@click.option(
    "--rerank",
    metavar="NAME",
    help="Order the hits by a reranker: combined, cross-encoder or log-prob.",
)
@click.option(
    "--min-probability",
    type=click.FloatRange(0, 1),
    help="Leave out hits that are less probably instances; needs --rerank.",
)
@click.option(
    "--candidates",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="With --rerank, how many sentences are retrieved for it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the hits as JSON.")
@encoder_options
def search(
    store: str,
    description: str,
    k: int,
    where: str | None,
    exact: bool,
    rerank: str | None,
    min_probability: float | None,
    candidates: int,
    as_json: bool,
    encoder: str | None,
    description_encoder: str | None,
    pooling: str | None,
    device: str | None,
    collection: str,
) -> None:
    """Show the sentences of a store that instantiate DESCRIPTION.

    \b
    Example:
      descsim search my-store "a scientific discovery made by accident" -k 5
      descsim search my-store "a merger of two banks" --where '{"year": {"$gte": 1990}}' --json
      descsim search my-store "substance abuse in animals" --rerank combined --min-probability 0.5
    """
    if min_probability is not None and rerank is None:
        raise click.UsageError("--min-probability needs --rerank combined or cross-encoder")
    if not description.strip():
        raise click.UsageError("the description is blank; say what you look for")
    condition = parsed_where(where)
    from descsim_tools.store import Store

    Store.open(store, collection=collection).close()  # fails before a model is loaded
    from descsim_tools.search import DescriptionIndex

    devices = device.split(",") if device else None
    chosen = chosen_encoder(encoder, description_encoder, pooling, devices)
    with DescriptionIndex.open(
        store, encoder=chosen, collection=collection, device=devices[0] if devices else None
    ) as opened:
        hits = opened.search(
            description,
            k,
            where=condition,
            exact=exact,
            rerank=rerank,
            candidates=candidates,
            min_probability=min_probability,
        )
    if as_json:
        rows = [
            {"rank": h.rank, "score": h.score, "id": h.id, "text": h.text, "metadata": h.metadata}
            | ({} if rerank is None else _rerank_facts(h))
            for h in hits
        ]
        payload = {"description": description, "hits": rows}
        click.echo(json.dumps(payload, ensure_ascii=False, default=str))
    else:
        _show_hits(hits)


@cli.command()
@click.argument("store", metavar="DIR|URL")
@click.option("--collection", default="descsim", show_default=True, help="Name in the database.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def info(store: str, collection: str, as_json: bool) -> None:
    """Tell what a store holds and which encoder filled it.

    \b
    Example:
      descsim info my-store
    """
    from importlib.metadata import version

    from descsim_tools.store import Store

    with Store.open(store, collection=collection) as opened:
        manifest = opened.manifest
        facts: dict[str, str | int] = {
            "sentences": opened.count(),
            "encoder": manifest.encoder,
            "sides": manifest.sides,
            "dimensions": manifest.dim,
            "fingerprint": manifest.fingerprint,
            "space": manifest.space,
            "collection": opened.name,
            "made by": f"descsim-tools {manifest.descsim_version}",
            "made with chromadb": manifest.chromadb_version,
            "chromadb here": version("chromadb"),
        }
    if as_json:
        click.echo(json.dumps({key.replace(" ", "_"): value for key, value in facts.items()}))
        return
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(key, literal(value))
    show(table)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def encoders(as_json: bool) -> None:
    """List the encoder presets.

    \b
    Example:
      descsim encoders
    """
    from descsim_tools.encoders.presets import BUNDLED, DEFAULT_PRESET, PRESETS

    rows = [
        {
            "name": spec.name,
            "default": spec.name == DEFAULT_PRESET,
            "bundled": spec.sentence_model == BUNDLED,
            "summary": spec.summary,
        }
        for spec in PRESETS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    from rich.table import Table

    table = Table("preset", "needs", "what it is", box=None)
    for row in rows:
        name = f"{row['name']} (default)" if row["default"] else str(row["name"])
        table.add_row(
            name, "nothing more" if row["bundled"] else "the hub", literal(row["summary"])
        )
    show(table)


cli.add_command(adopt)
cli.add_command(migrate)
cli.add_command(find)
cli.add_command(train)
cli.add_command(generate)
cli.add_command(data)
for command in (stats, convert, split):
    data.add_command(command)
cli.add_command(evaluate)
cli.add_command(chat)


@cli.command()
@click.option("--store", required=True, metavar="DIR|URL", help="What the tools search.")
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve streamable HTTP on this port of the loopback interface, at /mcp, instead of stdio.",
)
@encoder_options
def mcp(
    store: str,
    port: int | None,
    encoder: str | None,
    description_encoder: str | None,
    pooling: str | None,
    device: str | None,
    collection: str,
) -> None:
    """Serve a store to agents by the Model Context Protocol.

    Over HTTP, clients must send the bearer token in DESCSIM_MCP_TOKEN if that variable is set.

    \b
    Example:
      descsim mcp --store my-store
      DESCSIM_MCP_TOKEN=secret descsim mcp --store my-store --http 8765
    """
    from descsim_tools.agents.mcp_tool import find_instances_tool
    from descsim_tools.integrations.mcp_server import create_server, serve_http, serve_stdio
    from descsim_tools.rerankers.weights import cache_folder

    # No more is checked here: a client should be answered before anything heavy is loaded.
    if not store.startswith(("http://", "https://")) and not Path(store).is_dir():
        raise click.UsageError(f"there is no folder {store}; fill a store with `descsim index`")
    devices = device.split(",") if device else None
    server = create_server(
        store,
        encoder=chosen_encoder(encoder, description_encoder, pooling, devices),
        collection=collection,
        device=devices[0] if devices else None,
        more_tools=[find_instances_tool(cache_folder() / "find")],
    )
    if port is None:
        serve_stdio(server)
    else:
        serve_http(server, port, os.environ.get("DESCSIM_MCP_TOKEN"))


_HERE = "; the same command goes on where this one stopped"
_GO_ON = {
    "index": _HERE,
    "migrate": _HERE,
    "generate": _HERE,
    "train": "; the same command goes on after the last whole epoch (maps start over)",
}
"""What is told of commands that go on when they were broken off."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        return int(cli.main(arguments, "descsim", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):
            click.echo(f"descsim: a file ends too early: {error.__cause__}", err=True)
            return 1
        command = next((word for word in arguments if not word.startswith("-")), "")
        click.echo(f"interrupted{_GO_ON.get(command, '')}", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone; Python must not flush to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DescsimError, OSError, ValueError) as error:
        if debug:
            raise
        click.echo(printable(f"descsim: {error}"), err=True)
        return 1
    # Whatever else: a person at a terminal gets a line and the way to the traceback.
    except Exception as error:
        if debug:
            raise
        text = f"descsim: unexpected {type(error).__name__}: {error}"
        click.echo(f"{printable(text)}\nRun `descsim --debug ...` for the traceback.", err=True)
        return 1


def _show_report(report: FillReport) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, title=literal(f"{report.corpus} -> {report.store}"))
    table.add_column()
    table.add_column(justify="right")
    counts = [
        ("rows read", report.rows),
        ("  blank", report.blank_rows),
        ("  set aside", report.failed_rows),
        ("sentences", report.sentences),
        ("  encoded and stored", report.encoded),
        ("  stored before", report.already_stored),
        ("  duplicates", report.duplicates),
        ("  too short", report.short),
        ("  set aside", report.failed_sentences),
        ("long sentences split", report.split),
        ("long sentences cut", len(report.cut)),
        ("sentences in the store", report.stored),
    ]
    for name, count in counts:
        table.add_row(name, f"{count:,}")
    table.add_row("time", f"{report.seconds:.1f} s")
    table.add_row("encoded a second", f"{report.sentences_per_second:,.0f}")
    table.add_row("peak memory", f"{report.peak_memory_mb:,.0f} MB")
    show(table)
    for entry in report.first_rejects[:5]:
        click.echo(f"set aside: row {entry['row']}: {entry['reason']}", err=True)
    if report.rejects:
        click.echo(f"all rows set aside are in {report.rejects}", err=True)
    if report.cut:
        click.echo(f"cut: {', '.join(report.cut[:5])} (all with --json)", err=True)


def _rerank_facts(hit: Hit) -> dict[str, Any]:
    names = ("retrieval_score", "rerank_score", "probability", "truncated")
    return {name: getattr(hit, name) for name in names}


def _show_hits(hits: list[Hit]) -> None:
    if not hits:
        click.echo("no sentence matches")
        return
    from rich.table import Table

    probable = any(hit.probability is not None for hit in hits)
    table = Table("", "score", *(["probability"] if probable else []), "sentence", box=None)
    for hit in hits:
        shown = "" if hit.probability is None else f"{hit.probability:.2f}"
        table.add_row(
            str(hit.rank), f"{hit.score:.3f}", *([shown] if probable else []), literal(hit.text)
        )
    show(table)
