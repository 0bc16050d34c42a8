import json
import logging
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import BaseModel, Field

from descsim_tools.errors import DescsimError, LLMError
from descsim_tools.llm import (
    LLM,
    Budget,
    BudgetError,
    CancelledError,
    CutError,
    EmptyError,
    InvalidError,
    NoAnswerError,
    NoModelError,
    OutputError,
    Price,
    RefusalError,
    RequestRefusedError,
)
from descsim_tools.llm.limiter import RateLimiter
from descsim_tools.llm.structured import OutputMode, parse, response_format, without_thoughts
from tests.fake_llm import FakeServer, Reply, error

KEY = "sk-secret-0123456789"


class Rivers(BaseModel):
    title: str = "none"
    rivers: list[str] = Field(min_length=2)


GOOD = json.dumps({"title": "two", "rivers": ["Rhine", "Elbe"]})


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve():
    """Start servers that answer by a script, or by a list of replies whose last one repeats."""
    running = []

    def start(script):
        if not callable(script):
            replies = list(script)
            script = lambda seen, number: replies[min(number, len(replies) - 1)]  # noqa: E731
        running.append(FakeServer(script))
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def client(server, **settings):
    settings = {"timeout": 5.0, "api_key": KEY, **settings}
    return LLM("fake-model", base_url=server.url, **settings)


def test_it_completes_and_counts(serve):
    server = serve([Reply("The Rhine.", usage=(12, 4))])
    with client(server, max_tokens=77, temperature=0.5) as llm:
        answer = llm.complete("Name a river.")
    assert (answer.text, answer.model, answer.finish_reason) == ("The Rhine.", "fake-model", "stop")
    assert (answer.tokens_in, answer.tokens_out, answer.cached) == (12, 4, False)
    assert (llm.spent.requests, llm.spent.tokens_in, llm.spent.tokens_out) == (1, 12, 4)
    body = server.seen[0].body
    assert body["messages"] == [{"role": "user", "content": "Name a river."}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("fake-model", 77, 0.5)
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"


def test_settings_come_from_the_environment(serve, monkeypatch):
    server = serve([Reply("yes")])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_MODEL", "env-model")
    with LLM() as llm:
        assert llm.complete("?").text == "yes"
    assert server.seen[0].body["model"] == "env-model"
    assert server.seen[0].headers["authorization"] == "Bearer sk-env"


def test_without_key_and_server_it_says_what_to_set():
    with pytest.raises(NoModelError, match=r"neither a key nor a server.*OPENAI_API_KEY.*base_url"):
        LLM("m")
    with pytest.raises(NoModelError, match="no model is named"):
        LLM(api_key="k")


def test_without_a_server_it_says_so_soon(caplog):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    started = time.monotonic()
    with (
        LLM("m", base_url=url, attempts=2) as llm,
        pytest.raises(NoModelError, match=r"no server answers at http://127.* \(2 attempts\)"),
    ):
        llm.complete("?")
    assert time.monotonic() - started < 10
    assert llm.spent.unsettled == 0
    assert llm.spent.tokens_in == 0
    assert "attempt 1 of 2 failed" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"patience": -1}, "patience is -1"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0"),
    ],
)
def test_numbers_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        LLM("m", api_key="k", **settings)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000/v1",
        "ftp://localhost/v1",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://my host/v1",
        "user:pw-123@host/v1",
    ],
)
def test_a_url_of_no_server_is_refused_at_once(url):
    with pytest.raises(NoModelError, match=r"is no URL of a server; need .* --base-url") as raised:
        LLM("m", base_url=url)
    assert "pw-123" not in str(raised.value)


# Failures of the server


@pytest.mark.parametrize("status", [429, 500, 502, 503, 408])
def test_passing_failures_are_tried_again(serve, caplog, status):
    server = serve([error(status, "busy"), Reply("at last")])
    with client(server) as llm:
        assert llm.complete("?").text == "at last"
    assert len(server.seen) == 2
    assert llm.spent.requests == 2
    assert llm.spent.tokens_in + llm.spent.tokens_out == 15
    assert f"attempt 1 of 4 failed: HTTP {status}: busy" in caplog.text


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
def test_retry_after_is_honoured(serve, form):
    later = datetime.now(UTC) + timedelta(seconds=3)
    headers = {
        "seconds": {"Retry-After": "1.5"},
        "milliseconds": {"retry-after-ms": "1500"},
        "date": {"Retry-After": format_datetime(later, usegmt=True)},
    }[form]
    server = serve([error(429, "slow down", headers), Reply("ok")])
    with client(server) as llm:
        assert llm.complete("?").text == "ok"
    assert server.seen[1].at - server.seen[0].at >= (1.0 if form == "date" else 1.5)


