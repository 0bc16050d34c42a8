"""Answers over a real store, from a server that speaks the protocol and is scripted."""

import json
from dataclasses import replace

import pytest

from descsim_tools.agents.answers import Answer, Status
from descsim_tools.agents.rag import (
    SOURCE_CHARACTERS,
    Found,
    Planned,
    described,
    fitting,
    merged,
)
from descsim_tools.agents.statements import own_words
from descsim_tools.errors import RerankerError
from descsim_tools.llm import Budget, NoModelError, Price
from descsim_tools.types import Hit
from tests.answering import DRUNK, answerer, draft, plan, quoting, source_id, statement
from tests.fake_llm import Reply, by_schema, error

QUESTION = "Do any animals get drunk?"
SEARCH = plan("an animal consuming alcohol", "an intoxicated animal")


def drunk(data):
    monkeys, elk = source_id(data, "vervet"), source_id(data, "elk")
    return draft(
        statement("Monkeys drink rum punch [1].", (monkeys, "monkeys steal rum punch")),
        statement("An elk ate apples.", (elk, "fermenting  apples"), (monkeys, "of tourists.")),
        statement("They drink it.", (monkeys, "monkeys steal rum punch")),
    )


def test_an_answer_has_checked_citations(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=drunk)
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.ANSWERED
    assert answer.text == (
        "Monkeys drink rum punch. [1] An elk ate apples. [2][3] They drink it. [1]"
    )
    assert [c.number for c in answer.citations] == [1, 2, 3]
    assert [c.quote for c in answer.citations] == [
        "monkeys steal rum punch", "fermenting apples", "of tourists.",
    ]  # fmt: skip
    for citation in answer.citations:
        assert citation.text[slice(*citation.span)] == citation.quote
        assert citation.text == DRUNK[int(citation.id[-1])]
        assert citation.metadata["year"] == 2000 + int(citation.id[-1])
        assert citation.score == next(h.score for h in answer.sources if h.id == citation.id)
    assert answer.descriptions == ("an animal consuming alcohol", "an intoxicated animal")
    assert answer.dropped == ()
    assert answer.problem == ""
    assert (answer.requests, answer.tokens_in, answer.tokens_out) == (2, 20, 10)
    assert answer.seconds > 0
    assert json.loads(json.dumps(answer.to_dict()))["citations"][1]["quote"] == "fermenting apples"


def test_each_sentence_is_given_once_with_an_id_of_its_own(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=drunk)
    answerer(bar, server).answer(QUESTION)
    planned, written = server.seen
    assert planned.data == {"question": QUESTION}
    sources = written.data["sources"]
    assert [source["id"] for source in sources] == ["s1", "s2", "s3", "s4"]
    assert sorted(source["text"] for source in sources) == sorted(DRUNK)
    assert all("tools" not in seen.body for seen in server.seen)


def test_a_search_keeps_to_its_settings(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=draft(found=False))
    answerer(bar, server, k=1, where={"year": {"$gte": 2002}}).answer(QUESTION)
    texts = {source["text"] for source in server.seen[1].data["sources"]}
    assert texts <= set(DRUNK[2:])
    assert 1 <= len(texts) <= 2


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (("s9", "monkeys steal rum punch"), "there is no source 's9'"),
        (("row0", "monkeys steal rum punch"), "there is no source 'row0'"),
        (("right", "monkeys steal gin"), "does not hold the words 'monkeys steal gin'"),
        (("right", "monkeys steal ... glasses"), "does not hold the words"),
        (("right", "rum"), "too short to support anything"),
        (("other", "monkeys steal rum punch"), "does not hold the words"),
        (None, "cites no source"),
    ],
)
def test_a_wrong_citation_is_told_once_and_then_dropped(serve, bar, wrong, fault):
    def faulty(data):
        ids = {"right": source_id(data, "vervet"), "other": source_id(data, "elk")}
        quotes = [] if wrong is None else [(ids.get(wrong[0], wrong[0]), wrong[1])]
        good = statement("An elk ate apples.", (ids["other"], "fermenting apples"))
        bad = statement("Monkeys drink.", *quotes)
        if "statements" in data:  # asked to mend it, the model insists
            assert [s["number"] for s in data["statements"]] == [1]
            assert fault in data["statements"][0]["fault"]
            return {"statements": [{**bad, "number": 1}]}
        return draft(bad, good)

    server = serve(QuestionPlan=SEARCH, Draft=faulty, Corrections=faulty)
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.ANSWERED
    assert answer.text == "An elk ate apples. [1]"
    assert [d.text for d in answer.dropped] == ["Monkeys drink."]
    assert fault in answer.dropped[0].reason
    assert answer.requests == len(server.seen) == 3


