"""The finder without a language model: cascade, expansion, conditions, record, events."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from datetime import date

import pytest

from descsim_tools import Record
from descsim_tools.agents import FinderSettings, InstanceFinder, Query
from descsim_tools.agents.statement import Status
from descsim_tools.errors import DataError, RerankerError, StoreError
from descsim_tools.rerankers import Reranker
from tests.finder_world import FORGERY, QUICK, Known, by_text, finder_of, make_index, marked, noise

FORGED = [
    f"a clerk forged documents that deceived people of town {n} p=0.{90 + n}" for n in range(8)
]
DOUBTFUL = [f"forged documents were seen by people in town {n} p=0.3" for n in range(4)]


@pytest.fixture
def index(tmp_path):
    with make_index([*FORGED, *DOUBTFUL, *noise(60)], tmp_path / "store") as opened:
        yield opened


def test_all_instances_are_found_and_the_statement_adds_up(index):
    statement = finder_of(index).find(FORGERY)
    assert {row.text for row in statement.instances} == set(FORGED)
    assert statement.stored == 72
    assert statement.matched + statement.rejected + statement.unjudged == statement.examined
    assert (statement.matched, statement.unjudged) == (8, 0)
    assert set(statement.decided_by) <= {"cross-encoder", "score"}
    assert sum(statement.decided_by.values()) == statement.examined
    assert str(statement.ended_by) == "done"
    assert statement.judges == ("known",)
    assert "8 matched" in str(statement)
    assert json.loads(json.dumps(statement.to_dict()))["matched"] == 8
    first = statement.rows[0]
    assert first.probability == pytest.approx(0.97)
    assert first.verdict.reason == "probability 0.97, at least 0.46"
    assert [row.status for row in statement.rows] == sorted(
        (row.status for row in statement.rows), key=[Status.MATCHED, Status.REJECTED].index
    )


@pytest.mark.parametrize(("accept", "matched"), [(0.2, 12), (0.5, 8), (0.945, 3), (1.0, 0)])
def test_the_cut_can_be_moved(index, accept, matched):
    finder = finder_of(index, settings=replace(QUICK, depth=72, accept=accept))
    assert finder.find(FORGERY).matched == matched


def test_what_is_far_is_rejected_unread(index):
    finder = finder_of(index, settings=replace(QUICK, depth=72, sample=0, min_score=0.3))
    statement = finder.find(FORGERY)
    read = set(finder.reranker().read)
    by_score = [row for row in statement.rows if str(row.verdict.decided_by) == "score"]
    assert by_score
    assert not read & {row.text for row in by_score}
    assert all(row.score < 0.3 and row.probability is None for row in by_score)
    assert "below 0.30" in by_score[0].verdict.reason
    assert statement.missed is None
    assert "not estimated" in str(statement)


def test_a_store_of_three_rows(tmp_path):
    with make_index([FORGED[0], DOUBTFUL[0], "a river"], tmp_path / "s") as index:
        statement = InstanceFinder(index, rerank=Known(marked)).find(FORGERY)
    assert (statement.stored, statement.examined, statement.matched) == (3, 3, 1)
    assert 0 <= statement.missed.low <= statement.missed.estimate <= 2
    assert statement.missed.high <= 2
    assert all(band.name != "never read" for band in statement.missed.bands)


def test_an_empty_store(tmp_path):
    with make_index(["x"], tmp_path / "s") as index:
        index.store.delete(["0"])
        statement = finder_of(index).find(FORGERY)
    assert (statement.stored, statement.examined) == (0, 0)
    assert (statement.missed.estimate, statement.missed.high) == (0, 0)


def test_descriptions_whose_last_hits_are_instances_are_searched_deeper(tmp_path):
    many = [f"{FORGERY} in town {n} p=0.9" for n in range(70)]
    with make_index([*many, *noise(60)], tmp_path / "s") as index:
        statement = finder_of(index, settings=replace(QUICK, rounds=4)).find(FORGERY)
        assert statement.matched == 70
        shallow = finder_of(index, settings=replace(QUICK, rounds=0, sample=0)).find(FORGERY)
        assert shallow.matched == 10
    assert [one.number for one in statement.rounds] == list(range(len(statement.rounds)))
    assert sum(one.examined for one in statement.rounds) <= statement.examined


def test_neighbours_of_instances_are_found(tmp_path):
    """What shares no word with the description, but words with an instance."""
    near = f"{FORGERY} parchment sealed royal falsified p=0.9"
    far = "parchment sealed royal falsified p=0.8"
    decoys = [f"people meet friends number{n}" for n in range(40)]
    with make_index([near, far, *decoys, *noise(30)], tmp_path / "s") as index:
        settings = replace(QUICK, depth=3, sample=0)
        found = finder_of(index, settings=settings).find(FORGERY)
        alone = finder_of(index, settings=replace(settings, rounds=0)).find(FORGERY)
    assert {row.text for row in alone.instances} == {near}
    assert {row.text for row in found.instances} == {near, far}
    row = next(row for row in found.instances if row.text == far)
    assert row.found_by == "near 0"
    assert found.rounds[1].neighbours_of == 1
    assert found.rounds[-1].matched == 0  # the round that ended it


def test_a_round_that_yields_too_little_is_the_last(tmp_path):
    chain = [f"link{n} link{n + 1} p=0.9" for n in range(30)]
    with make_index([f"{FORGERY} link0 p=0.9", *chain], tmp_path / "s") as index:
        settings = FinderSettings(depth=1, sample=0, rounds=50, min_yield=1.0)
        eager = finder_of(index, settings=replace(settings, min_yield=0.0)).find(FORGERY)
        strict = finder_of(
            index, lambda d, t: 0.9 if "link0" in t else 0.1, settings=settings
        ).find(FORGERY)
    assert eager.matched == 31
    assert len(strict.rounds) == 2


def test_conditions(tmp_path):
    texts = ["red car fast", "red car slow", "blue car fast", "blue boat slow", "red boat"]

    def has(description, text):
        return 0.9 if description in text else 0.1

    with make_index(texts, tmp_path / "s") as index:
        finder = finder_of(index, has)

        def found(*args, **options):
            return {row.text for row in finder.find(*args, **options).instances}

        assert found("car", all_of=["red"]) == {"red car fast", "red car slow"}
        assert found(any_of=["blue", "slow"]) == {
            "red car slow", "blue car fast", "blue boat slow"
        }  # fmt: skip
        assert found("car", none_of=["red", "slow"]) == {"blue car fast"}
        assert found("red", any_of=["boat", "fast"]) == {"red boat", "red car fast"}
        statement = finder.find("car", all_of=["red"], none_of=["slow"])
    assert statement.query.to_dict() == {
        "all_of": ["car", "red"], "any_of": [], "none_of": ["slow"]
    }  # fmt: skip
    assert str(statement.query) == "car; and red - none of: slow"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((), {}, ValueError, "nothing to look for"),
        ((), {"none_of": ["x"]}, ValueError, "nothing to look for"),
        ((" ",), {}, ValueError, "concept has a blank description"),
        (("x",), {"all_of": [" "]}, ValueError, "all_of has a blank description"),
        (("x",), {"all_of": "y"}, TypeError, r"all_of is one string, need a list"),
        (("x",), {"all_of": None}, TypeError, r"all_of is None, need a list"),
        (("caf\udce9",), {}, ValueError, "concept is not valid UTF-8 text"),
        (("x",), {"noneof": ["y"]}, TypeError, "find takes no noneof, only all_of"),
        (("x",), {"where": [1]}, TypeError, r"where is \[1\] \(list\), need a mapping"),
        (("x",), {"where": {"a": float("nan")}}, ValueError, "where holds what no filter"),
        (("x",), {"where": {"a": date(2026, 1, 1)}}, ValueError, "where holds what no filter"),
        (("x",), {"any_of": [1]}, TypeError, "any_of holds 1"),
        (("x",), {"where": {"$no": 1}}, StoreError, "filter|where"),
        (("x",), {"decisions": {"nobody": True}}, ValueError, "1 ids that are not in the store"),
        (("x",), {"decisions": {"0": "perhaps"}}, DataError, "need yes or no"),
    ],
)
def test_misuse_is_told(index, arguments, options, error, match):
    with pytest.raises(error, match=match):
        finder_of(index).find(*arguments, **options)


def test_a_finder_needs_a_judge(index):
    class Uncalibrated(Reranker):
        def _score(self, description, sentences):
            pytest.fail("asked for scores that nobody can use")

    with pytest.raises(ValueError, match="nobody to judge"):
        InstanceFinder(index, rerank=None)
    with pytest.raises(ValueError, match="Uncalibrated gives scores and no probabilities"):
        InstanceFinder(index, rerank=Uncalibrated())


@pytest.mark.parametrize("name", ["log-prob", "log-prob:gpt2"])
def test_a_reranker_without_probabilities_is_refused_by_its_name(index, name):
    with pytest.raises(ValueError, match=f"{name} gives scores and no probabilities; take 'comb"):
        InstanceFinder(index, rerank=name)


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 0}, {"accept": 2}, {"uncertain": (0.9, 0.1)}, {"sample": -1}, {"batch": 1.5}],
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FinderSettings(**wrong)


def test_a_filter_holds_everywhere(tmp_path):
    records = [Record(text, metadata={"even": n % 2 == 0}) for n, text in enumerate(FORGED)]
    records += [Record(text, metadata={"even": True}) for text in noise(30)]
    with make_index(records, tmp_path / "s") as index:
        statement = finder_of(index).find(FORGERY, where={"even": True})
    assert statement.stored == 34
    assert statement.matched == 4
    assert all(row.metadata["even"] for row in statement.rows)


# --- a person's decisions ---------------------------------------------------------------------


def write_csv(folder):
    path = folder / "d.csv"
    path.write_text("id,text,decision\n0,x,no\n8,x,YES\n71,x,yes\n5,x,\n")
    return path


def write_jsonl(folder):
    path = folder / "d.jsonl"
    rows = [("0", "no"), ("8", "yes"), ("71", True), ("5", None)]
    path.write_text("".join(json.dumps({"id": i, "decision": d}) + "\n" for i, d in rows))
    return path


@pytest.mark.parametrize(
    "source", [write_csv, write_jsonl, lambda _: {"0": False, "8": True, "71": "yes"}]
)
def test_a_person_overrules(index, tmp_path, source):
    finder = finder_of(index)
    statement = finder.find(FORGERY, decisions=source(tmp_path))
    rows = {row.id: row for row in statement.rows}
    assert (rows["0"].status, rows["8"].status, rows["71"].status) == (
        Status.REJECTED, Status.MATCHED, Status.MATCHED
    )  # fmt: skip
    assert {str(rows[id_].verdict.decided_by) for id_ in ("0", "8", "71")} == {"person"}
    assert rows["5"].status is Status.MATCHED
    assert not {rows["0"].text, rows["8"].text} & set(finder.reranker().read)
    assert statement.decided_by["person"] == 3


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("d.csv", "id,decision\n1,yes\n2,no\n1,no\n", "d.csv decides '1' both yes and no"),
        ("d.txt", "", "must end in .jsonl or .csv"),
        ("d.csv", "id,verdict\n1,yes\n", "without `id` and `decision`"),
        ("d.jsonl", "{", "no JSON"),
        ("none.csv", None, "cannot read the decisions"),
    ],
)
def test_wrong_decisions_are_named(index, tmp_path, name, content, match):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=match):
        finder_of(index).find(FORGERY, decisions=tmp_path / name)


@pytest.mark.parametrize("content", ["", "id,decision\n", "id,decision\n1,\n"])
def test_a_file_that_decides_nothing_is_told(index, tmp_path, caplog, content):
    (tmp_path / "d.csv").write_text(content)
    statement = finder_of(index).find(FORGERY, decisions=tmp_path / "d.csv")
    assert "person" not in statement.decided_by
    assert f"{tmp_path / 'd.csv'} decides nothing" in caplog.text


def test_a_decision_twice_is_one(index, tmp_path, caplog):
    (tmp_path / "d.csv").write_text("id,decision\n1,no\n1,NO\n")
    assert finder_of(index).find(FORGERY, decisions=tmp_path / "d.csv").decided_by["person"] == 1
    assert caplog.text == ""


def test_decisions_outside_the_filter_are_refused(tmp_path):
    records = [Record(text, metadata={"even": n % 2 == 0}) for n, text in enumerate(FORGED)]
    with make_index(records, tmp_path / "s") as index:
        finder = finder_of(index)
        with pytest.raises(ValueError, match="2 rows that the filter leaves out, such as '1'"):
            finder.find(FORGERY, where={"even": True}, decisions={"0": 1, "1": 1, "3": 0})
        inside = finder.find(FORGERY, where={"even": True}, decisions={"0": 0, "2": 1})
    assert (inside.stored, inside.examined, inside.decided_by["person"]) == (4, 4, 2)


# --- the record -------------------------------------------------------------------------------


def test_a_finished_search_is_read_from_its_record(index, tmp_path):
    first = finder_of(index).find(FORGERY, record=tmp_path / "r")
    finder = finder_of(index)
    again = finder.find(FORGERY, record=tmp_path / "r")
    assert finder.reranker().read == []
    assert by_text(again) == by_text(first)
    assert again.missed == first.missed
    assert again.cost.seconds > first.cost.seconds


def test_a_search_goes_on_after_a_kill(index, tmp_path):
    """At whatever byte the file ends."""
    whole = finder_of(index).find(FORGERY, record=tmp_path / "r")
    content = (tmp_path / "r/record.jsonl").read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        folder = tmp_path / f"cut-{share}"
        folder.mkdir()
        (folder / "record.jsonl").write_bytes(content[: int(share * len(content))])
        finder = finder_of(index)
        assert by_text(finder.find(FORGERY, record=folder)) == by_text(whole)
        kept = content[: int(share * len(content))]
        known = kept[: kept.rfind(b"\n") + 1].count(b'"event": "score"')
        assert len(finder.reranker().read) == whole_reads(content) - known
        lines = (folder / "record.jsonl").read_text().splitlines()
        assert all(json.loads(line) for line in lines)


def whole_reads(content):
    return content.count(b'"event": "score"')


def test_a_store_that_grew_is_searched_again(tmp_path):
    with make_index([FORGED[0], "x"], tmp_path / "s") as index:
        assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 1
        new = [Record(FORGED[1], "new")]
        index.store.upsert(new, index.encoder.encode_sentences([FORGED[1]]))
        finder = finder_of(index)
        assert finder.find(FORGERY, record=tmp_path / "r").matched == 2
    assert finder.reranker().read == [FORGED[1]]


def test_a_record_of_another_store_is_refused(tmp_path):
    """Equal ids and as many rows say nothing: what was found there would hide what is here."""
    for name, texts in (("a", noise(20)), ("b", [*noise(18), *FORGED[:2]])):
        with make_index(texts, tmp_path / name) as index:
            if name == "a":
                assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 0
                continue
            with pytest.raises(DataError, match="holds another search: its collection is"):
                finder_of(index).find(FORGERY, record=tmp_path / "r")
            assert finder_of(index).find(FORGERY).matched == 2
            with pytest.raises(DataError, match="is a store; name another folder"):
                finder_of(index).find(FORGERY, record=tmp_path / name)
    (tmp_path / "f").write_text("")
    with make_index(noise(3), tmp_path / "c") as index, pytest.raises(DataError, match="kept in"):
        finder_of(index).find(FORGERY, record=tmp_path / "f" / "r")


def test_a_row_that_became_an_instance_is_found_by_a_resumed_search(tmp_path):
    """It was none of the first search's hits, and the store holds as many rows as before."""
    texts = [f"people who saw documents {n}" for n in range(30)]
    with make_index([*texts, *noise(30)], tmp_path / "s") as index:
        finder = finder_of(index, settings=FinderSettings(depth=5, sample=0, rounds=0))
        first = finder.find(FORGERY, record=tmp_path / "r")
        assert (first.matched, first.examined) == (0, 5)
        changed = [str(n) for n in range(60) if str(n) not in {row.id for row in first.rows}][:5]
        index.store.upsert(
            [Record(text, id_) for text, id_ in zip(FORGED, changed, strict=False)],
            index.encoder.encode_sentences(FORGED[:5]),
        )
        statement = finder.find(FORGERY, record=tmp_path / "r")
        assert {row.text for row in statement.instances} == set(FORGED[:5])
        # What the first search had found is still examined.
        assert {row.id for row in statement.rows} == {row.id for row in first.rows} | set(changed)


