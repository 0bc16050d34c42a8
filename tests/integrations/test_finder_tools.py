"""The finder in LangChain, LangGraph, LlamaIndex and MCP."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pytest
from mcp import Client

from descsim_tools.agents import FinderSettings, InstanceFinder
from descsim_tools.agents.langchain import find_instances_node
from descsim_tools.agents.langchain import find_instances_tool as langchain_tool
from descsim_tools.agents.llama_index import find_instances_tool as llama_index_tool
from descsim_tools.agents.mcp_tool import find_instances_tool as mcp_tool
from descsim_tools.integrations.mcp_server import create_server
from descsim_tools.llm import LLM
from tests.fake_llm import FakeServer
from tests.finder_world import (
    FORGERY,
    QUICK,
    Known,
    Model,
    Words,
    finder_of,
    make_index,
    marked,
    noise,
)

FORGED = [f"{FORGERY} in town {n} p=0.9" for n in range(6)]


@pytest.fixture
def index(tmp_path):
    with make_index([*FORGED, *noise(40)], tmp_path / "store") as opened:
        yield opened


def test_langchain_tool(index):
    tool = langchain_tool(finder_of(index))
    call = {"type": "tool_call", "id": "1", "name": tool.name, "args": {"concept": FORGERY}}
    message = tool.invoke(call)
    assert {row["text"] for row in json.loads(message.content)["instances"]} == set(FORGED)
    assert message.artifact.matched == 6
    assert "ALL sentences" in tool.description
    call["args"] = {"concept": FORGERY, "none_of": ["town"]}
    assert set(tool.args) == {"concept", "all_of", "any_of", "none_of"}
    assert tool.invoke(call).artifact.query.none_of == ("town",)
    call["args"] = {"concept": " "}
    assert "The search failed: concept has a blank description" in tool.invoke(call).content
    call["args"] = {"wrong": 1}
    assert "cannot be used" in tool.invoke(call).content


async def test_langchain_tool_async(index):
    tool = langchain_tool(finder_of(index))
    found = json.loads(await tool.ainvoke({"concept": FORGERY}))
    assert found["counts"]["matched"] == 6
    assert found["ended_by"] == "done"
    assert found["missed"]["low"] <= found["missed"]["estimate"]


async def test_llama_index_tool(index):
    tool = llama_index_tool(finder_of(index))
    assert tool.metadata.name == "find_instances"
    for output in (tool.call(concept=FORGERY), await tool.acall(concept=FORGERY, all_of=["town"])):
        assert output.raw_output.statement.matched == 6
        assert len(json.loads(output.content)["instances"]) == 6
    assert set(tool.metadata.get_parameters_dict()["properties"]) == {
        "concept", "all_of", "any_of", "none_of"
    }  # fmt: skip


class State(TypedDict, total=False):
    concept: str
    none_of: list[str]
    instances: list[dict[str, Any]]
    statement: dict[str, Any]


@dataclass
class Typed:
    concept: str = ""
    none_of: list[str] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)
    statement: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("state", [State, Typed])
async def test_langgraph_node(index, state):
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(state)
    graph.add_node("find", find_instances_node(finder_of(index)))
    graph.add_edge(START, "find")
    graph.add_edge("find", END)
    app = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    for found in (
        app.invoke({"concept": FORGERY}, config), await app.ainvoke({"concept": FORGERY}, config)
    ):  # fmt: skip
        assert {row["text"] for row in found["instances"]} == set(FORGED)
        assert found["statement"]["matched"] == 6
    assert json.loads(json.dumps(app.get_state(config).values["statement"]))["matched"] == 6


async def test_a_cancelled_graph_ends_the_search(index):
    from langgraph.graph import START, StateGraph

    def slow(seen, number):
        time.sleep(0.2)

    settings = FinderSettings(depth=46, sample=0, batch=1)
    model = Model(slow)
    with FakeServer(model) as server, LLM("m", base_url=server.url, concurrency=1) as llm:
        finder = InstanceFinder(index, rerank=None, llm=llm, settings=settings)
        graph = StateGraph(State)
        graph.add_node("find", find_instances_node(finder))
        graph.add_edge(START, "find")
        task = asyncio.create_task(graph.compile().ainvoke({"concept": FORGERY}))
        while not model.asked:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        asked = len(server.seen)
        await asyncio.sleep(1.5)
        assert len(server.seen) <= asked + 1
        assert len(model.asked) < 10  # of 46 rows


# --- MCP ----------------------------------------------------------------------------------------


class Slow(Known):
    def _score(self, description, sentences):
        time.sleep(0.5)
        return super()._score(description, sentences)


def serve(index, jobs, reranker=None, settings=QUICK):
    tool = mcp_tool(jobs, rerank=reranker or Known(marked), settings=settings)
    location = index.store.location
    index.close()
    return create_server(location, encoder=Words(), more_tools=[tool])


@pytest.fixture
def words_as_encoder(monkeypatch):
    """Let a server open the store with the test's encoder."""
    monkeypatch.setattr("descsim_tools.store.opening._load", lambda encoder, device: encoder)