def test_retry_after_holds_back_the_other_threads_too(serve):
    def script(seen, number):
        return error(429, "slow down", {"Retry-After": "1"}) if number == 0 else Reply("ok")

    server = serve(script)
    with client(server, concurrency=1) as llm, ThreadPoolExecutor(2) as pool:
        list(pool.map(llm.complete, ["a", "b"]))
    assert all(seen.at - server.seen[0].at >= 1 for seen in server.seen[1:])


def test_a_wait_longer_than_the_patience_is_refused_at_once(serve):
    server = serve([error(429, "come tomorrow", {"Retry-After": "86400"})])
    started = time.monotonic()
    with client(server) as llm, pytest.raises(NoAnswerError, match="asks to wait 86400 s"):
        llm.complete("?")
    assert time.monotonic() - started < 5
    assert len(server.seen) == 1


def test_lasting_failures_end(serve):
    server = serve([error(500, "broken")])
    with client(server, attempts=3) as llm:
        with pytest.raises(NoAnswerError, match=r"no answer in 3 attempts: HTTP 500: broken"):
            llm.complete("?")
        assert llm.spent.requests == 3
        assert llm.spent.tokens_in == 0


def test_a_server_that_hangs_fails_in_time(serve, caplog):
    server = serve([Reply("late", delay=60)])
    started = time.monotonic()
    with (
        client(server, timeout=0.5, attempts=2, max_tokens=50) as llm,
        pytest.raises(NoAnswerError, match=r"no answer in 2 attempts: no answer in 0\.5 s"),
    ):
        llm.complete("?")
    assert time.monotonic() - started < 6
    # It may have answered all the same, so the most it can have cost is counted.
    assert llm.spent.unsettled == 2
    assert llm.spent.tokens_out == 100
    assert "attempt 1 of 2 failed: no answer in 0.5 s" in caplog.text


def test_a_server_that_drips_fails_in_time(serve):
    server = serve([Reply("x" * 500, drip=0.05)])
    started = time.monotonic()
    with (
        client(server, timeout=1, attempts=1) as llm,
        pytest.raises(NoAnswerError, match="no whole answer in 1 s"),
    ):
        llm.complete("?")
    assert time.monotonic() - started < 4


def test_patience_bounds_all_attempts(serve):
    server = serve([error(500, "broken")])
    started = time.monotonic()
    with client(server, attempts=50, patience=2) as llm, pytest.raises(NoAnswerError):
        llm.complete("?")
    assert time.monotonic() - started < 4
    assert len(server.seen) < 6


@pytest.mark.parametrize("how", ["drop", "drop_in_body"])
def test_dropped_connections_are_tried_again(serve, how):
    server = serve([Reply("never read whole", **{how: True}), Reply("whole")])
    with client(server) as llm:
        assert llm.complete("?").text == "whole"
    assert llm.spent.unsettled == 1


@pytest.mark.parametrize(
    "body", [b"<html>busy</html>", b"", b"[]", b'{"choices": []}', b'{"error": {"message": "no"}}']
)
def test_bodies_that_are_no_completion_are_tried_again(serve, body):
    server = serve([Reply(body=body), Reply("ok")])
    with client(server) as llm:
        assert llm.complete("?").text == "ok"


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (error(401, f"Incorrect API key provided: {KEY}"), NoModelError, "refuses the key"),
        (error(403, "not yours"), NoModelError, "refuses the key"),
        (error(404, "no such model"), NoModelError, "has no model 'fake-model'"),
        (error(402, "pay first"), NoModelError, "no quota"),
        (error(429, "pay first", code="insufficient_quota"), NoModelError, "no quota"),
        (error(400, "too long"), RequestRefusedError, "HTTP 400: too long"),
        (error(413, "too long"), RequestRefusedError, "HTTP 413: too long"),
    ],
)
def test_failures_that_stay_are_not_tried_again(serve, reply, kind, message):
    server = serve([reply])
    with client(server) as llm, pytest.raises(kind, match=message) as raised:
        llm.complete("?")
    assert len(server.seen) == 1
    assert KEY not in str(raised.value)
    assert llm.spent.tokens_in == 0
    assert isinstance(raised.value, DescsimError)


