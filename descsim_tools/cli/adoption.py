"""`descsim adopt` and `descsim migrate`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from descsim_tools.cli.tables import show_facts


@click.command()
@click.argument("store", metavar="DIR|URL")
@click.option("--collection", required=True, help="Name in the Chroma database.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def adopt(store: str, collection: str, as_json: bool) -> None:
    """Search a Chroma collection that all-MiniLM-L6-v2 filled, as it lies.

    That model is Chroma's default embedding function and common with LangChain and LlamaIndex. A
    sample of the documents is encoded again to see that it made the vectors; nothing else is
    encoded, and nothing in the collection changes but that a manifest is added to its own metadata.
    Then `descsim search` finds its sentences with the encoder minilm-query-map.

    \b
    Example:
      descsim adopt chroma_db --collection langchain
      descsim search chroma_db "a merger of two banks" --collection langchain
    """
    from descsim_tools.store import adopt as adopt_collection

    report = adopt_collection(store, collection, progress=True)
    if as_json:
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
        return
    show_facts(
        {
            "adopted": f"{report.collection} in {report.store}",
            "rows": report.rows,
            "rows encoded again": report.checked,
            "lowest similarity of these": f"{report.lowest_similarity:.4f}",
            "space": report.space,
            "encoder from now on": report.encoder,
            "rows without a document": report.without_document,
        }
    )
    if report.without_document:
        named = ", ".join(map(repr, report.first_without_document[:5]))
        click.echo(f"no search finds rows without a document: {named} (more with --json)", err=True)


@click.command()
@click.argument("store", metavar="DIR|URL")
@click.argument("target", metavar="TARGET")
@click.option("--collection", required=True, help="Name in the Chroma database.")
@click.option(
    "--target-collection",
    default="descsim",
    show_default=True,
    help="Name of the new collection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def migrate(
    store: str, target: str, collection: str, target_collection: str, as_json: bool
) -> None:
    """Copy a collection that all-MiniLM-L6-v2 filled to a store of the encoder minilm-two-maps.

    TARGET is a folder or the URL of a Chroma server. The stored vectors are mapped, not encoded
    anew, and the collection is left as it is: a foreign one, or a store of the encoders
    all-minilm-l6-v2 or minilm-query-map. A migration that was broken off goes on where it was when
    the same command is given again. A later one copies what is new and rows whose text or metadata
    changed; rows that the collection has no more stay in TARGET, and are counted. Each collection
    needs a TARGET (or --target-collection) of its own.

    \b
    Example:
      descsim migrate chroma_db my-store --collection langchain
      descsim search my-store "a merger of two banks"
    """
    from descsim_tools.store import migrate as migrate_collection

    report = migrate_collection(
        store, target, collection=collection, target_collection=target_collection, progress=True
    )
    if as_json:
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
        return
    show_facts(
        {
            "moved": f"{report.collection} in {report.source}",
            "to": f"{report.target_collection} in {report.target}",
            "rows read": report.rows,
            "  written": report.written,
            "    of these replaced": report.replaced,
            "  there before": report.already_there,
            "  skipped": report.skipped,
            "rows kept that are not in the source": report.kept,
            "rows encoded again": report.checked,
            "lowest similarity of these": f"{report.lowest_similarity:.4f}",
            "encoder": report.encoder,
        }
    )
    for row in report.first_skipped[:5]:
        click.echo(f"skipped: {row['id']!r}: {row['reason']}", err=True)
    if report.kept:
        named = ", ".join(map(repr, report.first_kept[:5]))
        click.echo(f"kept, though not in the source: {named} (more with --json)", err=True)