def test_a_mended_statement_keeps_its_place(serve, bar):
    def mended(data):
        monkeys = source_id(data, "vervet")
        right = statement("Monkeys steal.", (monkeys, "monkeys steal rum punch"))
        again = statement("Not this one.", (monkeys, "monkeys steal rum punch"))
        return {
            "statements": [
                {**again, "number": 2}, {**again, "number": 7},
                {**right, "number": 1}, {**again, "number": 1},
            ]
        }  # fmt: skip

    def faulty(data):
        elk = (source_id(data, "elk"), "fermenting apples")
        return draft(statement("Wrong.", ("s9", "x")), statement("An elk ate apples.", elk))

    server = serve(QuestionPlan=SEARCH, Draft=faulty, Corrections=mended)
    answer = answerer(bar, server).answer(QUESTION)
    # What was right is not asked for again, nor changed by a correction that nobody asked for.
    assert answer.text == "Monkeys steal. [1] An elk ate apples. [2]"
    assert answer.dropped == ()


MILK = draft(statement("Cats drink\u202e milk.", ("s1", "cats drink milk")))
AGAIN = {"statements": [{**MILK["statements"][0], "number": 1}]}


@pytest.mark.parametrize("corrections", [AGAIN, {"statements": []}])
def test_without_a_right_citation_there_is_no_answer(serve, bar, corrections):
    server = serve(QuestionPlan=SEARCH, Draft=[MILK, drunk], Corrections=corrections)
    ours = answerer(bar, server)
    answer = ours.answer(QUESTION)
    # It says nothing about the corpus, where the model claims to have found something.
    assert answer.status is Status.NO_ANSWER
    assert "no statement had a right citation" in answer.problem
    assert answer.citations == ()
    assert "milk" not in answer.text
    assert answer.dropped[0].text == "Cats drink milk."
    assert len(answer.sources) == 4
    # And it is not kept: asked again, the model is asked again.
    assert ours.answer(QUESTION).status is Status.ANSWERED


def test_corrections_are_not_kept_that_corrected_nothing(serve, bar):
    right = {**drunk({"sources": [{"id": "s1", "text": "vervet elk"}]})["statements"][0]}

    def mended(data):
        quote = {"source": source_id(data, "vervet"), "quote": "monkeys steal rum punch"}
        return {"statements": [{**right, "quotes": [quote], "number": 1}]}

    server = serve(QuestionPlan=SEARCH, Draft=MILK, Corrections=[AGAIN, mended])
    ours = answerer(bar, server)
    statuses = [ours.answer(QUESTION).status for _ in range(2)]
    assert statuses == [Status.NO_ANSWER, Status.ANSWERED]


def test_a_budget_spent_before_the_correction_is_told(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=MILK)
    answer = answerer(bar, server, budget=Budget(requests=2)).answer(QUESTION)
    assert answer.status is Status.OUT_OF_BUDGET
    assert "budget of 2 requests" in answer.problem
    assert answer.dropped[0].text == "Cats drink milk."


def test_a_server_that_fails_at_the_correction_gives_no_answer(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=MILK, Corrections=error(500, "broken"))
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.NO_ANSWER
    assert "broken" in answer.problem


def test_found_without_statements_is_no_answer(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=[draft(found=True), draft(found=True), drunk])
    ours = answerer(bar, server)
    answer = ours.answer(QUESTION)
    assert answer.status is Status.NO_ANSWER
    assert "there are no statements" in answer.problem
    assert ours.answer(QUESTION).status is Status.ANSWERED