def test_a_model_that_wants_the_other_name_for_the_limit(serve):
    def script(seen, number):
        if "max_tokens" in seen.body:
            return error(400, "'max_tokens' is not supported; use 'max_completion_tokens'")
        return Reply("ok")

    server = serve(script)
    with client(server, max_tokens=9) as llm:
        llm.complete("a")
        llm.complete("b")
    assert [seen.body.get("max_completion_tokens") for seen in server.seen] == [None, 9, 9]


# What the model makes of it


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (Reply("The Rhi", finish_reason="length"), CutError, "cut at 2048 tokens; raise"),
        (Reply("<think>hm", finish_reason="length"), CutError, "cut at"),
        (Reply("", finish_reason="length", message={"reasoning_content": "hm"}), CutError, "cut"),
        (Reply(None, message={"refusal": "I will not"}), RefusalError, "declined: I will not"),
        (Reply("", finish_reason="content_filter"), RefusalError, "filter"),
        (Reply(""), EmptyError, "no text"),
        (Reply(None), EmptyError, "no text"),
        (Reply(" \n "), EmptyError, "no text"),
        (Reply("<think>all thought</think>"), EmptyError, "no text"),
    ],
)
@pytest.mark.parametrize("structured", [False, True])
def test_cut_refused_and_empty_are_told_apart(serve, reply, kind, message, structured):
    server = serve([reply])
    with client(server) as llm, pytest.raises(kind, match=message) as raised:
        llm.parse("?", Rivers) if structured else llm.complete("?")
    assert isinstance(raised.value, OutputError)
    assert isinstance(raised.value, LLMError)
    assert len(server.seen) == 1


def test_reasoning_content_stands_in_for_empty_content(serve):
    server = serve([Reply("", message={"reasoning_content": GOOD}), Reply("a", message={"x": 1})])
    with client(server) as llm:
        assert llm.parse("?", Rivers).rivers == ["Rhine", "Elbe"]
        assert llm.complete("?").text == "a"


def test_content_in_parts_is_joined(serve):
    server = serve([Reply([{"type": "text", "text": "The "}, {"type": "text", "text": "Elbe"}])])
    with client(server) as llm:
        assert llm.complete("?").text == "The Elbe"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Sure! Here it is:\n```\n{GOOD}\n```\nAnything else?",
        f'<think>Maybe {{rivers}}? or {{"rivers": [1]}}</think>\n{GOOD}',
        f'so I think of rivers {{"rivers": []}}\n</think>{GOOD}',
        f"{GOOD}<think>was that right",
        f'{{"rivers": "not a list"}} no, wait: {GOOD}',
        f"{{ {GOOD}",
    ],
)
def test_json_is_found_past_tags_fences_and_talk(text):
    assert parse(text, Rivers).rivers == ["Rhine", "Elbe"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I like rivers", "holds no JSON object"),
        ('{"rivers": ["Rhine", "El', "holds no JSON object"),
        ("{'rivers': ['a', 'b']}", "holds no JSON object"),
        ('{"rivers": ["Rhine"]}', "rivers: List should have at least 2 items"),
        ('{"title": 5}', "title: Input should be a valid string; rivers: Field required"),
        ("[" * 5000 + '{"a":' * 5000, "holds no JSON object"),
    ],
)
def test_what_does_not_fit_is_described(text, message):
    with pytest.raises(InvalidError, match=message):
        parse(text, Rivers)


def test_thoughts_are_dropped():
    assert without_thoughts("<think>a</think> b <thinking>c</thinking> d") == "b  d"
    assert without_thoughts("a</think>b") == "b"
    assert without_thoughts("b <think>cut off") == "b"
    assert without_thoughts("1 < 2 and <thing>") == "1 < 2 and <thing>"


