import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_the_demo_runs_and_shows_six_descriptions(tmp_path):
    result = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py", tmp_path / "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "912 sentences" in result.stdout
    assert result.stdout.count("plain similarity") == 6
    assert "substance abuse in animals" in result.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, demo_store):
    """A folder in which the examples find their store filled."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(demo_store, folder / "demo-store/examples")
    return folder


def run_example(name, *arguments, cwd, **variables):
    blocked = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}
    environment = {k: v for k, v in os.environ.items() if k not in blocked}
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**environment, **variables},
        input="",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ["rag_langchain.py", "rag_llama_index.py"])
def test_rag_answers_with_citations(name, workplace, corpus_lines):
    output = run_example(name, "a work of art being stolen", cwd=workplace)
    sources = dict(re.findall(r"^  \[(\d)\] (.+) \(id \w+\)$", output, re.MULTILINE))
    assert set(sources) == {"1", "2"}
    assert set(sources.values()) <= set(corpus_lines)
    assert "".join(f"{text} [{number}] " for number, text in sources.items()).strip() in output


def test_agents_of_both_libraries_use_the_tool(workplace, corpus_lines):
    output = run_example("agents.py", cwd=workplace)
    langchain, llama_index = (line.split(": ", 1)[1] for line in output.splitlines())
    assert langchain == llama_index
    assert re.split(r" \[\w+\] ?", langchain)[0] in corpus_lines


def test_the_chatbot_resolves_its_citations(workplace, corpus_lines):
    questions = ["Which discoveries were made by accident?", "And was there a recall?"]
    output = run_example("chatbot.py", *questions, cwd=workplace)
    turns = output.split("> ")[1:]
    assert [turn.splitlines()[0] for turn in turns] == questions
    for turn in turns:
        sources = dict(re.findall(r"^  \[(\d)\] (.+) \(id \w+\)$", turn, re.MULTILINE))
        assert set(sources) == {"1", "2"}
        assert set(sources.values()) <= set(corpus_lines)
        assert "not found" not in turn


def test_examples_talk_to_the_model_of_the_environment(workplace, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from scripted_model import ScriptedModel

    with ScriptedModel() as server:
        variables = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "mine"}
        run_example("chatbot.py", "Who went into exile?", cwd=workplace, **variables)
    assert [body["model"] for _, body in server.requests] == ["mine", "mine"]


def test_the_corpus_is_what_the_readme_says(corpus_lines):
    assert len(corpus_lines) == len(set(corpus_lines)) == 912
    assert all(8 <= len(line.split()) <= 35 for line in corpus_lines)


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from scripted_model import ScriptedModel

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 7
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with ScriptedModel() as model:
        service = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "PATH": path}
        for block in blocks:
            result = subprocess.run(
                [sys.executable, "-c", block],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env={**os.environ, **service},
            )
            assert result.returncode == 0, result.stderr
            assert result.stdout
    assert len(model.requests) == 6


def test_the_readme_shows_an_integration_in_ten_lines():
    text = (ROOT / "README.md").read_text().split("## With other libraries")[1]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    assert all(len([line for line in b.splitlines() if line.strip()]) <= 10 for b in blocks)


def test_the_readme_shows_the_two_commands_first():
    first_screen = "".join((ROOT / "README.md").read_text().splitlines(keepends=True)[:25])
    assert "make demo" in first_screen
    assert "make test" in first_screen
