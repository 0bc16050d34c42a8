"""`descsim chat` as a process, over a real store and a scripted server."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from descsim_tools import fill
from descsim_tools.cli import main
from tests.answering import DRUNK, draft, source_id, statement, turn
from tests.fake_llm import FakeServer, Reply, by_schema, error

HOSTILE = "A sign says [bold]look[/bold] \x1b[31mred\x1b]0;owned\x07 in \u202ethe bar [/]."
SEARCH = turn("an intoxicated animal", question="Which animals get drunk?")
FREE = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}


@pytest.fixture(scope="module")
def store(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bar") / "store"
    rows = [{"text": text, "id": f"row{n}", "year": 2000 + n} for n, text in enumerate(DRUNK)]
    fill([*rows, {"text": HOSTILE, "id": "row4"}], folder, encoder=str(tiny_folder))
    return [folder, "--encoder", tiny_folder]


def command(*arguments):
    return [sys.executable, "-m", "descsim_tools", "chat", *map(str, arguments)]


def environment(**variables):
    return {**{k: v for k, v in os.environ.items() if k not in FREE}, "COLUMNS": "80", **variables}


@pytest.fixture
def run_here(capsys, monkeypatch):
    """Run it in this process, which is faster, and return code, output and errors."""
    for name in FREE:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main(["chat", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def run(*arguments, typed="", **variables):
    return subprocess.run(
        command(*arguments),
        input=typed,
        capture_output=True,
        text=True,
        env=environment(**variables),
    )


def elk(data):
    return draft(statement("An elk did.", (source_id(data, "elk"), "fermenting apples")))


def test_a_conversation_in_the_terminal(store):
    script = by_schema(TurnPlan=[SEARCH, turn(kind="talk", reply="Bye!"), SEARCH], Draft=elk)
    question, more = "Which animals get drunk?", ["thanks", "/sources", "/reset", "/sources"]
    typed = "\n".join(["/help", question, "/sources", "", *more, "/what", "Again?", ""])
    with FakeServer(script) as server:
        result = run(*store, "--llm", "m", "--base-url", server.url, typed=typed)
        last = server.seen[-1] if server.seen[-1].schema == "TurnPlan" else server.seen[-2]
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    out = result.stdout
    assert "Ctrl-D    end" in out
    assert "searching: an intoxicated animal" in out
    assert 'An elk did. [1]\n  [1] "fermenting apples" (row1)\n' in out
    assert out.count(f"[1] {DRUNK[1]}\n") == 2
    assert '"year": 2001' in out
    assert out.count("Bye!") == 1
    assert out.count("nothing was cited yet") == 1
    assert "there is no /what" in out
    assert last.data == {"conversation": [], "turn": "Again?"}
    assert {seen.body["model"] for seen in server.seen} == {"m"}


def test_the_corpus_cannot_steer_the_terminal(store):
    def quote(data):
        source = next(s for s in data["sources"] if "sign" in s["text"])
        return draft(statement("It \x1b[31msays [red]so[/red].", (source["id"], source["text"])))

    with FakeServer(by_schema(TurnPlan=SEARCH, Draft=quote)) as server:
        typed = "What does the sign say?\n/sources\n"
        result = run(*store, "--llm", "m", "--base-url", server.url, typed=typed)
    assert result.returncode == 0, result.stderr
    assert all(c.isprintable() or c == "\n" for c in result.stdout)
    assert "It [31msays [red]so[/red]. [1]" in result.stdout
    assert "[bold]look[/bold] \\x1b[31mred" in result.stdout


def test_once_prints_json(store):
    with FakeServer(by_schema(TurnPlan=SEARCH, Draft=elk)) as server:
        service = {"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "m", "OPENAI_API_KEY": "k-1"}
        result = run(*store, "--once", "Which?", "--json", **service)
        assert server.seen[0].headers["authorization"] == "Bearer k-1"
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["status"] == "answered"
    assert answer["citations"][0]["text"] == DRUNK[1]
    assert answer["requests"] == 2


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [(Reply("nonsense"), 1, "no answer"), (draft(found=False), 0, "not in the corpus")],
)
def test_exit_codes_of_once(store, run_here, fault, code, status):
    with FakeServer(by_schema(TurnPlan=SEARCH, Draft=fault)) as server:
        service = ["--llm", "m", "--base-url", server.url]
        got, out, err = run_here(*store, *service, "--once", "Which?", "--json")
    assert got == code, err
    assert json.loads(out)["status"] == status


def test_the_exit_code_tells_that_the_budget_ended_a_correction(store, run_here):
    wrong = draft(statement("Cats drink.", ("s1", "cats drink milk")))
    big = Reply(json.dumps(wrong), usage=(10**30, 10**30))
    # Two requests fit, and the third one does not.
    prices = ["--price-in", 0, "--price-out", 1000, "--max-tokens", 100, "--budget", 0.15]
    with FakeServer(by_schema(TurnPlan=SEARCH, Draft=big)) as server:
        arguments = ["--llm", "m", "--base-url", server.url, *prices, "--once", "Which?"]
        code, out, err = run_here(*store, *arguments)
        assert [seen.body["max_tokens"] for seen in server.seen] == [100, 100]
    assert code == 3, err
    assert "The budget does not allow another request." in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_line_that_is_no_utf_8_is_refused_and_the_next_one_read(store, encoding):
    script = by_schema(TurnPlan=turn(kind="talk", reply="Hello!"))
    with FakeServer(script) as server:
        result = subprocess.run(
            command(*store, "--llm", "m", "--base-url", server.url),
            input=b"caf\xe9 drunk?\nhi\n",
            capture_output=True,
            env=environment(PYTHONIOENCODING=encoding),
        )
        assert [seen.data["turn"] for seen in server.seen] == ["hi"]
    assert result.returncode == 0
    assert b"descsim: the question is not valid UTF-8 text: '\\udce9'" in result.stderr
    assert b"Hello!" in result.stdout


def test_a_question_of_once_that_is_no_utf_8_is_refused(store, run_here):
    with FakeServer(by_schema()) as server:
        service = ["--llm", "m", "--base-url", server.url]
        code, out, err = run_here(*store, *service, "--once", "caf\udce9 drunk?", "--json")
        assert server.seen == []
    assert (code, out) == (1, "")
    assert "the question is not valid UTF-8 text" in err


def test_halves_of_characters_can_be_printed(store, run_here):
    script = by_schema(TurnPlan=turn(kind="talk", reply="Hm \ud800."))
    with FakeServer(script) as server:
        service = ["--llm", "m", "--base-url", server.url]
        code, out, err = run_here(*store, *service, "--once", "hi", "--json")
    assert code == 0, err
    assert json.loads(out)["text"] == "Hm \ufffd."


@pytest.mark.parametrize("once", [True, False])
def test_the_exit_code_tells_that_the_budget_ended_it(store, run_here, once):
    prices = ["--price-in", 1, "--price-out", 1, "--budget", 0.000001]
    with FakeServer(by_schema()) as server:
        asked = ["--once", "Which?"] if once else []
        arguments = ["--llm", "m", "--base-url", server.url, *prices, *asked]
        code, out, err = run_here(*store, *arguments, typed="Which?\nAnd then?\n")
        assert server.seen == []
    assert code == 3, err
    assert out.count("The budget does not allow another request.") == 1


def test_a_refused_key_ends_a_turn_and_not_the_conversation(store, run_here):
    with FakeServer(lambda seen, n: error(401, "wrong key")) as server:
        service = ["--llm", "m", "--base-url", server.url]
        code, out, err = run_here(*store, *service, typed="Which?\n/help\n")
    assert code == 0
    assert "refuses the key" in err
    assert "/sources" in out


def test_an_interrupt_ends_it(store):
    with FakeServer(lambda seen, n: Reply("x", delay=60)) as server:
        process = subprocess.Popen(
            command(*store, "--llm", "m", "--base-url", server.url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            # a child of a job in the background would ignore it
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        process.stdin.write("Which?\n")
        process.stdin.flush()
        server.wait_for(1, seconds=300)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert stderr == "interrupted\n"


def test_at_a_terminal_an_interrupt_ends_the_answer_first_and_then_the_chat(store):
    script = by_schema(TurnPlan=[Reply("x", delay=60), turn(kind="talk", reply="Hello!")])
    ours, theirs = os.openpty()
    with FakeServer(script) as server:
        process = subprocess.Popen(
            command(*store, "--llm", "m", "--base-url", server.url),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.write(ours, b"Which?\n")
        server.wait_for(1, seconds=300)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("interrupted; Ctrl-C where a question")
        os.write(ours, b"hi\n")
        while "Hello!" not in process.stdout.readline():
            assert process.poll() is None
        for _ in range(5):  # the first may still come within the answer
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
                break
        _, stderr = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["s"], 2, "OPENAI_API_KEY=... descsim chat my-store --llm gpt-5-mini"),
        (["s", "--llm", "m"], 2, "--base-url http://localhost:8000/v1"),
        (
            ["s", "--llm", "m"],
            2,
            "neither a server nor a key is named for the language model 'm'; take one of a service",
        ),
        (["s", "--base-url", "http://127.0.0.1:9/v1"], 2, "no language model is named"),
        (["s", "--json"], 2, "--json needs --once"),
        (["s", "--once", ""], 2, "the question of --once is blank"),
        (["s", "--once", " \n"], 2, "the question of --once is blank"),
        (["s", "--max-tokens", "0"], 2, "--max-tokens"),
        (["s", "--llm", "m", "--base-url", "ftp://host/v1"], 1, "is no URL of a server"),
        (["s", "--budget", "1"], 2, "--budget needs --price-in and --price-out"),
        (["s", "--price-in", "1"], 2, "need each other"),
        (["no-store", "--llm", "m", "--base-url", "http://127.0.0.1:9/v1"], 1, "there is no store"),
    ],
)
def test_errors_say_what_to_do(arguments, code, message, run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, out, err = run_here(*arguments)
    assert got == code
    assert out == ""
    assert message in err
