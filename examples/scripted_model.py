"""A stand-in for a language model, so that the examples run without one.

It is a small HTTP server on this machine that speaks OpenAI's protocol (chat completions, streamed
or not, and the Responses API) and answers by fixed rules: asked for a plan or offered a tool, it
writes a description; given sentences, it quotes the first two and cites their ids. Like the real
service it refuses a request that breaks the protocol.
"""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DESCRIPTIONS = {
    "accident": "a scientific discovery made by accident",
    "animal": "substance abuse in animals",
    "recall": "a company withdrawing a product after a safety problem",
    "exile": "a ruler losing power while abroad or being forced into exile",
}
"""What a model would write as a description for a question with this word in it."""

_STRICT_KEYWORDS = {"type", "properties", "required", "additionalProperties", "description"}


class ScriptedModel:
    """The server; a context manager.

    Attributes:
        url: Base URL for a client.
        requests: Path and body of each request, in order.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> ScriptedModel:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append((self.path, body))
                try:
                    reply = _ROUTES[self.path](body)
                except (KeyError, ValueError) as error:
                    fault = {"message": str(error), "type": "invalid_request_error"}
                    self._send(400, json.dumps({"error": fault}), "application/json")
                    return
                if body.get("stream"):
                    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(reply)]
                    self._send(200, "".join([*events, "data: [DONE]\n\n"]), "text/event-stream")
                else:
                    self._send(200, json.dumps(reply), "application/json")

            def _send(self, status: int, text: str, kind: str) -> None:
                payload = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

        return Handler


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    tools = [tool["function"] for tool in body.get("tools") or []]
    _check_tools(tools)
    messages = body["messages"]
    asked = max(i for i, message in enumerate(messages) if message["role"] == "user")
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise ValueError("messages with role 'tool' must follow the call they answer")
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            raise ValueError(f"tool_call_ids without an answer: {sorted(open_calls)}")
        open_calls |= {call["id"] for call in message.get("tool_calls") or []}
    results = [_text(m["content"]) for m in messages[asked:] if m["role"] == "tool"]
    if "response_format" in body:
        schema = body["response_format"]["json_schema"]["name"]
        text, call = json.dumps(_structured(schema, json.loads(messages[asked]["content"]))), None
    else:
        text, call = _decide(_text(messages[asked]["content"]), tools, results)
    message = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        identity = f"call_{len(messages)}"
        message["tool_calls"] = [{"id": identity, "type": "function", "function": function}]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "stop" if call is None else "tool_calls",
        "logprobs": None,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _chunks(reply: dict[str, Any]) -> list[dict[str, Any]]:
    choice = reply["choices"][0]
    message = choice["message"]
    delta = {"role": "assistant", "content": message["content"]}
    if "tool_calls" in message:
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(message["tool_calls"])]
    head = {key: reply[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    first = {"index": 0, "delta": delta, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    return [{**head, "choices": [first]}, {**head, "choices": [last]}]


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    tools = body.get("tools") or []
    _check_tools(tools)
    items = body["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    calls = {item["call_id"] for item in items if item.get("type") == "function_call"}
    outputs = [item for item in items if item.get("type") == "function_call_output"]
    unknown = {item["call_id"] for item in outputs} - calls
    if unknown:
        raise ValueError(f"no tool call found for function call output {sorted(unknown)}")
    question = next(_text(i["content"]) for i in reversed(items) if i.get("role") == "user")
    text, call = _decide(question, tools, [item["output"] for item in outputs])
    if call is None:
        part = {"type": "output_text", "text": text, "annotations": []}
        output = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    else:
        output = {"type": "function_call", "id": "fc_1", "call_id": f"call_{len(items)}"}
        output |= {"name": call[0], "arguments": call[1]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": time.time(),
        "model": body["model"],
        "status": "completed",
        "output": [{**output, "status": "completed"}],
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


_ROUTES = {"/v1/chat/completions": _chat, "/v1/responses": _responses}


def _check_tools(tools: list[dict[str, Any]]) -> None:
    """Refuse a strict schema that the real service would refuse."""
    for tool in tools:
        if not tool.get("strict"):
            continue
        schema = tool["parameters"]
        fields = schema["properties"]
        if schema.get("additionalProperties") is not False or set(schema["required"]) != set(
            fields
        ):
            raise ValueError(f"invalid schema for function {tool['name']!r} in strict mode")
        unknown = set().union(schema, *fields.values()) - _STRICT_KEYWORDS
        if unknown:
            raise ValueError(f"strict mode does not permit {sorted(unknown)}")


def _decide(
    question: str, tools: list[dict[str, Any]], results: list[str]
) -> tuple[str | None, tuple[str, str] | None]:
    """Return a text, or the name and arguments of a call."""
    if results:
        hits = json.loads(results[-1]).get("hits", [])
        return _quote([(hit["id"], hit["text"]) for hit in hits]), None
    if tools:
        arguments: dict[str, Any] = {"description": _describe(question)}
        if "k" in tools[0]["parameters"].get("required", []):
            arguments["k"] = None
        return None, (tools[0]["name"], json.dumps(arguments))
    return _quote(re.findall(r"^\[(\w+)\] (.+)$", question, re.MULTILINE)), None


def _structured(schema: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return what descsim_tools.agents asks for: a plan, or an answer from sources."""
    if schema == "QuestionPlan":
        descriptions = [_describe(data["question"])]
        return {"kind": "search", "problem": "", "descriptions": descriptions}
    if schema == "TurnPlan":
        plan = {"kind": "search", "question": data["turn"], "reply": ""}
        return {**plan, "descriptions": [_describe(data["turn"])]}
    if schema == "Draft":
        quotes = [(s["text"], [{"source": s["id"], "quote": s["text"]}]) for s in data["sources"]]
        statements = [{"text": text, "quotes": quoted} for text, quoted in quotes[:2]]
        return {"found": bool(statements), "statements": statements}
    raise ValueError(f"the scripted model has no answer of the form {schema}")


def _describe(question: str) -> str:
    return next((text for word, text in DESCRIPTIONS.items() if word in question), question)


def _quote(sentences: list[tuple[str, str]]) -> str:
    if not sentences:
        return "I found nothing."
    return " ".join(f"{text} [{id_}]" for id_, text in sentences[:2])


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")
