"""Options that several commands have, and what they mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from descsim_tools.encoders.presets import Pooling

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder
    from descsim_tools.llm import Price


def encoder_options(function: Any) -> Any:
    """Add what names an encoder and a collection."""
    options = [
        click.option(
            "--encoder",
            metavar="NAME",
            help="Preset, folder or hub id; by default the store's own, or the default preset.",
        ),
        click.option(
            "--description-encoder",
            metavar="NAME",
            help="With --encoder, a pair: this one reads descriptions, --encoder the sentences.",
        ),
        click.option(
            "--pooling",
            type=click.Choice([pooling.value for pooling in Pooling]),
            help="For an encoder whose folder does not state its pooling.",
        ),
        click.option(
            "--device", metavar="NAME[,NAME...]", help="Such as cpu, cuda or cuda:0,cuda:1."
        ),
        click.option(
            "--collection",
            default="descsim",
            show_default=True,
            help="Name in the Chroma database.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def chosen_encoder(
    name: str | None,
    description_encoder: str | None,
    pooling: str | None,
    devices: list[str] | None,
) -> DescriptionEncoder | str | None:
    """Return what `encoder_options` name: a loaded pair, a name, or None for the store's own."""
    device = devices[0] if devices else None
    if description_encoder is not None:
        if name is None:
            raise click.UsageError("--description-encoder needs --encoder for the sentences")
        from descsim_tools.encoders import DescriptionEncoder

        return DescriptionEncoder.load_pair(
            description=description_encoder, sentence=name, pooling=pooling, device=device
        )
    if pooling is not None:
        if name is None:
            raise click.UsageError("--pooling needs --encoder")
        from descsim_tools.encoders import DescriptionEncoder

        return DescriptionEncoder.load(name, pooling=pooling, device=device)
    return name


def parsed_where(where: str | None) -> dict[str, Any] | None:
    """Read the filter of --where."""
    if where is None:
        return None
    try:
        parsed = json.loads(where)
    except ValueError as error:
        raise click.UsageError(f"--where is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.UsageError(f"--where is {where}, need an object such as '{{\"year\": 1990}}'")
    return parsed


def price_options(function: Any) -> Any:
    """Add the two prices of a model."""
    amount = click.FloatRange(min=0)
    read = click.option("--price-in", type=amount, help="Price of a million tokens read.")
    written = click.option("--price-out", type=amount, help="Price of a million tokens written.")
    return read(written(function))


def max_tokens_option(function: Any) -> Any:
    """Add the most tokens of a model's answer."""
    return click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        default=2048,
        show_default=True,
        help="Most tokens of an answer of the model, thoughts included.",
    )(function)


def price_of(
    price_in: float | None, price_out: float | None, budget: float | None = None
) -> Price | None:
    """Return the prices together, or None for none, which a budget in money does not allow."""
    if (price_in is None) != (price_out is None):
        raise click.UsageError("--price-in and --price-out need each other")
    if price_in is None or price_out is None:
        if budget is not None:
            raise click.UsageError(
                "--budget needs --price-in and --price-out, what a million tokens cost"
            )
        return None
    from descsim_tools.llm import Price

    return Price(price_in, price_out)
