"""A chatbot that cites what it found.

Run it with `python examples/chatbot.py [QUESTION...]`; without questions it reads them from
standard input. A citation is checked: the id must be one that the search gave.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from common import Model, chat_model, open_demo_index
from openai import OpenAI

from descsim_tools import DescriptionIndex
from descsim_tools.integrations.openai_tools import DescriptionSearchTool

TASK = (
    "Answer from what the tool finds and from nothing else; say so if it finds nothing. Put the id "
    "of each sentence you rely on in brackets, such as [3f2a]."
)
MOST_CALLS = 5


class Chatbot:
    """Holds a conversation, and every sentence that was found in it."""

    def __init__(self, index: DescriptionIndex, model: Model) -> None:
        self._client = OpenAI(base_url=model.url, api_key=model.key)
        self._model = model.name
        self._tool = DescriptionSearchTool(index)
        self._messages: list[Any] = [{"role": "system", "content": TASK}]
        self._found: dict[str, str] = {}

    def ask(self, question: str) -> str:
        """Return the answer, its citations numbered and spelt out."""
        self._messages.append({"role": "user", "content": question})
        for _ in range(MOST_CALLS):
            completion = self._client.chat.completions.create(
                model=self._model, messages=self._messages, tools=[self._tool.chat_schema]
            )
            message = completion.choices[0].message
            self._messages.append(message.model_dump(exclude_none=True))
            answers = self._tool.chat_answers(message)
            if not answers:
                return self._with_citations(message.content or "")
            for answer in answers:
                hits = json.loads(answer["content"]).get("hits", [])
                self._found |= {hit["id"]: hit["text"] for hit in hits}
            self._messages += answers
        return f"(no answer after {MOST_CALLS} searches)"

    def _with_citations(self, text: str) -> str:
        cited: dict[str, int] = {}

        def number(match: re.Match[str]) -> str:
            id_ = match.group(1)
            if id_ not in self._found:
                return f"[not found: {id_}]"
            return f"[{cited.setdefault(id_, len(cited) + 1)}]"

        numbered = re.sub(r"\[([^\][]+)\]", number, text)
        sources = [f"  [{n}] {self._found[id_]} (id {id_})" for id_, n in cited.items()]
        return "\n".join([numbered, *sources])


def main(questions: Iterable[str]) -> None:
    """Answer one question after the other."""
    with open_demo_index() as index, chat_model() as model:
        bot = Chatbot(index, model)
        for question in questions:
            print(f"> {question.strip()}\n{bot.ask(question.strip())}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or sys.stdin)
