"""Adapters over `DescriptionIndex` for other libraries, one module each.

Import the module of the library you use; it needs that library's extra, and says so if it is
missing:

    from descsim_tools.integrations.langchain import DescriptionRetriever
    from descsim_tools.integrations.llama_index import DescriptionRetriever
    from descsim_tools.integrations.chroma import DescriptionEmbeddingFunction
    from descsim_tools.integrations.openai_tools import DescriptionSearchTool
    from descsim_tools.integrations.mcp_server import serve
"""