async def test_mcp_tool(index, tmp_path, words_as_encoder):
    told = []

    async def on_progress(progress, total, message):
        told.append((progress, message))

    async with Client(serve(index, tmp_path / "jobs")) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["find_instances"].annotations.read_only_hint
        assert set(tools["find_instances"].input_schema["properties"]) == {
            "concept", "all_of", "any_of", "none_of", "job_id", "first"
        }  # fmt: skip
        result = await client.call_tool(
            "find_instances", {"concept": FORGERY}, progress_callback=on_progress
        )
        found = result.structured_content
        assert {row["text"] for row in found["instances"]} == set(FORGED)
        assert found["counts"]["stored"] == 46
        assert json.loads(result.content[0].text) == found
        again = await client.call_tool("find_instances", {"job_id": found["job_id"], "first": 4})
        rest = again.structured_content
        assert [row["id"] for row in rest["instances"]] == [
            row["id"] for row in found["instances"][4:]
        ]
        either = (
            await client.call_tool("find_instances", {"any_of": [FORGERY]})
        ).structured_content
        assert {row["text"] for row in either["instances"]} == set(FORGED)
        assert either["looked_for"]["any_of"] == [FORGERY]
        for wrong, message in (
            ({"none_of": ["x"]}, "give a concept"),
            ({"job_id": "../../etc"}, "there is no job"),
            ({}, "give a concept"),
            ({"concept": " "}, "blank"),
            ({"concept": "x", "depth": 5}, "depth"),
        ):
            refused = await client.call_tool("find_instances", wrong)
            assert refused.is_error
            assert message in refused.content[0].text
    assert told[0][1] == "opening the store and its encoder"
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    assert any(found["job_id"] in message for _, message in told)


async def test_a_cancelled_job_goes_on_by_its_id(index, tmp_path, words_as_encoder):
    reranker = Slow(marked)
    settings = FinderSettings(depth=46, sample=0)
    # One batch of 64 rows holds the whole store, so each condition is a step of its own.
    arguments = {"concept": FORGERY, "all_of": [f"condition {n} p=0.9" for n in range(3)]}
    async with Client(serve(index, tmp_path / "jobs", reranker, settings)) as client:
        call = asyncio.create_task(client.call_tool("find_instances", arguments))
        while not reranker.read:
            await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (job,) = [path.name for path in (tmp_path / "jobs").iterdir()]
        found = (await client.call_tool("find_instances", {"job_id": job})).structured_content
        assert found["job_id"] == job
        assert found["ended_by"] == "done"
        assert found["counts"]["matched"] == 6
        read = len(reranker.read)
        same = (await client.call_tool("find_instances", arguments)).structured_content
        assert same["job_id"] == job
        assert len(reranker.read) == read


async def test_a_job_is_of_one_store(index, tmp_path, words_as_encoder):
    jobs = tmp_path / "jobs"
    async with Client(serve(index, jobs)) as client:
        result = await client.call_tool("find_instances", {"concept": FORGERY})
        job = result.structured_content["job_id"]
    other = make_index(FORGED, tmp_path / "other")
    async with Client(serve(other, jobs)) as client:
        refused = await client.call_tool("find_instances", {"job_id": job})
        assert refused.is_error
        assert "of this store" in refused.content[0].text
        result = await client.call_tool("find_instances", {"concept": FORGERY})
        job = result.structured_content["job_id"]
        for damaged in ("{", '["x"]', ""):
            (jobs / job / "arguments.json").write_text(damaged)
            refused = await client.call_tool("find_instances", {"job_id": job})
            assert "there is no job" in refused.content[0].text


def test_a_finder_is_what_the_tools_share(index):
    assert InstanceFinder(index, rerank=Known(marked)).judges == ("known",)
