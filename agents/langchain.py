"""LangChain: answers and chat as runnables.

Needs `pip install "descsim-tools[langchain,openai]"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from descsim_tools.errors import require

require("langchain_core", "langchain")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda, run_in_executor

from descsim_tools.agents.answers import Answer
from descsim_tools.agents.chat import Chatbot, Turn, turns_from_list, turns_to_list
from descsim_tools.agents.rag import RagAnswerer, last

__all__ = ["chat_runnable", "rag_runnable"]

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
