"""Losses over embedded groups.

Each takes an `EmbeddedBatch` and returns one number to be minimised. None of sentence-transformers'
losses is the same thing: its TripletLoss takes single triplets and a distance that is not squared,
its MultipleNegativesRankingLoss knows one positive a row and no groups.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class EmbeddedBatch:
    """The vectors of a batch of groups, all of length 1, and where each belongs.

    Attributes:
        descriptions: (d, dim) float, by the description encoder.
        sentences: (s, dim) float, by the sentence encoder.
        twins: (t, dim) float, other descriptions read by the SENTENCE encoder; may be (0, dim).
        description_cluster: (d,) int, the number of each description's cluster in the batch.
        sentence_cluster: (s,) int.
        description_group: (d,) int, the number of each description's group in the batch.
        sentence_group: (s,) int.
        base_read: (s + t, dim) float, sentences and twins by the base before training, without
            graph; None unless the loss asks for them by an attribute `preserve` above 0.
    """

    descriptions: Tensor
    sentences: Tensor
    twins: Tensor
    description_cluster: Tensor
    sentence_cluster: Tensor
    description_group: Tensor
    sentence_group: Tensor
    base_read: Tensor | None = None

    @property
    def fits(self) -> Tensor:
        """(d, s) bool: the description is true of the sentence."""
        return self.description_cluster[:, None] == self.sentence_cluster[None, :]

    @property
    def siblings(self) -> Tensor:
        """(d, s) bool: of one group, but the description is false of the sentence."""
        same = self.description_group[:, None] == self.sentence_group[None, :]
        return same & ~self.fits


class PaperTripletLoss(nn.Module):
    r"""The triplet loss of *Description-Based Text Similarity*, Eq. 1.

    For a sentence s with valid descriptions P and misleading ones N (its siblings'):

        \sum_{(p, n) \in P x N} max(0, m + ||s - p||^2 - ||s - n||^2)

    averaged over the sentences that have both. Lower is better.

    Args:
        margin: m; the paper takes 1.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        if margin <= 0:
            raise ValueError(f"margin is {margin}, need a positive number")
        self.margin = margin

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return the loss, a scalar."""
        # (s, d); torch.cdist squares a rounded root, so the difference is taken as it is.
        difference = batch.sentences[:, None, :] - batch.descriptions[None, :, :]
        distance = difference.square().sum(-1)
        good, bad = batch.fits.T, batch.siblings.T
        # (s, p, n) over all descriptions, masked to the sentence's own P x N.
        gap = self.margin + distance[:, :, None] - distance[:, None, :]
        pairs = good[:, :, None] & bad[:, None, :]
        total = torch.where(pairs, gap.clamp(min=0), 0.0).sum(dim=(1, 2))
        counted = pairs.flatten(1).any(dim=1)
        return total.sum() / counted.sum().clamp(min=1)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {"margin": self.margin}


class PaperInfoNCELoss(nn.Module):
    r"""The InfoNCE loss of *Description-Based Text Similarity*, Eq. 2.

    For a sentence s and each valid description p, with N' the valid descriptions of the batch's
    other sentences and those sentences themselves:

        -log( exp(cos(s, p)/t) / (exp(cos(s, p)/t) + \sum_{n' \in N'} exp(cos(s, n')/t)) )

    averaged over all (s, p). Sentences of s's own cluster share its descriptions and are no
    negatives. Lower is better.

    Args:
        temperature: t; the paper takes 0.1.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = _positive(temperature)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return the loss, a scalar."""
        to_descriptions = batch.sentences @ batch.descriptions.T / self.temperature  # (s, d)
        to_sentences = batch.sentences @ batch.sentences.T / self.temperature  # (s, s)
        good = batch.fits.T
        other = batch.sentence_cluster[:, None] != batch.sentence_cluster[None, :]
        negatives = torch.cat(
            [_masked(to_descriptions, ~good), _masked(to_sentences, other)], dim=1
        ).logsumexp(dim=1)
        losses = torch.logaddexp(to_descriptions, negatives[:, None]) - to_descriptions
        return losses[good].mean()

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {"temperature": self.temperature}


class PaperLoss(nn.Module):
    """The paper's training loss, Eq. 3: triplet loss + alpha x InfoNCE.

    Args:
        margin: Of `PaperTripletLoss`.
        temperature: Of `PaperInfoNCELoss`.
        alpha: The paper takes 0.1.
    """

    def __init__(self, margin: float = 1.0, temperature: float = 0.1, alpha: float = 0.1) -> None:
        super().__init__()
        self.triplet = PaperTripletLoss(margin)
        self.info_nce = PaperInfoNCELoss(temperature)
        self.alpha = alpha

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return the loss, a scalar."""
        total: Tensor = self.triplet(batch) + self.alpha * self.info_nce(batch)
        return total

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            **self.triplet.get_config_dict(),
            **self.info_nce.get_config_dict(),
            "alpha": self.alpha,
        }


class PNALoss(nn.Module):
    r"""Positive-negative augmentation (An et al., Findings of EACL 2024).

    With references z1 (descriptions), positives z2 (a sentence each fits) and negatives z3 (a
    sibling's sentence), row i of the similarities is extended from SimCSE's [cos(z1_i, z2_j)] by
    [cos(z1_i, z3_j)] and by [cos(z2_i, z3_j)], all over t, and the loss is the cross-entropy of
    column i. With a positive score w below 1 the label is soft, as in CLHAIF (Cheng et al., 2023,
    its `smooth_all`): w on column i, and (1 - w) spread evenly over all others. Lower is better.

    Descriptions without a sibling are left out.

    Args:
        temperature: t; SimCSE takes 0.05.
        positive_score: w; 1 is the SimCSE form.
    """

    def __init__(self, temperature: float = 0.05, positive_score: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)
        if not 0 < positive_score <= 1:
            raise ValueError(f"positive_score is {positive_score}, need a share above 0, up to 1")
        self.positive_score = positive_score

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return the loss, a scalar; 0 for a batch without siblings."""
        usable = batch.fits.any(dim=1) & batch.siblings.any(dim=1)
        if not usable.any():
            return batch.descriptions.sum() * 0
        z1 = batch.descriptions[usable]
        # The first of each: batches are drawn at random already.
        z2 = batch.sentences[batch.fits[usable].to(torch.int8).argmax(dim=1)]
        z3 = batch.sentences[batch.siblings[usable].to(torch.int8).argmax(dim=1)]
        rows = torch.cat([z1 @ z2.T, z1 @ z3.T, z2 @ z3.T], dim=1) / self.temperature  # (n, 3n)
        others = (1 - self.positive_score) / (rows.shape[1] - 1)
        labels = torch.full_like(rows, others)
        labels.fill_diagonal_(self.positive_score)
        return -(labels * rows.log_softmax(dim=1)).sum(dim=1).mean()

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {"temperature": self.temperature, "positive_score": self.positive_score}


class GroupLoss(nn.Module):
    r"""Ours: sibling clusters as hard negatives in both directions, and descriptions as negatives.

    Row of a description d with fitting sentences S+ (several are allowed), against all sentences of
    the batch and all twins (descriptions read by the sentence encoder: the relation is not
    reflexive, so a description is no instance of a description):

        -mean_{s \in S+} log( exp(d.s/t) / (\sum_s' exp(d.s'/t) + \sum_tw exp(d.tw/t)) )

    Column of a sentence: the same over the batch's descriptions, without twins. The loss is the
    mean of the rows plus the mean of the columns, plus `group_weight` times the same two means over
    the group's own members alone at `group_temperature`. Lower is better.

    With r all that the sentence encoder reads, sentences and twins, and B the base's vectors of the
    same, `preserve` times

        mean_{i != j} (r_i.r_j - B_i.B_j)^2

    is added, once over the pairs of sentences of one group and once over all others: the sentence
    encoder keeps the base's sense of how similar two texts are (relational distillation, Park et
    al., CVPR 2019, with cosine as the relation). Without the twins in it, all that is short and
    general would come to lie close together, since it is a negative throughout.

    Args:
        temperature: t.
        group_weight: 0 leaves the groups' own term out.
        group_temperature: Of that term.
        preserve: 0 leaves the last term out.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        group_weight: float = 0.0,
        group_temperature: float = 0.05,
        preserve: float = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = _positive(temperature)
        self.group_temperature = _positive(group_temperature)
        self.group_weight = _not_negative("group_weight", group_weight)
        self.preserve = _not_negative("preserve", preserve)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return the loss, a scalar."""
        cosine = batch.descriptions @ batch.sentences.T  # (d, s)
        twins = batch.descriptions @ batch.twins.T  # (d, t)
        loss = self._both_ways(cosine / self.temperature, twins / self.temperature, batch.fits)
        if self.group_weight:
            own = batch.fits | batch.siblings
            scores = _masked(cosine / self.group_temperature, own)
            inner = self._both_ways(scores, twins[:, :0], batch.fits)
            loss = loss + self.group_weight / 2 * inner
        if self.preserve:
            loss = loss + self.preserve * self._drift(batch)
        return loss

    @staticmethod
    def _drift(batch: EmbeddedBatch) -> Tensor:
        if batch.base_read is None:
            raise ValueError("preserve needs the base's vectors of sentences and twins")
        read = torch.cat([batch.sentences, batch.twins])
        drift = (read @ read.T - batch.base_read @ batch.base_read.T).square()
        apart = ~torch.eye(len(drift), dtype=torch.bool, device=drift.device)
        own = torch.zeros_like(apart)
        count = len(batch.sentences)
        own[:count, :count] = batch.sentence_group[:, None] == batch.sentence_group[None, :]
        parts = [drift[apart & own], drift[apart & ~own]]
        return torch.stack([part.mean() for part in parts if len(part)]).sum()

    @staticmethod
    def _both_ways(scores: Tensor, twins: Tensor, fits: Tensor) -> Tensor:
        rows = torch.cat([scores, twins], dim=1).log_softmax(dim=1)[:, : scores.shape[1]]
        columns = scores.log_softmax(dim=0)
        return -_mean_over(rows, fits, dim=1) - _mean_over(columns, fits, dim=0)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "temperature": self.temperature,
            "group_weight": self.group_weight,
            "group_temperature": self.group_temperature,
            "preserve": self.preserve,
        }


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """The scores of a cross-encoder for a batch of (description, sentence) pairs.

    Attributes:
        scores: (p,) float logits, higher is better.
        rows: (p,) int, the number of each pair's description in the batch.
        columns: (p,) int, the number of each pair's sentence in the batch; -1 for a sentence that
            was taken as a negative of one description only.
        fits: (p,) bool: the description is true of the sentence.
        cosines: (p,) float, an encoder's scores of the pairs; only for losses that ask for them.
    """

    scores: Tensor
    rows: Tensor
    columns: Tensor
    fits: Tensor
    cosines: Tensor | None = None


class ListLoss(nn.Module):
    r"""For a cross-encoder: softmax over lists in both directions, and each pair by itself.

    Row of a description, with the scores z of its pairs and F those that fit:

        -mean_{i \in F} log( exp(z_i) / \sum_j exp(z_j) )

    Column of a sentence: the same over the descriptions that it was paired with. The loss is the
    mean of the rows (ListNet's top-one loss, Cao et al., ICML 2007, with equal shares for what
    fits) plus the mean of the columns, plus `pair_weight` times the binary cross-entropy, in which
    fitting and other pairs weigh the same in all. That term makes scores of different descriptions
    comparable. Lower is better.

    With `distill`, what an encoder knows is learned too: that many times the mean over the rows of
    the divergence from the encoder's own softmax (after Hinton et al., 2015),

        KL( softmax(distill_scale * cosines) || softmax(z) )

    With labels alone a small cross-encoder stays at chance within a group for hundreds of steps,
    and ranks long lists worse than the encoder that it started from.

    Args:
        pair_weight: 0 leaves the binary cross-entropy out.
        both_ways: Whether columns count. They should not where a score depends on the description
            alone too, as a log-probability does on its length.
    """

    def __init__(
        self,
        pair_weight: float = 0.5,
        both_ways: bool = True,
        distill: float = 0.0,
        distill_scale: float = 20.0,
    ) -> None:
        super().__init__()
        self.both_ways = both_ways
        for name, value in {"pair_weight": pair_weight, "distill": distill}.items():
            if value < 0:
                raise ValueError(f"{name} is {value}, need 0 or more")
        if distill_scale <= 0:
            raise ValueError(f"distill_scale is {distill_scale}, need more than 0")
        self.pair_weight = pair_weight
        self.distill = distill
        self.distill_scale = distill_scale

    def forward(self, pairs: ScoredPairs) -> Tensor:
        """Return the loss, a scalar."""
        loss = self._lists(pairs, pairs.rows)
        if self.both_ways:
            loss = loss + self._lists(pairs, pairs.columns)
        if self.pair_weight:
            each = nn.functional.binary_cross_entropy_with_logits(
                pairs.scores, pairs.fits.to(pairs.scores.dtype), reduction="none"
            )
            halves = [each[pairs.fits], each[~pairs.fits]]
            loss = loss + self.pair_weight * sum(half.mean() for half in halves if len(half))
        if self.distill:
            loss = loss + self.distill * self._divergence(pairs)
        return loss

    def _divergence(self, pairs: ScoredPairs) -> Tensor:
        if pairs.cosines is None:
            raise ValueError("distill needs the cosines of an encoder, and the pairs have none")
        members = _members(pairs.rows)
        known = _masked(self.distill_scale * pairs.cosines.expand(len(members), -1), members)
        scores = _masked(pairs.scores.expand(len(members), -1), members)
        each = nn.functional.kl_div(
            scores.log_softmax(dim=1), known.log_softmax(dim=1), reduction="none", log_target=True
        )
        return each.masked_fill(~members, 0).sum(dim=1).mean()

    @staticmethod
    def _lists(pairs: ScoredPairs, lists: Tensor) -> Tensor:
        members = _members(lists)
        fits = members & pairs.fits
        kept = fits.any(dim=1)
        if not kept.any():
            return pairs.scores.sum() * 0
        scores = _masked(pairs.scores.expand(len(members), -1), members)[kept]
        return -_mean_over(scores.log_softmax(dim=1), fits[kept], dim=1)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "pair_weight": self.pair_weight,
            "both_ways": self.both_ways,
            "distill": self.distill,
            "distill_scale": self.distill_scale,
        }


def _members(lists: Tensor) -> Tensor:
    """Return (l, p) bool: whether each pair, by its list's number, is in each list."""
    return torch.arange(int(lists.max()) + 1, device=lists.device)[:, None] == lists


LOSSES: dict[str, type[nn.Module]] = {
    "paper-triplet": PaperTripletLoss,
    "paper-infonce": PaperInfoNCELoss,
    "paper": PaperLoss,
    "pna": PNALoss,
    "group": GroupLoss,
}

LIST_LOSSES: dict[str, type[nn.Module]] = {"list": ListLoss}
"""For models that score pairs."""


def make_loss(
    name: str, settings: dict[str, Any], known: dict[str, type[nn.Module]] = LOSSES
) -> nn.Module:
    """Make a loss by name, one of `known`.

    Raises:
        ValueError: No such loss, or a setting that it does not have or allow.
    """
    if name not in known:
        raise ValueError(f"no loss {name!r} for this kind; there are: {', '.join(known)}")
    has = inspect.signature(known[name]).parameters
    if unknown := sorted(settings.keys() - has.keys()):
        allowed = ", ".join(has) or "none"
        raise ValueError(f"loss {name!r} has no setting {', '.join(unknown)}; it has: {allowed}")
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ValueError(f"loss {name!r}: {error}") from error


def _positive(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"a temperature is {temperature}, need a positive number")
    return temperature


def _not_negative(name: str, weight: float) -> float:
    if weight < 0:
        raise ValueError(f"{name} is {weight}, need 0 or more")
    return weight


def _masked(scores: Tensor, keep: Tensor) -> Tensor:
    return scores.masked_fill(~keep, float("-inf"))


def _mean_over(values: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Mean over the rows (or columns) that have any chosen value, of their mean chosen value."""
    counts = chosen.sum(dim=dim)
    sums = torch.where(chosen, values, 0.0).sum(dim=dim)
    return (sums[counts > 0] / counts[counts > 0]).mean()
