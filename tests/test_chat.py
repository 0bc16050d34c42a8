"""Conversations over a real store, with a server that speaks the protocol and is scripted."""

import json

import pytest

from descsim_tools.agents.answers import Answer, Citation, Status
from descsim_tools.agents.chat import MEMORY_CHARACTERS, Chatbot, Turn
from descsim_tools.agents.rag import Found, Planned
from descsim_tools.errors import DataError
from descsim_tools.llm import Budget
from descsim_tools.types import Hit
from tests.answering import DRUNK, answerer, draft, quoting, source_id, statement, turn
from tests.fake_llm import Reply, by_schema, error

SEARCH = turn("an intoxicated animal", question="Which animals get drunk?")


def elk(data):
    return draft(statement("An elk did.", (source_id(data, "elk"), "fermenting apples")))


def test_a_turn_is_searched_for_and_remembered(serve, bar):
    server = serve(TurnPlan=SEARCH, Draft=elk)
    bot = Chatbot(answerer(bar, server))
    answer = bot.ask("And animals?")
    assert answer.status is Status.ANSWERED
    assert answer.text == "An elk did. [1]"
    assert answer.citations[0].text == DRUNK[1]
    assert answer.question == "Which animals get drunk?"
    planned, written = server.seen
    assert planned.data == {"conversation": [], "turn": "And animals?"}
    assert written.data["question"] == "Which animals get drunk?"
    assert bot.turns == (Turn("And animals?", answer),)
    bot.ask("More?")
    assert server.seen[2].data["conversation"] == [
        {"user": "And animals?", "assistant": "An elk did. [1]", "cited": [DRUNK[1]]}
    ]


def test_a_greeting_is_not_searched_for(serve, bar):
    server = serve(TurnPlan=turn("x", kind="talk", reply="Hello [1]!"))
    answer = Chatbot(answerer(bar, server)).ask("hi")
    assert answer.status is Status.TALK
    assert answer.text == "Hello!"  # a mark that nothing stands behind is left out
    assert answer.descriptions == ()
    assert len(server.seen) == 1


def test_a_blank_turn_costs_nothing(serve, bar):
    server = serve()
    assert Chatbot(answerer(bar, server)).ask("  ").status is Status.TALK
    assert server.seen == []


def test_a_follow_up_is_answered_from_what_was_cited(serve, bar):
    follow = turn(kind="cited", question="What did the elk eat?")
    server = serve(TurnPlan=[SEARCH, follow], Draft=elk)
    bot = Chatbot(answerer(bar, server))
    bot.ask("Which animals get drunk?")
    answer = bot.ask("What did it eat?")
    assert answer.status is Status.ANSWERED
    assert answer.descriptions == ()
    assert [hit.text for hit in answer.sources] == [DRUNK[1]]
    assert server.seen[3].data["sources"] == [{"id": "s1", "text": DRUNK[1]}]
    assert answer.citations[0].id == "row1"
    assert answer.citations[0].metadata["year"] == 2001


def test_a_follow_up_without_anything_cited_is_searched_for(serve, bar):
    server = serve(TurnPlan=turn(kind="cited", question="What did the elk eat?"), Draft=elk)
    answer = Chatbot(answerer(bar, server)).ask("What did it eat?")
    assert answer.descriptions == ("What did the elk eat?",)
    assert len(answer.sources) == 4


def test_a_badly_asked_turn_is_told(serve, bar):
    plan = turn("an intoxicated animal", kind="badly_asked", reply="Too vague.")
    instances = {"instances": [{"description": "d1", "source": "d1s1"}]}
    server = serve(TurnPlan=plan, Instances=instances)
    answer = Chatbot(answerer(bar, server)).ask("stuff")
    assert (answer.status, answer.text) == (Status.BADLY_ASKED, "Too vague.")
    assert answer.suggestions[0].description == "an intoxicated animal"


def test_it_says_when_nothing_was_found_and_remembers_that(serve, bar):
    server = serve(TurnPlan=SEARCH, Draft=draft(found=False))
    bot = Chatbot(answerer(bar, server))
    answer = bot.ask("Which animals get drunk?")
    assert answer.status is Status.NOT_IN_CORPUS
    assert "does not answer this" in answer.text
    assert len(bot.turns) == 1


