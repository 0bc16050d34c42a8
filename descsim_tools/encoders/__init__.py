"""The encoder pair: descriptions and sentences in one vector space."""

from descsim_tools.encoders.encoder import DescriptionEncoder
from descsim_tools.encoders.presets import DEFAULT_PRESET, PRESETS, EncoderSpec, Pooling

__all__ = ["DEFAULT_PRESET", "PRESETS", "DescriptionEncoder", "EncoderSpec", "Pooling"]
