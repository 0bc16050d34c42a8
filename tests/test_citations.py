import pytest

from descsim_tools.agents.citations import find_quote, is_too_short, visible

SENTENCE = (
    'In 1938 the "rag\u2010picker\u2019s" heart stopped; 12,000.5 francs\n'
    "  were paid — he don\u2019t say why."
)
EMOJI = "\U0001f469\u200d\U0001f52c won"


@pytest.mark.parametrize(
    ("quote", "expected"),
    [
        ("In 1938", "In 1938"),
        ("the “rag-picker's” heart", 'the "rag\u2010picker\u2019s" heart'),
        ("12,000.5 francs were paid - he", "12,000.5 francs\n  were paid — he"),
        ("  francs \u00a0 were\tpaid ", "francs\n  were paid"),
        ('"heart stopped"', "heart stopped"),
        ("fran\u200bcs were", "francs\n  were"),
        ("he don't say why.", "he don\u2019t say why."),
    ],
)
def test_a_quote_is_found_whatever_its_spaces_and_quotation_marks(quote, expected):
    start, end = find_quote(quote, SENTENCE)
    assert SENTENCE[start:end] == expected


@pytest.mark.parametrize(
    "quote",
    [
        "in 1938 the",  # another case
        "art stopped",  # cuts a word
        "938 the",  # cuts a number
        "000.5 francs",
        "stopped; 12",
        "stopped; 12,000",
        "he don",  # would turn the meaning round
        "heart ... stopped",  # leaves out
        "heart has stopped",
        "",
        " ",
        '""',
    ],
)
def test_what_is_not_word_for_word_is_no_quote(quote):
    assert find_quote(quote, SENTENCE) is None


def test_a_later_place_is_taken_if_the_first_cuts_a_word():
    assert find_quote("art", "heart and art") == (10, 13)


@pytest.mark.parametrize(
    ("quote", "text", "expected"),
    [
        ("café", "the cafe\u0301 closed", "cafe\u0301"),  # composed and decomposed
        ("cafe", "the cafe\u0301 closed", None),
        ("cafe", "the café closed", None),
        ("猿が酒を", "島の猿が酒を盗む", "猿が酒を"),
        ("ab", "a\u00adb c", "a\u00adb"),
        ("wait...", "wait… what", "wait…"),
        (
            "\U0001f469\u200d\U0001f52c won",
            "\U0001f469\u200d\U0001f52c won",
            "\U0001f469\u200d\U0001f52c won",
        ),
    ],
)
def test_quotes_in_other_scripts(quote, text, expected):
    span = find_quote(quote, text)
    assert (span and text[slice(*span)]) == expected


def test_a_quote_must_be_long_enough_to_support_something():
    assert is_too_short("the big", "the big dog slept")
    assert not is_too_short("the big dog", "the big dog slept")
    assert not is_too_short("It did.", "It did.")


def test_unseen_characters_are_left_out():
    assert visible("a\u202eb\x1b[31m\x00 c\n\U000e0041\u200b") == "ab[31m c\n"