def test_what_an_earlier_run_found_stays_within_the_filter(tmp_path):
    records = [Record(text, metadata={"kept": True}) for text in FORGED[:4]]
    with make_index([*records, *noise(4)], tmp_path / "s") as index:
        finder = finder_of(index, settings=FinderSettings(depth=4, sample=0, rounds=0))
        where, record = {"kept": True}, tmp_path / "r"
        assert finder.find(FORGERY, where=where, record=record).matched == 4
        index.store.update_metadata([Record(FORGED[0], "0", {"kept": False})])
        assert finder.find(FORGERY, where=where, record=record).matched == 3


def test_a_record_of_another_search_is_refused(index, tmp_path):
    finder_of(index).find(FORGERY, record=tmp_path / "r")
    with pytest.raises(DataError, match="holds another search: its query is"):
        finder_of(index).find("something else", record=tmp_path / "r")
    (tmp_path / "r/record.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="line 1, is no line of a record"):
        finder_of(index).find(FORGERY, record=tmp_path / "r")


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        "3",
        "{",
        '{"event": []}',
        '{"event": "plan", "plan": []}',
        '{"event": "descriptions", "round": "1", "descriptions": []}',
        '{"event": "descriptions", "round": 1, "descriptions": "text"}',
        '{"event": "hits", "search": "x", "ids": [1]}',
        '{"event": "score", "key": "x", "p": "0.4", "truncated": false}',
        '{"event": "score", "key": "x", "p": 4, "truncated": false}',
        '{"event": "score", "key": "x", "p": NaN, "truncated": false}',
        '{"event": "verdict", "key": "x", "verdict": {"status": "maybe"}}',
        '{"event": "verdict", "key": "x", "verdict": []}',
        '{"event": "cost", "cost": {"requests": null}}',
    ],
)
@pytest.mark.parametrize("number", [1, 3])
def test_a_damaged_record_is_told(index, tmp_path, line, number):
    finder_of(index).find(FORGERY, record=tmp_path / "r")
    path = tmp_path / "r/record.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{one}\n" for one in [*lines[: number - 1], line, *lines[number:]]))
    told = f"line {number}, is no line of a record .*: the record is damaged; "
    cut = "delete this line and all below it to go on, or " if number > 1 else ""
    with pytest.raises(DataError, match=f"{told}{cut}name another folder$"):
        finder_of(index).find(FORGERY, record=tmp_path / "r")
    if number > 1:  # and the remedy is one
        path.write_text("".join(f"{one}\n" for one in lines[: number - 1]))
        assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 8


