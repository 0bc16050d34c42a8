import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import httpx2
import psutil
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning

from descsim_tools import Record, fill
from descsim_tools.integrations.mcp_server import create_server, http_app

DESCSIM = [sys.executable, "-m", "descsim_tools"]
SLOW_SERVER = """
import os, sys, time
from descsim_tools.integrations.mcp_server import create_server, serve_stdio

class Slow:
    def rerank(self, description, hits, top_k=None):
        print("noise from Python", flush=True)
        os.write(1, b"noise from C\\n")
        time.sleep(float(description.split()[-1]))
        return hits

serve_stdio(create_server(sys.argv[1], encoder=sys.argv[2], reranker=Slow()))
"""


def stdio(*command, cwd):
    environment = {"HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"]}
    command, *arguments = [str(part) for part in command]
    return StdioServerParameters(command=command, args=arguments, cwd=cwd, env=environment)


@asynccontextmanager
async def own_server(store, encoder, cwd, mode="auto"):
    command = [*DESCSIM, "mcp", "--store", store, "--encoder", encoder]
    async with Client(stdio(*command, cwd=cwd), mode=mode) as client:
        yield client


@asynccontextmanager
async def slow_server(store, encoder, cwd):
    (cwd / "server.py").write_text(SLOW_SERVER)
    command = [sys.executable, cwd / "server.py", store, encoder]
    async with Client(stdio(*command, cwd=cwd), mode="legacy") as client:
        yield client


@pytest.fixture(scope="module")
def odd_store(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "s"
    records = [
        Record("a dog barks loudly", "a/b c%20?#", {"tags": ["x"], "nested": {"y": None}}),
        Record("a cat sleeps all day", "häßlich", {"year": 2000}),
    ]
    fill(records, folder, encoder=tiny)
    return folder


def server_processes():
    """The servers of these tests: other children, such as a Chroma server, may run beside them."""
    living = [p for p in psutil.Process().children(recursive=True) if p.status() != "zombie"]
    return [p for p in living if "mcp" in p.cmdline() or any("server.py" in a for a in p.cmdline())]


def has_torch(process):
    return has_loaded(process, "libtorch")


def has_loaded(process, library):
    return any(library in region.path for region in process.memory_maps())


async def test_it_answers_at_once_without_torch(tiny_store, tiny_folder, tmp_path):
    async with own_server(tiny_store, tiny_folder, tmp_path) as client:
        tools = (await client.list_tools()).tools
        (process,) = server_processes()
        # How long it takes depends on the machine; that nothing slow to import is there does not.
        for library in ("libtorch", "_multiarray_umath", "chromadb_rust_bindings", "tokenizers"):
            assert not has_loaded(process, library), library
        assert {tool.name for tool in tools} == {
            "search_by_description",
            "find_instances",
            "get_passage",
            "store_info",
        }
        await client.call_tool("store_info", {})
        assert not has_torch(process)
        await client.call_tool("search_by_description", {"description": "a thing"})
        assert has_torch(process)


async def test_search_gives_what_the_index_gives(tiny_store, tiny_folder, tiny_index, tmp_path):
    reports = []

    async def on_progress(progress, total, message):
        reports.append((progress, message))

    async with own_server(tiny_store, tiny_folder, tmp_path) as client:
        arguments = {"description": "a thing", "k": 4, "where": {"line": {"$lte": 100}}}
        result = await client.call_tool(
            "search_by_description", arguments, progress_callback=on_progress
        )
        hits = tiny_index.search("a thing", 4, where={"line": {"$lte": 100}})
        found = result.structured_content
        assert found["description"] == "a thing"
        assert [(h["id"], h["text"], h["rank"]) for h in found["hits"]] == [
            (h.id, h.text, h.rank) for h in hits
        ]
        assert [h["score"] for h in found["hits"]] == pytest.approx(
            [h.score for h in hits], abs=1e-5
        )
        assert [h["metadata"] for h in found["hits"]] == [h.metadata for h in hits]
        # Some clients ignore structured results, so the same is there as text.
        assert [json.loads(block.text) for block in result.content] == [found]
        least = await client.call_tool(
            "search_by_description", {"description": "a thing", "min_score": hits[0].score + 0.2}
        )
        assert least.structured_content["hits"] == []
    steps = [message for _, message in reports]
    assert steps[0] == "opening the store and its encoder"
    assert steps[-1] == "searching"
    # The protocol asks that progress grows; a client may pass over a report that comes too fast.
    steps = [progress for progress, _ in reports]
    assert steps == sorted(set(steps))


async def test_the_schemas_teach_descriptions(tiny_store, tmp_path):
    async with Client(create_server(tiny_store)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    search = tools["search_by_description"]
    assert "Do not give keywords" in search.description
    assert search.input_schema["required"] == ["description"]
    assert "no keywords" in search.input_schema["properties"]["description"]["description"]
    assert set(search.output_schema["properties"]) == {"description", "hits"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())


async def test_passages_and_the_store(odd_store, tiny, tmp_path):
    async with Client(create_server(odd_store, encoder=tiny)) as client:
        info = (await client.call_tool("store_info", {})).structured_content
        assert (info["sentences"], info["encoder"], info["dimensions"]) == (2, "tiny-encoder", 32)
        for id_, text in (
            ("a/b c%20?#", "a dog barks loudly"),
            ("häßlich", "a cat sleeps all day"),
        ):
            passage = (await client.call_tool("get_passage", {"id": id_})).structured_content
            assert (passage["id"], passage["text"]) == (id_, text)
            resource = await client.read_resource(passage["uri"])
            assert [content.text for content in resource.contents] == [text]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "descsim://sentence/{id}"
        with pytest.raises(MCPError, match="no sentence has the id 'unknown'"):
            await client.read_resource("descsim://sentence/unknown")


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search_by_description", {"description": "  "}, "the description is blank"),
        ("search_by_description", {"description": "x", "k": 0}, "greater than or equal to 1"),
        ("search_by_description", {"query": "x"}, "description"),
        ("search_by_description", {"description": "x", "top_k": 3}, "top_k"),
        ("search_by_description", {"description": "x", "where": {"$no": 1}}, "filter"),
        ("get_passage", {"id": "unknown"}, "no sentence has the id 'unknown'"),
    ],
)
async def test_a_client_sees_our_errors(odd_store, tiny, tool, arguments, said):
    async with Client(create_server(odd_store, encoder=tiny)) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert said in result.content[0].text


