"""What the examples share: a filled store, and a model to talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripted_model import ScriptedModel

from descsim_tools import DescriptionIndex, fill
from descsim_tools.agents.answers import Answer
from descsim_tools.llm import LLM

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


@contextmanager
def open_llm() -> Iterator[LLM]:
    """Give a client for the same model."""
    with chat_model() as model, LLM(model.name, base_url=model.url, api_key=model.key) as llm:
        yield llm


def show(answer: Answer) -> None:
    """Print an answer and what its citations stand for."""
    print(answer.text)
    for citation in answer.citations:
        print(f"  [{citation.number}] {citation.quote} (id {citation.id})")
    print(flush=True)
