"""Rerankers whose order is easy to foretell."""

from dataclasses import replace


class ShortestFirst:
    """A real reranker but for its taste: the shorter a sentence, the better; ties by id."""

    def __init__(self, probability=None):
        self.probability = probability
        self.seen = []

    def rerank(self, description, hits, top_k=None):
        self.seen.append((description, [hit.id for hit in hits]))
        ordered = sorted(hits, key=lambda hit: (len(hit.text), hit.id))[:top_k]
        return [
            replace(
                hit,
                rank=rank,
                score=-float(len(hit.text)),
                rerank_score=-float(len(hit.text)),
                probability=self.probability(hit) if self.probability else None,
            )
            for rank, hit in enumerate(ordered, start=1)
        ]


class Inventing:
    """Gives back what it was not given."""

    def rerank(self, description, hits, top_k=None):
        return [replace(hits[0], id="invented"), *hits[1:]]


class Doubling:
    def rerank(self, description, hits, top_k=None):
        return [hits[0], hits[0]]


WHAT_CANNOT_RERANK = [object(), "cross-encoder", 3]