def test_the_strict_schema_is_strict():
    schema = response_format(OutputMode.JSON_SCHEMA, Rivers)["json_schema"]["schema"]
    assert schema["required"] == ["title", "rivers"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["properties"]["rivers"]["minItems"] == 2


def knows(*outputs, ignores=()):
    """A server that refuses the outputs it does not know, and ignores some."""

    def script(seen, number):
        if seen.output not in (*outputs, *ignores, "text"):
            return error(400, f"response_format {seen.output} is not supported")
        if seen.output in outputs:
            return Reply(GOOD)
        return Reply(f"<think>JSON?</think>Here:\n```json\n{GOOD}\n```")

    return script


@pytest.mark.parametrize(
    ("script", "outputs"),
    [
        (knows("json_schema", "json_object"), ["json_schema", "json_schema"]),
        (knows("json_object"), ["json_schema", "json_object", "json_object"]),
        (knows(), ["json_schema", "json_object", "text", "text"]),
        (knows(ignores=("json_schema",)), ["json_schema", "json_schema"]),
    ],
)
def test_servers_of_all_kinds_give_one_result(serve, script, outputs):
    server = serve(script)
    with client(server) as llm:
        assert llm.parse("Two rivers.", Rivers) == Rivers(title="two", rivers=["Rhine", "Elbe"])
        assert llm.parse("Two others.", Rivers).title == "two"
    assert [seen.output for seen in server.seen] == outputs
    for seen in server.seen:
        assert ("must fit this JSON schema" in seen.text) == (seen.output != "json_schema")


def test_a_refusal_of_the_request_is_no_reason_to_descend_for_good(serve):
    def script(seen, number):
        return error(400, "too long") if "long" in seen.text else Reply(GOOD)

    server = serve(script)
    with client(server) as llm:
        with pytest.raises(RequestRefusedError, match="too long"):
            llm.parse("long", Rivers)
        assert llm.parse("short", Rivers).title == "two"
    assert server.seen[-1].output == "json_schema"


def test_an_invalid_answer_is_told_so_once(serve):
    server = serve([Reply('{"rivers": ["Rhine"]}'), Reply(GOOD)])
    with client(server) as llm:
        assert llm.parse("Two rivers.", Rivers).title == "two"
    again = server.seen[1].body["messages"]
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert "at least 2 items" in again[2]["content"]


def test_a_model_that_stays_invalid_is_given_up(serve):
    server = serve([Reply('{"rivers": 5}')])
    with client(server) as llm, pytest.raises(InvalidError, match="valid list") as raised:
        llm.parse("Two rivers.", Rivers, repairs=2)
    assert len(server.seen) == 3
    assert raised.value.text == '{"rivers": 5}'


def test_a_number_of_repairs_out_of_range(serve):
    with client(serve([Reply(GOOD)])) as llm, pytest.raises(ValueError, match="repairs is -1"):
        llm.parse("?", Rivers, repairs=-1)


def test_an_apology_is_a_refusal(serve):
    server = serve([Reply("I'm sorry, but I can't help with that.")])
    with client(server) as llm, pytest.raises(RefusalError, match="declined: I'm sorry"):
        llm.parse("?", Rivers)
    assert len(server.seen) == 1


def test_a_whole_object_counts_even_if_the_model_then_ran_on(serve):
    server = serve([Reply(f"{GOOD} and so on and on", finish_reason="length")])
    with client(server) as llm:
        assert llm.parse("?", Rivers).title == "two"


# Cache, budget, limits, transcript


def test_an_answer_is_paid_once(serve, tmp_path):
    server = serve(lambda seen, number: Reply(f"answer {number}"))
    for _ in range(2):
        with client(server, cache=tmp_path / "c.sqlite") as llm:
            answers = [llm.complete(text) for text in ("a", "b", "a")]
        assert [a.text for a in answers] == ["answer 0", "answer 1", "answer 0"]
    assert all(a.cached for a in answers)
    assert llm.spent.requests == 2
    with client(server, cache=tmp_path / "c.sqlite") as llm:
        assert llm.complete("a", sample=1).text == "answer 2"
    with client(server, cache=tmp_path / "c.sqlite", max_tokens=9) as llm:
        assert llm.complete("a").text == "answer 3"


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (Reply("no JSON"), InvalidError),
        (Reply(""), EmptyError),
        (Reply(None, message={"refusal": "no"}), RefusalError),
        (Reply(GOOD[:20], finish_reason="length"), CutError),
    ],
)
@pytest.mark.parametrize("file", [None, "c"])
def test_an_answer_that_cannot_be_used_is_not_given_again(serve, tmp_path, file, bad, kind):
    server = serve([bad, bad, Reply(GOOD)])
    cache = tmp_path / file if file else None
    with client(server, cache=cache) as llm:
        with pytest.raises(kind):
            llm.parse("?", Rivers, repairs=0)
        with pytest.raises(kind):
            llm.parse("?", Rivers, repairs=0)
        assert llm.parse("?", Rivers, repairs=0).title == "two"
        assert llm.parse("?", Rivers, repairs=0).title == "two"
        assert llm.spent.requests == 3  # what was paid stays counted
    assert len(server.seen) == 3


