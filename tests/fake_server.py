"""A small HTTP server that speaks the completions API over a real model, and fails on demand."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


@torch.no_grad()
def true_log_probs(model, ids):
    logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [None, *(logits[i, token].item() for i, token in enumerate(ids[1:]))]


class Behaviour:
    """What the server does; tests change it.

    Attributes:
        dialects: Which of `echo` and `vllm` it understands; it ignores the other's fields.
        fault: Name of a fault in every answer, or None.
        failures: Answers to give before good ones: a status, "drop", "hang" or "trickle".
        requests: Bodies received.
        keys: Authorization headers received.
        most_at_once: Most requests that were under way together.
    """

    def __init__(self, model):
        self.model = model
        self.dialects = {"echo", "vllm"}
        self.fault = None
        self.failures = []
        self.requests = []
        self.keys = []
        self.delay = 0.0
        self.under_way = self.most_at_once = 0
        self.lock = threading.Lock()
        self.released = threading.Event()

    def choice(self, body):
        ids = body["prompt"]
        values = true_log_probs(self.model, ids)
        values = {
            "constant": [None] + [-1.5] * (len(ids) - 1),
            "few": values[:-2],
            "many": [*values, -1.0, -1.0],
            "reversed": [None, *(-60 - v for v in values[1:])],
            "positive": [None, *(-v for v in values[1:])],
            "null": [None] * len(ids),
            "text": ["x"] * len(ids),
        }.get(self.fault, values)
        if "echo" in self.dialects and body.get("echo") and "logprobs" in body:
            tokens = body["max_tokens"]
            return {"text": "", "logprobs": {"token_logprobs": [*values, *[-0.5] * tokens]}}
        if "vllm" in self.dialects and "prompt_logprobs" in body:
            entries = [
                None if value is None else {str(token): {"logprob": value}, "0": {"logprob": -0.1}}
                for value, token in zip(values, [*ids, 0, 0], strict=False)
            ]
            return {"text": "", "prompt_logprobs": entries}
        return {"text": "", "logprobs": None}


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def log_message(self, *args):
        pass

    def do_POST(self):
        with self.behaviour.lock:
            self.behaviour.under_way += 1
            self.behaviour.most_at_once = max(self.behaviour.most_at_once, self.behaviour.under_way)
        try:
            self.answer()
        except BrokenPipeError:
            pass  # the client gave up waiting, as it should
        finally:
            with self.behaviour.lock:
                self.behaviour.under_way -= 1

    def answer(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.behaviour.lock:
            self.behaviour.requests.append(body)
            self.behaviour.keys.append(self.headers.get("Authorization"))
            failure = self.behaviour.failures.pop(0) if self.behaviour.failures else None
        time.sleep(self.behaviour.delay)
        if failure == "drop":
            self.connection.close()
        elif failure == "hang":
            self.behaviour.released.wait(20)
        elif failure == "trickle":
            self.send(200, None)
            while not self.behaviour.released.wait(0.05):
                self.wfile.write(b" ")
                self.wfile.flush()
        elif failure is not None:
            self.send(failure, b'{"error": {"message": "on demand"}}')
        elif self.behaviour.fault == "no json":
            self.send(200, b"<html>")
        elif self.path != "/v1/completions":
            self.send(404, b"no such path")
        else:
            self.send(200, json.dumps({"choices": [self.behaviour.choice(body)]}).encode())

    def send(self, status, content):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if content is not None:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if content is not None:
            self.wfile.write(content)


@contextmanager
def serve(behaviour):
    """Serve on loopback and yield the API's base URL."""

    handler = type("BoundHandler", (Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        behaviour.released.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