async def test_a_missing_store_is_named(tmp_path):
    async with Client(create_server(tmp_path)) as client:
        result = await client.call_tool("store_info", {})
    assert result.is_error
    assert "fill one with" in result.content[0].text


async def test_noise_stays_off_the_protocol(tiny_store, tiny_folder, tmp_path):
    (tmp_path / "server.py").write_text(SLOW_SERVER)
    lines = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "raw", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "search_by_description", "arguments": {"description": "for 0"}},
        },
    ]
    with subprocess.Popen(
        [sys.executable, tmp_path / "server.py", tiny_store, tiny_folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        for line in lines:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **line}) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        answers += [json.loads(line) for line in process.stdout]
        noise = process.stderr.read()
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert [answer["id"] for answer in answers if "id" in answer] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["hits"]
    assert "noise from Python" in noise
    assert "noise from C" in noise


async def test_pings_are_answered_while_a_call_lasts(tiny_store, tiny_folder, tmp_path):
    async with slow_server(tiny_store, tiny_folder, tmp_path) as client:
        reports = []

        async def on_progress(progress, total, message):
            reports.append(message)

        call = asyncio.create_task(
            client.call_tool(
                "search_by_description",
                {"description": "a thing that takes 4"},
                progress_callback=on_progress,
            )
        )
        waits, began = [], time.perf_counter()
        while not call.done():
            asked = time.perf_counter()
            with pytest.warns(MCPDeprecationWarning, match="ping"):
                await client.send_ping()
            waits.append(time.perf_counter() - asked)
            await asyncio.sleep(0.1)
        assert not (await call).is_error
        lasted = time.perf_counter() - began
    # The first seconds are the import of torch and the loading of the encoder.
    assert len(waits) > 10
    # A server that waits for the call answers its first ping when the call has ended.
    assert max(waits) < lasted / 2
    assert reports.count("searching") >= 4


async def test_a_cancelled_call_leaves_the_server_free(tiny_store, tiny_folder, tmp_path):
    async with slow_server(tiny_store, tiny_folder, tmp_path) as client:
        await client.call_tool("search_by_description", {"description": "warm up for 0"})
        call = asyncio.create_task(
            client.call_tool("search_by_description", {"description": "a thing that takes 60"})
        )
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # Were the cancelled call still in the way, this one would wait a minute for it.
        async with asyncio.timeout(40):
            again = await client.call_tool("search_by_description", {"description": "again for 0"})
        assert again.structured_content["hits"]


@asynccontextmanager
async def http_server(store, encoder, cwd, token=None):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, **({"DESCSIM_MCP_TOKEN": token} if token else {})}
    command = [*DESCSIM, "mcp", "--store", store, "--encoder", encoder, "--http", str(port)]
    with (cwd / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (cwd / "log").read_text()
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_streamable_http(tiny_store, tiny_folder, tiny_index, tmp_path, mode):
    async with http_server(tiny_store, tiny_folder, tmp_path) as url:
        async with Client(url, mode=mode) as client:
            result = await client.call_tool("search_by_description", {"description": "a thing"})
        async with httpx2.AsyncClient() as plain:
            foreign = await plain.post(url, json={}, headers={"Host": "evil.example"})
    ids = [hit["id"] for hit in result.structured_content["hits"]]
    assert ids == [hit.id for hit in tiny_index.search("a thing", 5)]
    assert foreign.status_code in (403, 421)


async def test_a_bearer_token(tiny_store, tiny_folder, tmp_path):
    async with http_server(tiny_store, tiny_folder, tmp_path, token="s3cret") as url:
        async with httpx2.AsyncClient() as plain:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
                refused = await plain.post(url, json={}, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
        async with httpx2.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as trusted:
            async with Client(streamable_http_client(url, http_client=trusted)) as client:
                info = await client.call_tool("store_info", {})
    assert info.structured_content["sentences"] == 912
    assert "s3cret" not in (tmp_path / "log").read_text()


def test_a_blank_token_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the token is blank"):
        http_app(create_server(tmp_path), " ")


def test_the_command_refuses_a_missing_folder(tmp_path):
    result = subprocess.run(
        [*DESCSIM, "mcp", "--store", "nowhere"], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert "there is no folder nowhere" in result.stderr


async def test_the_real_model_finds_instances(demo_store, tmp_path):
    command = [*DESCSIM, "mcp", "--store", demo_store]
    async with Client(stdio(*command, cwd=tmp_path)) as client:
        result = await client.call_tool(
            "search_by_description", {"description": "monkeys that steal drinks from tourists"}
        )
    assert any("monkeys" in hit["text"] for hit in result.structured_content["hits"])
