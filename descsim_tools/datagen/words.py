"""Words of a text, and how much of one text stands in another."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"\w+(?:['’-]\w+)*")  # noqa: RUF001  (both apostrophes join a word)

FUNCTION_WORDS = frozenset(
    """a about after all also an and any are as at be because been before being between both
    but by can could did do does during each either even every few for from had has have
    having he her here hers him his how i if in into is it its itself just less many me more
    most much my of off on once one only onto or other our out over own same shall she should
    since so some such than that the their them then there these they this those through to
    too under until up upon us very was we were what when where which while who whom whose why
    will with within would you your""".split()
)


def words(text: str) -> list[str]:
    """Return the words of a text as written."""
    return _WORD.findall(text)


def content_words(text: str) -> list[str]:
    """Return the words of a text that carry meaning, in lower case."""
    lowered = (word.lower() for word in words(text))
    return [word for word in lowered if word not in FUNCTION_WORDS]


def share_within(text: str, other: str) -> float:
    """Return the share of a text's words that stand in another one, each as often as it does there.

    Returns:
        In [0, 1]; 0 for a text without words.
    """
    counted = Counter(word.lower() for word in words(text))
    there = Counter(word.lower() for word in words(other))
    total = counted.total()
    return (counted & there).total() / total if total else 0.0


def overlap(description: str, sentence: str) -> float:
    """Return the share of a description's meaningful words that stand in a sentence, in [0, 1]."""
    mine = content_words(description)
    there = set(content_words(sentence))
    return sum(word in there for word in mine) / len(mine) if mine else 0.0


def likeness(first: str, second: str) -> float:
    """Return how many of the meaningful words of two texts are common to both, in [0, 1]."""
    mine, theirs = set(content_words(first)), set(content_words(second))
    union = mine | theirs
    return len(mine & theirs) / len(union) if union else 0.0


def leaks(description: str, sentence: str) -> list[str]:
    """Return the numbers and proper names of a sentence that stand in its description.

    A word counts as a name if the sentence writes it with a capital elsewhere than at its beginning
    and the description does so too.
    """
    in_sentence = words(sentence)
    capitals = {word for word in in_sentence[1:] if word[0].isupper()}
    names = {word for word in capitals if word.lower() not in FUNCTION_WORDS}
    numbers = {word for word in in_sentence if word[0].isdigit()}
    return sorted({word for word in words(description) if word in names | numbers})