def test_a_cut_text_is_not_given_again(serve):
    server = serve([Reply("The Rh", finish_reason="length"), Reply("The Rhine.")])
    with client(server) as llm:
        with pytest.raises(CutError):
            llm.complete("?")
        assert llm.complete("?").text == "The Rhine."


def test_a_bad_answer_that_was_repaired_is_the_way_to_the_good_one(serve, tmp_path):
    server = serve([Reply("no JSON"), Reply(GOOD)])
    for _ in range(2):
        with client(server, cache=tmp_path / "c") as llm:
            assert llm.parse("?", Rivers).title == "two"
    assert len(server.seen) == 2


def test_a_bad_answer_that_a_kill_left_is_not_believed(serve, tmp_path, monkeypatch):
    server = serve([Reply("no JSON"), Reply(GOOD)])
    with monkeypatch.context() as killed, client(server, cache=tmp_path / "c") as llm:
        killed.setattr(llm._ledger, "forget", lambda keys: None)
        with pytest.raises(InvalidError):
            llm.parse("?", Rivers, repairs=0)
    with client(server, cache=tmp_path / "c") as llm:
        assert llm.parse("?", Rivers, repairs=0).title == "two"


def test_an_answer_can_be_forgotten(serve):
    server = serve(knows("json_object"))
    with client(server) as llm:
        for _ in range(2):
            assert llm.parse("?", Rivers).title == "two"
            llm.forget("?", Rivers)
    assert [seen.output for seen in server.seen] == ["json_schema", "json_object", "json_object"]


def test_without_a_file_answers_do_not_fill_the_memory(serve):
    with client(serve([Reply("yes")])) as llm:
        assert llm.complete("?").text == llm.complete("?").text == "yes"
        # SQLite keeps a database without a name in a temporary file, and one in memory in memory.
        assert llm._ledger._db.execute("PRAGMA journal_mode").fetchone() != ("memory",)


def test_a_later_run_reads_what_a_lesser_output_gave(serve, tmp_path):
    server = serve(knows("json_object"))
    with client(server, cache=tmp_path / "c") as llm:
        llm.parse("a", Rivers)
    server.script = lambda seen, number: error(500, "should not be asked")
    with client(server, cache=tmp_path / "c", attempts=1) as llm:
        assert llm.parse("a", Rivers).title == "two"


def test_threads_with_one_question_ask_once(serve):
    server = serve([Reply("one", delay=0.3)])
    with client(server) as llm, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(llm.complete, ["same"] * 8))
    assert len(server.seen) == 1
    assert [answer.cached for answer in answers].count(False) == 1


def test_a_file_that_is_no_cache(tmp_path):
    (tmp_path / "c").write_text("something else entirely, and long enough to be no database" * 20)
    with pytest.raises(LLMError, match="is no cache of answers"):
        LLM("m", api_key="k", cache=tmp_path / "c")


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0])
def test_a_price_is_a_number(price):
    with pytest.raises(ValueError, match="the price of tokens_out is"):
        Price(1.0, price)


def test_a_cancelled_call_sends_nothing_more(serve):
    server = serve([error(500, "oops \x1b[31m")] * 9)
    left = threading.Event()
    threading.Timer(0.5, left.set).start()
    with client(server, attempts=9, patience=1000) as llm:
        with pytest.raises(CancelledError, match="cancelled"):
            llm.parse("?", Rivers, cancelled=left.is_set)
        asked = len(server.seen)
        assert 1 <= asked < 9
        with pytest.raises(CancelledError):
            llm.parse("another", Rivers, cancelled=left.is_set)
        assert len(server.seen) == asked
        assert llm.spent.requests == asked
    with client(server, attempts=1) as llm, pytest.raises(NoAnswerError) as told:
        llm.complete("?")
    assert r"oops \x1b[31m" in str(told.value)


