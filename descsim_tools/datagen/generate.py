"""`generate`: run a recipe over a corpus, so that no paid answer is ever lost or asked twice.

What a run needs to go on after a kill is the cache of answers alone. A run reads the corpus from
its beginning and writes its files anew; what was answered before comes from the cache, at no cost.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from descsim_tools.datagen.formats import Item, PaperRecord, read_items, to_fields
from descsim_tools.datagen.recipes import Recipe
from descsim_tools.errors import CorpusError, DataError, LLMError
from descsim_tools.index_builder import open_corpus
from descsim_tools.llm import (
    LLM,
    BudgetError,
    NoAnswerError,
    NoModelError,
    OutputError,
    RequestRefusedError,
)
from descsim_tools.text import is_unicode
from descsim_tools.types import Record

logger = logging.getLogger(__name__)

ANSWERS, TRANSCRIPT = "answers.sqlite", "transcript.jsonl"
MANIFEST, REJECTS = "manifest.json", "rejects.jsonl"

_SHOWN = 20
_EXCERPT = 200
_UNANSWERED_IN_A_ROW = 5
"""So many sources without any answer, one after the other, mean that the server is down."""

Corpus = str | Path | Iterable[str | Record | Mapping[str, Any]]


@dataclass
class GenerationReport:
    """Counts of one run; answers from the cache count like new ones.

    `rows` = `blank_rows` + `failed_rows` + those that gave sources; `sources` = `duplicates` +
    `short` + `written` + `rejected`, once the run is `complete`.

    Attributes:
        recipe: Name of what was made.
        corpus: Name of the corpus.
        output: File with the data.
        rows: Rows read.
        blank_rows: Rows without text.
        failed_rows: Rows that cannot be read; named in the rejects file.
        sources: Sentences, descriptions or records that the other rows gave.
        duplicates: Sources met before.
        short: Sources dropped by the word filter.
        written: Items written.
        rejected: Sources of which nothing usable was made, by the kind of reason: `cut`, `refusal`,
            `empty` or `invalid` output, `refused` requests, and `unanswered` ones; named in the
            rejects file. The next run asks again, but not where output was in form.
        complete: Whether the corpus was read to its end, or to the limit.
        stopped: Why not.
        requests: Requests sent, over all runs into this folder.
        tokens_in: Tokens read, over all runs.
        tokens_out: Tokens written, over all runs.
        cost: Money spent, over all runs; 0 without prices.
        unsettled: Requests whose cost is not known; they count at their most.
        rejects: File that names what was rejected, if anything was.
        first_rejects: The first of them.
    """

    recipe: str
    corpus: str
    output: str
    rows: int = 0
    blank_rows: int = 0
    failed_rows: int = 0
    sources: int = 0
    duplicates: int = 0
    short: int = 0
    written: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    stopped: str | None = None
    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    unsettled: int = 0
    rejects: str | None = None
    first_rejects: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Source:
    row: int
    content: str | PaperRecord
    done: int

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else self.content.sentence


def open_llm(out: str | Path, model: str | None = None, **settings: Any) -> LLM:
    """Make the client of a run: its cache and transcript lie in the run's folder.

    Args:
        out: The run's folder, made if missing.
        model: Name of the model.
        **settings: As `LLM` takes them.

    Raises:
        LLMError: As `LLM` raises them.
    """
    out = Path(out)
    return LLM(model, cache=out / ANSWERS, transcript=out / TRANSCRIPT, **settings)


def generate(
    recipe: Recipe,
    corpus: Corpus,
    out: str | Path,
    llm: LLM,
    *,
    text_field: str = "text",
    split: bool | None = None,
    min_words: int | None = None,
    limit: int | None = None,
    progress: bool = False,
) -> GenerationReport:
    """Make an item of each sentence of a corpus.

    A run that was broken off, even killed, goes on where it was when it is started again with the
    same folder. When the budget is spent it ends in order, with `complete` false.

    Args:
        recipe: What to make.
        corpus: As `open_corpus` takes it; for a recipe that reads records, a file of them.
        out: Folder for the data, the rejects, the manifest, and the client's cache and transcript.
        llm: The client, best made with `open_llm`.
        text_field: Field or column that holds the text.
        split: Find the sentences in each text; None does so for folders of documents.
        min_words: Drop texts of fewer words; None takes the recipe's own.
        limit: Stop after so many sources.
        progress: Show a bar on standard error.

    Returns:
        Counts, see `GenerationReport`; the folder's manifest holds them too.

    Raises:
        CorpusError: The corpus cannot be read.
        DataError: The file of records cannot be read, or another run writes to the folder.
        NoAnswerError: The server stopped answering; what there was is written.
        NoModelError: There is no server or model, or the key is refused; as above.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, need a number from 1 up, or None")
    out = Path(out)
    if recipe.reads_records:
        name, total, read = _open_records(corpus)
    else:
        name, total, read = _open_texts(corpus, text_field, split)
    report = GenerationReport(recipe.name, name, str(out / recipe.output))
    failure: LLMError | None = None
    with _locked(out), _Output(out, recipe, report) as output:
        _check_folder(out, recipe, llm, report)
        least = recipe.min_words if min_words is None else min_words
        sources = _fit(read(report, output), report, least, limit)
        with _progress(total if limit is None else limit, progress) as show:
            run = _Run(recipe, llm, report, output)
            for source in sources:
                run.take_on(source)
                show(report.written + run.rejected if limit else source.done, report, llm)
                if run.failure is not None:
                    break
            run.finish()
            failure = run.failure
        report.complete = failure is None
        report.stopped = None if failure is None else str(failure)
        spent = llm.spent
        report.requests, report.unsettled = spent.requests, spent.unsettled
        report.tokens_in, report.tokens_out = spent.tokens_in, spent.tokens_out
        report.cost = spent.cost
        if output.finish():
            _write_manifest(out, recipe, llm, report)
    if failure is not None and not isinstance(failure, BudgetError):
        raise failure
    return report


