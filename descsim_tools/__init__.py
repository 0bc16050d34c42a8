"""Search a corpus by a description of what you look for.

The names below are imported on first use, so that ``import descsim_tools`` loads no torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder
    from descsim_tools.errors import DescsimError
    from descsim_tools.index_builder import fill
    from descsim_tools.search import DescriptionIndex
    from descsim_tools.types import Hit, Record

try:
    __version__ = version("descsim-tools")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "DescriptionEncoder",
    "DescriptionIndex",
    "DescsimError",
    "Hit",
    "Record",
    "__version__",
    "fill",
]

_HOMES = {
    "DescriptionEncoder": "descsim_tools.encoders",
    "DescriptionIndex": "descsim_tools.search",
    "DescsimError": "descsim_tools.errors",
    "Hit": "descsim_tools.types",
    "Record": "descsim_tools.types",
    "fill": "descsim_tools.index_builder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