@pytest.mark.parametrize("budget", [Budget(requests=0), Budget(tokens=0), Budget(cost=0)])
def test_a_budget_of_nothing_sends_nothing(serve, budget):
    server = serve([Reply("paid")])
    with (
        client(server, budget=budget, price=Price(1, 1)) as llm,
        pytest.raises(BudgetError, match="budget"),
    ):
        llm.complete("?")
    assert server.seen == []


def test_a_budget_of_one_request_holds_for_all_runs(serve, tmp_path):
    server = serve([Reply("paid")])
    for _ in range(2):
        with client(server, budget=Budget(requests=1), cache=tmp_path / "c") as llm:
            assert llm.complete("a").text == "paid"
            with pytest.raises(BudgetError, match="budget of 1 requests is spent"):
                llm.complete("b")
    assert len(server.seen) == 1


@pytest.mark.parametrize("unit", ["tokens", "cost"])
def test_a_budget_is_never_exceeded_by_many_threads(serve, unit):
    """Each answer takes 90 tokens of at most 165."""
    server = serve([Reply("x", usage=(10, 80), delay=0.02)])
    budget = Budget(tokens=1000) if unit == "tokens" else Budget(cost=0.001)
    settings = {"budget": budget, "price": Price(1, 1), "max_tokens": 100, "concurrency": 8}
    stopped = 0
    with client(server, **settings) as llm, ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(llm.complete, str(i)) for i in range(40)]:
            try:
                future.result()
            except BudgetError:
                stopped += 1
    spent = llm.spent
    assert stopped
    # At the end up to eight are reserved at their most, so a little stays unspent.
    assert 400 <= spent.tokens_in + spent.tokens_out <= 1000
    assert spent.cost == pytest.approx((spent.tokens_in + spent.tokens_out) / 1e6)
    assert len(server.seen) == spent.requests == 40 - stopped


def test_retries_count_for_the_budget(serve):
    server = serve([error(500, "broken")])
    with (
        client(server, budget=Budget(requests=2), attempts=5) as llm,
        pytest.raises(BudgetError, match="2 requests"),
    ):
        llm.complete("?")
    assert len(server.seen) == 2


def test_a_budget_in_money_needs_a_price():
    with pytest.raises(LLMError, match="needs the price"):
        LLM("m", api_key="k", budget=Budget(cost=1))
    with pytest.raises(ValueError, match="tokens is -1"):
        Budget(tokens=-1)


def test_a_server_that_does_not_count_is_taken_at_the_most(serve):
    server = serve([Reply("four", usage=None)])
    with client(server) as llm:
        answer = llm.complete("question")
    assert answer.tokens_out == 4
    assert answer.tokens_in >= len("question")


@pytest.mark.parametrize(
    "wrong", [-5, 0, True, 2.5, "7", 10**30, [], {}], ids=lambda wrong: repr(wrong)[:6]
)
def test_a_wrong_count_does_not_lift_the_budget(serve, wrong):
    """Each answer is of four bytes, and each request of at least eight."""
    server = serve([Reply("four", usage=(wrong, wrong))])
    if isinstance(wrong, list | dict):
        answer = json.dumps({"choices": [{"message": {"content": "four"}}], "usage": wrong or [1]})
        server = serve([Reply(body=answer.encode())])
    with client(server, budget=Budget(tokens=400), max_tokens=50) as llm:
        for number in range(3):
            answer = llm.complete(f"question {number}")
            assert 8 <= answer.tokens_in <= 100
            assert answer.tokens_out == (50 if wrong == 10**30 else 4)
        with pytest.raises(BudgetError):
            list(map(llm.complete, map(str, range(50))))
    assert 300 < llm.spent.tokens_in + llm.spent.tokens_out <= 400


@pytest.mark.parametrize("choices", [{"a": 1}, [], [[]], "text", 5])
def test_an_answer_of_another_form_is_told(serve, choices):
    server = serve([Reply(body=json.dumps({"choices": choices}).encode())])
    with client(server, attempts=1) as llm, pytest.raises(NoAnswerError, match="has no message"):
        llm.complete("?")


def test_halves_of_characters_are_replaced(serve, tmp_path):
    half = '{"title": "a\\ud800b", "rivers": ["\\ud83d\\ude00", "c:\\\\ud800"]}'
    replies = [Reply(half), Reply("x\udfff"), error(400, "no \ud800")]
    server = serve(replies)
    settings = {"cache": tmp_path / "c", "transcript": tmp_path / "t"}
    with client(server, **settings) as llm:
        parsed = llm.parse("?", Rivers)
        assert parsed.title == "a\ufffdb"
        assert parsed.rivers == ["\U0001f600", "c:\\ud800"]
        assert llm.complete("?").text == "x\ufffd"
        with pytest.raises(RequestRefusedError, match="no \ufffd"):
            llm.complete("more")