@pytest.mark.parametrize(
    "broken", [Reply("nonsense"), Reply(""), Reply("{", finish_reason="length")]
)
def test_an_unusable_answer_is_not_given_again(serve, bar, broken):
    server = serve(QuestionPlan=[broken, broken, SEARCH], Draft=[broken, broken, drunk])
    script = server.script
    # What is repaired is asked without data as its last message.
    ours = answerer(bar, serve(script))
    statuses = [ours.answer(QUESTION).status for _ in range(3)]
    assert statuses[0] is Status.NO_ANSWER
    assert statuses[-1] is Status.ANSWERED


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("caf\udce9 drunk?", r"not valid UTF-8 text: '\\udce9' at character 4"),
        (None, "the question is None, need a string"),
        (b"who?", "need a string"),
    ],
)
async def test_what_is_no_text_is_no_question(serve, bar, question, message):
    server = serve()
    ours = answerer(bar, server)
    with pytest.raises(ValueError, match=message):
        ours.answer(question)
    with pytest.raises(ValueError, match=message):
        await ours.aanswer(question)
    assert server.seen == []


def test_halves_of_characters_in_an_answer_are_replaced(serve, bar):
    def half(data):
        text = draft(statement("Monkeys \ud800 drink.", (data["sources"][0]["id"], "x")))
        text["statements"][0]["quotes"][0]["quote"] = data["sources"][0]["text"]
        return text

    answer = answerer(bar, serve(QuestionPlan=SEARCH, Draft=half)).answer(QUESTION)
    assert answer.text == "Monkeys \ufffd drink. [1]"
    assert json.dumps(answer.to_dict(), ensure_ascii=False).encode()


@pytest.mark.parametrize("fault", [Reply("{"), error(400, "too long"), error(500, "broken")])
def test_what_is_right_stays_if_the_rest_cannot_be_mended(serve, bar, fault):
    def faulty(data):
        elk = (source_id(data, "elk"), "fermenting apples")
        return draft(statement("Wrong.", ("s9", "x")), statement("An elk ate apples.", elk))

    server = serve(QuestionPlan=SEARCH, Draft=faulty, Corrections=fault)
    # A server that refuses the schema is asked in other forms, which have no name of a schema.
    script = server.script
    server.script = lambda seen, n: script(seen, n) if seen.output == "json_schema" else fault
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.ANSWERED
    assert answer.text == "An elk ate apples. [1]"
    assert "not mended" in answer.dropped[0].reason


def test_the_model_may_find_nothing_that_fits(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=draft(found=False))
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.NOT_IN_CORPUS
    assert len(answer.sources) == 4
    assert answer.requests == 2


def test_nothing_above_the_least_score_is_not_in_the_corpus_and_costs_no_request(serve, bar):
    server = serve(QuestionPlan=SEARCH)
    answer = answerer(bar, server, min_score=1.0).answer(QUESTION)
    assert answer.status is Status.NOT_IN_CORPUS
    assert answer.sources == ()
    assert answer.descriptions == tuple(SEARCH["descriptions"])
    assert len(server.seen) == 1


def test_a_badly_asked_question_gets_descriptions_that_were_tried(serve, bar):
    tried = []

    def instances(data):
        tried.extend(data["tried"])
        # Which three of the four sentences are found is the tiny encoder's chance.
        pairs = [("d2", data["tried"][1]["sources"][0]["id"]), ("d1", "d2s1"), ("d9", "d9s1")]
        return {"instances": [{"description": d, "source": s} for d, s in pairs]}

    asked = plan("a merger", "an intoxicated animal", kind="badly_asked", problem="Too vague.")
    server = serve(QuestionPlan=asked, Instances=instances)
    answer = answerer(bar, server).answer("stuff?")
    assert answer.status is Status.BADLY_ASKED
    assert answer.text == "Too vague."
    assert [t["description"] for t in tried] == ["a merger", "an intoxicated animal"]
    assert [(s.description, s.hit.text) for s in answer.suggestions] == [
        ("an intoxicated animal", tried[1]["sources"][0]["text"])
    ]
    assert answer.sources == ()


@pytest.mark.parametrize("script", [{"Instances": Reply("no")}, {"Instances": {"instances": []}}])
def test_no_description_is_offered_that_could_not_be_tried(serve, bar, script):
    server = serve(QuestionPlan=plan("a merger", kind="badly_asked", problem="Vague."), **script)
    answer = answerer(bar, server).answer("stuff?")
    assert answer.status is Status.BADLY_ASKED
    assert answer.suggestions == ()
    assert ("could be tried" in answer.problem) == isinstance(script["Instances"], Reply)


def test_a_blank_question_costs_nothing(serve, bar):
    server = serve()
    answer = answerer(bar, server).answer(" \n")
    assert answer.status is Status.BADLY_ASKED
    assert server.seen == []


