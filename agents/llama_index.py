"""LlamaIndex: the finder as a tool.

Needs `pip install "descsim-tools[llama-index]"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from descsim_tools.errors import require

require("llama_index.core", "llama-index")

from llama_index.core.tools import FunctionTool

from descsim_tools.agents.finder import InstanceFinder
from descsim_tools.agents.statement import Statement
from descsim_tools.agents.tooling import TOOL_DESCRIPTION, TOOL_NAME, FindArguments, answer

__all__ = ["FoundInstances", "find_instances_tool"]


@dataclass(frozen=True)
class FoundInstances:
    """What the tool found; as text it is the JSON that a model gets."""

    statement: Statement

    def __str__(self) -> str:
        return answer(self.statement)


def find_instances_tool(
    finder: InstanceFinder, *, name: str = TOOL_NAME, description: str = TOOL_DESCRIPTION
) -> FunctionTool:
    """Make a tool that lets an agent find all instances.

    The model gets JSON text; the tool output's `raw_output` is a `FoundInstances`.

    Args:
        finder: Finds; its store and its language model's budget are its own.
        name: What the model calls it.
        description: What tells the model how to use it.
    """

    def find(**arguments: Any) -> FoundInstances:
        return FoundInstances(finder.find(**FindArguments(**arguments).model_dump()))

    async def afind(**arguments: Any) -> FoundInstances:
        return FoundInstances(await finder.afind(**FindArguments(**arguments).model_dump()))

    return FunctionTool.from_defaults(
        find, async_fn=afind, name=name, description=description, fn_schema=FindArguments
    )
