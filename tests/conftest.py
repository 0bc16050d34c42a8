"""Fixtures: a tiny seeded encoder, the demo corpus, and data that may lie beside the project."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from descsim_tools import DescriptionEncoder, DescriptionIndex, fill
from tests.answering import DRUNK
from tests.fake_llm import FakeServer, by_schema
from tests.local_server import TEMPLATE, served
from tests.tiny import (
    gpt2_lm,
    save_cross_encoder,
    save_sentence_transformer,
    train_bytelevel,
    train_wordpiece,
)

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def pytest_configure() -> None:
    torch.set_num_threads(2)
    # Subprocesses of the tests must find the coverage-free, installed package alone.
    sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def corpus_lines() -> list[str]:
    return (ROOT / "examples/corpus.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def tokenizer(corpus_lines, tmp_path_factory):
    return train_wordpiece(corpus_lines, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tiny_folder(tokenizer, tmp_path_factory) -> Path:
    """A sentence-transformers folder: BERT with random weights, 2 layers, 32 dimensions."""
    folder = tmp_path_factory.mktemp("models") / "tiny-encoder"
    save_sentence_transformer(folder, tokenizer, seed=0)
    return folder


@pytest.fixture(scope="session")
def other_folder(tokenizer, tmp_path_factory) -> Path:
    """The same architecture and size with other weights."""
    folder = tmp_path_factory.mktemp("models") / "other-encoder"
    save_sentence_transformer(folder, tokenizer, seed=1)
    return folder


@pytest.fixture(scope="session")
def tiny_cross_folder(tokenizer, tmp_path_factory) -> Path:
    """A cross-encoder with random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny-cross"
    save_cross_encoder(folder, tokenizer, seed=0)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder) -> DescriptionEncoder:
    return DescriptionEncoder.load(tiny_folder, device="cpu")


@pytest.fixture(scope="session")
def tiny_lm_folder(corpus_lines, tmp_path_factory) -> Path:
    """A GPT-2 causal language model with random weights and a tokenizer without a pad token."""
    folder = tmp_path_factory.mktemp("models") / "tiny-lm"
    tokenizer = train_bytelevel(corpus_lines)
    gpt2_lm(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def default_encoder() -> DescriptionEncoder:
    return DescriptionEncoder.load(device="cpu")


@pytest.fixture(scope="session")
def tiny_store(tiny, tmp_path_factory) -> Path:
    """The demo corpus in the tiny encoder's store; tests only read it."""
    folder = tmp_path_factory.mktemp("stores") / "tiny"
    fill(ROOT / "examples/corpus.txt", folder, encoder=tiny)
    return folder


@pytest.fixture
def tiny_index(tiny_store, tiny) -> Iterator[DescriptionIndex]:
    with DescriptionIndex.open(tiny_store, encoder=tiny) as index:
        yield index


@pytest.fixture(scope="session")
def demo_store(default_encoder, tmp_path_factory) -> Path:
    """The demo corpus in the default encoder's store; tests only read it."""
    folder = tmp_path_factory.mktemp("stores") / "demo"
    fill(ROOT / "examples/corpus.txt", folder, encoder=default_encoder)
    return folder


@pytest.fixture
def real_index(demo_store, default_encoder) -> Iterator[DescriptionIndex]:
    with DescriptionIndex.open(demo_store, encoder=default_encoder) as index:
        yield index


@pytest.fixture(scope="session")
def shared() -> Path:
    """Data that is never committed; it lies beside the project where it exists."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the data in {SHARED.name}/ beside the project, which is not here")
    return SHARED


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to connect anywhere fails the test."""

    def refuse(self, address, *args):
        raise AssertionError(f"tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def chroma_server(tmp_path_factory) -> Iterator[str]:
    """URL of a real Chroma server on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    command = [
        str(Path(sys.executable).parent / "chroma"),
        *("run", "--host", "127.0.0.1", "--port", str(port), "--path", str(folder)),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"the Chroma server does not answer: {(folder / 'log').read_text()}")
        if process.poll() is not None:
            pytest.fail(f"the Chroma server ended: {(folder / 'log').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def tiny_server(corpus_lines, tmp_path_factory):
    """URL and name of a GPT-2 of random weights behind `transformers serve`."""
    folder = tmp_path_factory.mktemp("served")
    tokenizer = train_bytelevel(corpus_lines, max_length=2048)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    gpt2_lm(len(tokenizer), positions=2048).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with served(folder / "model", folder) as url:
        yield url, str(folder / "model")


@pytest.fixture
def serve():
    """Start scripted servers that end with the test."""
    with ExitStack() as servers:

        def start(script=None, **replies):
            return servers.enter_context(FakeServer(script or by_schema(**replies)))

        yield start


@pytest.fixture(scope="module")
def bar_store(tiny, tmp_path_factory):
    """Four sentences, so that each search finds all."""
    folder = tmp_path_factory.mktemp("bar") / "store"
    rows = [{"text": text, "id": f"row{n}", "year": 2000 + n} for n, text in enumerate(DRUNK)]
    fill(rows, folder, encoder=tiny)
    return folder


@pytest.fixture
def bar(bar_store, tiny):
    with DescriptionIndex.open(bar_store, encoder=tiny) as index:
        yield index
