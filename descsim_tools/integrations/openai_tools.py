"""OpenAI: the search as a function tool, for chat completions and for the Responses API.

Works with what the `openai` package returns, `pip install "descsim-tools[openai]"`, and with the
same objects as plain dictionaries, from any server that speaks the protocol; the package itself is
not needed to import this module.
"""

from __future__ import annotations

import json
from typing import Any, Unpack

from pydantic import ValidationError

from descsim_tools.errors import DescsimError
from descsim_tools.integrations.common import Reranker, SearchSettings, checked, find
from descsim_tools.integrations.tooling import (
    DESCRIPTION_HELP,
    K_HELP,
    MAX_K,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    answer,
    arguments_schema,
)
from descsim_tools.search import DescriptionIndex

__all__ = ["DescriptionSearchTool", "Reranker"]


class DescriptionSearchTool:
    """The schema of the search tool, and the answers to a model's calls of it.

        >>> tool = DescriptionSearchTool(DescriptionIndex.open("my-store"))
        ... reply = client.chat.completions.create(..., tools=[tool.chat_schema])
        ... messages += [reply.choices[0].message, *tool.chat_answers(reply)]

    Arguments that cannot be used are answered by an error that the model can mend; calls of other
    tools are left alone.

    Args:
        index: The store to search; whoever opened it closes it.
        k: How many sentences come back unless the model asks for another number.
        name: What the model calls it.
        description: What tells the model how to use it.
        **settings: `where`, `min_score`, `min_probability`, `reranker` and `candidates`, see
            `descsim_tools.integrations.common.SearchSettings`.

    Raises:
        ValueError: `k` is out of bounds.
        TypeError: A setting is not known, or the reranker cannot rerank.
    """

    def __init__(
        self,
        index: DescriptionIndex,
        *,
        k: int = 5,
        name: str = TOOL_NAME,
        description: str = TOOL_DESCRIPTION,
        **settings: Unpack[SearchSettings],
    ) -> None:
        self.name = name
        self._arguments = arguments_schema(k)
        self._index = index
        self._k = k
        self._description = description
        self._settings = checked(settings)

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, within what strict mode allows.

        Strict mode wants every property required and no bounds, so an optional one is nullable and
        bounds are checked here.
        """
        k_help = f"{K_HELP} From 1 to {MAX_K}; null for {self._k}."
        return {
            "type": "object",
            "properties": {
                "description": {"type": "string", "description": DESCRIPTION_HELP},
                "k": {"type": ["integer", "null"], "description": k_help},
            },
            "required": ["description", "k"],
            "additionalProperties": False,
        }

    @property
    def chat_schema(self) -> dict[str, Any]:
        """The entry of `tools` for chat completions."""
        return {"type": "function", "function": self._function()}

    @property
    def responses_schema(self) -> dict[str, Any]:
        """The entry of `tools` for the Responses API."""
        return {"type": "function", **self._function()}

    def chat_answers(self, completion: Any) -> list[dict[str, Any]]:
        """Answer the calls in a chat completion, or in one message of it.

        Returns:
            Messages of the role `tool`, one a call of this tool; append them after the message.
        """
        completion = _plain(completion)
        message = completion["choices"][0]["message"] if "choices" in completion else completion
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": self.call(call["function"]["arguments"]),
            }
            for call in message.get("tool_calls") or []
            if call.get("type", "function") == "function" and call["function"]["name"] == self.name
        ]

    def responses_answers(self, response: Any) -> list[dict[str, Any]]:
        """Answer the calls in a response of the Responses API.

        Returns:
            Items of the type `function_call_output`, one a call of this tool; send them as input.
        """
        return [
            {
                "type": "function_call_output",
                "call_id": item["call_id"],
                "output": self.call(item["arguments"]),
            }
            for item in _plain(response).get("output") or []
            if item.get("type") == "function_call" and item.get("name") == self.name
        ]

    def call(self, arguments: str) -> str:
        """Search with the arguments that a model wrote.

        Args:
            arguments: A JSON object.

        Returns:
            JSON text: `description` and `hits`, or `error`.
        """
        try:
            given = json.loads(arguments)
            if not isinstance(given, dict):
                raise ValueError(f"the arguments are {arguments}, need a JSON object")
            wanted = self._arguments(**{k: v for k, v in given.items() if (k, v) != ("k", None)})
            hits = find(self._index, wanted.description, wanted.k, **self._settings)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            return _error("; ".join(faults))
        except json.JSONDecodeError as error:
            return _error(f"the arguments are no JSON: {error}")
        except (DescsimError, ValueError) as error:
            return _error(str(error))
        return answer(wanted.description, hits)

    def _function(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self._description,
            "parameters": self.parameters,
            "strict": True,
        }


def _plain(reply: Any) -> dict[str, Any]:
    plain: dict[str, Any] = reply if isinstance(reply, dict) else reply.model_dump()
    return plain


def _error(text: str) -> str:
    return json.dumps({"error": text}, ensure_ascii=False)
