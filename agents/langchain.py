"""LangChain and LangGraph: answers and chat as runnables, the finder as a tool and as a node.

Needs `pip install "descsim-tools[langchain,openai]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from descsim_tools.errors import DescsimError, require

require("langchain_core", "langchain")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda, run_in_executor
from langchain_core.tools import StructuredTool, ToolException

from descsim_tools.agents.answers import Answer
from descsim_tools.agents.chat import Chatbot, Turn, turns_from_list, turns_to_list
from descsim_tools.agents.finder import InstanceFinder
from descsim_tools.agents.rag import RagAnswerer, last
from descsim_tools.agents.statement import Statement
from descsim_tools.agents.tooling import TOOL_DESCRIPTION, TOOL_NAME, FindArguments, answer

__all__ = ["chat_runnable", "find_instances_node", "find_instances_tool", "rag_runnable"]

_KEY = "descsim_turn"


def rag_runnable(answerer: RagAnswerer) -> Runnable[str, Answer]:
    """Make a runnable that takes a question and gives an `Answer`."""
    return RunnableLambda(answerer.answer, answerer.aanswer, name="descsim_rag")


def chat_runnable(bot: Chatbot) -> Runnable[dict[str, Any], dict[str, list[AnyMessage]]]:
    """Make a runnable that answers the last message of a conversation.

    It takes and gives `{"messages": [...]}`, as agents do, and so is a node of a LangGraph graph
    over `MessagesState`, whose checkpointer remembers the conversation:

        >>> graph = StateGraph(MessagesState).add_node("chat", chat_runnable(bot))
        ... graph = graph.add_edge(START, "chat").compile(checkpointer=InMemorySaver())
        ... said = {"messages": [HumanMessage("Do any animals get drunk?")]}
        ... graph.invoke(said, {"configurable": {"thread_id": "1"}})

    The message it gives has the text with marks, and in `additional_kwargs["descsim_turn"]` the
    answer as JSON, citations included, from which later turns know what was cited. The chatbot's
    own memory is not used, but its bounds hold.

    Args:
        bot: What answers.

    Raises:
        ValueError: On a call, the last message is not a user's text.
    """

    def reply(state: dict[str, Any]) -> dict[str, list[AnyMessage]]:
        if not state["messages"]:
            raise ValueError("there is no message; the last one must be a HumanMessage")
        *before, said = state["messages"]
        if not isinstance(said, HumanMessage):
            raise ValueError(f"the last message is a {type(said).__name__}, need a HumanMessage")
        text = str(said.text)
        answer = last(bot.reply(text, turns_of(before)))
        kept = turns_to_list([Turn(text, answer)])[0]
        return {"messages": [AIMessage(answer.text, additional_kwargs={_KEY: kept})]}

    async def areply(state: dict[str, Any]) -> dict[str, list[AnyMessage]]:
        return await run_in_executor(None, reply, state)

    return RunnableLambda(reply, areply, name="descsim_chat")


def turns_of(messages: Sequence[AnyMessage]) -> list[Turn]:
    """Return the turns that messages of ours carry; other messages are passed over."""
    carried = [
        message.additional_kwargs[_KEY]
        for message in messages
        if isinstance(message, AIMessage) and _KEY in message.additional_kwargs
    ]
    return turns_from_list(carried)


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


def find_instances_node(finder: InstanceFinder) -> Runnable[Any, dict[str, Any]]:
    """Make a node of a LangGraph graph: it reads what to look for and adds what was found.

        >>> graph = StateGraph(State)  # a state with `concept`, `instances`, `statement`
        ... graph.add_node("find", find_instances_node(finder))

    It reads `concept` and, where the state has them, `all_of`, `any_of`, `none_of`, `where`,
    `decisions` and `record`, as `InstanceFinder.find` takes them. It returns `instances`, the
    matched rows, and `statement`, everything, both as plain JSON values, which any checkpointer
    keeps. When an asynchronous graph is cancelled, the search ends too.

    Args:
        finder: Finds.
    """

    def options_of(state: Any) -> dict[str, Any]:
        names = ("concept", "all_of", "any_of", "none_of", "where", "decisions", "record")
        given = {name: _of(state, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def update(statement: Statement) -> dict[str, Any]:
        return {
            "instances": [row.to_dict() for row in statement.instances],
            "statement": statement.to_dict(),
        }

    def find(state: Any) -> dict[str, Any]:
        return update(finder.find(**options_of(state)))

    async def afind(state: Any) -> dict[str, Any]:
        return update(await finder.afind(**options_of(state)))

    return RunnableLambda(find, afind, name=TOOL_NAME)


def _of(state: Any, name: str) -> Any:
    """Return a field of a state, which may be a mapping, a dataclass or a pydantic model."""
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)
