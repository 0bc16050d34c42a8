"""How many instances are missed: from samples of what was rejected or never examined.

Rows that are unjudged are left out: nobody says what they are, and the statement lists them. The
others that are not matched fall into bands: those that the cross-encoder rejected, by probability,
and those that it never read, by similarity. Of each band the share of instances is estimated, and
the number is size x share, summed. What is known of a band:

- probabilities by the cross-encoder, of all its rows or of a random sample, and
- verdicts of the language model, the last judge, on a random sample, if there is one.

Assumed, and told with the result:

- The probabilities hold where half of the sentences are instances, as where they were fitted. Here
  fewer are, the base rate, which lowers log-odds. All of that applies to what was never read, which
  is not like what they were fitted on. Candidates are more like it, and how much applies to them is
  not known: anything from a part `_LEAST` to all is equally likely, the middle is the estimate's.
- They hold on average, but not for each query: their log-odds may be off by a common shift, normal
  with a standard deviation of `SHIFT`.
- Even a row that has nothing to do with the query gets some probability. The median of the band
  that is farthest is taken as that, and deducted.
- The language model is right.
- A sample of a few rows cannot speak of thousands. So where a band was sampled for the language
  model, the share is first what the cross-encoder says, off by a further shift with heavy tails
  (Student's t), or, with a probability of `_DOUBT` and where nothing read the band, anything
  (Jeffreys' prior); and then what explains the sample.

Where no model judged, nothing shows that anything is missed, and the interval begins at 0.

The interval comes from draws of the shift, of the sample (Bayesian bootstrap), of the share and of
the number (binomial), added up draw by draw.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import beta, binom, t

from descsim_tools.agents.plan import Floats
from descsim_tools.agents.statement import Band, Missed, Row, Statement

CONFIDENCE = 0.95
SHIFT = 1.0
"""Standard deviation, over queries, of how far log-odds of instances are off."""

UNREAD = "never read"
"""Name of a band of rows that were not candidates."""
SAMPLED = "the sample"
"""What such a row is found by."""

_LEAST = 0.4
"""Least part of the base rate's correction that applies."""

_DRAWS = 4000
_FREEDOM = 2
_DOUBT = 0.1
"""Probability that the cross-encoder says nothing about a band."""
_PARTS = 300
"""Values that many probabilities are brought down to."""
_BIN = 0.05
_SHARES = (0.05, 0.25, 1.0)
"""Ends of the bands of unread rows, as shares of their number, nearest first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a band.

    Attributes:
        name: `UNREAD`, or another for people.
        low: Lower end of the band, in similarity if it is `UNREAD`, else in probability.
        high: Upper end, which is not within.
        size: Rows in it that may hold instances that nobody found.
        probabilities: By the cross-encoder, of all its rows or a random sample.
        judged: Rows of a random sample that the last judge decided.
        found: How many of them are instances.
    """

    name: str
    low: float
    high: float
    size: int
    probabilities: tuple[float, ...] = ()
    judged: int = 0
    found: int = 0


def estimate(
    bands: Sequence[Evidence],
    *,
    base_rate: float = 0.5,
    background: float = 0.0,
    judge: str = "",
) -> Missed:
    """Estimate how many instances the bands hold; unjudged rows are in none of them.

    Args:
        bands: What is known of each.
        base_rate: Share of instances among all sentences.
        background: Probability that the cross-encoder gives to what has nothing to do with it.
        judge: Name of the model that judged the samples.
    """
    rng = np.random.default_rng(0)
    rarity = min(0.0, float(logit(np.clip(base_rate, 1e-6, 0.5))))
    # In each the first is the estimate's.
    off = np.concatenate([[0.0], rng.normal(0.0, SHIFT, _DRAWS)])
    part = np.concatenate([[(1 + _LEAST) / 2], rng.uniform(_LEAST, 1.0, _DRAWS)])
    total = np.zeros(_DRAWS)
    told: list[Band] = []
    for band in bands:
        shift = off + rarity * (1.0 if band.name == UNREAD else part)
        share = _share(band, background, shift, rng)
        total += binom.rvs(band.size, share[1:], random_state=rng)
        told.append(
            Band(
                band.name,
                band.low,
                band.high,
                band.size,
                len(band.probabilities),
                band.judged,
                band.found,
                round(float(band.size * share[0]), 3),
            )
        )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(total, [tail, 1 - tail], method="inverted_cdf")
    if not any(band.judged for band in bands):
        low = 0  # nobody looked there who could tell, so nothing shows that anything is missed
    expected = float(sum(band.estimate for band in told))
    return Missed(
        expected,
        min(int(low), math.floor(expected)),
        max(int(high), math.ceil(expected)),
        CONFIDENCE,
        _method(bands, judge),
        tuple(told),
    )


def reestimate(statement: Statement, accept: float) -> Missed:
    """Estimate what would be missed if the cross-encoder alone decided, at another cut.

    Args:
        statement: Of a search without a model, with an estimate.
        accept: Least probability of an instance.

    Raises:
        ValueError: It has no estimate.
    """
    if statement.missed is None:
        raise ValueError("the statement has no estimate to start from")
    bands: list[Evidence] = []
    background = 0.0
    drawn = [row for row in statement.rows if row.found_by == SAMPLED]
    for band in statement.missed.bands:
        if band.name == UNREAD:
            p = tuple(
                row.probability
                for row in drawn
                if row.probability is not None and band.low <= row.score < band.high
            )
            bands.append(Evidence(UNREAD, band.low, band.high, band.size, p))
            background = float(np.median(p)) if p else background
    read = [row.probability for row in statement.rows if row.probability is not None]
    rejected = tuple(p for p in read if p < accept)
    bands.append(Evidence("rejected by the cross-encoder", 0.0, accept, len(rejected), rejected))
    known = [band for band in bands if band.size and band.probabilities]
    return estimate(
        known,
        base_rate=base_rate(len(read) - len(rejected), statement.stored or len(read)),
        background=background,
    )


