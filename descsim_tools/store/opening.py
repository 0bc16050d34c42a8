"""Bring a store and its encoder together; neither is used before they are known to fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from descsim_tools.encoders import DEFAULT_PRESET, PRESETS
from descsim_tools.errors import StoreError
from descsim_tools.store.manifest import Manifest
from descsim_tools.store.store import DEFAULT_COLLECTION, Store

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder

EncoderLike: TypeAlias = "DescriptionEncoder | str | Path | None"
"""An encoder, or the preset, folder or hub id of one; None lets the store or the default decide."""


def create_store(
    location: str | Path,
    encoder: EncoderLike = None,
    *,
    collection: str = DEFAULT_COLLECTION,
    device: str | None = None,
) -> tuple[Store, DescriptionEncoder]:
    """Make an empty store for an encoder, by default the default preset.

    Raises:
        EncoderError: The encoder cannot be loaded.
        StoreError: The store exists or cannot be made.
    """
    loaded = _load(encoder if encoder is not None else DEFAULT_PRESET, device)
    return Store.create(location, Manifest.of(loaded), collection=collection), loaded


def open_store(
    location: str | Path,
    encoder: EncoderLike = None,
    *,
    collection: str = DEFAULT_COLLECTION,
    device: str | None = None,
) -> tuple[Store, DescriptionEncoder]:
    """Open a store with the encoder that filled it, by default the one its manifest names.

    Raises:
        EncoderError: The encoder cannot be loaded.
        StoreError: There is no such store, or another encoder filled it.
    """
    store = Store.open(location, collection=collection)
    try:
        loaded = _load(encoder if encoder is not None else _named_in(store), device)
        store.check_encoder(loaded.spec.name, loaded.fingerprint)
    except BaseException:
        store.close()
        raise
    return store, loaded


def _load(encoder: DescriptionEncoder | str | Path, device: str | None) -> DescriptionEncoder:
    # Not at the top: a store can be looked at without loading torch.
    from descsim_tools.encoders import DescriptionEncoder

    if isinstance(encoder, DescriptionEncoder):
        return encoder
    return DescriptionEncoder.load(encoder, device=device)


def _named_in(store: Store) -> str:
    name = store.manifest.encoder
    if name in PRESETS or "/" in name:
        return name
    raise StoreError(
        f"{store.location} was filled with the local encoder {name!r}, and a store keeps no paths; "
        "name its folder: encoder=..., on the command line --encoder"
    )
