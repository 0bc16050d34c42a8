import gzip
import json
import os
import subprocess
import sys

import pytest

from descsim_tools.cli import main
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def filled(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "store"
    code = main(
        [
            "index",
            str(ROOT / "examples/corpus.txt"),
            "--store",
            str(folder),
            "--encoder",
            str(tiny_folder),
            "--json",
        ]
    )
    assert code == 0
    return folder


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_index_reports_as_a_table(capsys, tiny_folder, tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "a first text"}\n{"text": "a second text"}\n{broken\n')
    code, out, err = run(
        capsys, "index", corpus, "--store", tmp_path / "s", "--encoder", tiny_folder
    )
    assert code == 0
    assert "encoded and stored" in out
    assert "set aside: row 3: no JSON" in err
    assert str(tmp_path / "s/rejects.jsonl") in err
    code, out, _ = run(
        capsys, "index", corpus, "--store", tmp_path / "s", "--encoder", tiny_folder, "--json"
    )
    report = json.loads(out)
    assert (report["encoded"], report["already_stored"], report["failed_rows"]) == (0, 2, 1)


def test_search_prints_a_table_or_json(capsys, filled, tiny_folder, corpus_lines):
    arguments = ["search", filled, corpus_lines[5], "-k", "3", "--encoder", tiny_folder]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert " ".join(corpus_lines[5].split()[:3]) in out
    code, out, _ = run(capsys, *arguments, "--json", "--exact")
    hits = json.loads(out)["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["text"] == corpus_lines[5]
    assert hits[0]["metadata"] == {"source": "corpus.txt", "line": 6}


def test_search_filters(capsys, filled, tiny_folder):
    arguments = ["search", filled, "a thing", "--encoder", tiny_folder, "--json"]
    _, out, _ = run(capsys, *arguments, "--where", '{"line": {"$lte": 3}}')
    assert sorted(hit["metadata"]["line"] for hit in json.loads(out)["hits"]) == [1, 2, 3]
    _, out, _ = run(capsys, *arguments[:-1], "--where", '{"line": -1}')
    assert out == "no sentence matches\n"


def test_markup_in_a_sentence_is_text(capsys, tiny_folder, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "a [bold]bracket[/bold] and [/] more"}\n')
    store = tmp_path / "s"
    assert (
        run(capsys, "index", tmp_path / "c.jsonl", "--store", store, "--encoder", tiny_folder)[0]
        == 0
    )
    _, out, _ = run(capsys, "search", store, "x", "--encoder", tiny_folder)
    assert "[bold]bracket[/bold] and [/] more" in out


def test_a_sentence_cannot_steer_the_terminal(capsys, tiny_folder, tmp_path):
    corpus, store = tmp_path / "c.jsonl", tmp_path / "s"
    text = "a \x1b[31mred\x1b]0;title\x07 \u202e crow " + "caw " * 2000
    corpus.write_text(json.dumps({"text": text}) + "\n")
    arguments = ["--encoder", tiny_folder]
    run(capsys, "index", corpus, "--store", store, "--on-long", "cut", *arguments)
    _, out, _ = run(capsys, "search", store, "x", *arguments)
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "\\x1b[31mred" in out
    assert "characters)" in out
    assert len(out) < 3000


def test_info(capsys, filled):
    code, out, _ = run(capsys, "info", filled, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["sentences"], facts["encoder"], facts["dimensions"]) == (912, "tiny-encoder", 32)
    _, out, _ = run(capsys, "info", filled)
    assert facts["fingerprint"] in "".join(out.split())


def test_encoders(capsys):
    _, out, _ = run(capsys, "encoders", "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows if row["default"]]
    code, out, _ = run(capsys, "encoders")
    assert code == 0
    assert "(default)" in out
    assert "[query]" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["search", "s"], 2, "Missing argument 'DESCRIPTION'"),
        (["search", "s", " "], 2, "the description is blank"),
        (["search", "s", "x", "-k", "0"], 2, "0 is not in the range x>=1"),
        (["search", "s", "x", "--where", "{"], 2, "--where is no JSON"),
        (["search", "s", "x", "--where", "[1]"], 2, "need an object"),
        (["search", "no-store", "x"], 1, "there is no store in no-store"),
        (["info", "no-store"], 1, "there is no store in no-store"),
        (["info", "http://127.0.0.1:9"], 1, "no Chroma server answers"),
        (["index", "nope.txt", "--store", "s"], 1, "there is no corpus nope.txt"),
        (["index", "c.txt"], 2, "Missing option '--store'"),
        (["index", "c.txt", "--store", "s", "--encoder", "nonsense"], 1, "no encoder 'nonsense'"),
        (["index", "c.txt", "--store", "s", "--encoder", "org/none"], 1, "HF_HUB_OFFLINE"),
        (["index", "c.txt", "--store", "s", "--description-encoder", "x"], 2, "needs --encoder"),
        (["index", "c.txt", "--store", "s", "--device", "foo"], 1, "cannot use the device 'foo'"),
        (["data", "stats", "cut.jsonl.gz"], 1, "cut.jsonl.gz is cut short or damaged"),
        (["data", "stats", "plain.jsonl.gz"], 1, "plain.jsonl.gz is cut short or damaged"),
        (["data", "stats", "latin.jsonl"], 1, "latin.jsonl is no UTF-8 text, near line 1"),
        (["data", "stats", "deep.jsonl"], 1, "deep.jsonl, line 1: JSON nested too deeply"),
        (["data", "stats", "."], 1, ". is a folder, need a training file"),
        (["eval", "deep.jsonl"], 1, "JSON nested too deeply"),
        (["index", "c.txt", "--store", "s", "--pooling", "mean"], 2, "--pooling needs --encoder"),
        (["index", "c.txt", "--store", "s", "--on-long", "drop"], 2, "'drop' is not one of"),
    ],
)
def test_errors_say_what_to_do_in_few_lines(
    arguments, code, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("one two three four five six\n")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(os.urandom(500).hex().encode())[:200])
    (tmp_path / "plain.jsonl.gz").write_text("{}")
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe9"}\n')
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    got, out, err = run(capsys, *arguments)
    assert got == code
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= (4 if code == 2 else 2)
    assert not (tmp_path / "s").exists()


def test_debug_shows_the_traceback(capsys):
    from descsim_tools.errors import StoreError

    with pytest.raises(StoreError):
        main(["--debug", "info", "no-store"])


def test_an_unexpected_error_is_one_line_and_a_hint(capsys, filled, monkeypatch):
    from descsim_tools.store import Store

    monkeypatch.setattr(Store, "count", lambda self: 1 / 0)
    code, _, err = run(capsys, "info", filled)
    assert code == 1
    assert "unexpected ZeroDivisionError" in err
    assert "--debug" in err
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "info", str(filled)])


