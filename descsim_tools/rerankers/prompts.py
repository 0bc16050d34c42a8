r"""Prompts for `LogProbReranker`: a text around the sentence, after which the description comes.

A template holds `{sentence}` once and ends in `{description}`: a causal model never sees what
follows the tokens that it is asked about. All text here was written for this project; `source`
names the idea. To add a prompt, add a row to `_PROMPTS`; to change the default, change
`DEFAULT_PROMPT`. This module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass

from descsim_tools.errors import RerankerError

_SENTENCE = "{sentence}"
_DESCRIPTION = "{description}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A named template.

    Attributes:
        name: Name in the catalogue, or of one's own.
        template: Text with `{sentence}` and, at its end, `{description}`. No other braces mean
            anything, and none are escaped.
        source: Where the idea comes from.
    """

    name: str
    template: str
    source: str = "the user's own"

    def __post_init__(self) -> None:
        counts = {mark: self.template.count(mark) for mark in (_SENTENCE, _DESCRIPTION)}
        if set(counts.values()) != {1} or not self.template.endswith(_DESCRIPTION):
            raise RerankerError(
                f"the prompt {self.name!r} is {self.template!r}; it needs {_SENTENCE} once and "
                f"must end in {_DESCRIPTION}, which comes once"
            )

    @property
    def before(self) -> str:
        """The text before the sentence, the same for all pairs."""
        return self.template.partition(_SENTENCE)[0]

    @property
    def between(self) -> str:
        """The text between sentence and description."""
        return self.template.partition(_SENTENCE)[2].removesuffix(_DESCRIPTION)


_SGPT = "SGPT (arXiv 2202.08904), B.1: a family of rising complexity"
_SYMMETRIC = "SGPT (arXiv 2202.08904), section 3: a prompt for symmetric search"
_OURS = "descsim-tools: a sentence followed by a description of it"
_FEW_SHOT = "descsim-tools: the same with examples, which are invented"

EXAMPLES = [
    (
        "In 1911 the ferry Ostara ran aground off Melby after its pilot mistook a bonfire for the "
        "harbour light.",
        "An accident caused by taking one thing for another.",
    ),
    (
        "Nurse Ida Brandt hid the twins in her cellar until the patrol had left the village.",
        "Someone protecting children from danger.",
    ),
    (
        "Shares of Lumo fell by a third on Tuesday when the firm recalled its new heaters.",
        "The financial consequences of a faulty product.",
    ),
    (
        "At ninety-one, the retired tailor Paulo Reis enrolled in a course on marine biology.",
        "An elderly person taking up studies.",
    ),
    (
        "The Varga Prize, first given in 1987 by the widow of the composer, goes each year to a "
        "string quartet.",
        "An award founded in memory of a musician.",
    ),
    (
        "After two lost elections the Harbour Party dropped its leader and changed its name.",
        "A political group reinventing itself after failure.",
    ),
    (
        "Villagers in Sorn now carry water from the next valley because the spring has run dry.",
        "The effect of scarcity on a community.",
    ),
    (
        "Critics called the museum's glass roof a miracle, but it leaked from the first winter on.",
        "A contrast between a building's looks and its use.",
    ),
]
"""(sentence, description) pairs; all invented, so no source of facts."""


def _few_shot(name: str, count: int, form: str) -> Prompt:
    """Put examples in the form of the template before it."""
    examples = [
        form.replace(_SENTENCE, sentence).replace(_DESCRIPTION, description)
        for sentence, description in EXAMPLES[:count]
    ]
    return Prompt(f"{name}-{count}", "\n\n".join([*examples, form]), _FEW_SHOT)


_ABSTRACT = "Sentence: {sentence}\nAbstract description: {description}"
_EXAMPLE = '"{sentence}" is an example of this: {description}'


_PROMPTS = [
    Prompt("sgpt-bare", "{sentence} {description}", _SGPT),
    Prompt("sgpt-lines", "{sentence}\n{description}", _SGPT),
    Prompt("sgpt-labels", "Text: {sentence}\nQuery: {description}", _SGPT),
    Prompt("sgpt-title", "Article: {sentence}\n\nHeadline: {description}", _SGPT),
    Prompt(
        "sgpt-selected",
        "The text that was picked:\n{sentence}\n\nThe query that it fits:\n{description}",
        _SGPT,
    ),
    Prompt(
        "sgpt-search",
        "A search looks for texts that match a query.\n"
        'The text "{sentence}" was found with the query "{description}',
        _SGPT,
    ),
    Prompt("symmetric-labels", "First text: {sentence}\nSecond text: {description}", _SYMMETRIC),
    Prompt(
        "symmetric-meaning",
        "The following two texts mean the same.\nFirst: {sentence}\nSecond: {description}",
        _SYMMETRIC,
    ),
    Prompt("symmetric-words", "{sentence} In other words: {description}", _SYMMETRIC),
    Prompt("describe", "Sentence: {sentence}\nDescription: {description}", _OURS),
    Prompt("describe-abstract", _ABSTRACT, _OURS),
    Prompt(
        "describe-explained",
        "A sentence, and then an abstract description of it that leaves out names and details.\n\n"
        "Sentence: {sentence}\nAbstract description: {description}",
        _OURS,
    ),
    Prompt("describe-about", "{sentence}\n\nThis sentence is about: {description}", _OURS),
    Prompt("describe-example", _EXAMPLE, _OURS),
    *(_few_shot("few-shot", count, _ABSTRACT) for count in (1, 2, 4, 8)),
    *(_few_shot("few-shot-example", count, _EXAMPLE) for count in (4, 8)),
]

PROMPTS: dict[str, Prompt] = {prompt.name: prompt for prompt in _PROMPTS}

DEFAULT_PROMPT = "few-shot-example-4"


def find_prompt(prompt: str | Prompt) -> Prompt:
    """Return a prompt by its name, by its template, or as it is.

    Raises:
        RerankerError: There is none of that name, and it is no template.
    """
    if isinstance(prompt, Prompt):
        return prompt
    if prompt in PROMPTS:
        return PROMPTS[prompt]
    if _DESCRIPTION in prompt or _SENTENCE in prompt:
        return Prompt("own", prompt)
    raise RerankerError(
        f"no prompt {prompt!r}; there are: {', '.join(PROMPTS)}. A template of your own holds "
        f"{_SENTENCE} and ends in {_DESCRIPTION}."
    )
