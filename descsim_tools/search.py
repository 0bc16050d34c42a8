"""`DescriptionIndex`: search a store by description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descsim_tools.encoders import DescriptionEncoder
from descsim_tools.store import DEFAULT_COLLECTION, EncoderLike, Store, create_store, open_store
from descsim_tools.store.store import Where
from descsim_tools.types import Hit

if TYPE_CHECKING:
    from descsim_tools.rerankers import Reranker


class DescriptionIndex:
    """A store and its encoder: give a description, get sentences that instantiate it.

    Make one with `open` (or `create`), and `close` it, or use it as a context manager:

        >>> with DescriptionIndex.open("store") as index:
        ...     hits = index.search("a transfer of a disease between two species")

    Attributes:
        store: The sentences and vectors.
        encoder: Reads the descriptions.
    """

    def __init__(self, store: Store, encoder: DescriptionEncoder) -> None:
        store.check_encoder(encoder.spec.name, encoder.fingerprint)
        self.store = store
        self.encoder = encoder
        self._rerankers: dict[str, Reranker] = {}

    @classmethod
    def create(
        cls,
        location: str | Path,
        *,
        encoder: EncoderLike = None,
        collection: str = DEFAULT_COLLECTION,
        device: str | None = None,
    ) -> DescriptionIndex:
        """Make an empty store, to be filled with `descsim_tools.fill`.

        Args:
            location: A folder, made if missing, or the URL of a Chroma server.
            encoder: An encoder, or a preset, folder or hub id; None takes the default preset.
            collection: Name of the Chroma collection.
            device: Where the encoder runs, such as `cpu` or `cuda`; None takes the best.

        Raises:
            EncoderError: The encoder cannot be loaded.
            StoreError: The store exists already or cannot be made.
        """
        return cls(*create_store(location, encoder, collection=collection, device=device))

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        encoder: EncoderLike = None,
        collection: str = DEFAULT_COLLECTION,
        device: str | None = None,
    ) -> DescriptionIndex:
        """Open a filled store; arguments as in `create`.

        With `encoder=None` the encoder that the store names is loaded.

        Raises:
            EncoderError: The encoder cannot be loaded.
            StoreError: There is no store, or another encoder filled it.
        """
        return cls(*open_store(location, encoder, collection=collection, device=device))

    def __enter__(self) -> DescriptionIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the store's files and memory; closing twice does nothing."""
        self.store.close()

    def search(
        self,
        description: str,
        k: int = 10,
        *,
        where: Where | None = None,
        exact: bool = False,
        rerank: Reranker | str | None = None,
        candidates: int = 100,
        min_probability: float | None = None,
    ) -> list[Hit]:
        """Find the sentences that a description fits best.

        Args:
            description: What the sentences should be instances of, such as "a company withdrawing
                a product after a safety problem".
            k: Most hits wanted; fewer come back when fewer match.
            where: Chroma's filter on metadata, such as `{"year": {"$gte": 1990}}`.
            exact: Compare with every sentence instead of asking the approximate index.
            rerank: A reranker that orders what was retrieved, or its name, see
                `descsim_tools.rerankers.load_reranker`; it is loaded once and kept.
            candidates: With `rerank`, how many sentences are retrieved for it, at least `k`.
            min_probability: Least calibrated probability of a hit; needs a reranker that gives one.

        Returns:
            Hits, best first; higher is better. `score` is the cosine similarity, or the reranker's
            score if there is one, and `retrieval_score` is always the former.

        Raises:
            ValueError: The description is blank, `k` or `candidates` is below 1, or
                `min_probability` is outside 0 to 1 or asked for where hits have none.
            RerankerError: The reranker cannot be loaded, or was tuned for another encoder's scores.
            StoreError: The filter is malformed, or the store is closed or unreachable.
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k is {k!r}, need a whole number from 1 up")
        if not isinstance(candidates, int) or candidates < 1:
            raise ValueError(f"candidates is {candidates!r}, need a whole number from 1 up")
        # Before the search, so that a wrong name fails at once.
        reranker = self._reranker(rerank) if isinstance(rerank, str) else rerank
        self.check_reranker(reranker)
        if min_probability is not None:
            _check_probability(min_probability, reranker)
        vector = self.encoder.encode_descriptions([description])[0]
        find = self.store.query_exact if exact else self.store.query
        if reranker is None:
            return find(vector, k, where)
        hits = reranker.rerank(description, find(vector, max(k, candidates), where), top_k=k)
        # Where a better score is never less probable, what stays is the head of the list.
        return [hit for hit in hits if (hit.probability or 0.0) >= (min_probability or 0.0)]

    def check_reranker(self, reranker: Reranker | None) -> None:
        """Make sure that a reranker can take the hits of this store.

        Raises:
            RerankerError: It was tuned for another encoder's scores.
        """
        # Anything that has `rerank` will do, so that others' rerankers fit too.
        check_encoder = getattr(reranker, "check_encoder", None)
        if check_encoder is not None:
            check_encoder(self.encoder.spec.name)

    def _reranker(self, name: str) -> Reranker:
        if name not in self._rerankers:
            from descsim_tools.rerankers import load_reranker

            self._rerankers[name] = load_reranker(name, device=self.encoder.device)
        return self._rerankers[name]


def _check_probability(least: float, reranker: Reranker | None) -> None:
    if not 0 <= least <= 1:
        raise ValueError(f"min_probability is {least!r}, need a number from 0 to 1")
    if reranker is None or getattr(reranker, "calibration", None) is None:
        name = "no reranker" if reranker is None else type(reranker).__name__
        raise ValueError(
            f"min_probability is {least}, but hits have no probability with {name}; take "
            "rerank='combined', 'cross-encoder', or another reranker that is calibrated"
        )
