"""Every loss against a slow one written loop by loop from its equation."""

import math
from dataclasses import replace

import pytest
import torch

from descsim_tools.training.losses import (
    LIST_LOSSES,
    LOSSES,
    EmbeddedBatch,
    GroupLoss,
    ListLoss,
    PaperInfoNCELoss,
    PaperLoss,
    PaperTripletLoss,
    PNALoss,
    ScoredPairs,
    make_loss,
)

# (group, cluster) of each: groups of 3, 2 and 1 clusters, some with several positives.
DESCRIPTIONS = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 4), (2, 5)]
SENTENCES = [(0, 0), (0, 1), (0, 1), (0, 2), (1, 3), (1, 3), (1, 4), (2, 5)]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)

    def vectors(count):
        raw = torch.randn(count, 12, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(raw, dim=1).requires_grad_()

    return EmbeddedBatch(
        vectors(len(DESCRIPTIONS)),
        vectors(len(SENTENCES)),
        vectors(5),
        torch.tensor([c for _, c in DESCRIPTIONS]),
        torch.tensor([c for _, c in SENTENCES]),
        torch.tensor([g for g, _ in DESCRIPTIONS]),
        torch.tensor([g for g, _ in SENTENCES]),
    )


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def squared(a, b):
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


def triplet(batch, margin):
    totals = []
    for s, (group, cluster) in enumerate(SENTENCES):
        good = [i for i, (_, c) in enumerate(DESCRIPTIONS) if c == cluster]
        bad = [i for i, (g, c) in enumerate(DESCRIPTIONS) if g == group and c != cluster]
        if not bad:
            continue
        sentence, total = batch.sentences[s], 0.0
        for p in good:
            for n in bad:
                near, far = (squared(sentence, batch.descriptions[i]) for i in (p, n))
                total += max(0.0, margin + near - far)
        totals.append(total)
    return sum(totals) / len(totals)


def info_nce(batch, temperature):
    losses = []
    for s, (_, cluster) in enumerate(SENTENCES):
        sentence = batch.sentences[s]
        others = [batch.descriptions[i] for i, (_, c) in enumerate(DESCRIPTIONS) if c != cluster]
        others += [batch.sentences[i] for i, (_, c) in enumerate(SENTENCES) if c != cluster]
        negatives = sum(math.exp(dot(sentence, other) / temperature) for other in others)
        for p, (_, c) in enumerate(DESCRIPTIONS):
            if c == cluster:
                positive = math.exp(dot(sentence, batch.descriptions[p]) / temperature)
                losses.append(-math.log(positive / (positive + negatives)))
    return sum(losses) / len(losses)


def pna(batch, temperature, score):
    rows = []
    for d, (group, cluster) in enumerate(DESCRIPTIONS):
        positives = [i for i, (_, c) in enumerate(SENTENCES) if c == cluster]
        negatives = [i for i, (g, c) in enumerate(SENTENCES) if g == group and c != cluster]
        if positives and negatives:
            rows.append((d, positives[0], negatives[0]))
    total = 0.0
    for i, (d, p, _) in enumerate(rows):
        similarities = [dot(batch.descriptions[d], batch.sentences[q]) for _, q, _ in rows]
        similarities += [dot(batch.descriptions[d], batch.sentences[n]) for _, _, n in rows]
        similarities += [dot(batch.sentences[p], batch.sentences[n]) for _, _, n in rows]
        exponents = [math.exp(s / temperature) for s in similarities]
        for j, exponent in enumerate(exponents):
            label = score if j == i else (1 - score) / (len(exponents) - 1)
            total -= label * math.log(exponent / sum(exponents))
    return total / len(rows)


def group(batch, temperature, weight, inner_temperature):
    def both_ways(temperature, twins, allowed):
        rows, columns = [], []
        for d, description in enumerate(DESCRIPTIONS):
            pool = [i for i, s in enumerate(SENTENCES) if allowed(description, s)]
            total = sum(
                math.exp(dot(batch.descriptions[d], batch.sentences[i]) / temperature) for i in pool
            )
            total += sum(math.exp(dot(batch.descriptions[d], t) / temperature) for t in twins)
            fitting = [i for i in pool if SENTENCES[i][1] == description[1]]
            logs = [
                dot(batch.descriptions[d], batch.sentences[i]) / temperature - math.log(total)
                for i in fitting
            ]
            rows.append(-sum(logs) / len(logs))
        for s, sentence in enumerate(SENTENCES):
            pool = [i for i, d in enumerate(DESCRIPTIONS) if allowed(d, sentence)]
            total = sum(
                math.exp(dot(batch.descriptions[i], batch.sentences[s]) / temperature) for i in pool
            )
            logs = [
                dot(batch.descriptions[i], batch.sentences[s]) / temperature - math.log(total)
                for i in pool
                if DESCRIPTIONS[i][1] == sentence[1]
            ]
            columns.append(-sum(logs) / len(logs))
        return sum(rows) / len(rows) + sum(columns) / len(columns)

    loss = both_ways(temperature, batch.twins, lambda d, s: True)
    return loss + weight / 2 * both_ways(inner_temperature, [], lambda d, s: d[0] == s[0])


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (PaperTripletLoss(), lambda b: triplet(b, 1.0)),
        (PaperTripletLoss(margin=0.2), lambda b: triplet(b, 0.2)),
        (PaperInfoNCELoss(), lambda b: info_nce(b, 0.1)),
        (PaperInfoNCELoss(temperature=0.5), lambda b: info_nce(b, 0.5)),
        (PaperLoss(), lambda b: triplet(b, 1.0) + 0.1 * info_nce(b, 0.1)),
        (PNALoss(), lambda b: pna(b, 0.05, 1.0)),
        (PNALoss(temperature=0.2, positive_score=0.8), lambda b: pna(b, 0.2, 0.8)),
        (GroupLoss(), lambda b: group(b, 0.1, 0.0, 0.05)),
        (
            GroupLoss(0.2, 1.5, 0.3),
            lambda b: group(b, 0.2, 1.5, 0.3),
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, torch.nn.Module) else "",
)
def test_loss_equals_its_reference(loss, reference, batch):
    value = loss(batch)
    assert value.item() == pytest.approx(reference(batch), abs=1e-5)
    value.backward()
    for vectors in (batch.descriptions, batch.sentences):
        assert torch.isfinite(vectors.grad).all()
        assert vectors.grad.abs().sum() > 0