def test_a_request_that_a_kill_cut_off_counts_at_its_most(serve, tmp_path):
    """As a SIGKILL leaves the file: entered, never settled."""
    server = serve([Reply("ok", usage=(1, 1))])
    with client(server, cache=tmp_path / "c") as llm:
        llm.complete("a")
    with sqlite3.connect(tmp_path / "c") as db:
        db.execute("INSERT INTO requests VALUES (NULL, 0, 'sent', 100, 2048, 0)")
    db.close()
    with (
        client(server, cache=tmp_path / "c", budget=Budget(tokens=2200)) as llm,
        pytest.raises(BudgetError, match="2150 are spent"),
    ):
        llm.complete("b")
    assert llm.spent.unsettled == 1


def test_concurrency_is_bounded(serve):
    server = serve([Reply("ok", delay=0.05)])
    with client(server, concurrency=3) as llm, ThreadPoolExecutor(12) as pool:
        list(pool.map(llm.complete, map(str, range(12))))
    assert server.most_at_once == 3


class Clock:
    def __init__(self):
        self.now = 0.0
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, cancelled, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_requests_a_minute():
    clock = Clock()
    limiter = RateLimiter(3, None, clock=clock, sleep=clock.sleep)
    for _ in range(7):
        limiter.wait(100)
        clock.now += 1
    assert clock.slept == [57, 57]


def test_tokens_a_minute():
    clock = Clock()
    limiter = RateLimiter(None, 1000, clock=clock, sleep=clock.sleep)
    for tokens in (600, 400, 1, 5000):
        limiter.wait(tokens)
    assert clock.slept == [60, 60]


def test_a_rate_limit_holds_for_real(serve, monkeypatch):
    monkeypatch.setattr("descsim_tools.llm.limiter._WINDOW", 1.0)
    server = serve([Reply("ok")])
    started = time.monotonic()
    with client(server, requests_per_minute=2) as llm:
        for text in "abcde":
            llm.complete(text)
    # On a busy machine a request may arrive late, but none is sent early.
    assert server.seen[2].at - started >= 1
    assert server.seen[4].at - started >= 2


def test_the_transcript_holds_all_but_secrets(serve, tmp_path):
    server = serve(
        [
            error(500, f"key {KEY} and password pw-123"),
            Reply(f"your key is {KEY}"),
            error(400, "no"),
        ]
    )
    url = server.url.replace("http://", "http://user:pw-123@")
    path = tmp_path / "t.jsonl"
    with LLM("fake-model", base_url=url, api_key=KEY, transcript=path) as llm:
        llm.complete(f"is {KEY} my key?")
        with pytest.raises(RequestRefusedError):
            llm.complete("again")
    text = path.read_text()
    assert KEY not in text
    assert "pw-123" not in text
    entries = [json.loads(line) for line in text.splitlines()]
    assert [("error" in entry, "content" in entry) for entry in entries] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert entries[1]["messages"] == [{"role": "user", "content": "is [secret] my key?"}]
    assert entries[1]["tokens_in"] == 10
    assert entries[1]["server"] == llm.server == server.url
    assert datetime.fromisoformat(entries[0]["at"]).tzinfo is not None


def test_no_secret_is_kept_in_the_cache(serve, tmp_path):
    server = serve([Reply("ok")])
    with client(server, cache=tmp_path / "c") as llm:
        llm.complete("?")
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_retries_are_logged_as_warnings(serve, caplog):
    server = serve([error(503, "busy"), Reply("ok")])
    with caplog.at_level(logging.WARNING), client(server) as llm:
        llm.complete("?")
    assert caplog.records[0].name == "descsim_tools.llm.client"


def test_the_server_may_be_asked_from_many_threads_at_once(serve):
    server = serve(lambda seen, number: Reply(seen.text.upper()))
    with client(server, concurrency=8) as llm:
        done = {}

        def ask(i):
            done[i] = llm.complete(f"text {i}").text

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert done == {i: f"TEXT {i}" for i in range(32)}
