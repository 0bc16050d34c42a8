"""A Chroma collection plus its manifest."""

from descsim_tools.store.adoption import AdoptionReport, MigrationReport, adopt, migrate
from descsim_tools.store.manifest import Manifest
from descsim_tools.store.opening import EncoderLike, create_store, open_store
from descsim_tools.store.store import DEFAULT_COLLECTION, Store

__all__ = [
    "DEFAULT_COLLECTION",
    "AdoptionReport",
    "EncoderLike",
    "Manifest",
    "MigrationReport",
    "Store",
    "adopt",
    "create_store",
    "migrate",
    "open_store",
]
