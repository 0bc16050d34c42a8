"""`Store`: open, check, write and query a Chroma collection."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import chromadb
import numpy as np
from chromadb.api.client import Client
from chromadb.api.collection_configuration import (
    CreateCollectionConfiguration,
    CreateHNSWConfiguration,
)
from chromadb.api.shared_system_client import SharedSystemClient
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from descsim_tools.errors import StoreError
from descsim_tools.store.manifest import Manifest
from descsim_tools.store.metadata import decode_metadata, encode_metadata
from descsim_tools.types import Hit, Record

DEFAULT_COLLECTION = "descsim"

_DATABASE = "chroma.sqlite3"
_LOCK = "descsim-writer.lock"
_PAGE = 1000
"""Rows a read asks for at a time: below the limit of SQL variables everywhere."""

_HNSW = CreateHNSWConfiguration(
    space="cosine", ef_construction=200, max_neighbors=16, ef_search=200
)
"""Chroma's defaults (100, 16, 100) lose near neighbours: instances that nobody finds."""

Where = Mapping[str, Any]
_T = TypeVar("_T")


class Store:
    """One collection of sentences and their vectors, in a folder or on a Chroma server.

    Make one with `create` or `open`, and `close` it, or use it as a context manager. Only one
    process may write to a folder at a time; any number may read.

    Attributes:
        location: The folder or the server's address.
        name: Of the collection.
        id: Of the collection, as Chroma gave it; no two have the same, wherever they lie.
        manifest: What it was made with.
    """

    def __init__(self, location: str, collection: str, client: Client) -> None:
        self.location = location
        self.name = collection
        self._client: Client | None = client
        self._collection = client.get_collection(collection, embedding_function=None)
        self.id = str(self._collection.id)
        self.manifest = Manifest.from_metadata(self._collection.metadata, location)
        check_space(self._collection.configuration_json, location, self.manifest.space)
        self._seen = self._stamp()
        self._lock = _lock_of(location)
        self._turn = threading.RLock()

    @classmethod
    def create(
        cls, location: str | Path, manifest: Manifest, *, collection: str = DEFAULT_COLLECTION
    ) -> Store:
        """Make an empty store.

        Args:
            location: A folder (made if missing) or the URL of a Chroma server.
            manifest: The identity of the encoder that will fill it.
            collection: Name of the Chroma collection.

        Raises:
            StoreError: The collection exists, another process is writing to the folder, or the
                place cannot be written or reached.
        """
        location = str(location)
        if not _is_url(location):
            _make_folder(Path(location))
        # Two that make one database at the same time break each other's.
        with _held(_lock_of(location), location), chroma_errors(location):
            client = connect(location)
            if collection in {c.name for c in client.list_collections()}:
                client.close()
                raise StoreError(
                    f"{location} already holds a collection {collection!r}; open it, or choose "
                    "another folder or collection name"
                )
            # Name, space and manifest in one call: a kill leaves either all of them or none.
            client.create_collection(
                collection,
                metadata=manifest.to_metadata(),
                configuration=CreateCollectionConfiguration(hnsw=_HNSW),
                embedding_function=None,
            )
            return cls(location, collection, client)

    @classmethod
    def open(cls, location: str | Path, *, collection: str = DEFAULT_COLLECTION) -> Store:
        """Open an existing store.

        Raises:
            StoreError: There is none, it was made by something else, its space is not cosine, or
                the server cannot be reached.
        """
        location = str(location)
        if not cls.exists(location):
            raise StoreError(
                f"there is no store in {location}; fill one with "
                f"`descsim index CORPUS --store {location}`"
            )
        with chroma_errors(location):
            client = connect(location)
            try:
                return cls(location, collection, client)
            except NotFoundError as error:
                message = missing(client, location, collection)
                client.close()
                raise StoreError(message) from error
            except StoreError:
                client.close()
                raise

    @staticmethod
    def exists(location: str | Path) -> bool:
        """Whether a folder holds a Chroma database; a server's URL always counts."""
        return _is_url(str(location)) or (Path(location) / _DATABASE).is_file()

    @classmethod
    def has_collection(cls, location: str | Path, collection: str = DEFAULT_COLLECTION) -> bool:
        """Whether a store of that name lies there."""
        location = str(location)
        if not cls.exists(location):
            return False
        with chroma_errors(location), connect(location) as client:
            return collection in {c.name for c in client.list_collections()}

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back files and memory; closing twice does nothing."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def check_encoder(self, encoder: str, fingerprint: str) -> None:
        """Refuse an encoder other than the one that filled this store.

        Raises:
            StoreError: The fingerprints differ.
        """
        if fingerprint != self.manifest.fingerprint:
            raise StoreError(
                f"{self.location} was filled with encoder {self.manifest.encoder!r} (fingerprint "
                f"{self.manifest.fingerprint[:12]}), not with {encoder!r} ({fingerprint[:12]}); "
                "open it with that encoder, or fill a new store"
            )

    def replace_manifest(self, manifest: Manifest) -> None:
        """Write another manifest; whatever else the collection's metadata hold stays."""
        with self.writer(), chroma_errors(self.location):
            write_manifest(self._collection, manifest)
            self._collection = self._open_client().get_collection(
                self.name, embedding_function=None
            )
            self.manifest = manifest

    @property
    def max_batch_size(self) -> int:
        """Most rows that one call of the client may write."""
        return int(self._open_client().get_max_batch_size())

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Hold the right to write while the context lasts.

        On a server there is nothing to hold: writes are upserts under stable ids.

        Raises:
            StoreError: Another process holds it.
        """
        self._open_client()
        with _held(self._lock, self.location):
            try:
                if self._lock is not None and self._lock.lock_counter == 1:
                    self._refresh()
                yield
            finally:
                self._seen = self._stamp()

    def count(self) -> int:
        """Return the number of sentences."""
        with self._reading():
            return int(self._fresh().count())

    def get(self, ids: Sequence[str]) -> list[Record]:
        """Return the records of those ids that are stored, in the order asked for.

        A row without a document, as an adopted collection may hold, is no record.
        """
        found: dict[str, Record] = {}
        with self._reading():
            for page in _pages(list(dict.fromkeys(ids)), _PAGE):
                rows = self._fresh().get(ids=page, include=["documents", "metadatas"])
                for id_, text, flat in zip(
                    rows["ids"], rows["documents"] or [], rows["metadatas"] or [], strict=True
                ):
                    if has_text(text):
                        found[id_] = Record(text, id_, decode_metadata(flat))
        return [found[id_] for id_ in ids if id_ in found]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of stored sentences, (n, dim) in the order asked for.

        They are scaled to length 1, as an adopted collection's need not be; vectors of zeros stay.

        Raises:
            StoreError: An id is not stored.
        """
        found: dict[str, NDArray[np.float32]] = {}
        with self._reading():
            for page in _pages(list(dict.fromkeys(ids)), _PAGE):
                rows = self._fresh().get(ids=page, include=["embeddings"])
                vectors = np.asarray(rows["embeddings"], dtype=np.float32)
                found.update(zip(rows["ids"], vectors, strict=True))
        vectors = np.empty((len(ids), self.manifest.dim), dtype=np.float32)
        for number, id_ in enumerate(ids):
            if id_ not in found:
                raise StoreError(f"{self.location} holds no sentence with the id {id_!r}")
            vectors[number] = found[id_]
        return _of_length_1(vectors)

    def upsert(self, records: Sequence[Record], vectors: NDArray[np.float32]) -> None:
        """Write records, replacing those of the same id whole.

        Args:
            records: Each with an id; no id twice.
            vectors: (n, dim) float32, rows of length 1, in the records' order.

        Raises:
            ValueError: Shapes differ, a row is not finite, or an id is missing or repeated.
            StoreError: The store cannot be written.
        """
        ids = [record.id for record in records if record.id is not None]
        if len(ids) != len(records) or len(set(ids)) != len(ids):
            raise ValueError("every record needs an id of its own; got a missing or repeated one")
        if vectors.shape != (len(records), self.manifest.dim):
            raise ValueError(
                f"got vectors of shape {vectors.shape} for {len(records)} records, need "
                f"({len(records)}, {self.manifest.dim})"
            )
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise ValueError(f"the vectors of {[ids[i] for i in bad[:10]]} are not finite")
        rows = [encode_metadata(record.metadata) for record in records]
        with self.writer(), chroma_errors(self.location):
            size = self.max_batch_size
            for start in range(0, len(ids), size):
                part = slice(start, start + size)
                page = ids[part]
                self._collection.upsert(
                    ids=page,
                    embeddings=vectors[part],
                    documents=[record.text for record in records[part]],
                    metadatas=self._replacing(page, rows[part]),  # type: ignore[arg-type]
                )

    def update_metadata(self, records: Sequence[Record]) -> None:
        """Replace the metadata of stored records; text and vector stay."""
        rows = [encode_metadata(record.metadata) for record in records]
        ids = [str(record.id) for record in records]
        with self.writer(), chroma_errors(self.location):
            for page, part in zip(_pages(ids, _PAGE), _pages(rows, _PAGE), strict=True):
                merged = self._replacing(page, part)
                self._collection.update(ids=page, metadatas=merged)  # type: ignore[arg-type]

    def delete(self, ids: Sequence[str]) -> int:
        """Delete records and return how many there were; unknown ids are no error."""
        with self.writer(), chroma_errors(self.location):
            deleted = 0
            for page in _pages(list(dict.fromkeys(ids)), _PAGE):
                known = self._collection.get(ids=page, include=[])["ids"]
                if known:
                    self._collection.delete(ids=known)
                deleted += len(known)
        return deleted

    def query(self, vector: NDArray[np.float32], k: int, where: Where | None = None) -> list[Hit]:
        """Return the `k` nearest sentences by the approximate index, best first.

        Fewer come back only if fewer match: where the index itself gives too few (it can, under a
        filter), they are searched exactly.

        Args:
            vector: (dim,) float32 of length 1.
            k: At least 1.
            where: Chroma's filter on metadata.
        """
        with self._reading():
            total = self._fresh().count()
            if k < total:
                found = self._collection.query(
                    query_embeddings=vector[None, :],
                    n_results=k,
                    where=dict(where) if where else None,
                    include=["distances", "documents", "metadatas"],
                )
                hits = _hits(
                    found["ids"][0],
                    [cosine_of(d, self.manifest.space) for d in (found["distances"] or [[]])[0]],
                    (found["documents"] or [[]])[0],
                    (found["metadatas"] or [[]])[0],
                )
                if len(hits) == k:
                    return hits
        return self.query_exact(vector, k, where)

    def query_exact(
        self, vector: NDArray[np.float32], k: int, where: Where | None = None
    ) -> list[Hit]:
        """Return the `k` nearest sentences by comparing all; arguments as in `query`.

        Constant memory beyond the result; ties are ordered by id.
        """
        best = self._best(vector, k, where)
        records = {record.id: record for record in self.get([id_ for _, id_ in best])}
        if len(records) < len(best) == k:
            # Rows without a document are no sentences; others come after them.
            return self.query_exact(vector, 2 * k, where)[:k]
        found = [(id_, -minus) for minus, id_ in best if id_ in records]
        return [
            Hit(
                id_,
                score,
                rank,
                records[id_].text,
                records[id_].metadata,
                retrieval_score=score,
            )
            for rank, (id_, score) in enumerate(found, start=1)
        ]

    def _best(
        self, vector: NDArray[np.float32], k: int, where: Where | None
    ) -> list[tuple[float, str]]:
        """Return the negated cosines and the ids of the `k` nearest rows, best first."""
        best: list[tuple[float, str]] = []
        with self._reading():
            for ids, vectors in self.vector_pages(where):
                scores = vectors @ vector
                keep = np.argsort(-scores, kind="stable")[:k]
                # A page's last kept score may be tied; take every id that shares it.
                floor = scores[keep[-1]]
                page = [(-float(scores[i]), ids[i]) for i in np.flatnonzero(scores >= floor)]
                best = sorted(best + page)[:k]
        return best

    def vector_pages(
        self, where: Where | None = None
    ) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        """Yield ids and their vectors, (n, dim) float32, page by page.

        They are scaled to length 1, as an adopted collection's need not be; vectors of zeros stay.
        """
        for rows in self._row_pages(where, ["embeddings"]):
            yield rows["ids"], _of_length_1(np.asarray(rows["embeddings"], dtype=np.float32))

    def id_pages(self) -> Iterator[list[str]]:
        """Yield the ids of all rows, page by page."""
        for rows in self._row_pages(None, []):
            yield rows["ids"]

    def _row_pages(
        self, where: Where | None, include: chromadb.Include
    ) -> Iterator[chromadb.GetResult]:
        collection = self._fresh()
        offset = 0
        while True:
            rows = collection.get(
                where=dict(where) if where else None,
                limit=_PAGE,
                offset=offset,
                include=include,
            )
            if not rows["ids"]:
                return
            yield rows
            offset += len(rows["ids"])

    def _replacing(self, ids: list[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add None for keys that only the stored row has: Chroma would merge, not replace."""
        stored = self._collection.get(ids=ids, include=["metadatas"])
        old = dict(zip(stored["ids"], stored["metadatas"] or [], strict=True))
        return [
            {**dict.fromkeys(old.get(id_) or {}), **row} for id_, row in zip(ids, rows, strict=True)
        ]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let one thread at a time read: a refresh would close the client under another."""
        with self._turn, chroma_errors(self.location):
            yield

    def _open_client(self) -> Client:
        if self._client is None:
            raise StoreError(f"the store {self.location} is closed; open it again")
        return self._client

    def _fresh(self) -> chromadb.Collection:
        """Return the collection as it is on disk.

        An embedded client counts rows that another process wrote but never finds them: its index
        stays as first loaded [chromadb 1.5.9]. So it is reopened once the database has changed,
        unless the changes can only be our own.
        """
        self._open_client()
        if self._lock is not None and not self._lock.is_locked:
            self._refresh()
        return self._collection

    def _refresh(self) -> None:
        if self._stamp() == self._seen:
            return
        self._open_client().close()
        self._client = connect(self.location)
        self._collection = self._client.get_collection(self.name, embedding_function=None)
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        if _is_url(self.location):
            return (0, 0)
        status = os.stat(Path(self.location) / _DATABASE)
        return status.st_mtime_ns, status.st_size


def _hits(
    ids: Sequence[str],
    scores: Sequence[float],
    texts: Sequence[str],
    metadatas: Sequence[Mapping[str, Any]],
) -> list[Hit]:
    rows = [row for row in zip(ids, scores, texts, metadatas, strict=True) if has_text(row[2])]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return [
        Hit(id_, score, rank, text, decode_metadata(flat), retrieval_score=score)
        for rank, (id_, score, text, flat) in enumerate(rows, start=1)
    ]


def _is_url(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def connect(location: str) -> Client:
    """Return a Chroma client on a folder or server, with telemetry off."""
    if not _is_url(location):
        _check_writable(Path(location))
        return _open_folder(location)
    settings = Settings(anonymized_telemetry=False)
    url = urlsplit(location)
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    client = chromadb.HttpClient(host=url.hostname or "", port=port, ssl=secure, settings=settings)
    return cast("Client", client)


def _open_folder(location: str) -> Client:
    """Return a client on a folder, and say what it may mean if there is none to be had."""
    settings = Settings(anonymized_telemetry=False)
    try:
        return cast("Client", chromadb.PersistentClient(path=location, settings=settings))
    except (ChromaError, AttributeError, ValueError) as error:
        # Chroma keeps what it could not start, and gives it to the next client of this process,
        # which fails with an AttributeError whatever the cause was [1.5.9].
        if not SharedSystemClient._identifier_to_refcount.get(location):
            SharedSystemClient._identifier_to_system.pop(location, None)
        text = str(error)
        if isinstance(error, ValueError) and "Could not connect" not in text:
            raise
        if isinstance(error, ChromaError) and _remedy_of(text):
            raise
        raise StoreError(
            f"the store in {location} could not be opened: another process is writing to it just "
            f"now, or its database is damaged ({text}); try again in a moment, and if it stays so, "
            "see the first error about this folder, bring back a copy of it or fill a new store"
        ) from error


def _lock_of(location: str) -> FileLock | None:
    """Return the right to write to a folder; a server has none."""
    # Not one lock a thread: a fill reads in one thread and writes in another.
    return None if _is_url(location) else FileLock(Path(location) / _LOCK, thread_local=False)


@contextmanager
def _held(lock: FileLock | None, location: str) -> Iterator[None]:
    """Hold the right to write, without waiting for it."""
    if lock is None:
        yield
        return
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(
            f"another process is writing to {location}; wait until it has finished"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot write to {location}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from error


def _check_writable(folder: Path) -> None:
    """Refuse a folder that may not be written: an embedded Chroma writes even to read [1.5.9]."""
    effective = os.access in os.supports_effective_ids
    for path in (folder, folder / _DATABASE):
        if path.exists() and not os.access(path, os.W_OK, effective_ids=effective):
            raise StoreError(
                f"cannot write to {path}, which Chroma needs even for reading; mend its "
                "permissions, copy the store, or serve it with `chroma run`"
            )


def write_manifest(collection: chromadb.Collection, manifest: Manifest) -> None:
    """Add a manifest to a collection's metadata, in place of the one that is there, if any."""
    # Not by `modify`, which refuses metadata that name the space, even the same one.
    collection._client._modify(
        id=collection.id,
        new_metadata={**(collection.metadata or {}), **manifest.to_metadata()},
        tenant=collection.tenant,
        database=collection.database,
    )


def space_of(configuration: Mapping[str, Any]) -> str:
    """Return what a collection measures by: `l2` (squared), `cosine` or `ip`."""
    return str((configuration.get("hnsw") or configuration.get("spann") or {}).get("space"))


def check_space(configuration: Mapping[str, Any], location: str, wanted: str = "cosine") -> None:
    """Refuse a collection that does not measure as its manifest says."""
    space = space_of(configuration)
    if space != wanted:
        raise StoreError(
            f"the collection in {location} measures by {space!r}, not by {wanted}, which cannot be "
            "changed later; fill a new store with `descsim index`"
        )


def cosine_of(distance: float, space: str) -> float:
    """Return the cosine that Chroma's distance of two vectors of length 1 stands for.

    Args:
        distance: 1 - cosine in the spaces `cosine` and `ip`, the squared distance in `l2`.
        space: As `space_of` gives it.
    """
    return 1.0 - float(distance) / (2 if space == "l2" else 1)


def has_text(document: str | None) -> bool:
    """Whether a row is a sentence; in an adopted collection some may have no document."""
    return document is not None and bool(document.strip())


def missing(client: Client, location: str, collection: str) -> str:
    """Say that a collection is not there, and which are."""
    names = sorted(c.name for c in client.list_collections())
    return f"{location} has no collection {collection!r}; it holds: {', '.join(names) or 'none'}"


def _of_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length 1, but for rows of zeros; what we filled has it already."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if np.allclose(lengths, 1, atol=1e-5):
        return vectors
    scaled: NDArray[np.float32] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def _pages(items: list[_T], size: int) -> Iterator[list[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _remedy_of(text: str) -> str | None:
    """Return what mends a fault of the disk or its permissions, if an error speaks of one."""
    if "full" in text:
        return "the disk is full; free some space and run the same command again"
    if "readonly" in text or "unable to open" in text or "ermission" in text:
        return "check that the folder may be written"
    return None


@contextmanager
def chroma_errors(location: str) -> Iterator[None]:
    """Give Chroma's many error types one of ours, with the place in the message."""
    try:
        yield
    except NotFoundError:
        raise
    except ChromaError as error:
        text = str(error)
        filtered = "where" in text.lower() or "filter" in text.lower()
        general = "check the filter" if filtered else "run with --debug for the whole error"
        remedy = _remedy_of(text) or general
        raise StoreError(f"{location}: {text} ({remedy})") from error
    except json.JSONDecodeError as error:
        raise StoreError(f"{location} does not answer like a Chroma server") from error
    except ValueError as error:
        text = " ".join(str(error).split())
        if "where" in text or "operand" in text:
            raise StoreError(f"bad filter: {text}") from error
        if "Could not connect" in text:
            raise StoreError(f"no Chroma server answers at {location}; is it running?") from error
        raise
