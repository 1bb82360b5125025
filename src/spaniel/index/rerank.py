"""A second look at the best hits: the joint where rerankers vary, and the engine that asks one."""

import math
from collections.abc import Sequence
from typing import Protocol

from spaniel.errors import ConfigError, DataError
from spaniel.index.engine import SearchEngine
from spaniel.store import hash_of
from spaniel.types import Document, Hit


class Reranker(Protocol):
    """Anything that scores hits for a query, given their texts."""

    @property
    def fingerprint(self) -> str:
        """Hash of weights and settings: equal ones give equal scores."""
        ...

    def score(self, query: str, hits: Sequence[Hit], documents: Sequence[Document]) -> list[float]:
        """[num_hits] the higher, the better; ``documents`` are the hits' own, in order."""
        ...


class RerankedEngine:
    """A ``SearchEngine`` whose best hits are put in a reranker's order.

    Args:
        engine: finds the candidates.
        reranker: orders them.
        candidates: how many hits are looked at again; at least as many as are asked for.
    """

    def __init__(self, engine: SearchEngine, reranker: Reranker, candidates: int = 30) -> None:
        if candidates < 1:
            raise ConfigError(f"candidates must be >= 1, got {candidates}")
        self.engine = engine
        self.reranker = reranker
        self.candidates = candidates

    @property
    def waits(self) -> bool:
        """Whether the engine behind it does."""
        return self.engine.waits

    @property
    def fingerprint(self) -> str:
        """Hash of engine, reranker and number of candidates."""
        return hash_of(
            ["reranked", self.engine.fingerprint, self.reranker.fingerprint, self.candidates]
        )

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits by the reranker's score; ties by docid."""
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        found = self.engine.search_batch(queries, max(k, self.candidates))
        return [self._rerank(q, hits)[:k] for q, hits in zip(queries, found, strict=True)]

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError``."""
        return self.engine.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return self.engine.read_batch(docids)

    def _rerank(self, query: str, hits: list[Hit]) -> list[Hit]:
        if not hits:
            return []
        documents = self.engine.read_batch([hit.docid for hit in hits])
        scores = self.reranker.score(query, hits, documents)
        if len(scores) != len(hits) or not all(map(math.isfinite, scores)):
            raise DataError(f"the reranker must give {len(hits)} finite scores, got {scores}")
        order = sorted(zip(scores, hits, strict=True), key=lambda item: (-item[0], item[1].docid))
        return [
            Hit(docid=hit.docid, score=score, rank=rank, snippet=hit.snippet)
            for rank, (score, hit) in enumerate(order, start=1)
        ]
