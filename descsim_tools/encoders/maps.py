"""Linear maps over a base's vectors: a few hundred kilobytes a side.

A map is one square matrix W: what the base encodes as v becomes normalize(W v). It is kept as
float16 in a .safetensors file under the one name `weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense, Module, Normalize
from torch import Tensor, nn

from descsim_tools.errors import EncoderError

_NAME = "weight"


def write_map(weight: Tensor, path: str | Path) -> None:
    """Write a map.

    Args:
        weight: (dim, dim) float, applied to a column from the left.
        path: A .safetensors file.
    """
    save_file({_NAME: weight.detach().cpu().half().contiguous()}, path)


def read_map(path: str | Path) -> Tensor:
    """Return a map, (dim, dim) float32.

    Raises:
        EncoderError: The file cannot be read or holds no square matrix.
    """
    try:
        weight = load_file(path).get(_NAME)
    except (OSError, SafetensorError) as error:
        raise EncoderError(f"cannot read the map {path}: {error}") from error
    if weight is None or weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        raise EncoderError(f"{path} holds no map: need one square matrix named {_NAME!r}")
    return weight.float()


def apply_map(vectors: Tensor, weight: Tensor) -> Tensor:
    """Return what a map makes of a base's vectors.

    Args:
        vectors: (n, dim) float, of any length.
        weight: (dim, dim) float.

    Returns:
        (n, dim), rows of length 1.
    """
    return nn.functional.normalize(vectors @ weight.T, dim=1)


def map_modules(path: Path | None, dim: int) -> Sequence[Module]:
    """Return the modules that map one side's vectors of length 1; without a map they stay.

    Raises:
        EncoderError: The map is of another dimension.
    """
    if path is None:
        return [Normalize()]
    weight = read_map(path)
    if weight.shape[0] != dim:
        raise EncoderError(
            f"{path.name} maps vectors of {weight.shape[0]} dimensions, the base gives {dim}"
        )
    identity = nn.Identity()
    dense = Dense(dim, dim, bias=False, activation_function=identity, init_weight=weight)
    return [dense.requires_grad_(False), Normalize()]
