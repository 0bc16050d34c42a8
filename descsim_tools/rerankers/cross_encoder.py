"""`DescriptionCrossEncoder`: a small trained model that reads description and sentence together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import get_device_name
from torch import nn

from descsim_tools.calibration import Calibration
from descsim_tools.encoders.delta import merge_delta, write_delta
from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.encoders.weights import find_model, find_shipped
from descsim_tools.errors import RerankerError
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.base import Reranker, Scores

logger = logging.getLogger(__name__)

SHIPPED = "descsim-minilm-cross"
"""Comes with the package."""

DELTA = "delta.safetensors"
HEAD = "head.safetensors"
CALIBRATION = "calibration.json"
_LIMIT = 320
"""Tokens of a pair: a description, and a sentence as long as the encoders read."""


class DescriptionCrossEncoder(Reranker):
    """Scores pairs by a logit; a calibrated one also gives probabilities.

    Made with `load`. A sentence too long for the model is cut at its end, the description stays
    whole.

    Attributes:
        name: For people.
        model: The sentence-transformers cross-encoder; it reads (description, sentence).
        calibration: From logits to probabilities, or None.
    """

    def __init__(
        self,
        name: str,
        model: CrossEncoder,
        *,
        calibration: Calibration | None = None,
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, need a whole number from 1 up")
        self.name = name
        self.model = model.eval()
        self.calibration = calibration
        self.batch_size = batch_size

    @classmethod
    def load(
        cls, source: str | Path | None = None, *, device: str | None = None, batch_size: int = 32
    ) -> DescriptionCrossEncoder:
        """Load a cross-encoder.

        Args:
            source: A folder that `descsim train` wrote or any sentence-transformers cross-encoder's
                folder or hub id with one label; None takes the one that comes with the package.
            device: Such as `cpu` or `cuda`; None takes the best.
            batch_size: Pairs a forward pass.

        Raises:
            RerankerError: It cannot be loaded, or scores several labels.
        """
        device = device or get_device_name()
        source = str(source) if source is not None else SHIPPED
        try:
            with quiet_loading():
                if source == SHIPPED:
                    model, folder = _shipped(device)
                else:
                    folder = _folder(source)
                    model = CrossEncoder(str(folder), device=device, local_files_only=True)
        # Loading fails in many unrelated types: files, JSON, keys, shapes, devices.
        except Exception as error:
            if isinstance(error, RerankerError):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RerankerError(
                f"cannot load the cross-encoder {source!r} on {device}: {reason}. Name a folder "
                "saved by `descsim train` or by sentence-transformers, or a hub id."
            ) from error
        if model.num_labels != 1:
            raise RerankerError(f"{source} scores {model.num_labels} labels, need one")
        file = folder / CALIBRATION
        calibration = Calibration.load(file) if file.is_file() else None
        return cls(Path(source).name, model, calibration=calibration, batch_size=batch_size)

    def _score(self, description: str, sentences: Sequence[str]) -> Scores:
        return self._score_many([(description, sentences)])[0]

    def _score_many(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> list[Scores]:
        texts = [(description, s) for description, sentences in pairs for s in sentences]
        scores = np.empty(len(texts))
        # Sorted by length over all lists, so that little of a batch is padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
        with torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                scores[chosen] = self._logits([texts[i] for i in chosen])
        ends = np.cumsum([len(sentences) for _, sentences in pairs])[:-1]
        return list(np.split(scores, ends))

    def _logits(self, pairs: list[tuple[str, str]]) -> Any:
        return score_pairs(self.model, pairs).double().cpu().numpy()

    def _truncated(self, description: str, sentences: Sequence[str]) -> Sequence[bool]:
        limit = self.model.max_seq_length
        doubtful = [4 * (len(description) + len(s)) + 12 > limit for s in sentences]
        tokenizer = self.model.tokenizer
        return [
            doubt and len(tokenizer(description, s, verbose=False)["input_ids"]) > limit
            for doubt, s in zip(doubtful, sentences, strict=True)
        ]


def score_pairs(model: CrossEncoder, pairs: list[tuple[str, str]]) -> torch.Tensor:
    """Return (n,) float32 logits of (description, sentence) pairs in one pass."""
    cut = {"text": {"truncation": "only_second"}}
    features = model.preprocess(pairs, processing_kwargs=cut)
    moved = {k: v.to(model.device) if hasattr(v, "to") else v for k, v in features.items()}
    scores: torch.Tensor = model(moved)["scores"]
    return scores.float().squeeze(-1)


def new_cross_encoder(transformer: Transformer, device: str = "cpu") -> CrossEncoder:
    """Put an untrained head, mean pooling and one linear layer, on a transformer."""
    dim = transformer.get_embedding_dimension()
    transformer.max_seq_length = _LIMIT
    head = Dense(dim, 1, activation_function=nn.Identity(), module_output_name="scores")
    modules = [transformer, Pooling(dim, "mean"), head]
    return CrossEncoder(modules=modules, device=device, activation_fn=nn.Identity())


def write_small(model: CrossEncoder, folder: Path) -> None:
    """Write what training changed of the bundled base, one byte a weight, and the head."""
    base = Transformer(str(find_model(BUNDLED)))
    write_delta(base.model, {"pair": _transformer(model).model}, folder / DELTA)
    save_file({k: v.contiguous() for k, v in _head(model).state_dict().items()}, folder / HEAD)


def read_small(folder: Path, device: str = "cpu") -> CrossEncoder:
    """Load what `write_small` wrote."""
    transformer = Transformer(str(find_model(BUNDLED)))
    merge_delta({"pair": transformer.model}, folder / DELTA)
    model = new_cross_encoder(transformer, device)
    _head(model).load_state_dict(load_file(folder / HEAD))
    return model


def _shipped(device: str) -> tuple[CrossEncoder, Path]:
    folder = find_shipped(f"{SHIPPED}/{DELTA}").parent
    return read_small(folder, device), folder


def _folder(source: str) -> Path:
    folder = find_model(source)
    return folder / "model" if (folder / "model" / "modules.json").is_file() else folder


def _transformer(model: CrossEncoder) -> Transformer:
    return next(m for m in model if isinstance(m, Transformer))


def _head(model: CrossEncoder) -> Dense:
    return next(m for m in model if isinstance(m, Dense))
