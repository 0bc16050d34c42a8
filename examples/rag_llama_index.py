"""Retrieval-augmented generation in LlamaIndex.

Run it with `python examples/rag_llama_index.py [QUESTION]`.
"""

from __future__ import annotations

import asyncio
import sys

from common import open_demo_index, open_llm, show

from descsim_tools.agents.llama_index import PlannedEvent, RagWorkflow
from descsim_tools.agents.rag import RagAnswerer


async def main(question: str = "Which discoveries were made by accident?") -> None:
    """Answer a question, and show the answer with what it rests on."""
    with open_demo_index() as index, open_llm() as llm:
        handler = RagWorkflow(RagAnswerer(index, llm, k=4)).run(question=question)
        async for event in handler.stream_events():
            if isinstance(event, PlannedEvent):
                print("searching:", *event.planned.descriptions)
        show(await handler)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
