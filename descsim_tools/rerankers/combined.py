"""`CombinedReranker`: the encoder pair and the cross-encoder together, by tuned weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from descsim_tools.calibration import Calibration
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.encoders.encoder import label_of
from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.base import Reranker, Scores, retrieval_score
from descsim_tools.rerankers.cross_encoder import DescriptionCrossEncoder, shipped_folder
from descsim_tools.types import Hit

COMBINATION = "combination.json"


@dataclass(frozen=True, slots=True)
class Combination:
    """How much the cosine counts beside the cross-encoder's logit.

    Attributes:
        encoder: Whose cosines the weight was tuned for.
        weight: Of the cosine; the logit has weight 1.
        slope: Of the calibration, see `Calibration`.
        intercept: Of the calibration.
        fitted_on: What it was tuned on.
    """

    encoder: str
    weight: float
    slope: float
    intercept: float
    fitted_on: str = ""

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Combination:
        """Read what `save` wrote.

        Raises:
            RerankerError: The file is missing or malformed.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            made = cls(
                str(found["encoder"]),
                float(found["weight"]),
                float(found["slope"]),
                float(found["intercept"]),
                str(found.get("fitted_on", "")),
            )
            Calibration(made.slope, made.intercept)
            if not math.isfinite(made.weight):
                raise ValueError(f"weight is {made.weight}")
        except (OSError, LookupError, AttributeError, ValueError, TypeError) as error:
            raise RerankerError(
                f"{path} is no combination ({error}); write it with `descsim rerank calibrate`"
            ) from error
        return made


class CombinedReranker(Reranker):
    """Score = the cross-encoder's logit + weight x cosine of the encoder pair.

    Hits of a search have their cosine already; for plain sentences the pair is loaded when they are
    first scored.

    Attributes:
        cross_encoder: Gives the logits.
        combination: The weight and the calibration.
        name: Under which it is known.
    """

    name = "combined"

    def __init__(self, cross_encoder: DescriptionCrossEncoder, combination: Combination) -> None:
        self.cross_encoder = cross_encoder
        self.combination = combination
        self.calibration = Calibration(
            combination.slope, combination.intercept, combination.fitted_on
        )
        self.encoder_name = label_of(combination.encoder)
        self._encoder: DescriptionEncoder | None = None

    @classmethod
    def load(
        cls, source: str | Path | None = None, *, device: str | None = None
    ) -> CombinedReranker:
        """Load a combination.

        Args:
            source: A folder with `combination.json` that `descsim rerank calibrate` wrote beside a
                cross-encoder; None takes the one that comes with the package.
            device: Such as `cpu` or `cuda`; None takes the best.

        Raises:
            RerankerError: It is missing, or the cross-encoder cannot be loaded.
        """
        folder = Path(source).expanduser() if source else shipped_folder()
        combination = Combination.load(folder / COMBINATION)
        return cls(DescriptionCrossEncoder.load(source, device=device), combination)

    def _score(self, description: str, sentences: Sequence[str]) -> Scores:
        if self._encoder is None:
            device = str(self.cross_encoder.model.device)
            self._encoder = DescriptionEncoder.load(self.combination.encoder, device=device)
        cosines = (
            self._encoder.encode_sentences(sentences)
            @ self._encoder.encode_descriptions([description])[0]
        )
        return self._mixed(self.cross_encoder.score(description, sentences), cosines)

    def _score_hits(self, lists: Sequence[tuple[str, list[Hit]]]) -> list[Scores]:
        logits = self.cross_encoder.score_many([(d, [h.text for h in hits]) for d, hits in lists])
        return [
            self._mixed(row, [_cosine(hit) for hit in hits])
            for row, (_, hits) in zip(logits, lists, strict=True)
        ]

    def _mixed(self, logits: Scores, cosines: Sequence[float] | np.ndarray) -> Scores:
        return logits + self.combination.weight * np.asarray(cosines, dtype=np.float64)

    def _truncated(self, description: str, sentences: Sequence[str]) -> Sequence[bool]:
        return self.cross_encoder._truncated(description, sentences)


def _cosine(hit: Hit) -> float:
    found = retrieval_score(hit)
    if found is None:
        raise RerankerError(
            f"hit {hit.id} has no retrieval score; take rerank='cross-encoder', which needs none"
        )
    return found
