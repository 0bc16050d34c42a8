"""Collections that other programs filled with all-MiniLM-L6-v2.

`adopt` makes such a collection searchable by description as it lies, with a map on the side of the
descriptions alone. `migrate` copies it, with a map applied to its vectors, into a store of its own.
Neither encodes more than a few sentences, to see that the vectors are what they are said to be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromadb
import numpy as np
from chromadb.errors import NotFoundError
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from descsim_tools.encoders import PRESETS
from descsim_tools.encoders.weights import find_map
from descsim_tools.errors import StoreError
from descsim_tools.store.manifest import PREFIX, Manifest
from descsim_tools.store.metadata import decode_metadata, encode_metadata
from descsim_tools.store.opening import open_store
from descsim_tools.store.store import (
    DEFAULT_COLLECTION,
    Store,
    chroma_errors,
    connect,
    has_text,
    missing,
    space_of,
    write_manifest,
)
from descsim_tools.types import Record

if TYPE_CHECKING:
    from descsim_tools.encoders import DescriptionEncoder

QUERY_MAP = "minilm-query-map"
TWO_MAPS = "minilm-two-maps"
_PLAIN = "all-minilm-l6-v2"
"""Presets whose sentences are encoded as all-MiniLM-L6-v2 does: this one and `QUERY_MAP`."""

CHECKED = 32
"""Rows whose documents are encoded again."""
SAME = 0.99
"""Least cosine of a stored vector and its document's; exports of the model differ a little."""
_NOT_UNIT = 1e-3
_SINGLE = 2
"""Most rows of a sample that may differ by mistake; more speak of another model."""
_WINDOW = 8
_PAGE = 1000
_NAMED = 20


@dataclass
class AdoptionReport:
    """What `adopt` found.

    Attributes:
        store: Folder or URL.
        collection: Name of the collection.
        encoder: Preset that searches it from now on.
        space: By which Chroma measures in it.
        rows: In the collection.
        checked: Rows whose documents were encoded again.
        lowest_similarity: Least cosine of these and the stored vectors.
        without_document: Rows that have none, and are no hits therefore.
        first_without_document: Ids of the first of them.
    """

    store: str
    collection: str
    encoder: str
    space: str
    rows: int
    checked: int
    lowest_similarity: float
    without_document: int = 0
    first_without_document: list[str] = field(default_factory=list)


@dataclass
class MigrationReport:
    """What `migrate` did: `rows` = `written` + `already_there` + `skipped`.

    Attributes:
        source: Folder or URL of the collection that was read.
        collection: Its name.
        target: Folder or URL of the new store.
        target_collection: Its name there.
        encoder: Preset that searches it.
        checked: Rows whose documents were encoded again.
        lowest_similarity: Least cosine of these and the stored vectors.
        rows: Read.
        written: Written to the new store.
        replaced: Of these, rows whose text or metadata had changed since an earlier run.
        already_there: That an earlier run had written, and that have not changed.
        skipped: Rows that cannot be moved.
        first_skipped: Ids and reasons of the first of them.
        kept: Rows of the new store that the collection lacks, not counted in `rows`: deleted there
            since an earlier run, or added here. They stay; `Store.delete` takes them away.
        first_kept: Ids of the first of them.
    """

    source: str
    collection: str
    target: str
    target_collection: str
    encoder: str
    checked: int
    lowest_similarity: float
    rows: int = 0
    written: int = 0
    replaced: int = 0
    already_there: int = 0
    skipped: int = 0
    first_skipped: list[dict[str, str]] = field(default_factory=list)
    kept: int = 0
    first_kept: list[str] = field(default_factory=list)

    def skip(self, id_: str, reason: str) -> None:
        """Count a row that cannot be moved, and name it if it is among the first."""
        self.skipped += 1
        if len(self.first_skipped) < _NAMED:
            self.first_skipped.append({"id": id_, "reason": reason})


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    text: str
    metadata: Mapping[str, Any] | None
    vector: NDArray[np.float32]