@pytest.mark.parametrize(
    "fault", [Reply("nonsense"), Reply(None, message={"refusal": "no"}), error(500, "broken")]
)
def test_a_failed_turn_is_no_part_of_the_conversation(serve, bar, fault):
    plants, elks = turn("a plant", question="Which plants?"), turn("an elk", question="Elks?")
    script = by_schema(TurnPlan=[SEARCH, plants, elks], Draft=elk)
    server = serve(lambda seen, n: script(seen, n) if n < 3 else fault)
    bot = Chatbot(answerer(bar, server))
    first = bot.ask("Which animals get drunk?")
    failed = bot.ask("And plants?")
    assert failed.status is Status.NO_ANSWER
    assert bot.turns == (Turn("Which animals get drunk?", first),)
    server.script = script
    assert bot.ask("And elks?").status is Status.ANSWERED


def test_a_broken_plan_is_survived(serve, bar):
    server = serve(TurnPlan=Reply('{"kind": "dance"}'), Draft=elk)
    answer = Chatbot(answerer(bar, server)).ask("Which animals get drunk?")
    assert answer.status is Status.ANSWERED
    assert answer.descriptions == ("Which animals get drunk?",)
    assert answer.problem


@pytest.mark.parametrize(("requests", "answered"), [(0, 0), (1, 0), (2, 1), (5, 2)])
def test_the_budget_holds_over_the_conversation(serve, bar, requests, answered):
    server = serve(TurnPlan=SEARCH, Draft=elk)
    bot = Chatbot(answerer(bar, server, budget=Budget(requests=requests)))
    statuses = [bot.ask(f"Question {n}?").status for n in range(3)]
    # The second and third answers' requests differ from the first only where the turn does, so the
    # third one is written from the cache of the client.
    assert statuses[:answered] == [Status.ANSWERED] * answered
    assert len(server.seen) <= requests
    if requests < 2:
        assert set(statuses) == {Status.OUT_OF_BUDGET}
        assert bot.turns == ()


@pytest.mark.parametrize("most", [0, 2])
def test_the_oldest_turns_are_forgotten(serve, bar, most):
    server = serve(TurnPlan=turn(kind="talk", reply="Yes."))
    bot = Chatbot(answerer(bar, server), turns=most)
    for n in range(4):
        bot.ask(f"turn {n}")
    assert [t.said for t in bot.turns] == ["turn 2", "turn 3"][:most]
    shown = [t["user"] for t in server.seen[3].data["conversation"]]
    assert shown == ["turn 1", "turn 2"][:most]


@pytest.mark.parametrize("character", ["x", "<", "\n", "\x01"])
def test_a_long_turn_is_cut_and_does_not_fill_the_memory(serve, bar, character):
    server = serve(TurnPlan=turn(kind="talk", reply="Yes."))
    bot = Chatbot(answerer(bar, server))
    long = "long" + character * 2 * MEMORY_CHARACTERS + "."
    for said in ("short", long, "again", "now"):
        bot.ask(said)
    assert [t.said for t in bot.turns] == ["short", long, "again", "now"]
    shown = server.seen[-1].data["conversation"]
    assert [t["user"][:5] for t in shown] == ["short", long[:5], "again"]
    assert shown[1]["user"].endswith(f"{character} ...")
    assert sum(len(t["user"]) + len(t["assistant"]) for t in shown) < MEMORY_CHARACTERS


def test_of_long_turns_the_oldest_are_forgotten(serve, bar):
    server = serve(TurnPlan=turn(kind="talk", reply="Yes."))
    bot = Chatbot(answerer(bar, server))
    said = [f"{n}{'x' * 2 * MEMORY_CHARACTERS}" for n in range(4)]
    for text in said:
        bot.ask(text)
    assert [t.said for t in bot.turns] == said[1:]


def test_sentences_that_fill_the_memory_are_cut_and_can_still_be_asked_about(serve, bar):
    long = Hit("row9", 0.5, 1, "An elk. " * MEMORY_CHARACTERS)
    cited = Citation(1, long.id, long.text, "An elk.", (0, 7))
    before = Turn("Who?", Answer(Status.ANSWERED, "Who?", "An elk. [1]", citations=(cited,)))
    assert sum(map(len, before.shown()["cited"])) < MEMORY_CHARACTERS
    follow = turn(kind="cited", question="What did the elk eat?")
    bot = Chatbot(answerer(bar, serve(TurnPlan=follow, Draft=quoting)))
    bot.turns = (before,)
    assert bot.ask("What did it eat?").citations[0].text == long.text


