import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from descsim_tools.cli import main
from descsim_tools.datagen.formats import EvalQuery, Group, PaperRecord, parse_item, read_items
from descsim_tools.datagen.generate import generate, open_llm
from descsim_tools.datagen.prompts import PROMPTS
from descsim_tools.datagen.recipes import (
    SHAPES,
    AbstractRecipe,
    DescriptionsRecipe,
    GroupsRecipe,
    SentencesRecipe,
)
from descsim_tools.errors import CorpusError, DataError
from descsim_tools.llm import Budget, NoAnswerError, NoModelError
from tests.fake_llm import FakeServer, Reply, error

SENTENCES = [
    f"In the year {1900 + i} the engineer Ilka Brandt built bridge number {i} over the river."
    for i in range(12)
]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


@pytest.fixture
def serve():
    running = []

    def start(script):
        running.append(FakeServer(script))
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def field(seen, name):
    return re.findall(rf"^{name}: (.*)$", seen.text, re.MULTILINE)[-1]


def obey(seen, number=0):
    """Answer every prompt as asked."""
    text = seen.text
    if '"good" and "bad"' in text:
        about = field(seen, "Sentence").split("number ")[1].split()[0]
        good = [f"work of kind {k} on a crossing, case {about}" for k in range(5)]
        bad = [f"ruin of kind {k} of a crossing, case {about}" for k in range(5)]
        return Reply(json.dumps({"good": good, "bad": bad}), usage=(100, 50))
    if '"abstract"' in text:
        return Reply(json.dumps({"abstract": [f"a thing {k} is made" for k in range(3)]}))
    if '"twin"' in text:
        return Reply(json.dumps({"twin": f"not {field(seen, 'Description')}"}))
    if '"sentences": a list' in text:
        about = field(seen, "Description")
        return Reply(json.dumps({"sentences": [f"Case {k} of {about}." for k in range(12)]}))
    counts = re.search(
        r"group of (\d) sibling .* cluster is (\w+) .* and (\d) desc", text, re.DOTALL
    )
    clusters, sentences, descriptions = (int(c) if c.isdigit() else 1 for c in counts.groups())
    made = [
        {
            "sentences": [f"Sentence {s} of {c}." for s in range(sentences)],
            "descriptions": [f"description {d} of {c}" for d in range(descriptions)],
        }
        for c in range(clusters)
    ]
    return Reply(json.dumps({"domain": " bridges ", "clusters": made}))


def client(server, out, **settings):
    settings = {"timeout": 5.0, **settings}
    return open_llm(out, "fake-model", base_url=server.url, **settings)