def adopt(location: str | Path, collection: str, *, progress: bool = False) -> AdoptionReport:
    """Make a collection filled with all-MiniLM-L6-v2 a store of the encoder `minilm-query-map`.

    Vectors, documents, ids and metadata stay as they are, and so does what other programs see; only
    our manifest is added to the collection's own metadata. Rows without a document stay too, but no
    search finds them.

    Args:
        location: A Chroma folder or the URL of a Chroma server.
        collection: Name of the collection; any of Chroma's spaces will do.
        progress: Show a bar on standard error.

    Raises:
        StoreError: It is not there, is a store already, was filled with another model, or its
            vectors are not of length 1 in a space where that matters.
    """
    from descsim_tools.encoders import DescriptionEncoder

    location = str(location)
    with _foreign(location, collection) as found:
        where = f"the collection {collection!r} in {location}"
        metadata = found.metadata or {}
        if PREFIX + "format_version" in metadata:
            filled_by = metadata.get(PREFIX + "encoder")
            raise StoreError(
                f"{where} is a descsim store already, of the encoder {filled_by!r}; search it as "
                "it is, or move it with `descsim migrate`"
            )
        encoder = DescriptionEncoder.load(QUERY_MAP, device="cpu")
        checked, lowest = _check_model(found, encoder, where)
        space = space_of(found.configuration_json)
        report = AdoptionReport(location, collection, QUERY_MAP, space, 0, checked, lowest)
        _look_through(found, report, where, progress=progress)
        write_manifest(found, Manifest.of(encoder, space))
    return report


def migrate(
    location: str | Path,
    target: str | Path,
    *,
    collection: str,
    target_collection: str = DEFAULT_COLLECTION,
    progress: bool = False,
) -> MigrationReport:
    """Copy a collection filled with all-MiniLM-L6-v2 into a store of the encoder `minilm-two-maps`.

    The stored vectors are mapped; nothing is encoded but a sample, and the collection is left as it
    is. A migration that was broken off goes on where it was. A later one copies what is new and
    rows whose text or metadata changed, and keeps rows that the collection has no more: the report
    counts them. Memory does not grow with the collection, but for Chroma's index.

    Args:
        location: A Chroma folder or the URL of a Chroma server.
        target: The same for the new store; a folder is made if missing.
        collection: Name of the collection: a foreign one, or a store of the encoders
            `all-minilm-l6-v2` or `minilm-query-map`.
        target_collection: Name of the new collection.
        progress: Show a bar on standard error.

    Raises:
        StoreError: The collection is not there or was filled with another model, or the target
            cannot be written or holds another encoder's sentences or those of another collection.
    """
    from descsim_tools.encoders import DescriptionEncoder

    location, target = str(location), str(target)
    if (_place(location), collection) == (_place(target), target_collection):
        raise StoreError(
            f"the collection {collection!r} in {location} cannot be moved onto itself; name "
            "another folder or collection"
        )
    with _foreign(location, collection) as found:
        where = f"the collection {collection!r} in {location}"
        _check_manifest(found, where)
        checked, lowest = _check_model(found, DescriptionEncoder.load(_PLAIN, device="cpu"), where)
        encoder = DescriptionEncoder.load(TWO_MAPS, device="cpu")
        report = MigrationReport(
            location, collection, target, target_collection, TWO_MAPS, checked, lowest
        )
        marked = replace(Manifest.of(encoder), source_id=str(found.id), source_name=collection)
        if Store.has_collection(target, target_collection):
            store, _ = open_store(target, encoder, collection=target_collection)
        else:
            store = Store.create(target, marked, collection=target_collection)
        with store, store.writer():
            _find_kept(found, store, report)
            _check_source(store, marked, report)
            _copy(found, store, report, progress=progress)
    return report


@contextmanager
def _foreign(location: str, collection: str) -> Iterator[chromadb.Collection]:
    """Open a collection, whoever made it."""
    if not Store.exists(location):
        raise StoreError(f"there is no Chroma database in {location}; name its folder or URL")
    with chroma_errors(location), connect(location) as client:
        try:
            found = client.get_collection(collection, embedding_function=None)
        except NotFoundError as error:
            raise StoreError(missing(client, location, collection)) from error
        yield found


def _check_manifest(found: chromadb.Collection, where: str) -> None:
    """Refuse a store of ours whose sentences another encoder than all-MiniLM-L6-v2 read."""
    from descsim_tools.encoders import DescriptionEncoder

    metadata = found.metadata or {}
    if PREFIX + "format_version" not in metadata:
        return
    manifest = Manifest.from_metadata(metadata, where)
    named = manifest.encoder if manifest.encoder in (QUERY_MAP, _PLAIN) else None
    if named and DescriptionEncoder.load(named, device="cpu").fingerprint == manifest.fingerprint:
        return
    raise StoreError(
        f"{where} was filled with the encoder {manifest.encoder!r} (fingerprint "
        f"{manifest.fingerprint[:12]}); only vectors of all-MiniLM-L6-v2 can be moved"
    )


def _find_kept(found: chromadb.Collection, store: Store, report: MigrationReport) -> None:
    """Count the rows of the target that the collection lacks."""
    for ids in store.id_pages():
        known = set(found.get(ids=ids, include=[])["ids"])
        kept = [id_ for id_ in ids if id_ not in known]
        report.kept += len(kept)
        report.first_kept += kept[: _NAMED - len(report.first_kept)]


