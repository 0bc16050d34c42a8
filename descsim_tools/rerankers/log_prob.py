"""`LogProbReranker`: how probable a description is after a sentence (SGPT-CE)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.base import Reranker, Scores
from descsim_tools.rerankers.prompts import DEFAULT_PROMPT, Prompt, find_prompt
from descsim_tools.rerankers.scorers import Scorer
from descsim_tools.rerankers.tokens import PairTokenizer
from descsim_tools.rerankers.weights import LOCAL_LM

_FORMAT_VERSION = 1


class Reduction(StrEnum):
    """How the log-probabilities of a description's tokens become one score."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Choice:
    """What `descsim rerank tune` found best, as its file holds it.

    Attributes:
        model: Name of the model, as `LogProbReranker.load` takes it.
        prompt: The best prompt.
        ndcg_at_10: Its mean nDCG@10 on the dev data, in [0, 1].
        queries: How many descriptions that is over.
    """

    model: str
    prompt: Prompt
    ndcg_at_10: float
    queries: int

    def save(self, path: str | Path) -> None:
        """Write the file."""
        payload = {"format_version": _FORMAT_VERSION, **asdict(self)}
        text = json.dumps(payload, ensure_ascii=False, indent=2)
        Path(path).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Choice:
        """Read the file.

        Raises:
            RerankerError: It is missing, or not of this form.
        """
        remedy = "name a file that `descsim rerank tune` wrote"
        try:
            payload: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            version = payload.pop("format_version")
            if version != _FORMAT_VERSION:
                raise RerankerError(
                    f"{path} has format {version!r}, this version reads {_FORMAT_VERSION}; {remedy}"
                )
            return cls(**{**payload, "prompt": Prompt(**payload["prompt"])})
        except FileNotFoundError as error:
            raise RerankerError(f"there is no file {path}; {remedy}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RerankerError(f"{path} holds no tuned prompt ({error!r}); {remedy}") from error


class LogProbReranker(Reranker):
    """Scores a pair by the description's log-probability after a prompt that holds the sentence.

    The score is the sum (or mean) over the description's tokens, in nats, higher is better; no
    end-of-text token counts. Sentence, description and the prompt's own text are tokenized apart
    (see `descsim_tools.rerankers.tokens`), so exactly the description's tokens are scored. After
    Muennighoff, *SGPT: GPT Sentence Embeddings for Semantic Search* (arXiv 2202.08904), section 3.

    A sentence too long for the model loses tokens from its left, and its hit says `truncated`.

    Args:
        scorer: The language model.
        prompt: Name of a catalogue entry, a template, or a `Prompt`.
        reduction: `sum`, or `mean` over the tokens, which is comparable between descriptions of
            different lengths. Both give the same order for one description.
        calibrate: Subtract the description's score in the same prompt without a sentence
            (contextual calibration). What is left tells how much the sentence adds, and can be
            compared between descriptions; the order for one description stays.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        prompt: str | Prompt = DEFAULT_PROMPT,
        reduction: Reduction | str = Reduction.SUM,
        calibrate: bool = False,
    ) -> None:
        self.scorer = scorer
        self.prompt = find_prompt(prompt)
        self.reduction = _reduction(reduction)
        self.calibrate = calibrate
        self._pairs = PairTokenizer(scorer.tokenizer, self.prompt, scorer.max_length)

    @classmethod
    def load(
        cls,
        source: str | Path = LOCAL_LM,
        *,
        prompt: str | Prompt | None = None,
        reduction: Reduction | str = Reduction.SUM,
        calibrate: bool = False,
        **options: Any,
    ) -> LogProbReranker:
        """Load a model in this process.

        Args:
            source: A hub id, a folder, a `.gguf` file, `gemma3-270m` for the model of the extra
                `local-lm`, or a `.json` file that `descsim rerank tune` wrote, which names model
                and prompt.
            prompt: As for the class; None takes the tuned one, or the default.
            reduction: As for the class.
            calibrate: As for the class.
            **options: `device`, `dtype`, `max_length`, `batch_size`, `padding` and `share_start`
                of `CausalLMScorer.load`.

        Raises:
            RerankerError: The model, prompt or file cannot be found or loaded.
            MissingExtraError: The extra `local-lm` is needed and not installed.
        """
        chosen: str | Prompt = DEFAULT_PROMPT
        if Path(source).suffix == ".json":
            choice = Choice.read(source)
            source, chosen = choice.model, choice.prompt
        wanted = find_prompt(chosen if prompt is None else prompt)
        kind = _reduction(reduction)
        from descsim_tools.rerankers.causal_lm import CausalLMScorer

        scorer = CausalLMScorer.load(source, **options)
        return cls(scorer, prompt=wanted, reduction=kind, calibrate=calibrate)

    def with_prompt(self, prompt: str | Prompt) -> LogProbReranker:
        """Return a reranker with the same model and another prompt."""
        return LogProbReranker(
            self.scorer, prompt=prompt, reduction=self.reduction, calibrate=self.calibrate
        )

    def _score(self, description: str, sentences: Sequence[str]) -> Scores:
        return self._score_many([(description, sentences)])[0]

    def _score_many(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> list[Scores]:
        continuations = [
            self._pairs.pair(description, sentence)[0]
            for description, sentences in pairs
            for sentence in sentences
        ]
        if self.calibrate:
            continuations += [self._pairs.without_sentence(description) for description, _ in pairs]
        reduced = np.array([self._reduced(row) for row in self.scorer.log_probs(continuations)])
        ends = np.cumsum([len(sentences) for _, sentences in pairs])
        *scores, rest = np.split(reduced, ends)
        if self.calibrate:
            return [row - base for row, base in zip(scores, rest, strict=True)]
        return scores

    def _truncated(self, description: str, sentences: Sequence[str]) -> Sequence[bool]:
        return self._pairs.truncates(description, sentences)

    def _reduced(self, log_probs: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        return float(log_probs.sum() if self.reduction is Reduction.SUM else log_probs.mean())


def _reduction(reduction: Reduction | str) -> Reduction:
    try:
        return Reduction(reduction)
    except ValueError as error:
        allowed = ", ".join(one.value for one in Reduction)
        raise RerankerError(f"no reduction {reduction!r}; there are: {allowed}") from error
