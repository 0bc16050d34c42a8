"""Named encoders, each with its right prefixes, prompts, pooling and pair.

To add a preset, add a row to `_PRESETS`; to change what new stores use, change `DEFAULT_PRESET`.
This module imports nothing heavy, so that the command line can list presets at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pooling(StrEnum):
    """How token vectors become one vector.

    `MEAN_WITHOUT_FIRST` leaves out the first token, as the released pair of *Description-Based Text
    Similarity* does. `WEIGHTED_MEAN` weighs a token by its position (SGPT, section 4).
    """

    MEAN = "mean"
    MEAN_WITHOUT_FIRST = "mean-without-first"
    WEIGHTED_MEAN = "weighted-mean"
    CLS = "cls"
    LAST_TOKEN = "last-token"


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Everything that decides which vector a text gets.

    Attributes:
        name: Name of the preset, hub id, or last part of a folder's path.
        sentence_model: Folder, hub id, or `BUNDLED` for the weights that come with the package.
        description_model: The same for descriptions; None shares the sentence model.
        pooling: None when the model's own configuration states it.
        description_prompt: Text put before every description.
        sentence_prompt: Text put before every sentence.
        description_brackets: Tokens put around every description after tokenization (SGPT).
        sentence_brackets: Tokens put around every sentence after tokenization (SGPT).
        delta: File in the package that turns the base into a tuned pair, see
            `descsim_tools.encoders.delta`.
        description_map: File in the package, or a path, of a linear map over the vectors of
            descriptions, see `descsim_tools.encoders.maps`.
        sentence_map: The same for sentences.
        summary: One line for people.
    """

    name: str
    sentence_model: str
    description_model: str | None = None
    pooling: Pooling | None = None
    description_prompt: str | None = None
    sentence_prompt: str | None = None
    description_brackets: tuple[str, str] | None = None
    sentence_brackets: tuple[str, str] | None = None
    delta: str | None = None
    description_map: str | None = None
    sentence_map: str | None = None
    summary: str = ""


BUNDLED = "bundled:all-MiniLM-L6-v2"
"""The base weights carried by a package dependency, see `descsim_tools.encoders.weights`."""

_PRESETS = [
    EncoderSpec(
        "descsim-minilm",
        BUNDLED,
        delta="descsim-minilm/delta.safetensors",
        summary="ours: a pair of 2 x 22 M parameters for descriptions, comes with the package",
    ),
    EncoderSpec(
        "all-minilm-l6-v2",
        BUNDLED,
        summary="general sentence similarity, 22 M parameters, comes with the package",
    ),
    EncoderSpec(
        "minilm-query-map",
        BUNDLED,
        description_map="minilm-maps/query-map.safetensors",
        summary="ours: searches what all-MiniLM-L6-v2 has encoded, comes with the package",
    ),
    EncoderSpec(
        "minilm-two-maps",
        BUNDLED,
        description_map="minilm-maps/description-map.safetensors",
        sentence_map="minilm-maps/sentence-map.safetensors",
        summary="ours: vectors of all-MiniLM-L6-v2 moved without encoding, comes with the package",
    ),
    EncoderSpec(
        "abstract-sim",
        sentence_model="biu-nlp/abstract-sim-sentence",
        description_model="biu-nlp/abstract-sim-query",
        pooling=Pooling.MEAN_WITHOUT_FIRST,
        summary="the pair released with Description-Based Text Similarity, 2 x MPNet",
    ),
    EncoderSpec(
        "abstract-sim-pubmed",
        sentence_model="biu-nlp/abstract-sim-sentence-pubmed",
        description_model="biu-nlp/abstract-sim-query-pubmed",
        pooling=Pooling.MEAN_WITHOUT_FIRST,
        summary="the same pair for PubMed abstracts",
    ),
    EncoderSpec(
        "all-mpnet-base-v2",
        "sentence-transformers/all-mpnet-base-v2",
        summary="general sentence similarity, 110 M parameters",
    ),
    EncoderSpec(
        "e5-base",
        "intfloat/e5-base",
        description_prompt="query: ",
        sentence_prompt="passage: ",
        summary="the paper's strongest baseline",
    ),
    EncoderSpec(
        "instructor-large",
        "hkunlp/instructor-large",
        description_prompt="Represent the Wikipedia summary for retrieving relevant passages: ",
        sentence_prompt="Represent the Wikipedia document for retrieval: ",
        summary="the paper's Instructor baseline with its two instructions (A.2)",
    ),
    EncoderSpec("gte-large", "thenlper/gte-large", summary="the paper's GTE baseline"),
    EncoderSpec("ember-v1", "llmrails/ember-v1", summary="the paper's EmBER baseline"),
    EncoderSpec(
        "bge-large-en",
        "BAAI/bge-large-en",
        description_prompt="Represent this sentence for searching relevant passages: ",
        summary="the paper's BGE baseline",
    ),
    EncoderSpec(
        "contriever",
        "facebook/contriever",
        pooling=Pooling.MEAN,
        summary="the paper's contriever baseline",
    ),
    EncoderSpec(
        "nli-mpnet-base-v2",
        "sentence-transformers/nli-mpnet-base-v2",
        summary="MPNet trained on SNLI and MultiNLI; stands in for the paper's unreleased SNLI one",
    ),
    EncoderSpec(
        "sgpt-125m",
        "Muennighoff/SGPT-125M-weightedmean-msmarco-specb-bitfit",
        pooling=Pooling.WEIGHTED_MEAN,
        description_brackets=("[", "]"),
        sentence_brackets=("{", "}"),
        summary="SGPT-BE: GPT-Neo, position-weighted mean, [query] and {document} brackets",
    ),
]

PRESETS: dict[str, EncoderSpec] = {spec.name: spec for spec in _PRESETS}

DEFAULT_PRESET = "descsim-minilm"