def base_rate(matched: int, stored: int) -> float:
    """Return the share of instances among sentences, never quite 0 or 1."""
    return (matched + 0.5) / (stored + 1)


def _share(
    band: Evidence, background: float, shift: Floats, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the share of instances: the estimate, and a draw for each shift after the first."""
    prior = np.full(len(shift), 0.5)  # of a band that nobody read; only a sample can tell
    if band.probabilities:
        p = np.sort(np.clip(band.probabilities, 1e-9, 1 - 1e-9))
        parts = np.array_split(p, min(len(p), _PARTS))
        p, weights = np.array([part.mean() for part in parts]), np.array([len(x) for x in parts])
        any_row = expit(logit(max(background, 1e-9)) + shift)[:, None]
        shifted = np.maximum(expit(logit(p)[None, :] + shift[:, None]) - any_row, 0.0)
        # Where all rows were read, nothing of the sample is in doubt.
        whole = len(band.probabilities) >= band.size
        drawn = np.tile(weights / weights.sum(), (len(shift), 1))
        if not whole:
            drawn[1:] = rng.dirichlet(weights, len(shift) - 1)
        prior = (drawn * shifted).sum(axis=1)
    prior = np.clip(prior, 1e-9, 1 - 1e-9)
    return _after_judging(band, prior, rng) if band.judged else prior


def _after_judging(
    band: Evidence, prior: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Weigh draws of a share by how well they explain the judged sample, and draw from them."""
    draws = len(prior)
    odds = logit(prior) + t.rvs(_FREEDOM, size=draws, random_state=rng)
    ignorant = beta.rvs(0.5, 0.5, size=draws, random_state=rng)
    unread = not band.probabilities
    share = np.where(unread | (rng.random(draws) < _DOUBT), ignorant, expit(odds))
    weights = binom.pmf(band.found, band.judged, share)
    drawn = rng.choice(share, draws, p=weights / weights.sum())
    drawn[0] = np.median(drawn)
    return np.asarray(drawn, dtype=np.float64)


def _method(bands: Sequence[Evidence], judge: str) -> str:
    judged = sum(band.judged for band in bands)
    parts = ["Rows not matched are put into bands by probability and similarity"]
    if judged:
        parts.append(f"{judged} rows drawn from them were judged by {judge}, taken as right")
    if any(band.probabilities for band in bands):
        parts.append(
            "the cross-encoder's probabilities, less what it gives to unrelated rows and lowered "
            "by much to all of the base rate, are taken as right on average, with a shift of the "
            f"log-odds of s.d. {SHIFT:g} for a query"
        )
    parts.append("draws of share and number, added over the bands, give the interval")
    return "; ".join(parts) + "."


@dataclass(frozen=True, slots=True)
class Stratum:
    """Rows that were never read, of about the same similarity.

    Attributes:
        low: Lower end of their similarity.
        high: Upper end, which is not within.
        size: How many there are.
        ids: Of a random sample.
    """

    low: float
    high: float
    size: int
    ids: tuple[str, ...]


@dataclass
class Survey:
    """Counts what was never read by similarity, in constant memory, and draws from it.

    A row is drawn by the hash of its id, so that the same store gives the same sample.
    """

    sample: int
    rows: int = 0
    unread: int = 0
    _counts: dict[int, int] = field(default_factory=dict)
    _drawn: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, ids: Sequence[str], similarity: Floats, read: Iterable[bool]) -> None:
        """Count a page of rows; those that were read are left out."""
        bins = np.floor(similarity / _BIN).astype(int).tolist()
        for id_, number, was_read in zip(ids, bins, read, strict=True):
            self.rows += 1
            if was_read:
                continue
            self.unread += 1
            self._counts[number] = self._counts.get(number, 0) + 1
            drawn = self._drawn.setdefault(number, [])
            drawn.append((_hash(id_), id_))
            if len(drawn) >= 4 * self.sample:
                self._drawn[number] = sorted(drawn)[: self.sample]

    def strata(self) -> list[Stratum]:
        """Return the bands, the nearest first."""
        order = sorted(self._counts, reverse=True)
        groups: list[list[int]] = [[]]
        done = 0
        for number in order:
            if groups[-1] and done > _SHARES[min(len(groups), len(_SHARES)) - 1] * self.unread:
                groups.append([])
            groups[-1].append(number)
            done += self._counts[number]
        return [self._stratum(group) for group in groups if group]

    def _stratum(self, bins: list[int]) -> Stratum:
        """Merge bins: below the lowest end of what was kept of a full bin, all were kept."""
        kept = {number: sorted(self._drawn[number])[: self.sample] for number in bins}
        ends = [rows[-1][0] for n, rows in kept.items() if self._counts[n] > len(rows)]
        end = min(ends, default=2**64)
        drawn = sorted(row for rows in kept.values() for row in rows if row[0] <= end)
        low, high = round(bins[-1] * _BIN, 2), round((bins[0] + 1) * _BIN, 2)
        size = sum(self._counts[number] for number in bins)
        return Stratum(low, high, size, tuple(id_ for _, id_ in drawn[: self.sample]))


def by_hash(rows: Sequence[Row]) -> list[Row]:
    """Return rows in an order that has nothing to do with what they say."""
    return sorted(rows, key=lambda row: _hash(row.id))


def _hash(id_: str) -> int:
    digest = hashlib.blake2b(id_.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
