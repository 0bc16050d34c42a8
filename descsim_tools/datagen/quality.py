"""Four measures of triplets (reference, positive, negative), compared between sources.

They are named by An, Waheed and Thorne, *Capturing the Relationship Between Sentence Triplets for
LLM and Human-Generated Texts to Enhance Sentence Embeddings* (Findings of EACL 2024). What that
paper's abstract and code tell is their names and their use, to tell machine-written triplets from
human ones, and no formulas; those below are our choice:

- **positive text repetition**: share of the positive's words that stand in the reference, each
  as often as it does there. In [0, 1]; 1 is a positive that only copies.
- **length difference penalty**: one minus the shorter over the longer of reference and positive, in
  words. In [0, 1); 0 is equal length. Descriptions are meant to be shorter than their sentences.
- **positive score compactness**: one minus the standard deviation of the cosine similarity of
  reference and positive. In [0, 1]; 1 means that all positives fit alike, so that they teach no
  degrees.
- **negative text implausibility**: one minus the cosine similarity of reference and negative. In
  [0, 2]; the higher, the less could anyone take the negative for a positive. With a causal language
  model there is the other reading as well, implausible as a text: the negative's mean negative
  log-probability in nats a token, minus the positive's; above 0, negatives read less natural.

Similarities are the encoder's: descriptions by its description side, sentences by its sentence
side; where all are sentences, the reference by the sentence side and the others by the other one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from descsim_tools.datagen.formats import Triplet, TripletSource
from descsim_tools.datagen.words import share_within, words
from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.encoders.encoder import Vectors
from descsim_tools.errors import DataError, require

SAMPLE = 2000
_BATCH = 64
_LM_BATCH = 16
_LM_TOKENS = 256

MEASURES = {
    "positive_text_repetition": "Positive text repetition",
    "length_difference_penalty": "Length difference penalty",
    "positive_score_compactness": "Positive score compactness",
    "negative_text_implausibility": "Negative text implausibility",
    "negative_text_implausibility_lm": "The same by a language model",
}

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """The measures of one source.

    Attributes:
        source: Its name.
        triplets: Triplets it has.
        sampled: Triplets measured.
        means: Each measure by its name in `MEASURES`.
        deviations: Standard deviation over the triplets of each measure that has a value for each
            triplet; of the compactness, that of the scores.
        per_triplet: What the plot shows: each measure's values, for the compactness the scores.
    """

    source: str
    triplets: int
    sampled: int
    means: dict[str, float]
    deviations: dict[str, float]
    per_triplet: dict[str, Values]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        fields = asdict(self)
        del fields["per_triplet"]
        return fields


def measure(
    source: TripletSource,
    encoder: DescriptionEncoder,
    *,
    lm: str | Path | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Quality:
    """Measure triplets.

    Args:
        source: Triplets, see `descsim_tools.datagen.formats.read_triplets`.
        encoder: Tells similarities.
        lm: Folder or hub id of a causal language model; None leaves its measure out.
        sample: Most triplets to measure, chosen at random.
        seed: Of the choice.

    Raises:
        DataError: There are no triplets, or the language model cannot be loaded or score any.
        ValueError: The sample is below 1.
    """
    if sample < 1:
        raise ValueError(f"sample is {sample}, need a number from 1 up")
    if not source.triplets:
        raise DataError(f"{source.name} holds no triplets")
    chosen = source.triplets
    if len(chosen) > sample:
        chosen = random.Random(seed).sample(chosen, sample)
    positive_scores, negative_scores = _scores(chosen, source.reference, encoder)
    per_triplet: dict[str, Values] = {
        "positive_text_repetition": _array(share_within(t.positive, t.reference) for t in chosen),
        "length_difference_penalty": _array(_length_difference(t) for t in chosen),
        "positive_score_compactness": positive_scores,
        "negative_text_implausibility": 1 - negative_scores,
    }
    if lm is not None:
        nats = token_nats([*(t.negative for t in chosen), *(t.positive for t in chosen)], lm)
        difference = nats[: len(chosen)] - nats[len(chosen) :]
        # A text of one token that has nothing before it cannot be scored.
        scored = difference[np.isfinite(difference)]
        if not len(scored):
            raise DataError(f"{source.name} holds no text of two tokens, which {lm} could score")
        per_triplet["negative_text_implausibility_lm"] = scored
    means = {name: float(values.mean()) for name, values in per_triplet.items()}
    deviations = {name: float(values.std()) for name, values in per_triplet.items()}
    means["positive_score_compactness"] = 1 - deviations["positive_score_compactness"]
    return Quality(source.name, len(source.triplets), len(chosen), means, deviations, per_triplet)


def plot(qualities: Sequence[Quality], path: str | Path) -> None:
    """Draw each measure's distribution, source by source.

    Args:
        qualities: One for each source.
        path: File to write; its suffix tells the format, such as .png, .svg or .pdf.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: The suffix is none that can be written.
    """
    require("matplotlib", "plots")
    from matplotlib.figure import Figure

    names = [name for name in MEASURES if all(name in q.per_triplet for q in qualities)]
    columns = (len(names) + 1) // 2
    figure = Figure(figsize=(4.2 * columns, 1.6 + 0.9 * len(qualities) + 2), layout="constrained")
    labels = [f"{quality.source}\n(n = {quality.sampled:,})" for quality in qualities]
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(2, columns, number)
        axes.boxplot(
            [quality.per_triplet[name] for quality in qualities],
            orientation="horizontal",
            tick_labels=labels if (number - 1) % columns == 0 else [""] * len(labels),
            showmeans=True,
            showfliers=False,
            widths=0.6,
        )
        axes.invert_yaxis()
        axes.set_title(MEASURES[name], fontsize=10)
        if name == "positive_score_compactness":
            shown = ", ".join(f"{quality.means[name]:.2f}" for quality in qualities)
            axes.set_xlabel(f"similarity of reference and positive\ncompactness: {shown}")
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)


def token_nats(texts: Sequence[str], name: str | Path) -> Values:
    """Return the mean negative log-probability of each text's tokens under a causal model.

    Args:
        texts: Non-empty strings; what is over 256 tokens is left out of account.
        name: Folder or hub id of the model.

    Returns:
        (n,) nats a token; NaN for a text without a token that has one before it.

    Raises:
        DataError: The model cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name))
        model: Any = AutoModelForCausalLM.from_pretrained(str(name), dtype="auto")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot load a causal language model from {name}: {reason}") from error
    model.eval()
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    rows = [
        begin + ids[:_LM_TOKENS]
        for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    ]
    nats = np.full(len(rows), np.nan)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    for start in range(0, len(order), _LM_BATCH):
        batch = order[start : start + _LM_BATCH]
        longest = max(len(rows[row]) for row in batch)
        if longest < 2:
            continue
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros(len(batch), longest, dtype=torch.bool)
        for number, row in enumerate(batch):
            ids[number, : len(rows[row])] = torch.tensor(rows[row])
            mask[number, : len(rows[row])] = True
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask.long()).logits.float()
        chances = torch.log_softmax(logits[:, :-1], dim=-1)
        taken = chances.gather(-1, ids[:, 1:, None]).squeeze(-1).masked_fill(~mask[:, 1:], 0.0)
        counts = mask[:, 1:].sum(dim=1)
        for number, row in enumerate(batch):
            if counts[number] > 0:
                nats[row] = float(-taken[number].sum() / counts[number])
    return nats