class _Run:
    """Asks for several sources at a time and takes the results in order."""

    def __init__(self, recipe: Recipe, llm: LLM, report: GenerationReport, output: _Output) -> None:
        self._recipe = recipe
        self._llm = llm
        self._report = report
        self._output = output
        self._pool = ThreadPoolExecutor(llm.concurrency)
        self._asked: deque[tuple[_Source, Future[Item]]] = deque()
        self._unanswered = 0
        self._too_dear: list[_Source] = []
        self._too_dear_error: BudgetError | None = None
        self.failure: LLMError | None = None

    @property
    def rejected(self) -> int:
        return sum(self._report.rejected.values())

    def take_on(self, source: _Source) -> None:
        """Ask for a source, and take what is ready of those before it."""
        asked = self._pool.submit(self._recipe.make, self._llm, source.content)
        self._asked.append((source, asked))
        while len(self._asked) >= 2 * self._llm.concurrency:
            self._take()
        if self._too_dear:
            self._ask_alone()

    def finish(self) -> None:
        """Take what was asked for; after a failure, only what is under way, which may be paid."""
        with self._pool:
            self._ask_alone()

    def _take(self) -> None:
        source, asked = self._asked.popleft()
        if self.failure is None or not asked.cancel():
            self._settle(source, asked.result)

    def _ask_alone(self) -> None:
        """Wait for all, then try those again that the budget did not allow beside the others.

        A request holds the most that it can cost until it is answered.
        """
        while self._asked:
            self._take()
        sources, self._too_dear = self._too_dear, []
        for source in sources:
            if self.failure is None:
                self._settle(source, partial(self._recipe.make, self._llm, source.content))
            if self._too_dear and self.failure is None:
                self.failure = self._too_dear_error
        self._too_dear = []

    def _settle(self, source: _Source, result: Callable[[], Item]) -> None:
        try:
            item = result()
        except BudgetError as error:
            self._too_dear.append(source)
            self._too_dear_error = error
        except NoModelError as error:
            self.failure = self.failure or error
        except LLMError as error:
            self._reject(source, error)
        else:
            self._write(item)

    def _write(self, item: Item) -> None:
        self._unanswered = 0
        self._output.write(item)

    def _reject(self, source: _Source, error: LLMError) -> None:
        if isinstance(error, OutputError):
            kind, wrote = error.kind, error.text
        else:
            kind = "refused" if isinstance(error, RequestRefusedError) else "unanswered"
            wrote = ""
        self._output.reject(source.row, kind, str(error), source.text, wrote)
        if not isinstance(error, NoAnswerError):
            self._unanswered = 0
            return
        self._unanswered += 1
        if self._unanswered >= _UNANSWERED_IN_A_ROW and self.failure is None:
            self.failure = NoAnswerError(f"{self._unanswered} sources in a row: {error}")


