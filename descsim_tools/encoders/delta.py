"""A tuned model as its small difference to the base: one byte a weight.

Each matrix of a side is kept as rows of int8 with one float32 scale a row, each vector (biases,
norms) as float16; what was not trained is not kept. Merging is one multiplication and one addition
a weight, so that a merged model is as fast as the base.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from descsim_tools.errors import EncoderError

_SCALE = ":scale"


def write_delta(base: nn.Module, sides: dict[str, nn.Module], path: str | Path) -> None:
    """Write what each side changed of the base.

    Args:
        base: The untrained transformer.
        sides: Trained transformers of the same architecture, by side.
        path: A .safetensors file.
    """
    before = base.state_dict()
    tensors: dict[str, Tensor] = {}
    for side, tuned in sides.items():
        for name, after in tuned.state_dict().items():
            change = after.float() - before[name].float()
            if not change.any():
                continue
            key = f"{side}/{name}"
            if change.ndim < 2:
                tensors[key] = change.half()
                continue
            scale = change.abs().amax(dim=1).clamp(min=1e-12) / 127
            tensors[key] = (change / scale[:, None]).round().to(torch.int8)
            tensors[key + _SCALE] = scale
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)


def merge_delta(sides: dict[str, nn.Module], path: str | Path) -> None:
    """Add a written difference to transformers that hold the base's weights, in place.

    Raises:
        EncoderError: The file is of another architecture or names another side.
    """
    tensors = load_file(path)
    states = {side: module.state_dict() for side, module in sides.items()}
    with torch.no_grad():
        for key, change in tensors.items():
            if key.endswith(_SCALE):
                continue
            side, name = key.split("/", 1)
            target = states.get(side, {}).get(name)
            if target is None or target.shape != change.shape:
                raise EncoderError(f"{Path(path).name} does not fit the base: {key} differs")
            step = change.float()
            if key + _SCALE in tensors:
                step = step * tensors[key + _SCALE][:, None]
            target += step.to(target.dtype)