def test_hits_that_are_gone_are_searched_for_again(tmp_path):
    """One row less and one more: the store counts as many as before."""
    with make_index([*FORGED[:2], *noise(4)], tmp_path / "s") as index:
        settings = replace(QUICK, depth=2, rounds=0, sample=0)
        finder = finder_of(index, settings=settings)
        assert finder.find(FORGERY, record=tmp_path / "r").matched == 2
        index.store.delete(["0"])
        index.store.upsert([Record(FORGED[2], "new")], index.encoder.encode_sentences(FORGED[2:3]))
        found = finder.find(FORGERY, record=tmp_path / "r")
    assert {row.id for row in found.instances} == {"1", "new"}


def test_two_searches_do_not_share_a_record(index, tmp_path):
    events = finder_of(index).stream(FORGERY, record=tmp_path / "r")
    next(events)
    with pytest.raises(DataError, match="another search writes to"):
        finder_of(index).find(FORGERY, record=tmp_path / "r")
    events.close()
    assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 8


def test_a_sentence_that_changed_is_judged_anew(tmp_path):
    with make_index([FORGED[0], "x"], tmp_path / "s") as index:
        assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 1
        changed = FORGED[0].replace("p=0.90", "p=0.10")
        index.store.upsert([Record(changed, "0")], index.encoder.encode_sentences([changed]))
        assert finder_of(index).find(FORGERY, record=tmp_path / "r").matched == 0


