"""What the tests of answers and chat share: replies of a scripted model."""

from __future__ import annotations

from typing import Any

from descsim_tools.agents.rag import RagAnswerer
from descsim_tools.llm import LLM
from tests.fake_llm import FakeServer

DRUNK = [
    "On the island of St Kitts vervet monkeys steal rum punch from the glasses of tourists.",
    "A Swedish elk that had eaten fermenting apples got stuck in a tree at night.",
    "Bees that find a rich patch of flowers dance for their nestmates.",
    "Daimler and Chrysler joined forces in 1998 and parted again in 2007.",
]


def plan(*descriptions: str, kind: str = "search", problem: str = "") -> dict[str, Any]:
    return {"kind": kind, "problem": problem, "descriptions": list(descriptions)}


def turn(
    *descriptions: str, kind: str = "search", question: str = "", reply: str = ""
) -> dict[str, Any]:
    plan = {"kind": kind, "question": question, "reply": reply}
    return {**plan, "descriptions": list(descriptions)}


def statement(text: str, *quotes: tuple[str, str]) -> dict[str, Any]:
    return {"text": text, "quotes": [{"source": s, "quote": q} for s, q in quotes]}


def draft(*statements: dict[str, Any], found: bool = True) -> dict[str, Any]:
    return {"found": found, "statements": list(statements)}


def quoting(data: dict[str, Any]) -> dict[str, Any]:
    """A draft that quotes the first source whole."""
    source = data["sources"][0]
    return draft(statement("It says so.", (source["id"], source["text"])))


def source_id(data: dict[str, Any], word: str) -> str:
    """The id under which the model was given the source with a word in it."""
    return next(source["id"] for source in data["sources"] if word in source["text"])


def answerer(index: Any, server: FakeServer, **settings: Any) -> RagAnswerer:
    """An answerer over a server; what the client takes goes to the client."""
    ours = {"k", "where", "min_score", "min_probability", "rerank", "candidates"}
    client = {key: value for key, value in settings.items() if key not in ours}
    llm = LLM("fake", base_url=server.url, **{"attempts": 2, **client})
    return RagAnswerer(index, llm, **{k: v for k, v in settings.items() if k in ours})
