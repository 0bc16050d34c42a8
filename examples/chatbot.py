"""A chatbot that cites what it found.

Run it with `python examples/chatbot.py [QUESTION...]`; without questions it reads them from
standard input. `descsim chat` is the same in colour.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from common import open_demo_index, open_llm, show

from descsim_tools.agents.chat import Chatbot
from descsim_tools.agents.rag import RagAnswerer


def main(questions: Iterable[str]) -> None:
    """Answer one question after the other."""
    with open_demo_index() as index, open_llm() as llm:
        bot = Chatbot(RagAnswerer(index, llm))
        for question in questions:
            print(f"> {question.strip()}")
            show(bot.ask(question.strip()))


if __name__ == "__main__":
    main(sys.argv[1:] or sys.stdin)