@pytest.mark.parametrize(
    "broken",
    [
        Reply("I am sorry, I cannot help with that."),
        Reply(None, message={"refusal": "no"}),
        Reply('{"kind": "search", "prob', finish_reason="length"),
        Reply('{"kind": "nonsense", "problem": "", "descriptions": []}'),
        Reply(""),
        Reply("[1, 2"),
        Reply("{}", finish_reason="content_filter"),
    ],
    ids=["sorry", "refusal", "cut", "invalid", "empty", "no JSON", "filter"],
)
class TestBrokenOutput:
    def test_without_a_plan_the_question_is_searched_for(self, serve, bar, broken):
        server = serve(QuestionPlan=broken, Draft=drunk)
        answer = answerer(bar, server).answer(QUESTION)
        assert answer.status is Status.ANSWERED
        assert answer.descriptions == (QUESTION,)
        assert "the plan cannot be used" in answer.problem

    def test_a_broken_answer_says_nothing_about_the_corpus(self, serve, bar, broken):
        server = serve(QuestionPlan=SEARCH, Draft=broken)
        answer = answerer(bar, server).answer(QUESTION)
        assert answer.status is Status.NO_ANSWER
        assert answer.citations == ()
        assert len(answer.sources) == 4
        assert answer.problem


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("fault", "requests"),
    [(error(500, "broken"), 2), (error(429, "slow down", {"retry-after-ms": "1"}), 2)],
)
def test_a_failing_server_gives_a_status(serve, bar, failing, fault, requests):
    script = by_schema(QuestionPlan=SEARCH, Draft=drunk)
    server = serve(lambda seen, n: fault if n >= failing else script(seen, n))
    answer = answerer(bar, server).answer(QUESTION)
    assert answer.status is Status.NO_ANSWER
    assert answer.problem
    assert answer.requests == failing + requests


def test_a_failure_that_passes_is_not_seen(serve, bar):
    script = by_schema(QuestionPlan=SEARCH, Draft=drunk)
    server = serve(lambda seen, n: script(seen, n) if n % 2 else error(500, "broken"))
    assert answerer(bar, server).answer(QUESTION).status is Status.ANSWERED


def test_no_model_is_an_error(serve, bar):
    server = serve(lambda seen, n: error(401, "wrong key"))
    with pytest.raises(NoModelError, match="refuses the key"):
        answerer(bar, server).answer(QUESTION)


@pytest.mark.parametrize(
    ("requests", "status", "sent"),
    [
        (0, Status.OUT_OF_BUDGET, 0),
        (1, Status.OUT_OF_BUDGET, 1),
        (2, Status.ANSWERED, 2),
        (9, Status.ANSWERED, 3),
    ],
)
def test_the_budget_is_hard(serve, bar, requests, status, sent):
    def faulty(data):
        return draft(statement("Wrong.", ("s9", "x")), *drunk(data)["statements"])

    server = serve(QuestionPlan=SEARCH, Draft=faulty, Corrections={"statements": []})
    answer = answerer(bar, server, budget=Budget(requests=requests)).answer(QUESTION)
    assert answer.status is status
    assert len(server.seen) == answer.requests == sent
    if status is Status.ANSWERED:
        assert ("budget" in answer.dropped[0].reason) == (sent == 2)
    else:
        assert "budget of" in answer.problem
        assert (answer.descriptions != ()) == (sent == 1)


def test_the_cost_is_told(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=drunk)
    answer = answerer(bar, server, price=Price(1e6, 2e6)).answer(QUESTION)
    assert answer.cost == 2 * (10 + 2 * 5)


def test_a_stream_tells_of_each_step(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=drunk)
    stream = answerer(bar, server).stream(QUESTION)
    assert isinstance(next(stream), Planned)
    assert len(server.seen) == 1
    found = next(stream)
    assert isinstance(found, Found)
    assert len(found.hits) == 4
    assert len(server.seen) == 1
    assert [type(event) for event in stream] == [Answer]


async def test_async_forms_give_the_same(serve, bar):
    server = serve(QuestionPlan=SEARCH, Draft=drunk)
    ours = answerer(bar, server)
    events = [event async for event in ours.astream(QUESTION)]
    assert [type(event) for event in events] == [Planned, Found, Answer]
    again = await ours.aanswer(QUESTION)
    assert again.requests == 0  # from the cache of the client
    counts = dict.fromkeys(["requests", "tokens_in", "tokens_out", "seconds"], 0)
    assert replace(again, **counts) == replace(events[-1], **counts)