class _Output:
    """The files of a run: written beside the old ones, which they replace at the end."""

    def __init__(self, out: Path, recipe: Recipe, report: GenerationReport) -> None:
        self._data, self._rejects = out / recipe.output, out / REJECTS
        self._report = report
        self._files: dict[Path, IO[str]] = {}

    def __enter__(self) -> _Output:
        for path in (self._data, self._rejects):
            self._files[path] = _part(path).open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, item: Item) -> None:
        self._line(self._data, to_fields(item))
        self._report.written += 1

    def reject_row(self, row: int, reason: str, excerpt: str) -> None:
        self._report.failed_rows += 1
        self._name({"row": row, "kind": "unreadable", "reason": reason, "excerpt": excerpt})

    def reject(self, row: int, kind: str, reason: str, excerpt: str, wrote: str) -> None:
        rejected = Counter(self._report.rejected)
        rejected[kind] += 1
        self._report.rejected = dict(rejected)
        entry: dict[str, Any] = {"row": row, "kind": kind, "reason": reason, "excerpt": excerpt}
        self._name({**entry, "wrote": wrote} if wrote else entry)

    def finish(self) -> bool:
        """Put the new files in the place of the old ones, unless those hold more.

        Returns:
            False if a run that stopped early made less than an earlier one; nothing is replaced.
        """
        if not self._report.complete and _count_lines(self._data) > self._report.written:
            for path, file in self._files.items():
                file.close()
                _part(path).unlink()
            return False
        for path, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            _part(path).replace(path)
        if self._report.rejects is None:
            self._rejects.unlink()
        return True

    def _name(self, entry: dict[str, Any]) -> None:
        self._report.rejects = str(self._rejects)
        for key in ("excerpt", "wrote"):
            if key in entry:
                entry[key] = entry[key][:_EXCERPT].encode(errors="backslashreplace").decode()
        self._line(self._rejects, entry)
        if len(self._report.first_rejects) < _SHOWN:
            self._report.first_rejects.append(entry)

    def _line(self, path: Path, fields: dict[str, Any]) -> None:
        self._files[path].write(json.dumps(fields, ensure_ascii=False) + "\n")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


_Reader = Callable[[GenerationReport, _Output], Iterator[_Source]]


def _count_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _open_texts(
    corpus: Corpus, text_field: str, split: bool | None
) -> tuple[str, int | None, _Reader]:
    opened = open_corpus(corpus, text_field=text_field)
    splits = opened.raw if split is None else split

    def read(report: GenerationReport, output: _Output) -> Iterator[_Source]:
        for row in opened.rows():
            report.rows += 1
            if row.problem is not None:
                output.reject_row(row.number, row.problem, row.excerpt)
            elif row.record is None:
                report.blank_rows += 1
            elif not is_unicode(row.record.text):
                output.reject_row(row.number, "the text is no valid UTF-8", row.record.text)
            else:
                for text in _sentences(row.record.text) if splits else [row.record.text]:
                    yield _Source(row.number, " ".join(text.split()), row.done)

    return opened.name, opened.total, read