def _check_source(store: Store, marked: Manifest, report: MigrationReport) -> None:
    """Refuse a target that another collection was moved to, and mark one that has no mark.

    Ids of two collections are often the same (0, 1, 2 ...), and one's rows would replace the
    other's. Stores that were migrated before there were marks are known by their ids.
    """
    there = store.manifest
    where = f"the collection {store.name!r} in {store.location}"
    remedy = "name another target folder or collection"
    if there.source_id and there.source_id != marked.source_id:
        raise StoreError(
            f"{where} holds what was moved from another collection, {there.source_name!r} (id "
            f"{there.source_id}), not from {marked.source_name!r} (id {marked.source_id}), and "
            f"rows with the same ids would replace each other; {remedy}"
        )
    if not there.source_id:
        if report.kept:
            raise StoreError(
                f"{where} does not say which collection was moved to it, and {report.kept} of its "
                f"rows are not in {marked.source_name!r}, such as {report.first_kept[0]!r}; "
                f"{remedy}"
            )
        ours = replace(there, source_id=marked.source_id, source_name=marked.source_name)
        store.replace_manifest(ours)


def _check_model(
    found: chromadb.Collection, encoder: DescriptionEncoder, where: str
) -> tuple[int, float]:
    """Compare stored vectors with what a model makes of their documents.

    Returns:
        How many were compared, and the least cosine.

    Raises:
        StoreError: There is nothing to compare, or they differ.
    """
    rows = _sample(found)
    if not rows:
        raise StoreError(
            f"{where} has no row with a document, so nothing tells which model made its vectors; "
            "fill a new store with `descsim index`"
        )
    if len(rows[0].vector) != encoder.dim:
        raise StoreError(
            f"{where} holds vectors of {len(rows[0].vector)} dimensions, those of "
            f"all-MiniLM-L6-v2 have {encoder.dim}; fill a new store with `descsim index`"
        )
    stored = np.stack([row.vector for row in rows])
    lengths = np.maximum(np.linalg.norm(stored, axis=1), np.finfo(np.float32).tiny)
    similarities = _similarities([row.text for row in rows], stored, encoder) / lengths
    doubtful = [i for i in np.flatnonzero(~(similarities >= SAME)) if _node_of(rows[i])]
    if doubtful:
        texts = [_as_llama_index_embeds(rows[i]) for i in doubtful]
        similarities[doubtful] = _similarities(texts, stored[doubtful], encoder) / lengths[doubtful]
    wrong = np.flatnonzero(~(similarities >= SAME))
    if len(wrong):
        raise StoreError(_not_the_model(rows, similarities, wrong, found.count(), where))
    return len(rows), float(similarities.min())


def _similarities(
    texts: list[str], stored: NDArray[np.float32], encoder: DescriptionEncoder
) -> NDArray[np.float32]:
    products: NDArray[np.float32] = (encoder.encode_sentences(texts) * stored).sum(axis=1)
    return products


def _not_the_model(
    rows: Sequence[_Row],
    similarities: NDArray[np.float32],
    wrong: NDArray[np.intp],
    total: int,
    where: str,
) -> str:
    worst = wrong[np.argmin(np.nan_to_num(similarities[wrong], nan=-1.0))]
    anew = "fill a new store from its documents with `descsim index`"
    if 2 * len(wrong) >= len(rows):
        verdict = f"so another model filled the collection; {anew}"
    elif len(wrong) > _SINGLE:
        verdict = f"so another model filled it in part; {anew}"
    else:
        named = ", ".join(repr(rows[i].id) for i in wrong)
        more = " and look for more among the rows not checked" if total > len(rows) else ""
        verdict = f"mend or delete these rows: {named}{more}"
    differ = f"{len(wrong)} {'differs' if len(wrong) == 1 else 'differ'}"
    return (
        f"{where} does not hold what all-MiniLM-L6-v2 makes of its documents: in a sample of "
        f"{len(rows)} of its {total} rows, {differ}, row {rows[worst].id!r} most, which has cosine "
        f"{similarities[worst]:.3f} with its document, need {SAME}; {verdict}"
    )


def _sample(found: chromadb.Collection) -> list[_Row]:
    """Return rows with documents, spread over the collection."""
    total = found.count()
    chosen: dict[str, _Row] = {}
    for offset in np.unique(np.linspace(0, max(0, total - 1), CHECKED).astype(int)):
        for row in _page(found, int(offset), _WINDOW):
            if has_text(row.text) and row.id not in chosen:
                chosen[row.id] = row
                break
    return list(chosen.values())


