"""`descsim train`, and what `descsim data` does with training data: stats, convert, split."""

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
    table = Table("setting", box=None)
    for name in shown:  # folded rather than cut, since names of one file differ in their ends
        table.add_column(name.replace("_", " "), overflow="fold", justify="right")
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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(["groups", "records", "triplets"]),
    help="Form of a line of OUT.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new file.")
def convert(file: Path, form: str, out: Path) -> None:
    """Write the training data of FILE in another form.

    FILE holds groups, the paper's records, labelled pairs or triplets, one a line. Groups keep all
    that is known; a record is a sentence with the descriptions of its own cluster and of its
    siblings; triplets are all combinations. OUT is compressed if its name ends in .gz.

    \b
    Example:
      descsim data convert snli_train.jsonl --to groups --out groups.jsonl.gz
    """
    from dataclasses import asdict

    from descsim_tools.errors import CorpusError
    from descsim_tools.training.data import read_groups, to_records, to_triplets, write_rows

    _check_new(out)
    groups = read_groups(file)
    if form == "groups":
        rows = [asdict(group) for group in groups]
    else:
        rows = list(to_records(groups) if form == "records" else to_triplets(groups))
    if not rows:
        raise CorpusError(f"{file} gives no {form}: no group has two clusters with descriptions")
    write_rows(rows, out)
    click.echo(f"{len(rows):,} {form} written to {out}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--dev-share",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Of the groups.",
)
@click.option("--seed", default=0, show_default=True, help="Of the random choice.")
@click.option("--train", required=True, type=click.Path(path_type=Path), help="A new file.")
@click.option("--dev", required=True, type=click.Path(path_type=Path), help="A new file.")
def split(file: Path, dev_share: float, seed: int, train: Path, dev: Path) -> None:
    """Split the training data of FILE at random into groups to train on and for development.

    Both are written as groups, and no group is torn apart: what stands in the one file has no
    siblings in the other.

    \b
    Example:
      descsim data split all.jsonl.gz --train train.jsonl.gz --dev dev.jsonl
    """
    from descsim_tools.errors import CorpusError
    from descsim_tools.training.data import read_groups, split_groups, write_groups

    for path in (train, dev):
        _check_new(path)
    if train.resolve() == dev.resolve():
        raise click.UsageError("--train and --dev name the same file")
    groups = read_groups(file)
    parts = split_groups(groups, dev_share, seed=seed)
    if not all(parts):
        raise CorpusError(
            f"{file} has {len(groups)} groups; a dev share of {dev_share:g} leaves one side empty"
        )
    for part, path in zip(parts, (train, dev), strict=True):
        write_groups(part, path)
        click.echo(f"{len(part):,} groups written to {path}")


def _check_new(path: Path) -> None:
    if path.exists():
        raise click.UsageError(f"{path} exists; name a new file, or delete it")
