"""How asking a language model fails, each way of its own."""

from __future__ import annotations

from typing import ClassVar

from descsim_tools.errors import LLMError


class NoModelError(LLMError):
    """There is nobody to ask: no key and no server, a key or quota refused, no such model."""


class NoAnswerError(LLMError):
    """The server gave no answer, after all retries: it hangs, drops connections or fails."""


class CancelledError(LLMError):
    """The caller cancelled before a request was sent."""


class RequestRefusedError(LLMError):
    """The server says that this request is wrong, for example too long; others may be right."""


class BudgetError(LLMError):
    """The next request could exceed the budget; nothing was sent."""


class OutputError(LLMError):
    """The model answered, but not with what was asked for.

    Attributes:
        kind: `cut`, `refusal`, `empty` or `invalid`.
        text: What the model wrote.
    """

    kind: ClassVar[str] = "unusable"

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class CutError(OutputError):
    """The output ended at the limit of tokens, before it was whole."""

    kind = "cut"


class RefusalError(OutputError):
    """The model, or a filter before it, declined to answer."""

    kind = "refusal"


class EmptyError(OutputError):
    """The output has no text."""

    kind = "empty"


class InvalidError(OutputError):
    """The output does not fit the schema."""

    kind = "invalid"