def test_an_interrupt_says_how_to_go_on_where_one_can(capsys, filled, monkeypatch, tmp_path):
    from descsim_tools.store import Store

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "count", interrupt)
    code, _, err = run(capsys, "info", filled)
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    monkeypatch.setattr("descsim_tools.index_builder.open_corpus", interrupt)
    (tmp_path / "c.txt").write_text("a line\n")
    code, _, err = run(capsys, "index", tmp_path / "c.txt", "--store", tmp_path / "s")
    assert code == 130
    assert err.endswith("interrupted; the same command goes on where this one stopped\n")


@pytest.mark.parametrize("command", ["index", "search", "info", "encoders"])
def test_every_command_has_an_example(command, capsys):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"Example:\n    descsim {command}" in out


def test_a_pair_by_two_names(capsys, tokenizer, tmp_path):
    from tests.tiny import save_transformer

    save_transformer(tmp_path / "q", tokenizer, seed=1)
    save_transformer(tmp_path / "s", tokenizer, seed=2)
    (tmp_path / "c.txt").write_text("one two three four five six\nseven eight nine ten one two\n")
    pair = ["--encoder", tmp_path / "s", "--description-encoder", tmp_path / "q"]
    pair += ["--pooling", "mean-without-first"]
    store = tmp_path / "store"
    assert run(capsys, "index", tmp_path / "c.txt", "--store", store, *pair)[0] == 0
    code, out, _ = run(capsys, "search", store, "numbers", *pair, "--json")
    assert code == 0
    assert len(json.loads(out)["hits"]) == 2
    _, out, _ = run(capsys, "info", store, "--json")
    assert json.loads(out)["sides"] == "pair"
    mirrored = ["--encoder", tmp_path / "q", "--description-encoder", tmp_path / "s"]
    mirrored += ["--pooling", "mean-without-first"]
    code, _, err = run(capsys, "search", store, "numbers", *mirrored)
    assert code == 1
    assert "was filled with encoder 'q + s'" in err


BLOCKED = """
import socket, sys
def refuse(self, address, *args):
    raise AssertionError(f"tried to connect to {address}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from descsim_tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_a_network_all_works_and_stderr_is_clean(tmp_path):
    """The real default encoder, in processes of their own, every connection refused."""
    corpus = tmp_path / "c.txt"
    corpus.write_text("Vervet monkeys on Saint Kitts steal cocktails from tourists on the beach.\n")
    store = tmp_path / "s"
    for arguments in (
        ["index", corpus, "--store", store],
        ["search", store, "substance abuse in animals"],
        ["info", store],
    ):
        environment = {k: v for k, v in os.environ.items() if not k.endswith("OFFLINE")}
        result = subprocess.run(
            [sys.executable, "-c", BLOCKED, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert result.returncode == 0, result.stderr
        lines = [line for line in result.stderr.splitlines() if not line.startswith("encoding ")]
        assert lines == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.txt", "s"]
