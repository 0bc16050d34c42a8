"""The prompts, each with a version that the manifest of generated data names.

They follow the recipe of Description-Based Text Similarity (appendix A.1) in words of our own.
Raise a prompt's version whenever its text changes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_ROLE = """\
You write data for a search engine that finds sentences by a description of their content.
A description says in general terms what a sentence tells, as somebody would who looks for such \
sentences without knowing their words. It holds less than the sentence: it leaves out the names, \
dates and numbers, and it does not reuse the sentence's wording. It stands alone: it never says \
"this sentence" or "the text"."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt.

    Attributes:
        name: What it is for.
        version: Raised with every change of the text.
        system: The system message.
        user: The user's message, with fields in braces.
    """

    name: str
    version: int
    system: str
    user: str

    @property
    def digest(self) -> str:
        """Hex digest of the text, which tells whether the version was forgotten."""
        return hashlib.sha256(f"{self.system}\n{self.user}".encode()).hexdigest()[:12]

    def messages(self, **fields: object) -> list[dict[str, str]]:
        """Return the conversation with the fields filled in."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user.format(**fields)},
        ]


DESCRIPTIONS = Prompt(
    "descriptions",
    1,
    _ROLE,
    """\
For the sentence below, write {count} good descriptions and {count} misleading ones.

Example sentence: In 1974 the ferry Solveig ran aground off Tromsdal after its helmsman had fallen \
asleep, and all 212 passengers were brought ashore in fishing boats.
A good description of it: an accident at sea caused by the exhaustion of a crew member
Another, more general: people saved by volunteers
A misleading one: a shipwreck in which passengers lost their lives

Good descriptions are true of the sentence. They differ in how abstract they are and in which part \
of the sentence they are about: some cover all of it, some one aspect, some are concrete and some \
very general.
Misleading descriptions stay close to the sentence in topic and style, so that a careless reader \
would accept them, but each is clearly false of it.

Sentence: {sentence}

Give JSON with the keys "good" and "bad", each a list of {count} strings.""",
)

ABSTRACT = Prompt(
    "abstract",
    1,
    _ROLE,
    """\
Make descriptions of a sentence more abstract, so that they still are true of it but of many other \
sentences as well.

Example sentence: Although the school in Varn had been given new laboratories, its pupils again \
failed the national test in chemistry.
Description: A school that got better equipment but whose pupils still did badly in an examination
A much more abstract one: Better means did not bring about better results

Sentence: {sentence}
{descriptions}

Give JSON with the key "abstract": a list of {count} strings, a much more abstract version of each \
description, in the same order.""",
)

SENTENCES = Prompt(
    "sentences",
    1,
    "You write sentences in the style of an encyclopedia or a newspaper.",
    """\
Write {count} sentences that the description below is true of.

1. Do not use the words of the description.
2. Be concrete: name people, places, organisations or dates, as real sentences do. Invent the \
persons.
3. Each sentence must be a clear instance of the description.
4. The sentences must differ: each is about another subject, in another setting.

Description: {description}

Give JSON with the key "sentences": a list of {count} strings.""",
)

TWIN = Prompt(
    "twin",
    1,
    _ROLE,
    """\
Write the contradicting twin of a description: a description of the same topic, form and length \
that differs in what matters, so that no sentence could be an instance of both.

Example: a company withdrawing a product after its customers complained
Its twin: a company keeping a product on sale in spite of its customers' complaints

Description: {description}

Give JSON with the key "twin": a string.""",
)

GROUP = Prompt(
    "group",
    1,
    _ROLE,
    """\
Write a group of {clusters} sibling clusters on one topic. A cluster is {sentences} and \
{descriptions} descriptions, such that every description is true of every sentence of its own \
cluster and false of every sentence of the other clusters.

The clusters stay as close to each other in topic, style and wording as they can: what tells them \
apart is what happens, who does it, or how it ends, never the subject alone.
Sentences are concrete and name persons, places or dates. Invent all persons and organisations.
Descriptions share no telling word with the sentences, and hold no names and no numbers.
{more}
Take the topic, and nothing else, from this sentence: {sentence}

Give JSON with the keys "domain" (the topic, in one to three words) and "clusters": a list of \
{clusters} objects, each with the keys "sentences" and "descriptions".""",
)

PROMPTS = {p.name: p for p in (DESCRIPTIONS, ABSTRACT, SENTENCES, TWIN, GROUP)}
