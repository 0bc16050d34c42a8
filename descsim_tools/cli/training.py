"""`descsim train` and `descsim data stats`."""

from __future__ import annotations

import json
from pathlib import Path

import click


class _RunsByDefault(click.Group):
    """`descsim train CONFIG` is `descsim train run CONFIG`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["run", *args])


@click.group(cls=_RunsByDefault)
def train() -> None:
    """Train encoders (`descsim train CONFIG`), and compare ways to train them.

    \b
    Example:
      descsim train examples/training/descsim-minilm.toml --out build/descsim-minilm
    """


@train.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the result."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run(config: Path, out: Path, as_json: bool) -> None:
    """Train as the TOML file CONFIG says.

    A run that was broken off goes on after its last whole epoch when the same command is given
    again; that of maps, which takes minutes, starts over. Another configuration or other data need
    another OUT. What was trained is in OUT/model: a folder that every --encoder option takes.

    \b
    Example:
      descsim train examples/training/paper.toml --out build/paper
    """
    from descsim_tools.training.config import load_config

    settings = load_config(config)
    from descsim_tools.training.kinds import run as train_kind

    result = train_kind(settings, out, progress=True)
    if as_json:
        click.echo((out / "result.json").read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("dev figure", "value", title=f"{settings.name}: epoch {result.epoch:g}", box=None)
    for name, value in result.metrics.items():
        table.add_row(name, f"{value:.3f}")
    Console().print(table)
    click.echo(f"{result.groups} groups in {result.seconds / 60:.1f} minutes; see {result.folder}")


@train.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the result."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def ablate(config: Path, out: Path, as_json: bool) -> None:
    """Train each setting of CONFIG on the same data and compare them.

    CONFIG is a TOML file as for `run` with a table for each setting under [ablate], whose values
    replace those of the main part. The comparison is written as OUT/comparison.csv and .png.

    \b
    Example:
      descsim train ablate examples/training/ablate-losses.toml --out build/ablate
    """
    from descsim_tools.training.ablate import ablate as compare
    from descsim_tools.training.ablate import load_settings

    settings = load_settings(config)
    rows = compare(settings, out, progress=True)
    if as_json:
        click.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    names = sorted({name for figures in rows.values() for name in figures})
    shown = [n for n in names if "precision@" in n or n.endswith(("accuracy", "score"))]
    shown = [n for n in shown if not n.endswith(("_error", "_queries"))]
    table = Table("setting", *shown, box=None)
    for setting, figures in rows.items():
        table.add_row(setting, *(f"{figures[name]:.3f}" for name in shown))
    Console().print(table)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def stats(file: Path, as_json: bool) -> None:
    """Count the groups, clusters and texts of FILE, and their lengths.

    FILE holds groups, the paper's records, labelled pairs or triplets, one a line.

    \b
    Example:
      descsim data stats examples/training/open-groups.jsonl.gz
    """
    from descsim_tools.training.data import read_groups, statistics

    facts = statistics(read_groups(file))
    if as_json:
        click.echo(json.dumps(facts))
        return
    from rich.console import Console
    from rich.table import Table

    shapes = facts.pop("shapes")
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    for name, value in facts.items():
        text = f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name.replace("_", " "), text)
    for shape, count in shapes.items():
        table.add_row(f"  groups of shape {shape}", f"{count:,}")
    Console().print(table)