def test_a_conversation_is_saved_and_gone_on_with(serve, bar, tmp_path):
    server = serve(TurnPlan=[SEARCH, turn(kind="cited", question="What?")], Draft=elk)
    bot = Chatbot(answerer(bar, server))
    bot.ask("Welche Tiere trinken? \u2028 äöü")
    bot.save(tmp_path / "chat.json")
    other = Chatbot(answerer(bar, server))
    other.load(tmp_path / "chat.json")
    assert [t.said for t in other.turns] == [t.said for t in bot.turns]
    assert other.turns[0].answer.to_dict() == bot.turns[0].answer.to_dict()
    assert other.turns == bot.turns
    assert other.ask("What did it eat?").citations[0].text == DRUNK[1]
    other.reset()
    assert other.turns == ()


def test_halves_of_characters_do_no_harm(serve, bar, tmp_path):
    half = turn(kind="talk", reply="Hm \ud800.")
    bot = Chatbot(answerer(bar, serve(TurnPlan=half)))
    assert bot.ask("hi").text == "Hm \ufffd."
    bot.save(tmp_path / "chat.json")
    text = (tmp_path / "chat.json").read_text().replace("hi", "\\udce9")
    (tmp_path / "chat.json").write_text(text)
    bot.load(tmp_path / "chat.json")
    assert bot.turns[0].said == "\ufffd"
    assert bot.ask("and now?").text == "Hm \ufffd."
    bot.save(tmp_path / "chat.json")


def test_a_conversation_that_cannot_be_written_leaves_the_old_one(serve, bar, tmp_path):
    bot = Chatbot(answerer(bar, serve(TurnPlan=turn(kind="talk", reply="Yes."))))
    bot.ask("hi")
    path = tmp_path / "chat.json"
    bot.save(path)
    before = path.read_bytes()
    bot.turns = (Turn("caf\udce9", bot.turns[0].answer),)
    with pytest.raises(ValueError, match="surrogates"):
        bot.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("said", ["caf\udce9 drunk?", None])
def test_what_is_no_text_is_refused_and_the_chat_goes_on(serve, bar, said):
    bot = Chatbot(answerer(bar, serve(TurnPlan=turn(kind="talk", reply="Yes."))))
    with pytest.raises(ValueError, match=r"UTF-8|need a string"):
        bot.ask(said)
    assert bot.ask("hi").text == "Yes."
    assert [t.said for t in bot.turns] == ["hi"]


def test_a_turn_without_a_right_citation_is_not_remembered(serve, bar):
    wrong = draft(statement("Cats drink.", ("s1", "cats drink milk")))
    server = serve(TurnPlan=SEARCH, Draft=wrong, Corrections={"statements": []})
    bot = Chatbot(answerer(bar, server))
    assert bot.ask("Which animals get drunk?").status is Status.NO_ANSWER
    assert bot.turns == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 99, "turns": []}',
        '{"format": 1}',
        '{"format": 1, "turns": [{"said": "x"}]}',
        '{"format": 1, "turns": [{"said": "x", "answer": {"status": "odd"}}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_conversation_is_refused(serve, bar, tmp_path, text):
    (tmp_path / "chat.json").write_text(text)
    bot = Chatbot(answerer(bar, serve()))
    with pytest.raises(DataError, match="conversation"):
        bot.load(tmp_path / "chat.json")
    assert bot.turns == ()


async def test_streams_in_threads(serve, bar):
    server = serve(TurnPlan=SEARCH, Draft=elk)
    bot = Chatbot(answerer(bar, server))
    events = [event async for event in bot.astream("Which animals get drunk?")]
    assert [type(event) for event in events] == [Planned, Found, Answer]
    assert bot.turns[0].answer is events[-1]
    await bot.aask("And now?")
    assert len(bot.turns) == 2


def test_turns_must_be_a_number_from_0_up(serve, bar):
    with pytest.raises(ValueError, match="turns is -1"):
        Chatbot(answerer(bar, serve()), turns=-1)