# --- events, cancelling, async ----------------------------------------------------------------


def test_events_tell_what_happens(index):
    events = list(finder_of(index).stream(FORGERY))
    kinds = [event.kind for event in events]
    assert kinds[0] == "plan"
    assert kinds[-2:] == ["judged", "statement"]
    assert {"retrieved", "reading", "judged", "round", "estimating"} <= set(kinds)
    assert [event.statement is None for event in events] == [True] * (len(events) - 1) + [False]
    told = [row.id for event in events if event.kind == "judged" for row in event.rows]
    assert set(told) == {row.id for row in events[-1].statement.rows}
    assert [e.examined for e in events] == sorted(e.examined for e in events)
    assert events[-1].matched == events[-1].statement.matched == 8


def test_a_cancelled_search_says_what_is_unjudged(tmp_path):
    cancel = threading.Event()

    class Cancelling(Known):
        def _score(self, description, sentences):
            cancel.set()
            return super()._score(description, sentences)

    with make_index([*FORGED, *noise(200)], tmp_path / "s") as index:
        settings = replace(QUICK, depth=150)
        finder = InstanceFinder(index, rerank=Cancelling(marked), settings=settings)
        statement = finder.find(FORGERY, cancel=cancel, record=tmp_path / "r")
        assert str(statement.ended_by) == "cancelled"
        assert statement.unjudged_for == {"cancelled": 150 - 64}
        assert statement.missed is None
        known = Known(marked)
        again = InstanceFinder(index, rerank=known, settings=settings)
        whole = again.find(FORGERY, record=tmp_path / "r")
        assert whole.unjudged == 0
        assert not set(known.read) & {
            row.text for row in statement.rows if row.probability is not None
        }