def _page(found: chromadb.Collection, offset: int, limit: int) -> list[_Row]:
    rows = found.get(limit=limit, offset=offset, include=["documents", "metadatas", "embeddings"])
    if not rows["ids"]:
        return []
    return [
        _Row(id_, text, metadata, vector)
        for id_, text, metadata, vector in zip(
            rows["ids"],
            rows["documents"] or [],
            rows["metadatas"] or [],
            np.asarray(rows["embeddings"], dtype=np.float32),
            strict=True,
        )
    ]


def _pages(found: chromadb.Collection, label: str, *, progress: bool) -> Iterator[list[_Row]]:
    """Yield all rows, page by page, with a bar."""
    offsets = range(0, found.count(), _PAGE)
    console = Console(stderr=True)
    for offset in track(offsets, label, console=console, disable=not progress):
        yield _page(found, offset, _PAGE)


def _look_through(
    found: chromadb.Collection, report: AdoptionReport, where: str, *, progress: bool
) -> None:
    """Count the rows, name those without a document, and refuse vectors that mislead the score."""
    for rows in _pages(found, "checking", progress=progress):
        report.rows += len(rows)
        for row in rows:
            length = float(np.linalg.norm(row.vector))
            if report.space != "cosine" and not abs(length - 1) <= _NOT_UNIT:
                raise StoreError(
                    f"{where} measures by {report.space!r}, which gives a cosine only for vectors "
                    f"of length 1, and that of row {row.id!r} has {length:.4g}; move it with "
                    "`descsim migrate`"
                )
            if not has_text(row.text):
                report.without_document += 1
                if len(report.first_without_document) < _NAMED:
                    report.first_without_document.append(row.id)


def _copy(
    found: chromadb.Collection, store: Store, report: MigrationReport, *, progress: bool
) -> None:
    """Map and write what the store lacks."""
    import torch

    from descsim_tools.encoders.maps import apply_map, read_map

    weight = read_map(find_map(PRESETS[TWO_MAPS].sentence_map or ""))
    for rows in _pages(found, "moving", progress=progress):
        report.rows += len(rows)
        there = {record.id: record for record in store.get([row.id for row in rows])}
        lacking = [row for row in rows if not _is_same(row, there.get(row.id))]
        report.already_there += len(rows) - len(lacking)
        fit = [row for row in lacking if _fits(row, report)]
        if not fit:
            continue
        store.upsert(
            [Record(row.text, row.id, decode_metadata(row.metadata)) for row in fit],
            apply_map(torch.from_numpy(np.stack([row.vector for row in fit])), weight).numpy(),
        )
        report.written += len(fit)
        report.replaced += sum(row.id in there for row in fit)


def _is_same(row: _Row, stored: Record | None) -> bool:
    """Whether a row stands in the target as it is."""
    if stored is None or stored.text != row.text:
        return False
    # As JSON, since 1, 1.0 and True are equal in Python.
    ours, theirs = (
        json.dumps(encode_metadata(metadata), sort_keys=True)
        for metadata in (stored.metadata, decode_metadata(row.metadata))
    )
    return ours == theirs


def _fits(row: _Row, report: MigrationReport) -> bool:
    """Whether a row can be moved; if not, the report names it."""
    length = float(np.linalg.norm(row.vector))
    if not has_text(row.text):
        report.skip(row.id, "it has no document")
    elif not np.isfinite(length) or length == 0:
        report.skip(row.id, f"its vector has length {length}")
    else:
        return True
    return False


def _place(location: str) -> str:
    url = location.startswith(("http://", "https://"))
    return location.rstrip("/") if url else str(Path(location).resolve())


def _node_of(row: _Row) -> dict[str, Any] | None:
    """Return the node that LlamaIndex keeps in a row's metadata, if it wrote the row."""
    try:
        node = json.loads(str((row.metadata or {})["_node_content"]))
    except (KeyError, ValueError):
        return None
    return node if isinstance(node, dict) else None


def _as_llama_index_embeds(row: _Row) -> str:
    """Return the text that LlamaIndex embeds for a node: by default its metadata come first."""
    node = _node_of(row) or {}
    left_out = node.get("excluded_embed_metadata_keys") or []
    template = node.get("metadata_template") or "{key}: {value}"
    facts = (node.get("metadata_separator") or "\n").join(
        template.replace("{key}", key).replace("{value}", str(value))
        for key, value in (node.get("metadata") or {}).items()
        if key not in left_out
    )
    around = str(node.get("text_template") or "{metadata_str}\n\n{content}")
    whole = around.replace("{metadata_str}", facts).replace("{content}", row.text)
    return whole.strip() if facts else row.text
