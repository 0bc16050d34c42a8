"""A scripted OpenAI-compatible server on loopback: real HTTP, every way of failing."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server does with a request.

    `body` None makes a chat completion of `content` and the rest.
    """

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    finish_reason: str = "stop"
    message: dict[str, Any] = field(default_factory=dict)
    usage: tuple[int, int] | None = (10, 5)
    delay: float = 0.0
    drop: bool = False
    drop_in_body: bool = False
    drip: float = 0.0


def error(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> Reply:
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return Reply(status=status, body=body, headers=headers or {})


@dataclass
class Seen:
    at: float
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def text(self) -> str:
        return self.body["messages"][-1]["content"]

    @property
    def schema(self) -> str:
        """Name of the schema that is asked for."""
        return self.body["response_format"]["json_schema"]["name"]

    @property
    def data(self) -> Any:
        """The user's message, read as JSON."""
        return json.loads(self.body["messages"][1]["content"])

    @property
    def output(self) -> str:
        return self.body.get("response_format", {}).get("type", "text")


Script = Callable[[Seen, int], Reply]


def by_schema(**replies: Any) -> Script:
    """Answer by the name of the schema that is asked for.

    A reply is an object, a `Reply`, a function of the JSON that was sent, or a list of these, of
    which the last one is given for ever.
    """
    asked: dict[str, int] = {}

    def script(seen: Seen, number: int) -> Reply:
        reply = replies[seen.schema]
        if isinstance(reply, list):
            turn = asked[seen.schema] = asked.get(seen.schema, -1) + 1
            reply = reply[min(turn, len(reply) - 1)]
        if callable(reply):
            reply = reply(seen.data)
        return reply if isinstance(reply, Reply) else Reply(json.dumps(reply))

    return script


class FakeServer:
    """Answers with what the script returns for a request and its number, from 0."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                seen = Seen(time.monotonic(), body, {k.lower(): v for k, v in self.headers.items()})
                with outer._lock:
                    number = len(outer.seen)
                    outer.seen.append(seen)
                    outer._now += 1
                    outer.most_at_once = max(outer.most_at_once, outer._now)
                try:
                    outer._answer(self, outer.script(seen, number))
                finally:
                    with outer._lock:
                        outer._now -= 1

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, count: int, seconds: float = 20) -> None:
        limit = time.monotonic() + seconds
        while len(self.seen) < count:
            assert time.monotonic() < limit, f"{len(self.seen)} requests came, expected {count}"
            time.sleep(0.02)

    def _answer(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.delay and self._stop.wait(reply.delay):
            return
        if reply.drop:
            _reset(handler)
            return
        body = reply.body if reply.body is not None else _completion(reply)
        try:
            handler.send_response(reply.status)
            for name, value in reply.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            if reply.drop_in_body:
                handler.wfile.write(body[: len(body) // 2])
                handler.wfile.flush()
                _reset(handler)
                return
            if reply.drip:
                for byte in body:
                    handler.wfile.write(bytes([byte]))
                    handler.wfile.flush()
                    if self._stop.wait(reply.drip):
                        return
                return
            handler.wfile.write(body)
        except OSError:  # the client has gone, as some tests want
            handler.close_connection = True


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """Drop the connection as a crashed server does."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()
    handler.close_connection = True
    handler.wfile = open("/dev/null", "wb")  # which the base class flushes and closes


def _completion(reply: Reply) -> bytes:
    payload: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "fake-model",
        "choices": [
            {
                "index": 0,
                "finish_reason": reply.finish_reason,
                "message": {"role": "assistant", "content": reply.content, **reply.message},
            }
        ],
    }
    if reply.usage is not None:
        tokens_in, tokens_out = reply.usage
        payload["usage"] = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
    return json.dumps(payload).encode()
