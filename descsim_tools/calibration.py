"""Turn scores into probabilities that a sentence is an instance (Platt scaling)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from descsim_tools.errors import RerankerError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Probability = 1 / (1 + exp(-(slope x score + intercept))).

    Platt, "Probabilistic Outputs for Support Vector Machines" (1999).

    Attributes:
        slope: Above 0, so that a better score is never less probable.
        intercept: Of the score 0.
        fitted_on: What it was fitted on.
    """

    slope: float
    intercept: float
    fitted_on: str = ""

    def __call__(self, scores: ArrayLike) -> Floats:
        """Return probabilities, of the shape of `scores`."""
        logits = self.slope * np.asarray(scores, dtype=np.float64) + self.intercept
        return np.asarray(0.5 * (1 + np.tanh(logits / 2)))  # the logistic function, no overflow

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            RerankerError: The file is missing or malformed.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            slope, intercept = float(content["slope"]), float(content["intercept"])
            fitted_on = str(content.get("fitted_on", ""))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(f"{path} is no calibration ({error}); fit it again") from error
        if not (np.isfinite([slope, intercept]).all() and slope > 0):
            raise RerankerError(f"{path}: slope {slope}, intercept {intercept}; need slope > 0")
        return cls(slope, intercept, fitted_on)