def run(server, recipe, corpus, out, *, limit=None, min_words=None, **settings):
    with client(server, out, **settings) as llm:
        return generate(recipe, corpus, out, llm, limit=limit, min_words=min_words)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_descriptions(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    report = run(server, DescriptionsRecipe(), corpus, out)
    records = lines(out / "records.jsonl")
    assert [record["sentence"] for record in records] == SENTENCES
    assert all(set(record) == {"sentence", "good", "bad"} for record in records)
    assert records[3]["good"][0] == "work of kind 0 on a crossing, case 3"
    assert len(records[3]["good"]) == len(records[3]["bad"]) == 5
    assert (report.rows, report.sources, report.written, report.requests) == (12, 12, 12, 12)
    assert (report.tokens_in, report.tokens_out) == (1200, 600)
    assert report.complete
    assert report.rejects is None
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [
        "answers.sqlite",
        "manifest.json",
        "records.jsonl",
        "transcript.jsonl",
    ]
    assert isinstance(read_items(out / "records.jsonl")[0][0][1], PaperRecord)


def test_the_manifest_says_what_made_the_data(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    run(server, DescriptionsRecipe(), corpus, out, temperature=0.3, api_key="sk-very-secret")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["model"] == "fake-model"
    assert manifest["server"] == server.url
    assert manifest["settings"] == {"max_tokens": 2048, "temperature": 0.3}
    assert manifest["recipe"] == {"name": "descriptions"}
    prompt = PROMPTS["descriptions"]
    assert manifest["prompts"] == {"descriptions": {"version": 1, "digest": prompt.digest}}
    assert manifest["written"] == 12
    assert manifest["complete"] is True
    assert manifest["tokens_in"] == 1200
    for path in out.iterdir():
        assert b"sk-very-secret" not in path.read_bytes()


def test_prompts_are_versioned():
    """Whoever changes a prompt raises its version, and notes its new digest here."""
    assert {(p.name, p.version): p.digest for p in PROMPTS.values()} == DIGESTS


DIGESTS = {
    ("descriptions", 1): "6e7ddba74c0f",
    ("abstract", 1): "5154690f9a90",
    ("sentences", 1): "4f2f88d856b9",
    ("twin", 1): "4a6458847381",
    ("group", 1): "48ba7ec4086c",
}


def test_rows_are_accounted_for(serve, tmp_path):
    rows = [
        {"text": SENTENCES[0]},
        {"text": f"  {SENTENCES[0].upper()} "},
        {"text": "too short"},
        {"text": ""},
        {"other": 1},
        {"text": SENTENCES[1]},
    ]
    corpus, out = tmp_path / "c.jsonl", tmp_path / "out"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    report = run(serve(obey), DescriptionsRecipe(), corpus, out)
    assert (report.rows, report.blank_rows, report.failed_rows, report.sources) == (7, 1, 2, 4)
    assert (report.duplicates, report.short, report.written) == (1, 1, 2)
    assert report.sources == report.duplicates + report.short + report.written
    assert [(r["row"], r["kind"]) for r in lines(out / "rejects.jsonl")] == [
        (5, "unreadable"),
        (7, "unreadable"),
    ]


def test_a_folder_is_split_into_sentences(serve, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text(f"{SENTENCES[0]} {SENTENCES[1]}")
    report = run(serve(obey), DescriptionsRecipe(), folder, tmp_path / "out")
    assert (report.rows, report.written) == (1, 2)


def test_bad_answers_are_rejected_by_kind(serve, corpus, tmp_path):
    few = {"good": ["same"] * 5, "bad": list("abcde")}
    both = {"good": list("abcde"), "bad": list("Abcde")}
    special = {
        1: Reply("half of i", finish_reason="length"),
        2: Reply(None, message={"refusal": "I will not"}),
        3: Reply(""),
        4: Reply("no JSON at all"),
        5: Reply(json.dumps(few)),
        6: Reply(json.dumps(both)),
        7: error(400, "the prompt is not allowed"),
        8: error(500, "cannot think of that"),
    }

    def script(seen, number):
        sentence = next(m["content"] for m in seen.body["messages"] if m["role"] == "user")
        about = int(sentence.split("bridge number ")[1].split()[0])
        return special.get(about) or obey(seen)

    server, out = serve(script), tmp_path / "out"
    report = run(server, DescriptionsRecipe(), corpus, out, attempts=2)
    assert report.written == 4
    assert report.rejected == {
        "cut": 1,
        "refusal": 1,
        "empty": 1,
        "invalid": 3,
        "refused": 1,
        "unanswered": 1,
    }
    assert report.complete
    assert report.sources == report.written + sum(report.rejected.values())
    rejects = lines(out / "rejects.jsonl")
    assert [reject["row"] for reject in rejects] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert "raise max_tokens" in rejects[0]["reason"]
    assert rejects[3]["wrote"] == "no JSON at all"
    assert "only 1 of 5 good descriptions are new" in rejects[4]["reason"]
    assert "only 0 of 5 misleading descriptions are new" in rejects[5]["reason"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["rejected"]["refusal"] == 1
    # Asked again are those without an answer in form.
    server.seen.clear()
    special.pop(8)
    again = run(server, DescriptionsRecipe(), corpus, out, attempts=2)
    assert again.written == 5
    sentences = [s.body["messages"][1]["content"] for s in server.seen]
    assert {int(s.split("bridge number ")[1].split()[0]) for s in sentences} == {1, 2, 3, 4, 7, 8}


def test_a_second_run_asks_nothing(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    first = run(server, DescriptionsRecipe(), corpus, out)
    before = (out / "records.jsonl").read_bytes()
    second = run(server, DescriptionsRecipe(), corpus, out)
    assert len(server.seen) == 12
    assert (out / "records.jsonl").read_bytes() == before
    assert (second.requests, second.tokens_in) == (first.requests, first.tokens_in)


@pytest.mark.parametrize("requests", [0, 1, 7])
def test_a_budget_ends_in_order_and_more_goes_on(serve, corpus, tmp_path, requests):
    server, out = serve(obey), tmp_path / "out"
    report = run(server, DescriptionsRecipe(), corpus, out, budget=Budget(requests=requests))
    assert len(server.seen) == requests
    assert report.written == len(lines(out / "records.jsonl")) == requests
    assert not report.complete
    assert f"budget of {requests} requests is spent" in report.stopped
    assert json.loads((out / "manifest.json").read_text())["complete"] is False
    # The budget is for all runs into the folder.
    again = run(server, DescriptionsRecipe(), corpus, out, budget=Budget(requests=requests))
    assert (again.written, len(server.seen)) == (requests, requests)
    done = run(server, DescriptionsRecipe(), corpus, out, budget=Budget(requests=12))
    assert done.complete
    assert len(server.seen) == 12
    assert len({seen.text for seen in server.seen}) == 12


def test_a_budget_in_tokens_is_used_up_but_not_exceeded(serve, corpus, tmp_path):
    """With threads under way, the rest of the budget is tried once they are done."""
    server, out = serve(obey), tmp_path / "out"
    limit = {"budget": Budget(tokens=3000), "max_tokens": 100, "concurrency": 4}
    report = run(server, DescriptionsRecipe(), corpus, out, **limit)
    spent = report.tokens_in + report.tokens_out
    most = int(re.search(r"can take up to (\d+)", report.stopped)[1])
    assert 3000 - most < spent <= 3000
    assert report.written * 150 == spent


def test_limit(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    report = run(server, DescriptionsRecipe(), corpus, out, limit=5)
    assert (report.written, len(server.seen), report.complete) == (5, 5, True)
    with pytest.raises(ValueError, match="limit is 0"):
        run(server, DescriptionsRecipe(), corpus, out, limit=0)


def test_a_server_that_goes_away_ends_the_run(serve, corpus, tmp_path):
    def script(seen, number):
        return obey(seen) if number < 6 else error(503, "down for repair")

    server, out = serve(script), tmp_path / "out"
    with pytest.raises(NoAnswerError, match=r"5 sources in a row: .*down for repair"):
        run(server, DescriptionsRecipe(), corpus, out, attempts=1, concurrency=1)
    assert len(lines(out / "records.jsonl")) == 6
    assert len(server.seen) < 14
    server.script = obey
    assert run(server, DescriptionsRecipe(), corpus, out).written == 12


def test_a_failing_run_leaves_better_data_alone(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    run(server, DescriptionsRecipe(), corpus, out)
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.name != "transcript.jsonl"}
    server.script = lambda seen, number: error(401, "key expired")
    with pytest.raises(NoModelError, match="refuses the key"):
        run(server, DescriptionsRecipe(), corpus, out, max_tokens=99)
    assert (out / "records.jsonl").read_bytes() == before["records.jsonl"]
    assert (out / "manifest.json").read_bytes() == before["manifest.json"]
    assert not list(out.glob("*.part"))


def test_a_folder_holds_one_run(serve, corpus, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    run(server, GroupsRecipe("edited"), corpus, out, limit=1)
    for recipe, message in [
        (DescriptionsRecipe(), "name 'groups', this one has 'descriptions'"),
        (GroupsRecipe("rich"), "shape 'edited', this one has 'rich'"),
    ]:
        with pytest.raises(DataError, match=message):
            run(server, recipe, corpus, out, limit=1)
    other = tmp_path / "other.txt"
    other.write_text(SENTENCES[0])
    with pytest.raises(DataError, match=r"corpus 'corpus.*', this one has 'other"):
        run(server, GroupsRecipe("edited"), other, out)
    (out / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is no manifest of a run"):
        run(server, GroupsRecipe("edited"), corpus, out)


def test_one_run_at_a_time_writes_to_a_folder(serve, corpus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(DataError, match="another run writes to"):
        run(serve(obey), DescriptionsRecipe(), corpus, out)


def test_nothing_to_ask_about(serve, tmp_path):
    (tmp_path / "c.txt").write_text("one two\nthree\n")
    with pytest.raises(CorpusError, match="holds nothing to ask about: of 2 rows"):
        run(serve(obey), DescriptionsRecipe(), tmp_path / "c.txt", tmp_path / "out")


# The other recipes


def made_records(tmp_path, count=200):
    path = tmp_path / "records.jsonl"
    with path.open("w") as file:
        for i in range(count):
            record = {"sentence": f"sentence {i}", "good": list("abcde"), "bad": list("vwxyz")}
            file.write(json.dumps(record) + "\n")
    return path


def test_abstract_descriptions_for_a_share(serve, tmp_path):
    records, server, out = made_records(tmp_path), serve(obey), tmp_path / "out"
    report = run(server, AbstractRecipe(), records, out, limit=100)
    made = lines(out / "records.jsonl")
    more = [record for record in made if len(record["good"]) == 8]
    assert report.written == len(made) == 100
    assert 7 <= len(more) == len(server.seen) <= 21
    assert more[0]["good"] == [*"abcde", *(f"a thing {k} is made" for k in range(3))]
    assert "Description 3: c" in server.seen[0].text
    assert "Description 4" not in server.seen[0].text
    assert all(record["good"] == list("abcde") for record in made if record not in more)
    # The same ones are chosen whenever the file grows.
    run(server, AbstractRecipe(), records, out)
    assert lines(out / "records.jsonl")[:100] == made


@pytest.mark.parametrize(("share", "asked"), [(0, 0), (1, 20)])
def test_the_share_may_be_none_or_all(serve, tmp_path, share, asked):
    server = serve(obey)
    run(server, AbstractRecipe(share), made_records(tmp_path, 20), tmp_path / "out")
    assert len(server.seen) == asked


def test_abstract_needs_records(serve, corpus, tmp_path):
    server = serve(obey)
    with pytest.raises(DataError, match="holds no group, record or query; line 1: no JSON"):
        run(server, AbstractRecipe(), corpus, tmp_path / "out")
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "description": "d", "good": ["g"], "bad": ["b"]}'
    )
    with pytest.raises(DataError, match="holds no records"):
        run(server, AbstractRecipe(), tmp_path / "q.jsonl", tmp_path / "out")
    with pytest.raises(DataError, match="need a file of records"):
        run(server, AbstractRecipe(), ["a"], tmp_path / "out")
    with pytest.raises(ValueError, match="share is 2"):
        AbstractRecipe(2)


def test_sentences_and_the_contradicting_twin(serve, tmp_path):
    server, out = serve(obey), tmp_path / "out"
    corpus = ["a bridge that fails", "a river crossed"]
    report = run(server, SentencesRecipe(), corpus, out)
    queries = lines(out / "queries.jsonl")
    assert report.written == 2
    assert len(server.seen) == 6
    assert queries[0]["description"] == "a bridge that fails"
    assert queries[0]["good"][0] == "Case 0 of a bridge that fails."
    assert queries[0]["bad"][0] == "Case 0 of not a bridge that fails."
    assert queries[0]["id"] != queries[1]["id"]
    assert isinstance(parse_item(json.dumps(queries[0])), EvalQuery)


def test_a_twin_that_is_the_description_is_rejected(serve, tmp_path):
    server = serve(lambda seen, number: Reply('{"twin": "A bridge, that fails!"}'))
    report = run(server, SentencesRecipe(), ["a bridge that fails"], tmp_path / "out")
    assert report.rejected == {"invalid": 1}
    assert len(server.seen) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_of_every_shape(serve, corpus, tmp_path, shape):
    server, out = serve(obey), tmp_path / "out"
    report = run(server, GroupsRecipe(shape), corpus, out, limit=2)
    items, problems = read_items(out / "groups.jsonl")
    assert report.written == len(items) == 2
    assert problems == []
    group = items[0][1]
    assert isinstance(group, Group)
    assert (group.shape, group.domain, group.open) == (shape, "bridges", False)
    want = SHAPES[shape]
    assert len(group.clusters) == want.clusters
    assert {len(c.sentences) for c in group.clusters} == {want.sentences}
    assert {len(c.descriptions) for c in group.clusters} == {want.descriptions}


def test_groups_with_clusters_that_share_texts_are_rejected(serve, corpus, tmp_path):
    cluster = {"sentences": ["One."], "descriptions": list("abcd")}
    text = json.dumps({"domain": "d", "clusters": [cluster] * 3})
    server = serve(lambda seen, number: Reply(text))
    report = run(server, GroupsRecipe(), corpus, tmp_path / "out", limit=1)
    assert report.rejected == {"invalid": 1}
    with pytest.raises(ValueError, match="no shape 'round'; there are: triplet"):
        GroupsRecipe("round")


# A kill, and the command line


def start(server, corpus, out):
    environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "fake-model"}
    arguments = ["generate", "descriptions", str(corpus), "--out", str(out), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "descsim_tools", *arguments, "--concurrency", "3"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_kill_loses_no_paid_answer(serve, corpus, tmp_path):
    """Seven are answered, the next ones hang; then the process is killed."""
    held = threading.Event()

    def script(seen, number):
        if number >= 7 and not held.is_set():
            held.wait(110)
        return obey(seen)

    server, out = serve(script), tmp_path / "out"
    process = start(server, corpus, out)
    server.wait_for(10, seconds=300)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held.set()
    answered = [seen.text for seen in server.seen[:7]]
    hung = [seen.text for seen in server.seen[7:]]
    assert len(hung) == 3
    assert not (out / "records.jsonl").exists()
    assert json.loads((out / "manifest.json").read_text())["complete"] is False
    server.seen.clear()
    process = start(server, corpus, out)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    asked = [seen.text for seen in server.seen]
    assert not set(asked) & set(answered)
    assert set(hung) < set(asked)
    assert len(asked) == len(set(asked)) == 5
    assert [record["sentence"] for record in lines(out / "records.jsonl")] == SENTENCES
    report = json.loads(printed)
    assert (report["written"], report["requests"], report["unsettled"]) == (12, 15, 3)


def command(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_commands_follow_each_other(serve, corpus, tmp_path, capsys):
    server = serve(obey)
    run_options = ["--model", "fake-model", "--base-url", server.url, "--json"]
    first, second, third, fourth = (tmp_path / name for name in "abcd")
    code, out, _ = command(
        capsys, "generate", "descriptions", corpus, "--out", first, *run_options, "--limit", 4
    )
    assert (code, json.loads(out)["written"]) == (0, 4)
    records = first / "records.jsonl"
    code, out, _ = command(
        capsys, "generate", "abstract", records, "--out", second, "--share", 1, *run_options
    )
    assert code == 0
    assert len(lines(second / "records.jsonl")[0]["good"]) == 8
    (tmp_path / "d.txt").write_text("a bridge that fails\n")
    code, out, _ = command(
        capsys, "generate", "sentences", tmp_path / "d.txt", "--out", third, *run_options
    )
    assert (code, json.loads(out)["written"]) == (0, 1)
    code, out, _ = command(
        capsys, "generate", "groups", corpus, "--out", fourth, "--limit", 1, *run_options
    )
    assert (code, json.loads(out)["written"]) == (0, 1)


def test_the_command_prints_a_table_and_names_rejects(serve, corpus, tmp_path, capsys):
    def script(seen, number):
        return Reply("", usage=(10, 1)) if number == 0 else obey(seen)

    out = tmp_path / "out"
    arguments = ["generate", "descriptions", corpus, "--out", out, "--model", "m"]
    arguments += ["--base-url", serve(script).url, "--price-in", 1, "--price-out", 2]
    code, printed, err = command(capsys, *arguments)
    assert code == 0
    assert re.search(r"written +11\b", printed)
    assert re.search(r"rejected: empty +1\b", printed)
    assert re.search(r"cost +0\.0022", printed)
    assert "the answer has no text" in err
    assert str(out / "rejects.jsonl") in err


def test_the_command_stops_with_code_3(serve, corpus, tmp_path, capsys):
    arguments = ["generate", "descriptions", corpus, "--out", tmp_path / "out", "--model", "m"]
    arguments += ["--base-url", serve(obey).url, "--max-requests", 2]
    code, _, err = command(capsys, *arguments)
    assert code == 3
    assert "budget of 2 requests is spent" in err
    assert "the same command goes on" in err


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 1, "neither a key nor a server is named"),
        (["--base-url", "http://127.0.0.1:9/v1"], 1, "no model is named"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m"], 1, "no server answers at"),
        (["--max-cost", "1", "--model", "m", "--base-url", "http://x/v1"], 1, "needs the price"),
        (["--price-in", "1"], 2, "need each other"),
        (["--max-requests", "-1"], 2, "not in the range"),
        (["--limit", "0"], 2, "not in the range"),
    ],
)
def test_misuse_is_told(corpus, tmp_path, capsys, more, code, message):
    arguments = ["generate", "descriptions", corpus, "--out", tmp_path / "out", *more]
    got, _, err = command(capsys, *arguments)
    assert message in " ".join(err.split())
    assert got == code


def test_a_missing_corpus_makes_no_folder(tmp_path, capsys):
    code, _, err = command(
        capsys, "generate", "groups", tmp_path / "none.txt", "--out", tmp_path / "out"
    )
    assert code == 1
    assert "there is no corpus" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["descriptions", "abstract", "sentences", "groups"])
def test_every_recipe_has_an_example(capsys, name):
    code, out, _ = command(capsys, "generate", name, "--help")
    assert code == 0
    assert f"descsim generate {name}" in out
