"""What the examples share: a filled store, and a model to talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripted_model import ScriptedModel

from descsim_tools import DescriptionIndex, fill

CORPUS = Path(__file__).parent / "corpus.txt"
STORE = Path("demo-store/examples")


@dataclass(frozen=True)
class Model:
    """Where a chat model answers."""

    url: str
    key: str
    name: str


def open_demo_index(folder: Path = STORE) -> DescriptionIndex:
    """Fill a store with the demo corpus, unless it is filled, and open it."""
    fill(CORPUS, folder)
    return DescriptionIndex.open(folder)


@contextmanager
def chat_model() -> Iterator[Model]:
    """Give the model that OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL name, or a scripted one.

    With the scripted model nothing leaves this machine.
    """
    url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    if url or key:
        name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        yield Model(url or "https://api.openai.com/v1", key or "none", name)
        return
    with ScriptedModel() as scripted:
        yield Model(scripted.url, "none", "scripted")