class _Encode(Protocol):
    def __call__(self, texts: Sequence[str], /, *, batch_size: int) -> Vectors: ...


def _scores(
    triplets: Sequence[Triplet], reference: str, encoder: DescriptionEncoder
) -> tuple[Values, Values]:
    """Return the cosine similarity of each reference with its positive and its negative."""
    sides: tuple[_Encode, _Encode] = (encoder.encode_sentences, encoder.encode_descriptions)
    encode_references, encode_others = sides[::-1] if reference == "description" else sides
    references = sorted({triplet.reference for triplet in triplets})
    others = sorted({text for t in triplets for text in (t.positive, t.negative)})
    reference_row = {text: row for row, text in enumerate(references)}
    other_row = {text: row for row, text in enumerate(others)}
    left = encode_references(references, batch_size=_BATCH)
    right = encode_others(others, batch_size=_BATCH)
    rows = left[[reference_row[t.reference] for t in triplets]].astype(np.float64)
    positive = (rows * right[[other_row[t.positive] for t in triplets]]).sum(axis=1)
    negative = (rows * right[[other_row[t.negative] for t in triplets]]).sum(axis=1)
    return np.asarray(positive), np.asarray(negative)


def _length_difference(triplet: Triplet) -> float:
    lengths = sorted((len(words(triplet.reference)), len(words(triplet.positive))))
    return 1 - lengths[0] / lengths[1] if lengths[1] else 0.0


def _array(values: Any) -> Values:
    return np.fromiter(values, dtype=np.float64)
