"""What an `InstanceFinder` can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FinderSettings:
    """How far a search goes, and where the cascade cuts.

    Attributes:
        depth: Sentences retrieved for each description at first; a description whose last ones are
            still instances is searched deeper.
        accept: Least probability of an instance by the cross-encoder, where there is no model. The
            default reached recall 0.82 at precision 0.71 on development queries.
        uncertain: Probabilities from the first and below the second go to the model; those from
            the second on are instances, those below the first are none.
        min_score: Sentences of a lower cosine similarity are rejected unread.
        rounds: Most rounds after the first.
        min_yield: Least share of instances among the rows a round adds; below it the search stops.
        sample: Rows drawn to estimate what is missed; 0 leaves the estimate out.
        batch: Rows in one request to the model; with 1 no row is read beside another.
    """

    depth: int = 200
    accept: float = 0.46
    uncertain: tuple[float, float] = (0.1, 0.9)
    min_score: float = 0.0
    rounds: int = 4
    min_yield: float = 0.02
    sample: int = 60
    batch: int = 10

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("rounds", 0), ("sample", 0), ("batch", 1)):
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                raise ValueError(f"{name} is {number!r}, need a whole number from {least} up")
        low, high = self.uncertain
        for name, share in (
            ("accept", self.accept),
            ("uncertain", low),
            ("uncertain", high),
            ("min_yield", self.min_yield),
        ):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} has {share!r}, need a number from 0 to 1")
        if low > high:
            raise ValueError(f"uncertain is {self.uncertain}, need the lower number first")
