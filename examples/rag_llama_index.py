"""Retrieval-augmented generation in LlamaIndex.

Run it with `python examples/rag_llama_index.py [DESCRIPTION]`.
"""

from __future__ import annotations

import sys

from common import chat_model, open_demo_index
from llama_index.core import PromptTemplate
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.openai_like import OpenAILike

from descsim_tools.integrations.llama_index import DescriptionRetriever

PROMPT = PromptTemplate(
    "Tell in two sentences what the sentences below say about: {query_str}\n"
    "Use nothing else, and put the id of the sentence you rely on in brackets.\n\n{context_str}"
)


class WithIds(BaseNodePostprocessor):
    """Shows sentences to the model so that it can cite them."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        for scored in nodes:
            scored.node.text_template = f"[{scored.node.node_id}] {{content}}"
        return nodes


def main(description: str = "a scientific discovery made by accident") -> None:
    """Retrieve, generate, and show the answer with what it rests on."""
    with open_demo_index() as index, chat_model() as model:
        engine = RetrieverQueryEngine.from_args(
            DescriptionRetriever(index, k=4),
            llm=OpenAILike(
                model=model.name, api_base=model.url, api_key=model.key, is_chat_model=True
            ),
            node_postprocessors=[WithIds()],
            text_qa_template=PROMPT,
        )
        response = engine.query(description)
    print(response)
    print("\nSources:")
    for scored in response.source_nodes:
        print(f"  [{scored.node.node_id}] {scored.score:.2f}  {scored.text}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
