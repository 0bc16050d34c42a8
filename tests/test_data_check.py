import json

import pytest

from descsim_tools.cli import main
from descsim_tools.datagen.check import check
from descsim_tools.datagen.formats import Cluster, EvalQuery, Group, PaperRecord, to_fields
from descsim_tools.datagen.words import leaks, likeness, overlap, share_within
from descsim_tools.errors import DataError

SENTENCE = "In 1974 the ferry Solveig ran aground off Tromsdal after its helmsman fell asleep."


def write(path, *items):
    lines = [item if isinstance(item, str) else json.dumps(to_fields(item)) for item in items]
    path.write_text("\n".join(lines) + "\n")
    return path


def record(*good, bad=("a shipwreck in which many passengers died",), sentence=SENTENCE):
    return PaperRecord(sentence, good, tuple(bad))


GOOD = "an accident at sea caused by exhaustion"


def test_shares_of_words():
    assert share_within("a cat and a dog", "A cat sat") == pytest.approx(2 / 5)
    assert share_within("...", "x") == 0
    assert overlap("the accident of a ferry", SENTENCE) == pytest.approx(1 / 2)
    assert overlap("of the", SENTENCE) == 0
    assert likeness("the cat sleeps", "a cat sleeps") == 1
    assert likeness("it is allowed", "it is not allowed") == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("description", "found"),
    [
        ("the Solveig runs aground", ["Solveig"]),
        ("Solveig and its crew in 1974", ["1974", "Solveig"]),
        ("a ferry off the coast of Norway in 1975", []),
        ("In the night a ship is lost", []),
        ("solveig", []),
    ],
)
def test_leaks(description, found):
    assert leaks(description, SENTENCE) == found


def test_clean_data_is_clean(tmp_path):
    path = write(tmp_path / "d", record(GOOD), record("a tired crew", sentence="x " * 9))
    report = check(path)
    assert report.errors == 0
    assert (report.kind, report.items, report.sentences, report.descriptions) == ("record", 2, 2, 4)
    assert report.counts == {
        "form": 0,
        "length": 0,
        "overlap": 0,
        "names and numbers": 0,
        "near-duplicates": 0,
        "repeated elsewhere": 1,  # the same false description twice
    }
    assert report.encoder is None
    assert report.balance["good an item"] == 1
    assert report.balance["words of a good one"] == 5.0


@pytest.mark.parametrize(
    ("items", "name", "detail"),
    [
        (["{broken", record(GOOD)], "form", "no JSON"),
        ([record(GOOD, GOOD)], "form", "holds 2 times"),
        ([record(GOOD, bad=[GOOD.upper()])], "form", "holds 2 times"),
        ([record("accident")], "length", "1 words, expected 3 to 40"),
        ([record("word " * 41)], "length", "41 words"),
        ([record(GOOD, sentence="Too short.")], "length", "a sentence of 2 words"),
        ([record("a ferry ran aground")], "overlap", "100% of its words stand in: In 1974"),
        ([record("a tired man of the Solveig")], "names and numbers", "sentence: Solveig"),
        ([record("an accident at sea", "the accident on a sea")], "near-duplicates", "100%"),
        ([record(GOOD), record(GOOD.title(), sentence="y " * 9)], "repeated elsewhere", "lines 2"),
    ],
)
def test_each_check_finds_its_fault(tmp_path, items, name, detail):
    report = check(write(tmp_path / "d", *items))
    assert report.counts[name] >= 1
    assert detail in report.examples[name][0].detail
    assert (report.errors > 0) == (name == "form")


def test_siblings_may_be_close(tmp_path):
    clusters = (
        Cluster(("Mr Ro sold the mill in spring.",), ("a mill changes hands for money",)),
        Cluster(("Mr Ro gave the mill away in May.",), ("money changes hands for a mill",)),
    )
    report = check(write(tmp_path / "d", Group("g", clusters, "edited", "mills")))
    assert report.counts["near-duplicates"] == 0
    assert report.balance["shapes"] == {"edited": 1}
    assert report.balance["largest domains"] == {"mills": 1}


ANIMALS = "Vervet monkeys on Saint Kitts steal cocktails from tourists and get drunk."
BANKS = "The central bank of Estonia raised its interest rates to slow inflation."


@pytest.mark.parametrize(
    ("right", "swapped"),
    [
        (
            Group(
                "g",
                (
                    Cluster((ANIMALS,), ("monkeys that drink alcohol",)),
                    Cluster((BANKS,), ("a bank that fights inflation",)),
                ),
            ),
            Group(
                "g",
                (
                    Cluster((ANIMALS,), ("a bank that fights inflation",)),
                    Cluster((BANKS,), ("monkeys that drink alcohol",)),
                ),
            ),
        ),
        (
            PaperRecord(ANIMALS, ("drunk monkeys",), ("a bank that fights inflation",)),
            PaperRecord(ANIMALS, ("a bank that fights inflation",), ("drunk monkeys",)),
        ),
        (
            EvalQuery("q", "animals that drink alcohol", (ANIMALS,), (BANKS,)),
            EvalQuery("q", "animals that drink alcohol", (BANKS,), (ANIMALS,)),
        ),
    ],
)
def test_what_fits_a_sibling_is_found(tmp_path, default_encoder, right, swapped):
    report = check(write(tmp_path / "right", right), encoder=default_encoder)
    assert report.counts["fits a sibling"] == 0
    assert report.of["fits a sibling"] >= 1
    report = check(write(tmp_path / "swapped", swapped), encoder=default_encoder)
    assert report.counts["fits a sibling"] == report.of["fits a sibling"]
    finding = report.examples["fits a sibling"][0]
    assert finding.weight > 0.1
    assert "its own" in finding.detail


def test_a_sample_is_scored(tmp_path, tiny):
    items = [record(f"accident number {i} of a ship", sentence=f"{SENTENCE} {i}") for i in range(9)]
    path = write(tmp_path / "d", *items)
    report = check(path, encoder=tiny, sample=4)
    assert (report.items, report.sampled, report.of["fits a sibling"]) == (9, 4, 4)
    assert report.encoder == "tiny-encoder"
    assert check(path, encoder=tiny, sample=4).to_dict() == report.to_dict()


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command(tmp_path, capsys, tiny_folder):
    path = write(tmp_path / "d.jsonl", record("a ferry ran aground", GOOD))
    code, out, _ = run(capsys, "data", "check", path, "--encoder", tiny_folder)
    assert code == 0
    assert "1 items of kind record" in out
    assert "overlap, line 1: a ferry ran aground" in out
    code, out, _ = run(capsys, "data", "check", path, "--no-encoder", "--json")
    assert (code, json.loads(out)["counts"]["overlap"]) == (0, 1)


def test_the_command_fails_on_broken_lines(tmp_path, capsys):
    path = write(tmp_path / "d.jsonl", record(GOOD), "{broken")
    code, out, _ = run(capsys, "data", "check", path, "--no-encoder")
    assert code == 1
    assert "form, line 2: {broken" in out
    code, _, err = run(capsys, "data", "check", tmp_path / "none.jsonl")
    assert code == 1
    assert "No such file" in err
    code, _, _ = run(capsys, "data", "check", path, "--no-encoder", "--encoder", "x")
    assert code == 2


def test_the_training_groups_hold_no_errors(shared):
    report = check(shared / "data/descriptions/dev.jsonl")
    assert report.errors == 0
    assert report.counts["overlap"] < 0.05 * report.of["overlap"]


def test_a_file_of_nothing(tmp_path):
    (tmp_path / "d").write_text("\n")
    with pytest.raises(DataError, match="it is empty"):
        check(tmp_path / "d")
