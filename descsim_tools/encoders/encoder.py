"""`DescriptionEncoder`: one object for both sides."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router, Transformer
from sentence_transformers.util import get_device_name

from descsim_tools.encoders.loading import build_model, tokenizer_of
from descsim_tools.encoders.presets import DEFAULT_PRESET, PRESETS, EncoderSpec, Pooling
from descsim_tools.encoders.weights import (
    find_map,
    find_model,
    find_shipped,
    sha256,
    weights_digest,
)
from descsim_tools.errors import EncoderError
from descsim_tools.text import is_unicode

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
Side = Literal["query", "document"]


class DescriptionEncoder:
    """Encodes descriptions and sentences into one space, where cosine tells how well they fit.

    Make one with `load` or `load_pair`.

    Attributes:
        spec: What the encoder was built from.
        model: The sentence-transformers model; its query route reads descriptions.
        fingerprint: Hex digest of all that decides the vectors: weights, prompts, pooling, limits.
        dim: Length of a vector.
        max_tokens: Longest sentence in tokens, special tokens and prompt included.
    """

    def __init__(
        self, spec: EncoderSpec, model: SentenceTransformer, fingerprint: str, device: str
    ) -> None:
        self.spec = spec
        self.model = model
        self.fingerprint = fingerprint
        self.device = device
        # On a GPU half the bytes give the same ranking at twice the speed.
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        model.to(device=device, dtype=dtype)
        dim = model.get_embedding_dimension()
        if dim is None:
            raise EncoderError("the model does not state its dimension")
        self.dim = int(dim)
        # Copies, since a tokenizer holds whether it pads and cuts as state: to count uncut with the
        # one that another thread encodes with would unset both under its hands.
        sides: tuple[Side, Side] = ("query", "document")
        self._counting = {s: copy.deepcopy(tokenizer_of(transformer_of(model, s))) for s in sides}
        self.max_tokens = _limit(model, "document")

    @property
    def is_pair(self) -> bool:
        """Whether descriptions and sentences are read by different modules."""
        return any(isinstance(module, Router) for module in self.model)

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT_PRESET,
        *,
        pooling: Pooling | str | None = None,
        device: str | None = None,
    ) -> DescriptionEncoder:
        """Load an encoder.

        Args:
            name: A preset (`descsim encoders` lists them), a folder, or a hub id.
            pooling: For a folder or hub id without a pooling configuration.
            device: Such as `cpu`, `cuda` or `cuda:1`; None takes the best one there is.

        Raises:
            EncoderError: It cannot be found, or its pooling is not known.
        """
        name = str(name)
        if name in PRESETS:
            if pooling is not None:
                raise EncoderError(f"the preset {name} has its own pooling; leave `pooling` out")
            return cls.from_spec(PRESETS[name], device=device)
        spec = EncoderSpec(label_of(name), name, pooling=_pooling(pooling))
        return cls.from_spec(spec, device=device)

    @classmethod
    def load_pair(
        cls,
        *,
        description: str | Path,
        sentence: str | Path,
        pooling: Pooling | str | None = Pooling.MEAN_WITHOUT_FIRST,
        device: str | None = None,
    ) -> DescriptionEncoder:
        """Load two models as a pair, by default in the layout of the paper's released one.

        Args:
            description: Folder or hub id of the description encoder.
            sentence: Folder or hub id of the sentence encoder.
            pooling: None if both folders state their own.
            device: As in `load`.

        Raises:
            EncoderError: One cannot be found, or the pooling does not fit.
        """
        spec = EncoderSpec(
            f"{label_of(str(description))} + {label_of(str(sentence))}",
            sentence_model=str(sentence),
            description_model=str(description),
            pooling=_pooling(pooling),
        )
        return cls.from_spec(spec, device=device)

    @classmethod
    def from_spec(cls, spec: EncoderSpec, *, device: str | None = None) -> DescriptionEncoder:
        """Build what a spec says."""
        model = build_model(spec)
        device = device or get_device_name()
        logger.info("%s runs on %s", spec.name, device)
        try:
            return cls(spec, model, _fingerprint(spec, model), device)
        # torch raises an AssertionError for a build without CUDA.
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise EncoderError(
                f"cannot use the device {device!r}: {reason}. Try cpu, or leave it out."
            ) from error

    def encode_descriptions(
        self, descriptions: Sequence[str], *, batch_size: int = 32, show_progress: bool = False
    ) -> Vectors:
        """Encode descriptions.

        Texts over the model's limit are cut, which is logged as a warning naming their positions.

        Args:
            descriptions: Non-empty strings.
            batch_size: Texts a forward pass.
            show_progress: Show a bar.

        Returns:
            (n, dim) float32, rows of length 1; (0, dim) for no input.

        Raises:
            TypeError: A bare string, or an item that is no string.
            ValueError: An empty item.
        """
        return self._encode(descriptions, "query", batch_size, show_progress)

    def encode_sentences(
        self, sentences: Sequence[str], *, batch_size: int = 32, show_progress: bool = False
    ) -> Vectors:
        """Encode sentences; arguments, result and errors as in `encode_descriptions`."""
        return self._encode(sentences, "document", batch_size, show_progress)

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Return each sentence's length in tokens, special tokens and prompt included, uncut."""
        return self._count_tokens(sentences, "document")

    def split_long(self, sentence: str) -> list[tuple[int, int]]:
        """Cut a sentence into the fewest pieces within `max_tokens`, of about equal length.

        Returns:
            (start, end) character spans, in order. They leave out nothing but white space at the
            joins.
        """
        tokenizer = self._counting["document"]
        room = self.max_tokens - self.count_tokens([""])[0]
        encoded = tokenizer(
            sentence, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets: list[tuple[int, int]] = encoded["offset_mapping"]
        pieces = -(-len(offsets) // room)
        spans, start = [], 0
        for piece in range(1, pieces + 1):
            target = len(offsets) * piece // pieces
            end = len(sentence) if piece == pieces else offsets[target][0]
            end = _word_start(sentence, start, end)
            spans.append((start, end))
            start = end
        # Moving a cut back to a word's start can overfill the next piece; halve what does.
        fitting = [part for span in spans for part in self._fit(sentence, span)]
        trimmed = [_without_space_around(sentence, *span) for span in fitting]
        return [(start, end) for start, end in trimmed if start < end]

    def _fit(self, sentence: str, span: tuple[int, int]) -> list[tuple[int, int]]:
        start, end = span
        if end - start < 2 or self.count_tokens([sentence[start:end]])[0] <= self.max_tokens:
            return [span]
        middle = _word_start(sentence, start, (start + end) // 2)
        return self._fit(sentence, (start, middle)) + self._fit(sentence, (middle, end))

    def replicate(self, device: str) -> DescriptionEncoder:
        """Return a copy of this encoder on another device."""
        model = copy.deepcopy(self.model)
        return DescriptionEncoder(self.spec, model, self.fingerprint, device)

    def save(self, folder: str | Path) -> None:
        """Save as one ordinary sentence-transformers model, which `load` reads again."""
        self.model.save_pretrained(str(folder), create_model_card=False)

    def _encode(
        self, texts: Sequence[str], side: Side, batch_size: int, show_progress: bool
    ) -> Vectors:
        texts = _checked(texts)
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        self._warn_of_cuts(texts, side)
        encode = self.model.encode_query if side == "query" else self.model.encode_document
        vectors = encode(
            texts,
            batch_size=batch_size,
            show_progress_bar=show_progress,
            convert_to_tensor=True,
            normalize_embeddings=True,
        )
        return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)

    def _warn_of_cuts(self, texts: Sequence[str], side: Side) -> None:
        limit = _limit(self.model, side)
        # A token stands for at least one byte, so that most texts need no counting.
        doubtful = [i for i, text in enumerate(texts) if 4 * len(text) + 100 > limit]
        counts = self._count_tokens([texts[i] for i in doubtful], side)
        cut = [i for i, count in zip(doubtful, counts, strict=True) if count > limit]
        if cut:
            logger.warning(
                "%d of %d texts are longer than %s reads (%d tokens) and were cut, at positions %s",
                len(cut), len(texts), self.spec.name, limit, cut[:20],
            )  # fmt: skip

    def _count_tokens(self, texts: Sequence[str], side: Side) -> list[int]:
        if not texts:
            return []
        prompt = self.model.prompts.get(side) or ""
        encoded = self._counting[side]([prompt + text for text in texts], verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]


def transformer_of(model: SentenceTransformer, side: Side) -> Transformer:
    """Return the module that reads a side's texts; both sides may share one.

    Raises:
        EncoderError: The model does not begin with a transformer.
    """
    first = model[0]
    route = first.sub_modules[side] if isinstance(first, Router) else model
    module: object = next(iter(route.children()))
    if not isinstance(module, Transformer):
        raise EncoderError(f"a {type(module).__name__} comes first, need a transformer")
    found: Transformer = module
    return found


def _limit(model: SentenceTransformer, side: Side) -> int:
    limit = transformer_of(model, side).max_seq_length
    if limit is None:
        raise EncoderError("the model does not state how many tokens it reads")
    return int(limit)


def _checked(texts: Iterable[Any]) -> list[str]:
    if isinstance(texts, str | bytes):
        raise TypeError(f"got one {type(texts).__name__}, need a list of strings: [text]")
    checked = list(texts)
    for position, text in enumerate(checked):
        if not isinstance(text, str):
            raise TypeError(
                f"item {position} is {text!r} ({type(text).__name__}), need a string; drop it first"
            )
        if not is_unicode(text):
            raise ValueError(f"item {position} holds bytes that are no valid UTF-8; drop it first")
        if not text.strip():
            raise ValueError(f"item {position} is empty or blank; drop it first")
    return checked


def _word_start(text: str, start: int, end: int) -> int:
    """Move `end` back to just after white space, if the second half of the span has some."""
    if end >= len(text):
        return end
    for position in range(end, start + (end - start) // 2, -1):
        if text[position - 1].isspace():
            return position
    return end


def _without_space_around(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def label_of(source: str) -> str:
    """Name a model, from a preset, folder or hub id, without the path it lies at."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return source
    path = path.resolve()
    # As what is trained lies in a folder of this name, which says nothing.
    return f"{path.parent.name}/{path.name}" if path.name == "model" else path.name


def _pooling(pooling: Pooling | str | None) -> Pooling | None:
    if pooling is None:
        return None
    try:
        return Pooling(pooling)
    except ValueError as error:
        allowed = ", ".join(p.value for p in Pooling)
        raise EncoderError(f"no pooling {pooling!r}; there are: {allowed}") from error


def _fingerprint(spec: EncoderSpec, model: SentenceTransformer) -> str:
    sides: dict[Side, tuple[str, tuple[str, str] | None]] = {
        "query": (spec.description_model or spec.sentence_model, spec.description_brackets),
        "document": (spec.sentence_model, spec.sentence_brackets),
    }
    identity: dict[str, dict[str, Any]] = {
        side: {
            "weights": weights_digest(find_model(source)),
            "delta": sha256(find_shipped(spec.delta)) if spec.delta else None,
            "prompt": model.prompts.get(side) or "",
            "brackets": brackets,
            "pooling": spec.pooling.value if spec.pooling else "its own",
            "max_tokens": transformer_of(model, side).max_seq_length,
        }
        for side, (source, brackets) in sides.items()
    }
    # Only where there is one: stores that others filled keep their fingerprint.
    for side, name in (("query", spec.description_map), ("document", spec.sentence_map)):
        if name is not None:
            identity[side]["map"] = sha256(find_map(name))
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
