"""One client for any OpenAI-compatible server: structured output, retries, budget, cache.

Needs `pip install "descsim-tools[openai]"`.
"""

from descsim_tools.llm import _extra  # noqa: F401  (names the extra before `openai` is imported)
from descsim_tools.llm.client import LLM, Answer
from descsim_tools.llm.errors import (
    BudgetError,
    CancelledError,
    CutError,
    EmptyError,
    InvalidError,
    NoAnswerError,
    NoModelError,
    OutputError,
    RefusalError,
    RequestRefusedError,
)
from descsim_tools.llm.ledger import Budget, Price, Spent
from descsim_tools.llm.structured import OutputMode

__all__ = [
    "LLM",
    "Answer",
    "Budget",
    "BudgetError",
    "CancelledError",
    "CutError",
    "EmptyError",
    "InvalidError",
    "NoAnswerError",
    "NoModelError",
    "OutputError",
    "OutputMode",
    "Price",
    "RefusalError",
    "RequestRefusedError",
    "Spent",
]
