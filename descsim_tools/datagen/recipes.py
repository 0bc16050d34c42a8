"""The four kinds of data that can be generated: what to ask, and what must come.

Three steps are the paper's: sentences -> descriptions, descriptions -> more abstract ones,
descriptions -> sentences. The fourth makes groups of sibling clusters. To add one, write a class
like these and name it in `RECIPES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, Field, create_model

from descsim_tools.datagen.formats import Cluster, EvalQuery, Group, Item, PaperRecord
from descsim_tools.datagen.prompts import ABSTRACT, DESCRIPTIONS, GROUP, SENTENCES, TWIN, Prompt
from descsim_tools.llm import LLM, InvalidError

COUNT = 5
"""Good and misleading descriptions of a sentence, as in the paper."""

ABSTRACT_SHARE = 0.14
"""Share of the sentences that get more abstract descriptions, as in the paper."""

ABSTRACT_COUNT = 3
SENTENCES_COUNT = 15
SENTENCES_LEAST = 10
"""Models seldom count to fifteen, and repeat themselves; the paper's queries have about eleven."""

_BUCKETS = 2**64

Text = Annotated[str, Field(min_length=1)]


class Recipe(Protocol):
    """How one kind of data is made of a text or record; a dataclass of its settings.

    Attributes:
        name: On the command line and in the manifest.
        prompts: Those it uses.
        output: Name of the file with the data.
        reads_records: Whether it takes records instead of texts.
        min_words: Texts of fewer words are left out.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    prompts: ClassVar[tuple[Prompt, ...]]
    output: ClassVar[str]
    reads_records: ClassVar[bool]
    min_words: ClassVar[int]

    def make(self, llm: LLM, source: str | PaperRecord) -> Item:
        """Make an item, asking as often as it takes.

        Raises:
            OutputError: The model gives nothing usable.
        """
        ...


class _Descriptions(BaseModel):
    good: Annotated[list[Text], Field(min_length=COUNT, max_length=COUNT)]
    bad: Annotated[list[Text], Field(min_length=COUNT, max_length=COUNT)]


class _Abstract(BaseModel):
    abstract: Annotated[list[Text], Field(min_length=ABSTRACT_COUNT, max_length=ABSTRACT_COUNT)]


class _Sentences(BaseModel):
    sentences: Annotated[
        list[Text], Field(min_length=SENTENCES_LEAST, max_length=2 * SENTENCES_COUNT)
    ]


class _Twin(BaseModel):
    twin: Text


@dataclass(frozen=True, slots=True)
class DescriptionsRecipe:
    """A sentence -> good and misleading descriptions."""

    name: ClassVar[str] = "descriptions"
    prompts: ClassVar[tuple[Prompt, ...]] = (DESCRIPTIONS,)
    output: ClassVar[str] = "records.jsonl"
    reads_records: ClassVar[bool] = False
    min_words: ClassVar[int] = 6

    def make(self, llm: LLM, source: str | PaperRecord) -> Item:
        """Make a record of a sentence."""
        sentence = _text(source)
        made = llm.parse(DESCRIPTIONS.messages(sentence=sentence, count=COUNT), _Descriptions)
        good = _different(made.good, COUNT, "good descriptions", [sentence])
        bad = _different(made.bad, COUNT, "misleading descriptions", [sentence, *good])
        return PaperRecord(sentence, good, bad)


@dataclass(frozen=True, slots=True)
class AbstractRecipe:
    """A record -> the same, for a share of them with more abstract descriptions as well.

    Which ones is decided by a hash of the sentence, so that it stays the same in every run.
    """

    share: float = ABSTRACT_SHARE
    name: ClassVar[str] = "abstract"
    prompts: ClassVar[tuple[Prompt, ...]] = (ABSTRACT,)
    output: ClassVar[str] = "records.jsonl"
    reads_records: ClassVar[bool] = True
    min_words: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}, need a number from 0 to 1")

    def make(self, llm: LLM, source: str | PaperRecord) -> Item:
        """Make a record with more descriptions, or return the one there is."""
        if not isinstance(source, PaperRecord):
            raise TypeError(f"got a {type(source).__name__}, need a record")
        if not self.takes(source.sentence) or len(source.good) < ABSTRACT_COUNT:
            return source
        chosen = source.good[:ABSTRACT_COUNT]
        listed = "\n".join(f"Description {n}: {text}" for n, text in enumerate(chosen, start=1))
        messages = ABSTRACT.messages(
            sentence=source.sentence, descriptions=listed, count=ABSTRACT_COUNT
        )
        made = llm.parse(messages, _Abstract)
        known = [source.sentence, *source.good, *source.bad]
        more = _different(made.abstract, ABSTRACT_COUNT, "abstract descriptions", known)
        return PaperRecord(source.sentence, source.good + more, source.bad)

    def takes(self, sentence: str) -> bool:
        """Tell whether a sentence is of the share."""
        return int(_digest(sentence)[:16], 16) < self.share * _BUCKETS


@dataclass(frozen=True, slots=True)
class SentencesRecipe:
    """A description -> its contradicting twin, and sentences that instantiate each of the two."""

    name: ClassVar[str] = "sentences"
    prompts: ClassVar[tuple[Prompt, ...]] = (TWIN, SENTENCES)
    output: ClassVar[str] = "queries.jsonl"
    reads_records: ClassVar[bool] = False
    min_words: ClassVar[int] = 0

    def make(self, llm: LLM, source: str | PaperRecord) -> Item:
        """Make an evaluation query of a description."""
        description = _text(source)
        twin = llm.parse(TWIN.messages(description=description), _Twin).twin.strip()
        if _plain(twin) == _plain(description):
            raise InvalidError("the contradicting twin is the description itself", twin)
        good = self._sentences(llm, description, [description, twin])
        bad = self._sentences(llm, twin, [description, twin, *good])
        return EvalQuery(_digest(description)[:12], description, good, bad)

    def _sentences(self, llm: LLM, description: str, known: list[str]) -> tuple[str, ...]:
        messages = SENTENCES.messages(description=description, count=SENTENCES_COUNT)
        made = llm.parse(messages, _Sentences).sentences
        return _different(made, SENTENCES_LEAST, "sentences", known)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a group is: clusters, and sentences and descriptions of each."""

    clusters: int
    sentences: int
    descriptions: int
    what: str = "sentence"
    more: str = ""