def test_twins_are_pushed_away(batch):
    GroupLoss()(batch).backward()
    # A step against the gradient lowers each twin's similarity to the descriptions on the whole.
    moved = batch.twins - 0.1 * batch.twins.grad
    before = (batch.descriptions @ batch.twins.T).sum()
    assert (batch.descriptions @ moved.T).sum() < before


def test_a_batch_without_siblings_is_no_error():
    vectors = torch.nn.functional.normalize(torch.randn(2, 4), dim=1).requires_grad_()
    numbers = torch.arange(2)
    alone = EmbeddedBatch(vectors, vectors, vectors[:0], numbers, numbers, numbers, numbers)
    for loss in (PaperTripletLoss(), PNALoss()):
        assert float(loss(alone)) == 0
        loss(alone).backward()
    for loss in (PaperInfoNCELoss(), GroupLoss(group_weight=1)):
        assert torch.isfinite(loss(alone))


def drift(batch):
    read = [*batch.sentences, *batch.twins]
    groups = [group for group, _ in SENTENCES] + [None] * len(batch.twins)
    own, other = [], []
    for i in range(len(read)):
        for j in range(len(read)):
            if i != j:
                now = dot(read[i], read[j])
                before = dot(batch.base_read[i], batch.base_read[j])
                same = groups[i] is not None and groups[i] == groups[j]
                (own if same else other).append((now - before) ** 2)
    return sum(own) / len(own) + sum(other) / len(other)


def test_the_bases_similarities_can_be_kept(batch):
    generator = torch.Generator().manual_seed(1)
    count = len(SENTENCES) + len(batch.twins)
    raw = torch.randn(count, 12, generator=generator, dtype=torch.float64)
    kept = replace(batch, base_read=torch.nn.functional.normalize(raw, dim=1))
    value = GroupLoss(preserve=3)(kept)
    assert value.item() == pytest.approx(GroupLoss()(batch).item() + 3 * drift(kept), abs=1e-5)
    same = replace(batch, base_read=torch.cat([batch.sentences, batch.twins]).detach())
    assert GroupLoss(preserve=3)(same).item() == pytest.approx(GroupLoss()(batch).item(), abs=1e-9)
    with pytest.raises(ValueError, match="needs the base's vectors"):
        GroupLoss(preserve=3)(batch)


# --- cross-encoders ---------------------------------------------------------------------------

# (description, sentence, fits): one list without a positive, one sentence of one description only.
PAIRS = [
    *((0, 0, True), (0, 1, False), (0, 2, True), (0, -1, False)),
    *((1, 0, False), (1, 1, True), (1, 2, False)),
    *((2, 3, False), (2, -1, False)),
]


def list_loss(scores, weight, both_ways=True):
    def lists(number):
        losses = []
        for wanted in sorted({number(pair) for pair in PAIRS if number(pair) >= 0}):
            pool = [i for i, pair in enumerate(PAIRS) if number(pair) == wanted]
            good = [i for i in pool if PAIRS[i][2]]
            if good:
                total = sum(math.exp(scores[i]) for i in pool)
                losses.append(-sum(math.log(math.exp(scores[i]) / total) for i in good) / len(good))
        return sum(losses) / len(losses)

    def each(fits):
        chosen = [s for s, pair in zip(scores, PAIRS, strict=True) if pair[2] == fits]
        sign = -1 if fits else 1
        return sum(math.log(1 + math.exp(sign * s)) for s in chosen) / len(chosen)

    both = lists(lambda p: p[0]) + (lists(lambda p: p[1]) if both_ways else 0)
    return both + weight * (each(True) + each(False))


