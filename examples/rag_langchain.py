"""Retrieval-augmented generation in LangChain.

Run it with `python examples/rag_langchain.py [QUESTION]`.
"""

from __future__ import annotations

import sys

from common import open_demo_index, open_llm, show
from langchain_core.runnables import RunnableLambda

from descsim_tools.agents.langchain import rag_runnable
from descsim_tools.agents.rag import RagAnswerer


def main(question: str = "Which discoveries were made by accident?") -> None:
    """Answer a question, and show the answer with what it rests on."""
    with open_demo_index() as index, open_llm() as llm:
        chain = rag_runnable(RagAnswerer(index, llm, k=4)) | RunnableLambda(show)
        chain.invoke(question)


if __name__ == "__main__":
    main(*sys.argv[1:2])
