"""From (description, sentence) pairs to token ids.

The parts of a prompt are tokenized apart and their ids joined: text before the sentence, sentence,
text between, description. So no token spans a join, whatever a tokenizer would merge there, and
exactly the description's tokens are scored. White space at the end of a part goes to the start of
the next one, since tokenizers write a word as one token with the space before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from descsim_tools.errors import RerankerError
from descsim_tools.rerankers.prompts import Prompt

_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece writes a space like this."""


@runtime_checkable
class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    bos_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the ids of a text's tokens."""
        ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Return how the vocabulary writes tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens whose log-probabilities are wanted, and the tokens before them.

    Attributes:
        context: Ids of all tokens before, at least one.
        target: Ids of the tokens to score, at least one.
    """

    context: tuple[int, ...]
    target: tuple[int, ...]


class PairTokenizer:
    """Turns pairs into `Continuation`s of at most `max_length` tokens.

    Args:
        tokenizer: The model's own.
        prompt: What is put around the sentence.
        max_length: Most tokens of prompt, sentence and description together.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        # Some tokenizers put a space of their own before a text; a second one would be wrong.
        first = tokenizer.convert_ids_to_tokens(self._encode("a"))[0]
        self._adds_space = first.startswith(_SPACE_MARK)
        before, self._sentence_space = _without_end_space(prompt.before)
        between, self._description_space = _without_end_space(prompt.between)
        self._before = [*self._special_start(), *self._part(before)]
        self._between = self._part(between)

    def pair(self, description: str, sentence: str) -> tuple[Continuation, bool]:
        """Join the parts.

        A sentence that is too long loses tokens from its left, so that text, description and the
        sentence's end stay whole.

        Returns:
            The tokens, and whether the sentence lost some.

        Raises:
            RerankerError: There is no room for any token of the sentence.
        """
        target = self.description(description)
        room = self._room(target)
        ids = self._part(self._sentence_space + sentence)
        kept = ids[-room:]
        context = (*self._before, *kept, *self._between)
        return Continuation(self._started(context), target), len(kept) < len(ids)

    def without_sentence(self, description: str) -> Continuation:
        """Return the same with no sentence in it, for contextual calibration."""
        target = self.description(description)
        self._room(target)
        return Continuation(self._started((*self._before, *self._between)), target)

    def description(self, description: str) -> tuple[int, ...]:
        """Return the ids that are scored."""
        ids = self._part(self._description_space + description)
        if not ids:
            raise RerankerError(f"the tokenizer gives no token for the description {description!r}")
        return tuple(ids)

    def truncates(self, description: str, sentences: Sequence[str]) -> list[bool]:
        """Tell of each sentence whether it would lose tokens."""
        room = self._room(self.description(description))
        return [len(self._part(self._sentence_space + text)) > room for text in sentences]

    def _room(self, target: tuple[int, ...]) -> int:
        fixed = len(self._before) + len(self._between)
        room = self._max_length - fixed - len(target)
        if room < 1:
            raise RerankerError(
                f"the prompt's own text takes {fixed} tokens and the description {len(target)}; "
                f"together they must leave room for a sentence within {self._max_length}. Take a "
                "shorter prompt or description, or a larger max_length if the model allows it."
            )
        return room

    def _part(self, text: str) -> list[int]:
        if self._adds_space and text.startswith(" "):
            text = text[1:]
        return self._encode(text) if text else []

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _special_start(self) -> list[int]:
        """Return what the tokenizer puts before a text by itself, such as BOS."""
        plain = self._encode("a")
        whole = self._tokenizer.encode("a", add_special_tokens=True)
        for position in range(len(whole) - len(plain) + 1):
            if whole[position : position + len(plain)] == plain:
                return whole[:position]
        return []

    def _started(self, context: tuple[int, ...]) -> tuple[int, ...]:
        """Put a start token where there would be nothing before the description."""
        if context:
            return context
        for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return (token,)
        raise RerankerError(
            "nothing comes before the description, and the tokenizer has no token to start with; "
            "take a prompt with text of its own"
        )


def _without_end_space(text: str) -> tuple[str, str]:
    """Part a text from the spaces at its end; a line break stays, as it is a token of its own."""
    kept = text.rstrip(" ")
    return kept, text[len(kept) :]


def as_tokenizer(tokenizer: object) -> Tokenizer:
    """Check that an object is a tokenizer.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"got a {type(tokenizer).__name__}, need a transformers tokenizer")
    return tokenizer
