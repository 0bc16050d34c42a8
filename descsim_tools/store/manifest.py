"""What a store remembers of how it was filled, kept in the collection's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from descsim_tools.errors import StoreError

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder

FORMAT_VERSION = 1
PREFIX = "descsim_"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a store.

    Attributes:
        encoder: Preset, hub id, or the bare name of a local folder; never a path of a machine.
        fingerprint: Of the encoder, see `DescriptionEncoder.fingerprint`.
        dim: Length of a vector.
        sides: `pair` or `shared`.
        chromadb_version: That created the store.
        descsim_version: That created the store.
        format_version: Of this record.
        space: By which Chroma measures: `cosine`, or `l2` or `ip` in an adopted collection.
        source_id: Chroma's id of the collection that was migrated to this one, which goes with its
            folder wherever that is moved; empty in a store of another origin.
        source_name: Its name then.
    """

    encoder: str
    fingerprint: str
    dim: int
    sides: str
    chromadb_version: str
    descsim_version: str
    format_version: int = FORMAT_VERSION
    space: str = "cosine"
    source_id: str = ""
    source_name: str = ""

    @classmethod
    def of(cls, encoder: DescriptionEncoder, space: str = "cosine") -> Manifest:
        """Describe a store that this encoder is about to fill, or whose vectors it may search."""
        return cls(
            encoder=encoder.spec.name,
            fingerprint=encoder.fingerprint,
            dim=encoder.dim,
            sides="pair" if encoder.is_pair else "shared",
            chromadb_version=version("chromadb"),
            descsim_version=version("descsim-tools"),
            space=space,
        )

    def to_metadata(self) -> dict[str, Any]:
        """Return flat Chroma metadata under our prefix."""
        # Without an empty source: versions that know of none refuse a field they do not know.
        return {PREFIX + key: value for key, value in asdict(self).items() if value != ""}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any] | None, where: str) -> Manifest:
        """Read a manifest back.

        Args:
            metadata: Of a Chroma collection.
            where: The store's name for messages.

        Raises:
            StoreError: There is none, it has a format this version does not know, or a field of it
                is missing or of another type.
        """
        found = {
            key.removeprefix(PREFIX): value
            for key, value in (metadata or {}).items()
            if key.startswith(PREFIX)
        }
        if "format_version" not in found:
            raise StoreError(
                f"the collection in {where} was not made by descsim-tools (it has no manifest), so "
                "its encoder is unknown; fill a new store with `descsim index`, or, if "
                "all-MiniLM-L6-v2 filled it, open it with `descsim adopt`"
            )
        # The format first, and the rest only once it is known: another may have other fields.
        _check_field(cls.__dataclass_fields__["format_version"], found, where)
        if found["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"{where} has store format {found['format_version']}, this version of "
                f"descsim-tools reads format {FORMAT_VERSION}; install the version that made it "
                f"({found.get('descsim_version')})"
            )
        known = fields(cls)
        for field in known:
            _check_field(field, found, where)
        return cls(**{field.name: found[field.name] for field in known if field.name in found})


_TYPES = {"str": str, "int": int}
"""Of the fields, by their annotations, which are strings here."""


def _check_field(field: Field[Any], found: Mapping[str, Any], where: str) -> None:
    """Refuse a manifest that lacks a field, or holds something else in it."""
    if field.name not in found and field.default is not MISSING:
        return
    wanted = _TYPES[str(field.type)]
    value = found.get(field.name)
    if type(value) is wanted:
        return
    got = f"is {value!r}" if field.name in found else "is missing"
    raise StoreError(
        f"the manifest of the collection in {where} is damaged: its field "
        f"{PREFIX + field.name!r} {got}, need {wanted.__name__}; fill a new store with "
        "`descsim index`"
    )
