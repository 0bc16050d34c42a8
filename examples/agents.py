"""An agent that searches by description, in LangChain and in LlamaIndex.

Run it with `python examples/agents.py [QUESTION]`.
"""

from __future__ import annotations

import asyncio
import sys

from common import Model, chat_model, open_demo_index
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

from descsim_tools import DescriptionIndex
from descsim_tools.integrations import langchain, llama_index

TASK = "Answer from what the tool finds, and put the id of the sentence you rely on in brackets."


def ask_langchain(index: DescriptionIndex, model: Model, question: str) -> str:
    """Ask an agent of LangChain."""
    agent = create_agent(
        ChatOpenAI(model=model.name, base_url=model.url, api_key=model.key),
        tools=[langchain.description_search_tool(index)],
        system_prompt=TASK,
    )
    state = agent.invoke({"messages": [{"role": "user", "content": question}]})
    return str(state["messages"][-1].content)


async def ask_llama_index(index: DescriptionIndex, model: Model, question: str) -> str:
    """Ask an agent of LlamaIndex."""
    agent = FunctionAgent(
        tools=[llama_index.description_search_tool(index)],
        llm=OpenAILike(
            model=model.name,
            api_base=model.url,
            api_key=model.key,
            is_chat_model=True,
            is_function_calling_model=True,
        ),
        system_prompt=TASK,
    )
    return str(await agent.run(question))


def main(question: str = "Do any animals get drunk?") -> None:
    """Put one question to both."""
    with open_demo_index() as index, chat_model() as model:
        print("LangChain:", ask_langchain(index, model, question))
        print("LlamaIndex:", asyncio.run(ask_llama_index(index, model, question)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
