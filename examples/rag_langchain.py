"""Retrieval-augmented generation in LangChain.

Run it with `python examples/rag_langchain.py [DESCRIPTION]`.
"""

from __future__ import annotations

import sys

from common import chat_model, open_demo_index
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

from descsim_tools.integrations.langchain import DescriptionRetriever

PROMPT = ChatPromptTemplate.from_template(
    "Tell in two sentences what the sentences below say about: {description}\n"
    "Use nothing else, and put the id of the sentence you rely on in brackets.\n\n{sentences}"
)


def with_ids(documents: list[Document]) -> str:
    """Show sentences to the model so that it can cite them."""
    return "\n".join(f"[{document.id}] {document.page_content}" for document in documents)


def main(description: str = "a scientific discovery made by accident") -> None:
    """Retrieve, generate, and show the answer with what it rests on."""
    with open_demo_index() as index, chat_model() as model:
        retriever = DescriptionRetriever(index=index, k=4)
        llm = ChatOpenAI(model=model.name, base_url=model.url, api_key=model.key)
        write = (
            RunnablePassthrough.assign(sentences=lambda state: with_ids(state["documents"]))
            | PROMPT
            | llm
            | StrOutputParser()
        )
        chain = {
            "description": RunnablePassthrough(),
            "documents": retriever,
        } | RunnablePassthrough.assign(answer=write)
        result = chain.invoke(description)
    print(result["answer"])
    print("\nSources:")
    for document in result["documents"]:
        score = document.metadata["descsim_score"]
        print(f"  [{document.id}] {score:.2f}  {document.page_content}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
