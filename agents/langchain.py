"""LangChain and LangGraph: the finder as a tool, and as a node of a graph.

Needs `pip install "descsim-tools[langchain]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from descsim_tools.errors import DescsimError, require

require("langchain_core", "langchain")

from langchain_core.tools import StructuredTool, ToolException

from descsim_tools.agents.finder import InstanceFinder
from descsim_tools.agents.statement import Statement
from descsim_tools.agents.tooling import TOOL_DESCRIPTION, TOOL_NAME, FindArguments, answer

__all__ = ["FindInstancesNode", "find_instances_tool"]


def find_instances_tool(
    finder: InstanceFinder, *, name: str = TOOL_NAME, description: str = TOOL_DESCRIPTION
) -> StructuredTool:
    """Make a tool that lets a chat model find all instances.

    The model gets JSON text; the `Statement` is the tool message's `artifact`. Arguments that
    cannot be used come back to the model as an error it can mend.

    Args:
        finder: Finds; its store and its language model's budget are its own.
        name: What the model calls it.
        description: What tells the model how to use it.
    """

    def find(
        concept: str,
        all_of: Sequence[str] = (),
        any_of: Sequence[str] = (),
        none_of: Sequence[str] = (),
    ) -> tuple[str, Statement]:
        try:
            statement = finder.find(concept, all_of=all_of, any_of=any_of, none_of=none_of)
        except (DescsimError, ValueError) as error:
            raise ToolException(f"The search failed: {error}") from error
        return answer(statement), statement

    async def afind(
        concept: str,
        all_of: Sequence[str] = (),
        any_of: Sequence[str] = (),
        none_of: Sequence[str] = (),
    ) -> tuple[str, Statement]:
        try:
            statement = await finder.afind(concept, all_of=all_of, any_of=any_of, none_of=none_of)
        except (DescsimError, ValueError) as error:
            raise ToolException(f"The search failed: {error}") from error
        return answer(statement), statement

    return StructuredTool.from_function(
        find,
        afind,
        name=name,
        description=description,
        args_schema=FindArguments,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=lambda error: f"The arguments cannot be used: {error}",
    )


class FindInstancesNode:
    """A node of a LangGraph graph: reads what to look for from the state, adds what was found.

        >>> graph = StateGraph(State)  # a state with `concept`, `instances`, `statement`
        ... graph.add_node("find", FindInstancesNode(finder))

    It reads `concept` and, where the state has them, `all_of`, `any_of`, `none_of`, `where`,
    `decisions` and `record`, as `InstanceFinder.find` takes them. It returns `instances`, the
    matched rows, and `statement`, everything, both as plain JSON values, which any checkpointer
    keeps.

    Args:
        finder: Finds.
    """

    def __init__(self, finder: InstanceFinder) -> None:
        self._finder = finder

    def __call__(self, state: Any) -> dict[str, Any]:
        """Find, and return the update of the state."""
        names = ("all_of", "any_of", "none_of", "where", "decisions", "record")
        given = {name: _of(state, name) for name in names}
        options = {name: value for name, value in given.items() if value is not None}
        statement = self._finder.find(_of(state, "concept"), **options)
        return {
            "instances": [row.to_dict() for row in statement.instances],
            "statement": statement.to_dict(),
        }


def _of(state: Any, name: str) -> Any:
    """Return a field of a state, which may be a mapping, a dataclass or a pydantic model."""
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)
