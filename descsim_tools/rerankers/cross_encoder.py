"""`DescriptionCrossEncoder`: a small trained model that reads description and sentence together."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.util import get_device_name
from torch import nn

from descsim_tools.calibration import Calibration
from descsim_tools.encoders.delta import merge_delta, write_delta
from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.encoders.weights import find_model
from descsim_tools.errors import RerankerError
from descsim_tools.quiet import quiet_loading
from descsim_tools.rerankers.base import Reranker, Scores
from descsim_tools.rerankers.segments import SegmentPooling, similarity_head

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
        self._limit = int(model.max_seq_length or _LIMIT)
        # A copy, since the model's own holds whether it cuts as state, which a count would unset.
        self._counting: Any = copy.deepcopy(model.tokenizer)

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
                    model = _load(_model_folder(source), device)
                    folder = Path(source).expanduser()
        # Loading fails in many unrelated types: files, JSON, keys, shapes, devices.
        except Exception as error:
            if isinstance(error, RerankerError):
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
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
        for description, _ in pairs:
            self._check_room(description)
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

    def _check_room(self, description: str) -> None:
        limit = self._limit
        if 4 * len(description) + 12 <= limit // 2:  # a token stands for at least one byte
            return
        tokens = len(self._counting(description, verbose=False)["input_ids"])
        if tokens > limit // 2:
            raise RerankerError(
                f"the description has {tokens} tokens, and {self.name} takes at most {limit // 2}, "
                "half of what it reads; shorten it"
            )

    def _logits(self, pairs: list[tuple[str, str]]) -> Any:
        return score_pairs(self.model, pairs).double().cpu().numpy()

    def _truncated(self, description: str, sentences: Sequence[str]) -> Sequence[bool]:
        limit = self._limit
        doubtful = [4 * (len(description) + len(s)) + 12 > limit for s in sentences]
        return [
            doubt and len(self._counting(description, s, verbose=False)["input_ids"]) > limit
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
    """Put an untrained head on a transformer: at first it ranks by the cosine of the two texts."""
    dim = transformer.get_embedding_dimension()
    transformer.max_seq_length = min(_LIMIT, transformer.model.config.max_position_embeddings)
    # sentence-transformers leaves the constructor of its modules without types.
    pooling = SegmentPooling()  # type: ignore[no-untyped-call]
    modules = [transformer, pooling, similarity_head(dim)]
    return _joined(modules, device)


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
    folder = shipped_folder()
    return read_small(folder, device), folder


def shipped_folder() -> Path:
    """Return the folder of the cross-encoder that comes with the package.

    Raises:
        RerankerError: The installation lacks it.
    """
    folder = Path(__file__).parent / "shipped" / SHIPPED
    missing = [n for n in (DELTA, HEAD, CALIBRATION) if not (folder / n).is_file()]
    if missing:
        raise RerankerError(
            f"the package's files {', '.join(missing)} of {SHIPPED} are missing; install "
            "descsim-tools again"
        )
    return folder


def _load(folder: Path, device: str) -> CrossEncoder:
    """Load a saved model; one with our own pooling is put together from its parts.

    sentence-transformers imports modules that are not its own only if all code that a folder names
    is trusted, which is more than ours needs.
    """
    listed = folder / "modules.json"
    parts = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    ours = f"{SegmentPooling.__module__}.{SegmentPooling.__qualname__}"
    if ours not in [part["type"] for part in parts]:
        plain: CrossEncoder = CrossEncoder(str(folder), device=device, local_files_only=True)
        return plain
    classes = {
        "Transformer": Transformer,
        "SegmentPooling": SegmentPooling,
        "Dense": Dense,
    }
    modules = [
        classes[part["type"].rsplit(".", 1)[1]].load(
            str(folder), subfolder=part["path"], local_files_only=True
        )
        for part in parts
    ]
    return _joined(modules, device)


def _joined(modules: Sequence[nn.Module], device: str) -> CrossEncoder:
    made: CrossEncoder = CrossEncoder(
        modules=[*modules], device=device, activation_fn=nn.Identity()
    )
    return made


def _model_folder(source: str) -> Path:
    trained = Path(source).expanduser() / "model"
    return trained if (trained / "modules.json").is_file() else find_model(source)


def _transformer(model: CrossEncoder) -> Transformer:
    found: Transformer = next(m for m in model if isinstance(m, Transformer))
    return found


def _head(model: CrossEncoder) -> Dense:
    found: Dense = next(m for m in model if isinstance(m, Dense))
    return found