SHAPES = {
    "triplet": Shape(3, 1, 4),
    "description": Shape(2, 4, 3),
    "edited": Shape(2, 4, 2, more="The first descriptions of both differ in one idea only."),
    "passage": Shape(3, 1, 4, "passage of 45 to 70 words", "Each description fits all of it."),
    "rich": Shape(3, 1, 5, "long sentence of several facts", "Each description is of one fact."),
}


@dataclass(frozen=True, slots=True)
class GroupsRecipe:
    """A sentence, for its topic -> a group of sibling clusters."""

    shape: str = "triplet"
    name: ClassVar[str] = "groups"
    prompts: ClassVar[tuple[Prompt, ...]] = (GROUP,)
    output: ClassVar[str] = "groups.jsonl"
    reads_records: ClassVar[bool] = False
    min_words: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"no shape {self.shape!r}; there are: {', '.join(SHAPES)}")

    def make(self, llm: LLM, source: str | PaperRecord) -> Item:
        """Make a group on the topic of a sentence."""
        sentence, shape = _text(source), SHAPES[self.shape]
        plural = f"{shape.sentences} {shape.what}s" if shape.sentences > 1 else f"one {shape.what}"
        messages = GROUP.messages(
            clusters=shape.clusters,
            sentences=plural,
            descriptions=shape.descriptions,
            more=shape.more,
            sentence=sentence,
        )
        made: dict[str, Any] = llm.parse(messages, _group_schema(shape)).model_dump()
        clusters: list[Cluster] = []
        known: list[str] = [sentence]
        for cluster in made["clusters"]:
            sentences = _different(cluster["sentences"], shape.sentences, "sentences", known)
            known += sentences
            descriptions = _different(
                cluster["descriptions"], shape.descriptions, "descriptions", known
            )
            known += descriptions
            clusters.append(Cluster(sentences, descriptions))
        id_ = f"{self.shape}-{_digest(sentence)[:12]}"
        return Group(id_, tuple(clusters), self.shape, made["domain"].strip())


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe
    for recipe in (DescriptionsRecipe, AbstractRecipe, SentencesRecipe, GroupsRecipe)
}


def _group_schema(shape: Shape) -> type[BaseModel]:
    def exactly(item: Any, count: int) -> Any:
        return Annotated[list[item], Field(min_length=count, max_length=count)]

    cluster = create_model(
        "GroupCluster",
        sentences=exactly(Text, shape.sentences),
        descriptions=exactly(Text, shape.descriptions),
    )
    return create_model("Group", domain=Text, clusters=exactly(cluster, shape.clusters))


def _text(source: str | PaperRecord) -> str:
    return source if isinstance(source, str) else source.sentence


def _different(texts: Sequence[str], need: int, what: str, known: Sequence[str]) -> tuple[str, ...]:
    """Trim texts and leave out those met before; too few left make the answer unusable."""
    seen = {_plain(text) for text in known}
    kept = []
    for text in (" ".join(text.split()) for text in texts):
        if text and _plain(text) not in seen:
            seen.add(_plain(text))
            kept.append(text)
    if len(kept) < need:
        raise InvalidError(
            f"only {len(kept)} of {len(texts)} {what} are new, need {need}", "\n".join(texts)
        )
    return tuple(kept)


def _plain(text: str) -> str:
    """Return a text without case, punctuation and spacing."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