def _open_records(corpus: Corpus) -> tuple[str, int | None, _Reader]:
    if not isinstance(corpus, str | Path):
        raise DataError(f"got a {type(corpus).__name__}, need a file of records")
    items, problems = read_items(corpus)
    records = [(line, item) for line, item in items if isinstance(item, PaperRecord)]
    if not records:
        raise DataError(f'{corpus} holds no records, need lines of {{"sentence", "good", "bad"}}')

    def read(report: GenerationReport, output: _Output) -> Iterator[_Source]:
        report.rows = len(records) + len(problems)
        for problem in problems:
            output.reject_row(problem.line, problem.reason, problem.excerpt)
        for done, (line, record) in enumerate(records, start=1):
            yield _Source(line, record, done)

    return Path(corpus).name, len(records), read


def _sentences(text: str) -> list[str]:
    from sentencex import segment

    return [sentence for sentence in segment("en", text) if sentence.strip()]


def _fit(
    sources: Iterator[_Source], report: GenerationReport, min_words: int, limit: int | None
) -> Iterator[_Source]:
    """Leave out what is short or was met before, and stop at the limit."""
    seen: set[bytes] = set()
    numbers = count(1)
    for source in sources:
        report.sources += 1
        digest = blake2b(source.text.casefold().encode(), digest_size=16).digest()
        if len(source.text.split()) < min_words:
            report.short += 1
        elif digest in seen:
            report.duplicates += 1
        else:
            seen.add(digest)
            yield source
            if next(numbers) == limit:
                return
    if not seen:
        where = f"; {report.rejects} names the bad rows" if report.rejects else ""
        raise CorpusError(
            f"{report.corpus} holds nothing to ask about: of {report.rows} rows "
            f"{report.blank_rows} are blank and {report.failed_rows} are bad, and {report.short} "
            f"texts have fewer than {min_words} words{where}"
        )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DataError(
            f"another run writes to {out}; wait for it, or name another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _progress(total: int | None, shown: bool) -> Iterator[Any]:
    columns = [
        TextColumn("generating"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("", total=total, status="reading")

        def show(done: int, report: GenerationReport, llm: LLM) -> None:
            spent = llm.spent
            status = f"{report.written:,} made, {sum(report.rejected.values()):,} rejected, "
            status += f"{spent.tokens_in + spent.tokens_out:,} tokens"
            if spent.cost:
                status += f", {spent.cost:.2f} spent"
            progress.update(task, completed=done, status=status)

        yield show


def _check_folder(out: Path, recipe: Recipe, llm: LLM, report: GenerationReport) -> None:
    """Refuse a folder with other data; sign a new one at once, so that a kill leaves it signed."""
    path = out / MANIFEST
    if not path.exists():
        _write_manifest(out, recipe, llm, report)
        return
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        theirs = {**manifest["recipe"], "corpus": manifest["corpus"]}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is no manifest of a run; name another folder") from error
    ours = {"name": recipe.name, **asdict(recipe), "corpus": report.corpus}
    for key, value in ours.items():
        if theirs.get(key) != value:
            raise DataError(
                f"{out} holds a run with {key} {theirs.get(key)!r}, this one has {value!r}; name "
                "another folder"
            )


def _write_manifest(out: Path, recipe: Recipe, llm: LLM, report: GenerationReport) -> None:
    counts = report.to_dict()
    del counts["recipe"], counts["first_rejects"]
    manifest = {
        "made_by": f"descsim-tools {version('descsim-tools')}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "warning": "written by a language model: no source of facts",
        "model": llm.model,
        "server": llm.server,
        "settings": llm.settings,
        "recipe": {"name": recipe.name, **asdict(recipe)},
        "prompts": {
            prompt.name: {"version": prompt.version, "digest": prompt.digest}
            for prompt in recipe.prompts
        },
        **counts,
    }
    part = _part(out / MANIFEST)
    part.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(out / MANIFEST)