@pytest.mark.parametrize("weight", [0, 0.5, 2])
def test_the_list_loss_equals_its_reference(weight):
    scores = torch.randn(len(PAIRS), generator=torch.Generator().manual_seed(0)).double()
    scores.requires_grad_()
    rows, columns, fits = (torch.tensor(x) for x in zip(*PAIRS, strict=True))
    value = ListLoss(weight)(ScoredPairs(scores, rows, columns, fits))
    assert value.item() == pytest.approx(list_loss(scores.tolist(), weight), abs=1e-5)
    rows_only = ListLoss(weight, both_ways=False)(ScoredPairs(scores, rows, columns, fits))
    assert rows_only.item() == pytest.approx(list_loss(scores.tolist(), weight, False), abs=1e-5)
    value.backward()
    assert torch.isfinite(scores.grad).all()
    # A worse score of what does not fit lowers it; what fits has equal shares, so may be too high.
    listed = torch.tensor([pair[0] != 2 or weight > 0 for pair in PAIRS])
    assert (scores.grad[~fits & listed] > 0).all()


def test_distillation_adds_the_divergence_from_the_encoders_softmax():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(len(PAIRS), generator=generator).double().requires_grad_()
    cosines = torch.rand(len(PAIRS), generator=generator).double()
    rows, columns, fits = (torch.tensor(x) for x in zip(*PAIRS, strict=True))
    pairs = ScoredPairs(scores, rows, columns, fits, cosines)

    def shares(values):
        total = sum(map(math.exp, values))
        return [math.exp(value) / total for value in values]

    rows_apart = []
    for wanted in (0, 1, 2):
        pool = [i for i, pair in enumerate(PAIRS) if pair[0] == wanted]
        known = shares([7 * cosines[i].item() for i in pool])
        given = shares([scores[i].item() for i in pool])
        rows_apart.append(sum(p * math.log(p / q) for p, q in zip(known, given, strict=True)))
    value = ListLoss(distill=3, distill_scale=7)(pairs)
    expected = ListLoss()(pairs).item() + 3 * sum(rows_apart) / 3
    assert value.item() == pytest.approx(expected, abs=1e-5)
    value.backward()
    assert torch.isfinite(scores.grad).all()
    alike = replace(pairs, cosines=scores.detach() / 7)
    assert ListLoss(distill=3, distill_scale=7)(alike).item() == pytest.approx(
        ListLoss()(alike).item(), abs=1e-6
    )
    with pytest.raises(ValueError, match="distill needs the cosines"):
        ListLoss(distill=1)(replace(pairs, cosines=None))


def test_a_batch_without_anything_that_fits_is_no_error():
    scores = torch.zeros(2, requires_grad=True)
    numbers = torch.tensor([0, 0])
    pairs = ScoredPairs(scores, numbers, torch.tensor([-1, -1]), torch.tensor([False, False]))
    ListLoss(pair_weight=0)(pairs).backward()
    assert scores.grad.tolist() == [0, 0]


def test_each_kind_has_its_losses():
    loss = make_loss("list", {"pair_weight": 2}, LIST_LOSSES)
    assert loss.get_config_dict() == {
        "pair_weight": 2,
        "both_ways": True,
        "distill": 0,
        "distill_scale": 20,
    }
    with pytest.raises(ValueError, match="no loss 'group' for this kind; there are: list"):
        make_loss("group", {}, LIST_LOSSES)
    with pytest.raises(ValueError, match="pair_weight is -1"):
        make_loss("list", {"pair_weight": -1}, LIST_LOSSES)
    with pytest.raises(ValueError, match="distill is -1"):
        make_loss("list", {"distill": -1}, LIST_LOSSES)
    with pytest.raises(ValueError, match="distill_scale is 0"):
        make_loss("list", {"distill_scale": 0}, LIST_LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_made_by_name(name):
    loss = make_loss(name, {})
    again = make_loss(name, loss.get_config_dict())
    assert again.get_config_dict() == loss.get_config_dict()


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("nonsense", {}, "no loss 'nonsense' for this kind; there are: paper-triplet"),
        ("group", {"heat": 1}, "has no setting heat; it has: temperature"),
        ("group", {"temperature": 0}, "a temperature is 0"),
        ("group", {"group_weight": -1}, "group_weight is -1"),
        ("group", {"preserve": -1}, "preserve is -1"),
        ("paper-triplet", {"margin": -1}, "margin is -1"),
        ("pna", {"positive_score": 0}, "positive_score is 0"),
    ],
)
def test_bad_settings_are_named(name, settings, match):
    with pytest.raises(ValueError, match=match):
        make_loss(name, settings)
