import json
import subprocess
import sys

import openai
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from descsim_tools.integrations.openai_tools import DescriptionSearchTool
from tests.conftest import ROOT
from tests.integrations.rerankers import WHAT_CANNOT_RERANK, ShortestFirst

QUESTION = "Which discoveries were made by accident?"
DESCRIPTION = "a scientific discovery made by accident"


@pytest.fixture
def server(monkeypatch):
    """Speaks the protocol, and refuses what breaks it."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    from scripted_model import ScriptedModel

    with ScriptedModel() as model:
        yield model


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_chat_completions(server, client, tiny_index):
    tool = DescriptionSearchTool(tiny_index, k=3)
    messages = [{"role": "user", "content": QUESTION}]
    create = client.chat.completions.create
    first = create(model="m", messages=messages, tools=[tool.chat_schema])
    answers = tool.chat_answers(first)
    hits = tiny_index.search(DESCRIPTION, 3)
    (answer,) = answers
    told = json.loads(answer["content"])
    assert told["description"] == DESCRIPTION
    assert [(h["id"], h["text"]) for h in told["hits"]] == [(h.id, h.text) for h in hits]
    assert [h["score"] for h in told["hits"]] == pytest.approx([h.score for h in hits], abs=1e-5)
    messages += [first.choices[0].message, *answers]
    second = create(model="m", messages=messages, tools=[tool.chat_schema])
    assert hits[0].id in second.choices[0].message.content
    assert tool.chat_answers(second) == []
    bodies = TypeAdapter(CompletionCreateParamsNonStreaming)
    for path, body in server.requests:
        assert path == "/v1/chat/completions"
        bodies.validate_python(body)
    # The same reply as a dictionary, and its message alone, are answered alike.
    assert tool.chat_answers(first.model_dump()) == answers
    assert tool.chat_answers(first.choices[0].message) == answers


def test_the_responses_api(server, client, tiny_index):
    tool = DescriptionSearchTool(tiny_index, k=3)
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(model="m", input=items, tools=[tool.responses_schema])
    answers = tool.responses_answers(first)
    (answer,) = answers
    hits = tiny_index.search(DESCRIPTION, 3)
    assert [h["id"] for h in json.loads(answer["output"])["hits"]] == [h.id for h in hits]
    items += [*(item.model_dump(exclude_none=True) for item in first.output), *answers]
    second = client.responses.create(model="m", input=items, tools=[tool.responses_schema])
    assert hits[0].id in second.output_text
    assert tool.responses_answers(second) == []
    bodies = TypeAdapter(ResponseCreateParamsNonStreaming)
    for path, body in server.requests:
        assert path == "/v1/responses"
        bodies.validate_python(body)
    assert tool.responses_answers(first.model_dump()) == answers


def test_the_schema_is_strict_and_teaches(tiny_index):
    tool = DescriptionSearchTool(tiny_index, k=7)
    for schema in (tool.chat_schema["function"], tool.responses_schema):
        assert schema["strict"] is True
        assert schema["parameters"]["additionalProperties"] is False
        assert schema["parameters"]["required"] == list(schema["parameters"]["properties"])
        assert "Do not give keywords" in schema["description"]
    assert "null for 7" in tool.parameters["properties"]["k"]["description"]


def test_the_server_refuses_a_schema_that_is_not_strict(client, tiny_index):
    schema = DescriptionSearchTool(tiny_index).chat_schema
    schema["function"]["parameters"]["required"] = ["description"]
    with pytest.raises(openai.BadRequestError, match="strict mode"):
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], tools=[schema]
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "no JSON"),
        ("{broken", "no JSON"),
        ("[1]", "need a JSON object"),
        ('{"k": null}', "description: Field required"),
        ('{"description": "x", "k": 0}', "k: Input should be greater than or equal to 1"),
        ('{"description": "x", "k": 1000}', "k: Input should be less than or equal to 100"),
        ('{"description": "x", "top": 3}', "top: Extra inputs are not permitted"),
        ('{"description": " ", "k": 3}', "the description is blank"),
    ],
)
def test_a_model_sees_what_it_did_wrong(tiny_index, arguments, said):
    told = json.loads(DescriptionSearchTool(tiny_index).call(arguments))
    assert list(told) == ["error"]
    assert said in told["error"]


def test_calls_of_other_tools_are_left_alone(tiny_index):
    tool = DescriptionSearchTool(tiny_index)
    call = {"id": "1", "type": "function", "function": {"name": "other", "arguments": "{}"}}
    custom = {"id": "2", "type": "custom", "custom": {"name": tool.name, "input": "x"}}
    assert tool.chat_answers({"role": "assistant", "tool_calls": [call, custom]}) == []
    assert tool.chat_answers({"role": "assistant", "content": "hello"}) == []
    item = {"type": "function_call", "name": "other", "call_id": "1", "arguments": "{}"}
    assert tool.responses_answers({"output": [item, {"type": "reasoning"}]}) == []


def test_several_calls_are_answered_each(tiny_index):
    tool = DescriptionSearchTool(tiny_index)
    calls = [
        {"id": str(i), "function": {"name": tool.name, "arguments": json.dumps({"description": d})}}
        for i, d in enumerate(["a dog", "a cat"])
    ]
    answers = tool.chat_answers({"tool_calls": calls})
    assert [answer["tool_call_id"] for answer in answers] == ["0", "1"]
    assert [json.loads(a["content"])["description"] for a in answers] == ["a dog", "a cat"]


def test_settings(tiny_index):
    where = {"line": {"$lte": 100}}
    tool = DescriptionSearchTool(tiny_index, where=where, reranker=ShortestFirst(), candidates=20)
    hits = json.loads(tool.call('{"description": "a thing", "k": 4}'))["hits"]
    lengths = sorted(len(hit.text) for hit in tiny_index.search("a thing", 20, where=where))
    assert [hit["rerank_score"] for hit in hits] == [-length for length in lengths[:4]]
    nothing = DescriptionSearchTool(tiny_index, min_score=2.0).call('{"description": "a thing"}')
    assert "try a more general description" in json.loads(nothing)["note"]
    with pytest.raises(ValueError, match="need a whole number from 1 to 100"):
        DescriptionSearchTool(tiny_index, k=0)


@pytest.mark.parametrize("reranker", WHAT_CANNOT_RERANK)
def test_what_cannot_rerank_is_refused_at_once(tiny_index, reranker):
    with pytest.raises(TypeError, match="need an object with a method"):
        DescriptionSearchTool(tiny_index, reranker=reranker)


def test_the_package_itself_is_not_needed(tmp_path):
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from descsim_tools.integrations.openai_tools import DescriptionSearchTool"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
