"""A Model Context Protocol server over one store: `descsim mcp --store DIR`.

Needs `pip install "descsim-tools[mcp]"`. Nothing heavy is imported before the first call of a tool,
so that a client is answered at once; calls run in threads, so that pings are answered meanwhile.
"""

from __future__ import annotations

import functools
import hmac
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from urllib.parse import quote

from descsim_tools.errors import DescsimError, require

require("mcp", "mcp")

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, create_model

import descsim_tools
from descsim_tools.integrations.tooling import (
    DESCRIPTION_HELP,
    K_HELP,
    MAX_K,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    hit_to_dict,
    plain,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from descsim_tools.integrations.common import Reranker
    from descsim_tools.search import DescriptionIndex
    from descsim_tools.store import EncoderLike, Store
    from descsim_tools.types import Record

__all__ = ["create_server", "http_app", "serve_http", "serve_stdio"]

_COLLECTION = "descsim"
_SENTENCES = "descsim://sentence/"
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_TICK_S = 1.0
"""How often a long call tells the client that it goes on."""

_T = TypeVar("_T")


ToolMaker: TypeAlias = "Callable[[Callable[[], DescriptionIndex]], Tool]"
"""Makes a tool, given what opens the store at the first call; see `make_tool` and `Progress`."""


class FoundSentence(BaseModel):
    """A sentence that the description fits."""

    rank: int = Field(description="Position in the result, from 1.")
    id: str = Field(description="Id of the sentence; cite it by this.")
    score: float = Field(description="What the result is ordered by; higher is better.")
    rerank_score: float | None = Field(default=None, description="The reranker's own score.")
    probability: float | None = Field(
        default=None, description="Calibrated probability that the sentence is an instance."
    )
    text: str = Field(description="The sentence.")
    metadata: dict[str, Any] = Field(description="Where it comes from, and whatever is known.")


class SearchResult(BaseModel):
    """What was found for a description."""

    description: str = Field(description="What was searched for.")
    hits: list[FoundSentence] = Field(description="Sentences, best first.")


class Passage(BaseModel):
    """A stored sentence or passage."""

    id: str = Field(description="Id of the passage.")
    uri: str = Field(description="URI of the same passage as a resource.")
    text: str = Field(description="The passage.")
    metadata: dict[str, Any] = Field(description="Where it comes from, and whatever is known.")


class StoreInfo(BaseModel):
    """What can be searched."""

    sentences: int = Field(description="Number of sentences.")
    encoder: str = Field(description="Name of the encoder that filled the store.")
    sides: str = Field(description="Whether descriptions have an encoder of their own.")
    dimensions: int = Field(description="Length of a vector.")
    collection: str = Field(description="Name of the collection.")
    descsim_version: str = Field(description="Version of descsim-tools that made the store.")


class _Library:
    """Opens the store, and the encoder only once it is needed."""

    def __init__(
        self, location: str, encoder: EncoderLike, collection: str, device: str | None
    ) -> None:
        self._location = location
        self._encoder = encoder
        self._collection = collection
        self._device = device
        self._turn = threading.Lock()
        self._store: Store | None = None
        self._index: DescriptionIndex | None = None

    def store(self) -> Store:
        from descsim_tools.store import Store

        with self._turn:
            if self._store is None:
                self._store = Store.open(self._location, collection=self._collection)
            return self._store

    def index(self) -> DescriptionIndex:
        from descsim_tools.search import DescriptionIndex

        with self._turn:
            if self._index is None:
                self._index = DescriptionIndex.open(
                    self._location,
                    encoder=self._encoder,
                    collection=self._collection,
                    device=self._device,
                )
            return self._index


def create_server(
    location: str | Path,
    *,
    encoder: EncoderLike = None,
    collection: str = _COLLECTION,
    device: str | None = None,
    reranker: Reranker | None = None,
    more_tools: Sequence[ToolMaker] = (),
) -> MCPServer:
    """Make a server whose tools search one store and read from it.

    Args:
        location: A folder or the URL of a Chroma server; opened at the first call.
        encoder: An encoder, or a preset, folder or hub id; None takes the store's own.
        collection: Name of the Chroma collection.
        device: Where the encoder runs.
        reranker: Anything with `rerank(description, hits, top_k=None)`.
        more_tools: Make further tools over the same store.
    """
    library = _Library(str(location), encoder, collection, device)

    async def search_by_description(
        description: Annotated[str, Field(description=DESCRIPTION_HELP)],
        ctx: Context[Any, Any],
        k: Annotated[int, Field(ge=1, le=MAX_K, description=K_HELP)] = 5,
        where: Annotated[
            dict[str, Any] | None,
            Field(description='Filter on metadata, such as {"year": {"$gte": 1990}}.'),
        ] = None,
        min_score: Annotated[
            float | None, Field(description="Least cosine similarity of a sentence, from -1 to 1.")
        ] = None,
    ) -> SearchResult:
        progress = Progress(ctx)
        index = await progress.run("opening the store and its encoder", library.index)
        from descsim_tools.integrations.common import find

        search = functools.partial(
            find, index, description, k, where=where, min_score=min_score, reranker=reranker
        )
        hits = await progress.run("searching", search)
        found = [FoundSentence(**hit_to_dict(hit)) for hit in hits]
        return SearchResult(description=description, hits=found)

    async def get_passage(
        id: Annotated[str, Field(description="Id of a hit.")], ctx: Context[Any, Any]
    ) -> Passage:
        record = await Progress(ctx).run("reading", functools.partial(_record, library, id))
        if record is None:
            raise ToolError(f"no sentence has the id {id!r}; take the id of a hit as it is")
        uri = _SENTENCES + quote(id, safe="")
        return Passage(id=id, uri=uri, text=record.text, metadata=plain(record.metadata))

    async def store_info(ctx: Context[Any, Any]) -> StoreInfo:
        return await Progress(ctx).run("reading", functools.partial(_info, library))

    passage_help = "Returns one sentence or passage of the store, with its metadata, by its id."
    info_help = "Tells how many sentences can be searched, and which encoder reads them."
    server = MCPServer(
        "descsim",
        version=descsim_tools.__version__,
        instructions=(
            "Finds sentences that are instances of an abstract description. Describe what you look "
            "for in general words; do not give keywords."
        ),
        tools=[
            make_tool(search_by_description, TOOL_NAME, TOOL_DESCRIPTION),
            make_tool(get_passage, "get_passage", passage_help),
            make_tool(store_info, "store_info", info_help),
            *(make(library.index) for make in more_tools),
        ],
        log_level="WARNING",
    )

    @server.resource(
        _SENTENCES + "{id}", name="sentence", description="A sentence by its id, quoted for a URI."
    )
    async def sentence(id: str) -> str:
        record = await anyio.to_thread.run_sync(_record, library, id)
        if record is None:
            raise ResourceNotFoundError(f"no sentence has the id {id!r}")
        return record.text

    return server


def serve_stdio(server: MCPServer) -> None:
    """Serve one client on standard input and output until it leaves.

    While it lasts, whatever else writes to standard output is sent to standard error.
    """
    server.run("stdio")


def http_app(server: MCPServer, token: str | None = None) -> ASGIApp:
    """Return the ASGI application of the streamable HTTP transport, at the path `/mcp`.

    Only requests for the loopback host are answered, which keeps web pages out.

    Args:
        server: From `create_server`.
        token: If given, requests must carry it as `Authorization: Bearer TOKEN`.

    Raises:
        ValueError: The token is blank.
    """
    app: ASGIApp = server.streamable_http_app(host="127.0.0.1")
    return app if token is None else _BearerToken(app, token)


def serve_http(server: MCPServer, port: int, token: str | None = None) -> None:
    """Serve clients of this machine over streamable HTTP, until interrupted.

    Args:
        server: From `create_server`.
        port: On the loopback interface.
        token: See `http_app`.
    """
    import uvicorn

    uvicorn.run(http_app(server, token), host="127.0.0.1", port=port, log_level="warning")


class Progress:
    """Runs the steps of a call in threads and reports on them."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._reports = 0

    async def run(self, step: str | Callable[[], str], function: Callable[[], _T]) -> _T:
        """Run a step; when the client cancels, the thread is left to finish by itself.

        Args:
            step: What is being done, or what returns it each time that it is told.
            function: Does it.

        Raises:
            ToolError: The step failed in a way the client can mend.
        """
        outcome: list[_T] = []
        failure: Exception | None = None
        name = step if callable(step) else lambda: step
        await self.report(name())
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, name)
            try:
                outcome.append(await anyio.to_thread.run_sync(function, abandon_on_cancel=True))
            except Exception as error:  # raised again outside the group, which would wrap it
                failure = error
            group.cancel_scope.cancel()
        if isinstance(failure, DescsimError | ValueError):
            raise ToolError(str(failure)) from failure
        if failure is not None:
            raise failure
        return outcome[0]

    async def _tick(self, name: Callable[[], str]) -> None:
        while True:
            await anyio.sleep(_TICK_S)
            await self.report(name())

    async def report(self, step: str) -> None:
        """Tell the client what is being done."""
        self._reports += 1
        await self._ctx.report_progress(self._reports, message=step)


class _BearerToken:
    """Lets only requests with the token pass."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        if not token.strip():
            raise ValueError("the token is blank; give a long random one, or none at all")
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse(
                    "this server needs its bearer token",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_tool(function: Callable[..., Any], name: str, description: str) -> Tool:
    """Make a tool that refuses arguments it does not know, which by itself it would ignore."""
    tool = Tool.from_function(function, name, description=description, annotations=_READ_ONLY)
    known = tool.fn_metadata.arg_model
    strict = create_model(known.__name__, __base__=known)
    strict.model_config = ConfigDict(**known.model_config, extra="forbid")
    strict.model_rebuild(force=True)
    tool.fn_metadata.arg_model = strict
    tool.parameters = strict.model_json_schema(by_alias=True)
    return tool


def _record(library: _Library, id_: str) -> Record | None:
    return next(iter(library.store().get([id_])), None)


def _info(library: _Library) -> StoreInfo:
    store = library.store()
    manifest = store.manifest
    return StoreInfo(
        sentences=store.count(),
        encoder=manifest.encoder,
        sides=manifest.sides,
        dimensions=manifest.dim,
        collection=store.name,
        descsim_version=manifest.descsim_version,
    )