@pytest.mark.parametrize(
    "settings", [{"k": 0}, {"candidates": 0}, {"min_probability": 0.5}, {"rerank": "nonsense"}]
)
def test_settings_are_checked_at_once(serve, bar, settings):
    with pytest.raises((ValueError, RerankerError), match=r"k is|candidates|reranker"):
        answerer(bar, serve(), **settings)


class Backwards:
    """A reranker that turns the order round and is sure of one sentence."""

    def rerank(self, description, hits, top_k=None):
        ranked = [
            replace(hit, score=float(n), rerank_score=float(n), probability=0.9 if n == 0 else 0.1)
            for n, hit in enumerate(reversed(hits))
        ]
        return ranked[:top_k]


def test_a_least_probability_leaves_out_what_is_not_likely(serve, bar):
    server = serve(QuestionPlan=plan("an intoxicated animal"), Draft=quoting)
    expected = bar.search("an intoxicated animal", 4)[-1]
    answer = answerer(bar, server, rerank=Backwards(), min_probability=0.5).answer(QUESTION)
    assert [hit.text for hit in answer.sources] == [expected.text]
    assert answer.citations[0].id == expected.id


def test_hits_of_several_searches_are_merged_in_turn():
    a1, b1 = Hit("a", 0.9, 1, "A"), Hit("b", 0.8, 2, "B")
    c2, b2 = Hit("c", 0.3, 1, "C"), Hit("b", 0.2, 2, "B")
    found = merged([[a1, b1], [c2, b2]])
    assert [(hit.id, hit.rank, hit.score) for hit in found] == [
        ("a", 1, 0.9), ("c", 2, 0.3), ("b", 3, 0.8),
    ]  # fmt: skip


def test_sources_fit_into_a_request():
    hits = [Hit(str(n), 0.5, n, "x" * (SOURCE_CHARACTERS // 2)) for n in range(1, 4)]
    assert fitting(hits) == tuple(hits[:2])
    long = Hit("long", 0.5, 1, "x" * (2 * SOURCE_CHARACTERS))
    assert fitting([long, *hits]) == (long,)


def test_descriptions_are_few_and_different():
    assert described(["a  b", "", "A b", "c", "d", "e"], "q") == ("a b", "c", "d")
    assert described([" "], " why\nnot? ") == ("why not?",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Monkeys drink [1].", "Monkeys drink."),
        ("Monkeys [s1, s2] drink (s3).", "Monkeys drink."),
        ("Monkeys drink【1†source】.", "Monkeys drink."),
        ("In [1939] (3 of them)", "In [1939] (3 of them)"),
        ("Monkeys drink [1-3].", "Monkeys drink."),
        ("Monkeys drink [^1] [#2].", "Monkeys drink."),
        ("Monkeys drink. [Source 3][sources: 4]", "Monkeys drink."),
        ("Monkeys drink.[1]", "Monkeys drink."),
        ("[1] Monkeys drink [s1\u2013s3; s5].", "Monkeys drink."),
        ("Monkeys drink \uff3b1\uff3d and \uff3b\uff11\uff0d\uff12\uff3d.", "Monkeys drink and."),
        ("Monkeys drink \u301014\u3011 \u30145\u3015 \u27e66\u27e7.", "Monkeys drink."),
        ("\u7334\u5b50\u559d\u9152[1]\u3002", "\u7334\u5b50\u559d\u9152\u3002"),
        ("Monkeys drink [\u200b1\u2060].", "Monkeys drink."),
        ("Monkeys \u200b[1] drink [1 \n, 2].", "Monkeys drink."),
        ("a[0] is x, and a[0][1] too", "a[0] is x, and a[0][1] too"),
        ("x\u00b2 and [sic] and [a1] and []", "x\u00b2 and [sic] and [a1] and []"),
        ("Mon\x1b[31mkeys\u202e drink\x07.", "Mon[31mkeys drink."),
        ("[1" + " , . 1" * 20_000, "[1" + " , . 1" * 20_000),
        ("\u3010\u2020" * 50_000, "\u3010\u2020" * 50_000),
    ],
)
def test_only_checked_marks_stay(text, expected):
    assert own_words(text) == expected
