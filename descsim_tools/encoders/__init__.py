"""The encoder pair: descriptions and sentences in one vector space.

`DescriptionEncoder` is imported on first use, so that listing presets loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descsim_tools.encoders.presets import DEFAULT_PRESET, PRESETS, EncoderSpec, Pooling

if TYPE_CHECKING:
    from descsim_tools.encoders.encoder import DescriptionEncoder

__all__ = ["DEFAULT_PRESET", "PRESETS", "DescriptionEncoder", "EncoderSpec", "Pooling"]


def __getattr__(name: str) -> Any:
    if name != "DescriptionEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from descsim_tools.encoders.encoder import DescriptionEncoder

    return DescriptionEncoder
