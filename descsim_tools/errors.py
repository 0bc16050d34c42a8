"""The error family: every failure a caller can mend derives from `DescsimError`."""

from __future__ import annotations

import importlib
from types import ModuleType


class DescsimError(Exception):
    """Base of all errors raised on purpose; messages say what was got, allowed, and the remedy."""


class CorpusError(DescsimError):
    """A corpus cannot be read as asked: missing, binary, empty, or without its text column."""


class EncoderError(DescsimError):
    """An encoder cannot be found, trusted or built, or was given texts it cannot encode."""


class StoreError(DescsimError):
    """A store is missing, closed, locked, damaged, or was filled by another encoder."""


class DataError(DescsimError):
    """A file of training or evaluation data cannot be read, or there is nothing in it to use."""


class LLMError(DescsimError):
    """A language model gave nothing usable; the kinds are in `descsim_tools.llm.errors`."""


class RerankerError(DescsimError):
    """A reranker cannot be found, trusted or built, or was given texts it cannot score."""


class MissingExtraError(DescsimError, ImportError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Dotted name of the module to import.
        extra: The extra of this distribution that installs it.

    Raises:
        MissingExtraError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{module} is not installed; run: pip install "descsim-tools[{extra}]"'
        ) from error