async def test_async_gives_the_same(index):
    plain = finder_of(index).find(FORGERY)
    assert by_text(await finder_of(index).afind(FORGERY)) == by_text(plain)
    kinds = [event.kind async for event in finder_of(index).astream(FORGERY)]
    assert kinds[-1] == "statement"
    with pytest.raises(ValueError, match="blank"):
        await finder_of(index).afind("")


async def test_a_cancelled_task_ends_the_search(tmp_path):
    class Slow(Known):
        def _score(self, description, sentences):
            time.sleep(0.2)
            return super()._score(description, sentences)

    with make_index([*FORGED, *noise(700)], tmp_path / "s") as index:
        slow = Slow(marked)
        finder = InstanceFinder(index, rerank=slow, settings=replace(QUICK, depth=600))
        started = time.monotonic()
        task = asyncio.create_task(finder.afind(FORGERY, record=tmp_path / "r"))
        while not slow.read:
            await asyncio.sleep(0.01)
        ticks = time.monotonic()
        await asyncio.sleep(0.05)  # the loop is free while the thread works
        assert time.monotonic() - ticks < 0.15
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):  # the thread ends after the step that is under way
            if not any(t.name == "descsim-find" for t in threading.enumerate()):
                break
            await asyncio.sleep(0.1)
        assert len(slow.read) < 600
        assert time.monotonic() - started < 15
        lines = (tmp_path / "r/record.jsonl").read_text().splitlines()
        assert sum(json.loads(line)["event"] == "score" for line in lines) == len(slow.read)


def test_queries_are_told_as_they_are():
    query = Query.of("  a   b ", all_of=["a b", "c"])
    assert query.all_of == ("a b", "c")
    assert query.positive == query.conditions == ("a b", "c")


def test_the_reranker_fits_the_store(tiny_index):
    assert InstanceFinder(tiny_index).judges == ("cross-encoder",)
    finder = InstanceFinder(tiny_index, rerank="combined")
    with pytest.raises(RerankerError, match="tuned for the scores of descsim-minilm"):
        finder.find("a thing")
