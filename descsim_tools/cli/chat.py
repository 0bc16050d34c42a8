"""`descsim chat`: a conversation over a store in the terminal."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from descsim_tools.cli.options import max_tokens_option, price_of, price_options

if TYPE_CHECKING:
    from descsim_tools.agents.answers import Answer, Citation
    from descsim_tools.agents.chat import Chatbot
    from descsim_tools.llm import LLM, Price

_FAILED = 1
_STOPPED = 3
_INTERRUPTED = 130

_HELP = """\
Ask a question, or say what you look for. Sentences of the corpus are cited by numbers.
/sources  show the sentences cited last, whole, with their metadata
/reset    forget the conversation
/help     show this
Ctrl-D    end"""

_TAKE_ONE = """\
take one of a service, or one on a server of your own such as Ollama, llama.cpp, vLLM or
`transformers serve`:
  OPENAI_API_KEY=... descsim chat my-store --llm gpt-5-mini
  descsim chat my-store --llm NAME --base-url http://localhost:8000/v1
OPENAI_MODEL and OPENAI_BASE_URL name them as well"""


@click.command()
@click.argument("store", metavar="DIR|URL")
@click.option("--llm", "model", metavar="NAME", help="The language model, as its server knows it.")
@click.option("--base-url", metavar="URL", help="Such as http://localhost:8000/v1.")
@click.option(
    "--rerank",
    metavar="NAME",
    help="Order what is found by a reranker: combined, cross-encoder or log-prob.",
)
@click.option(
    "--budget", type=click.FloatRange(min=0), help="Most money to be spent; needs the prices."
)
@price_options
@max_tokens_option
@click.option("--once", metavar="QUESTION", help="Answer this and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once, print the answer as JSON.")
@click.option("--encoder", metavar="NAME", help="By default the store's own, if it has a name.")
@click.option("--collection", default="descsim", show_default=True, help="Name in the database.")
def chat(
    store: str,
    model: str | None,
    base_url: str | None,
    rerank: str | None,
    budget: float | None,
    price_in: float | None,
    price_out: float | None,
    max_tokens: int,
    once: str | None,
    as_json: bool,
    encoder: str | None,
    collection: str,
) -> int:
    """Talk about a store with a language model that cites what it found.

    The model is any on an OpenAI-compatible server. Its key is read from OPENAI_API_KEY; server and
    model may come from OPENAI_BASE_URL and OPENAI_MODEL. A citation is shown only if the sentence
    holds the quoted words. /help tells what else can be typed; Ctrl-D ends. At a terminal, Ctrl-C
    stops an answer, and ends the conversation where a question is typed. The exit code is 3 if
    the budget ended it, 130 if it was interrupted, and 1 if with --once the model gave no usable
    answer.

    \b
    Example:
      descsim chat my-store --llm gpt-5-mini
      descsim chat my-store --llm gpt-5-mini --budget 0.50 --price-in 0.25 --price-out 2
      descsim chat my-store --llm gpt-5-mini --once "Do any animals get drunk?" --json
    """
    if as_json and once is None:
        raise click.UsageError("--json needs --once")
    if once is not None and not once.strip():
        raise click.UsageError("the question of --once is blank; say what you look for")
    price = price_of(price_in, price_out, budget)
    try:
        with (
            _llm(model, base_url, max_tokens, budget, price) as llm,
            _bot(store, encoder, collection, llm, rerank) as bot,
        ):
            return _talk(bot) if once is None else _answer_once(bot, once, as_json)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return _INTERRUPTED


def _llm(
    model: str | None,
    base_url: str | None,
    max_tokens: int,
    budget: float | None,
    price: Price | None,
) -> LLM:
    from descsim_tools.llm import LLM, Budget

    served = base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")
    named = model or os.environ.get("OPENAI_MODEL")
    if not named:
        raise click.UsageError(f"no language model is named; {_TAKE_ONE}")
    if not served:
        raise click.UsageError(
            f"neither a server nor a key is named for the language model {named!r}; {_TAKE_ONE}"
        )
    return LLM(
        model,
        base_url=base_url,
        max_tokens=max_tokens,
        budget=Budget(cost=budget),
        price=price,
    )


@contextmanager
def _bot(
    store: str, encoder: str | None, collection: str, llm: LLM, rerank: str | None
) -> Iterator[Chatbot]:
    from descsim_tools.store import Store

    Store.open(store, collection=collection).close()  # fails before a model is loaded
    from descsim_tools.agents.chat import Chatbot
    from descsim_tools.agents.rag import RagAnswerer
    from descsim_tools.search import DescriptionIndex

    with DescriptionIndex.open(store, encoder=encoder, collection=collection) as index:
        yield Chatbot(RagAnswerer(index, llm, rerank=rerank))


def _answer_once(bot: Chatbot, question: str, as_json: bool) -> int:
    from descsim_tools.agents.answers import Status

    answer = bot.ask(question)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), ensure_ascii=False))
    else:
        _show(answer)
    return {Status.OUT_OF_BUDGET: _STOPPED, Status.NO_ANSWER: _FAILED}.get(answer.status, 0)


def _talk(bot: Chatbot) -> int:
    from descsim_tools.agents.answers import Status

    cited: tuple[Citation, ...] = ()
    _say("/help tells what can be typed, Ctrl-D ends", "dim")
    for said in filter(None, _lines()):
        if said == "/help":
            click.echo(_HELP)
        elif said == "/reset":
            bot.reset()
            cited = ()
            _say("the conversation is forgotten")
        elif said == "/sources":
            _show_sources(cited)
        elif said.startswith("/"):
            _say(f"there is no {said}; /help tells what there is")
        elif answer := _turn(bot, said):
            cited = answer.citations or cited
            if answer.status is Status.OUT_OF_BUDGET:
                return _STOPPED
    return 0


def _turn(bot: Chatbot, said: str) -> Answer | None:
    """Answer a turn and show it; what goes wrong is shown too, and the conversation goes on."""
    from descsim_tools.agents.answers import Answer
    from descsim_tools.agents.rag import Found, Planned
    from descsim_tools.errors import DescsimError

    try:
        for event in bot.stream(said):
            if isinstance(event, Planned) and event.descriptions:
                _say(f"searching: {'; '.join(event.descriptions)}", "dim")
            elif isinstance(event, Found):
                _say(f"reading {len(event.hits)} sentences", "dim")
            elif isinstance(event, Answer):
                _show(event)
                return event
    except (DescsimError, ValueError) as error:
        click.echo(f"descsim: {error}", err=True)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        click.echo("interrupted; Ctrl-C where a question is typed ends the conversation", err=True)
    return None


def _lines() -> Iterator[str]:
    """Yield what is typed, or piped in, until it ends."""
    typed = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A line that is no UTF-8 is refused when it is asked, and the next one is read.
        sys.stdin.reconfigure(errors="surrogateescape")
    if typed:
        # Its import lets a line be edited; some systems have none.
        with suppress(ImportError):
            importlib.import_module("readline")
    while True:
        try:
            yield input("> " if typed else "").strip()
        except EOFError:
            return


def _show(answer: Answer) -> None:
    _say(answer.text)
    for citation in answer.citations:
        _say(f'  [{citation.number}] "{citation.quote}" ({citation.id})', "dim")
    for suggestion in answer.suggestions:
        _say(f"  try: {suggestion.description}")
        _say(f'    finds "{suggestion.hit.text}"', "dim")
    for dropped in answer.dropped:
        _say(f"  left out, since {dropped.reason}: {dropped.text}", "yellow")
    if answer.problem:
        _say(f"  {answer.problem}", "yellow")


def _show_sources(citations: tuple[Citation, ...]) -> None:
    if not citations:
        _say("nothing was cited yet")
    for citation in citations:
        _say(f"[{citation.number}] {citation.text}")
        facts = json.dumps(dict(citation.metadata), ensure_ascii=False, default=str)
        _say(f"  {citation.id}  {citation.score:.3f}  {facts}", "dim")


def _say(text: str, style: str = "") -> None:
    """Print what may be others' words: no markup, and nothing that steers the terminal."""
    from rich.console import Console
    from rich.text import Text

    from descsim_tools.cli.tables import literal

    indent = text[: len(text) - len(text.lstrip(" "))]
    line = Text.assemble(indent, (literal(text, most=None).plain, style))
    Console(highlight=False).print(line, soft_wrap=True)
