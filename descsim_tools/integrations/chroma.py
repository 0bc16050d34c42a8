"""Chroma by itself: an embedding function, and our stores in a plain client.

    >>> client = open_client("my-store")
    ... collection = open_collection(client, "descsim")
    ... collection.query(query_texts=["a scientific discovery made by accident"], n_results=5)

Chroma keeps the embedding function's configuration with a collection, and can open it in another
process once this module is imported there.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from descsim_tools.encoders import DEFAULT_PRESET, PRESETS, DescriptionEncoder
from descsim_tools.errors import EncoderError, StoreError
from descsim_tools.store import DEFAULT_COLLECTION, EncoderLike, Manifest
from descsim_tools.store.store import check_space, connect

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

__all__ = ["DescriptionEmbeddingFunction", "open_client", "open_collection"]


@register_embedding_function
class DescriptionEmbeddingFunction(EmbeddingFunction[Documents]):
    """Encodes what `add` gets as sentences and what `query` gets as descriptions.

    A collection keeps the encoder's name and fingerprint, never a path. A preset or hub model is
    loaded again by that name; for one from a local folder, pass the function when you open the
    collection. The encoder is loaded at the first text.

    Args:
        encoder: An encoder, or a preset, folder or hub id; None takes the default preset.
        device: Where it runs, such as `cpu` or `cuda`; None takes the best. Not kept.
    """

    def __init__(self, encoder: EncoderLike = None, *, device: str | None = None) -> None:
        self._wanted: DescriptionEncoder | str | Path = encoder or DEFAULT_PRESET
        self._device = device
        self._fingerprint: str | None = None
        self._loaded: DescriptionEncoder | None = None

    @property
    def encoder(self) -> DescriptionEncoder:
        """The encoder, loaded when first asked for.

        Raises:
            EncoderError: It cannot be loaded, or is not the one that the collection names.
        """
        if self._loaded is None:
            wanted = self._findable()
            loaded = (
                wanted
                if isinstance(wanted, DescriptionEncoder)
                else _load(str(wanted), self._device)
            )
            if self._fingerprint not in (None, loaded.fingerprint):
                raise EncoderError(
                    f"the collection was filled with an encoder {loaded.spec.name!r} of "
                    f"fingerprint {str(self._fingerprint)[:12]}; the one found here has "
                    f"{loaded.fingerprint[:12]}. Pass the right one: "
                    "get_collection(name, embedding_function=DescriptionEmbeddingFunction(...))"
                )
            self._loaded = loaded
        return self._loaded

    def __call__(self, input: Documents) -> Embeddings:
        """Encode sentences."""
        return list(self.encoder.encode_sentences(input))

    def embed_query(self, input: Documents) -> Embeddings:
        """Encode descriptions."""
        return list(self.encoder.encode_descriptions(input))

    @staticmethod
    def name() -> str:
        """Return the name that Chroma registers."""
        return "descsim"

    def default_space(self) -> Space:
        """Return the only space in which the vectors are meant to be compared."""
        return "cosine"

    def supported_spaces(self) -> list[Space]:
        """Return the only space in which the vectors are meant to be compared."""
        return ["cosine"]

    def get_config(self) -> dict[str, Any]:
        """Return the encoder's name and fingerprint."""
        if self._loaded is None and self._fingerprint is not None:
            return {"encoder": str(self._wanted), "fingerprint": self._fingerprint}
        return {"encoder": self.encoder.spec.name, "fingerprint": self.encoder.fingerprint}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> DescriptionEmbeddingFunction:
        """Make the function that a collection's configuration describes; loads nothing yet."""
        DescriptionEmbeddingFunction.validate_config(config)
        function = DescriptionEmbeddingFunction(config["encoder"])
        function._fingerprint = config["fingerprint"]
        return function

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Refuse a configuration that this class did not write.

        Raises:
            ValueError: A field is missing, unknown, or no string.
        """
        if set(config) != {"encoder", "fingerprint"} or not all(
            isinstance(value, str) for value in config.values()
        ):
            raise ValueError(
                f"the configuration has {sorted(config)}, need the strings encoder and fingerprint"
            )

    def validate_config_update(
        self, old_config: dict[str, Any], new_config: dict[str, Any]
    ) -> None:
        """Refuse another encoder for vectors that are there.

        Raises:
            ValueError: The fingerprints differ.
        """
        if old_config.get("fingerprint") != new_config.get("fingerprint"):
            raise ValueError(
                f"the collection was filled with {old_config.get('encoder')!r}, and its encoder "
                "cannot be changed; fill a new collection"
            )

    def _findable(self) -> DescriptionEncoder | str | Path:
        """Return what to load; of a local encoder a collection knows only the bare name."""
        name = self._wanted
        if self._fingerprint is not None and name not in PRESETS and "/" not in str(name):
            raise EncoderError(
                f"the collection was filled with the local encoder {name!r}, and it keeps no "
                "paths; open it with embedding_function=DescriptionEmbeddingFunction(FOLDER)"
            )
        return name


@lru_cache(maxsize=4)
def _load(encoder: str, device: str | None) -> DescriptionEncoder:
    """Load an encoder once: Chroma makes a new function of the configuration at every call."""
    return DescriptionEncoder.load(encoder, device=device)


def open_client(location: str | Path) -> ClientAPI:
    """Return a plain Chroma client on a folder or server that holds our stores.

    Telemetry is off. Chroma gives one folder only to clients of equal settings in a process, so use
    this client wherever another library wants one while a `DescriptionIndex` is open.

    Args:
        location: A folder, or the URL of a Chroma server.

    Raises:
        StoreError: The folder cannot be written, which Chroma needs even to read.
    """
    return connect(str(location))


def open_collection(
    client: ClientAPI,
    name: str = DEFAULT_COLLECTION,
    *,
    encoder: EncoderLike = None,
    device: str | None = None,
) -> Collection:
    """Open a collection with the embedding function that filled it.

    Chroma itself compares embedding functions by name alone, and gives a collection without one its
    own default; this compares fingerprints.

    Args:
        client: Any Chroma client.
        name: Of a store that we filled, or of a collection with a `DescriptionEmbeddingFunction`.
        encoder: Needed only if it was a local one.
        device: Where the encoder runs.

    Raises:
        StoreError: The collection does not say by which encoder it was filled, it was another, or
            its space is not what it should be.
        EncoderError: The encoder cannot be loaded.
    """
    bare = client.get_collection(name, embedding_function=None)
    filled_by, fingerprint, space = _filled_by(bare)
    check_space(bare.configuration_json, repr(name), space)
    function = DescriptionEmbeddingFunction(encoder or filled_by, device=device)
    if encoder is None:
        function._fingerprint = fingerprint
    elif function.encoder.fingerprint != fingerprint:
        raise StoreError(
            f"the collection {name!r} was filled with {filled_by!r} (fingerprint "
            f"{fingerprint[:12]}), not with {function.encoder.spec.name!r} "
            f"({function.encoder.fingerprint[:12]}); open it with that encoder"
        )
    # Not by `get_collection`, which insists on the function that an adopted collection was made
    # with.
    bare._embedding_function = cast("EmbeddingFunction[Any]", function)
    return bare


def _filled_by(collection: Collection) -> tuple[str, str, str]:
    kept = collection.configuration_json.get("embedding_function") or {}
    if kept.get("name") == DescriptionEmbeddingFunction.name():
        return kept["config"]["encoder"], kept["config"]["fingerprint"], "cosine"
    manifest = Manifest.from_metadata(collection.metadata, repr(collection.name))
    return manifest.encoder, manifest.fingerprint, manifest.space