class TestLangChain:
    def test_a_question_gives_an_answer(self, serve, bar):
        from langchain_core.runnables import RunnableLambda

        from descsim_tools.agents.langchain import rag_runnable

        plan = {"kind": "search", "problem": "", "descriptions": ["an intoxicated animal"]}
        server = serve(QuestionPlan=plan, Draft=elk)
        chain = rag_runnable(answerer(bar, server)) | RunnableLambda(lambda a: a.citations[0].id)
        assert chain.invoke("Which animals get drunk?") == "row1"
        assert chain.batch(["Which animals get drunk?"] * 2) == ["row1"] * 2

    async def test_a_checkpointer_remembers_each_thread(self, serve, bar):
        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.checkpoint.memory import InMemorySaver
        from langgraph.graph import START, MessagesState, StateGraph

        from descsim_tools.agents.langchain import chat_runnable

        server = serve(TurnPlan=[SEARCH, turn(kind="cited", question="What?"), SEARCH], Draft=elk)
        bot = Chatbot(answerer(bar, server))
        graph = StateGraph(MessagesState).add_node("chat", chat_runnable(bot))
        graph = graph.add_edge(START, "chat").compile(checkpointer=InMemorySaver())

        def thread(name):
            return {"configurable": {"thread_id": name}}

        def said(text):
            return {"messages": [HumanMessage(text)]}

        first = graph.invoke(said("Which animals get drunk?"), thread("1"))
        assert isinstance(first["messages"][-1], AIMessage)
        assert first["messages"][-1].text == "An elk did. [1]"
        second = await graph.ainvoke(said("What did it eat?"), thread("1"))
        assert len(second["messages"]) == 4
        assert [t["user"] for t in server.seen[2].data["conversation"]] == [
            "Which animals get drunk?"
        ]
        answer = second["messages"][-1].additional_kwargs["descsim_turn"]["answer"]
        assert json.loads(json.dumps(answer))["citations"][0]["id"] == "row1"
        assert answer["descriptions"] == []
        graph.invoke(said("Which plants?"), thread("2"))
        assert server.seen[4].data["conversation"] == []
        assert bot.turns == ()

    def test_the_last_message_must_be_a_users(self, serve, bar):
        from langchain_core.messages import AIMessage

        from descsim_tools.agents.langchain import chat_runnable

        with pytest.raises(ValueError, match="need a HumanMessage"):
            chat_runnable(Chatbot(answerer(bar, serve()))).invoke({"messages": [AIMessage("x")]})


class TestLlamaIndex:
    async def test_a_question_gives_typed_events_and_an_answer(self, serve, bar):
        from descsim_tools.agents.llama_index import FoundEvent, PlannedEvent, RagWorkflow

        plan = {"kind": "search", "problem": "", "descriptions": ["an intoxicated animal"]}
        server = serve(QuestionPlan=plan, Draft=elk)
        handler = RagWorkflow(answerer(bar, server)).run(question="Which animals get drunk?")
        events = [event async for event in handler.stream_events()]
        assert [type(event) for event in events][:2] == [PlannedEvent, FoundEvent]
        assert events[0].planned.descriptions == ("an intoxicated animal",)
        assert len(events[1].found.hits) == 4
        answer = await handler
        assert answer.text == "An elk did. [1]"

    async def test_there_is_no_time_out_by_default(self, serve, bar):
        from workflows.errors import WorkflowTimeoutError

        from descsim_tools.agents.llama_index import ChatWorkflow, RagWorkflow

        slow = Reply('{"kind": "talk", "question": "", "reply": "Yes.", "descriptions": []}')
        slow.delay = 2
        ours = answerer(bar, serve(lambda seen, n: slow))
        workflows = [RagWorkflow(ours), ChatWorkflow(Chatbot(ours))]
        assert [workflow._timeout for workflow in workflows] == [None, None]
        with pytest.raises(WorkflowTimeoutError):
            await ChatWorkflow(Chatbot(ours), timeout=0.5).run(said="hi")

    async def test_a_question_without_search_ends_early(self, serve, bar):
        from descsim_tools.agents.llama_index import RagWorkflow

        answer = await RagWorkflow(answerer(bar, serve())).run(question=" ")
        assert answer.status is Status.BADLY_ASKED
        plan = {"kind": "badly_asked", "problem": "Vague.", "descriptions": ["a merger"]}
        server = serve(QuestionPlan=plan, Instances={"instances": []})
        answer = await RagWorkflow(answerer(bar, server)).run(question="stuff")
        assert (answer.status, answer.text) == (Status.BADLY_ASKED, "Vague.")

    async def test_a_context_remembers_the_conversation(self, serve, bar):
        from llama_index.core.workflow import Context

        from descsim_tools.agents.llama_index import ChatWorkflow

        server = serve(TurnPlan=[SEARCH, turn(kind="cited", question="What?")], Draft=quoting)
        bot = Chatbot(answerer(bar, server))
        workflow = ChatWorkflow(bot)
        context = Context(workflow)
        first = await workflow.run(said="Which animals get drunk?", ctx=context)
        # The context is JSON, so the conversation can go on in another process.
        restored = Context.from_dict(workflow, json.loads(json.dumps(context.to_dict())))
        second = await workflow.run(said="What did it eat?", ctx=restored)
        assert [h.id for h in second.sources] == [first.citations[0].id]
        assert len(server.seen[2].data["conversation"]) == 1
        assert bot.turns == ()
