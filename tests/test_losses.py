"""Every loss against a slow one written loop by loop from its equation."""

import math

import pytest
import torch

from descsim_tools.training.losses import (
    LOSSES,
    EmbeddedBatch,
    GroupLoss,
    PaperInfoNCELoss,
    PaperLoss,
    PaperTripletLoss,
    PNALoss,
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


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_made_by_name(name):
    loss = make_loss(name, {})
    again = make_loss(name, loss.get_config_dict())
    assert again.get_config_dict() == loss.get_config_dict()


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("nonsense", {}, "no loss 'nonsense'; there are: paper-triplet"),
        ("group", {"heat": 1}, "unexpected keyword argument 'heat'"),
        ("group", {"temperature": 0}, "a temperature is 0"),
        ("group", {"group_weight": -1}, "group_weight is -1"),
        ("paper-triplet", {"margin": -1}, "margin is -1"),
        ("pna", {"positive_score": 0}, "positive_score is 0"),
    ],
)
def test_bad_settings_are_named(name, settings, match):
    with pytest.raises(ValueError, match=match):
        make_loss(name, settings)
