"""A second look at the best hits: the joint where rerankers vary, and the engine that asks one."""

import math
from collections.abc import Sequence
from typing import Protocol

from spaniel.errors import ConfigError, DataError
from spaniel.index.engine import SearchEngine, headings
from spaniel.store import hash_of
from spaniel.types import Document, Hit


class Reranker(Protocol):
    """Anything that scores hits for a query, given their texts."""

    @property
    def waits(self) -> bool:
        """Whether it asks another machine."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of weights and settings: equal ones give equal scores."""
        ...

    def score(
        self, query: str, hits: Sequence[Hit], documents: Sequence[Document], context: str = ""
    ) -> list[float]:
        """[num_hits] the higher, the better.

        Args:
            documents: the hits' own, in order. A reranker whose ``reads_texts`` is False does
                not look at their texts, which may be missing.
            context: what the searcher is after and has done, for rerankers that read it.
        """
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
        """Whether engine or reranker ask another machine."""
        return self.engine.waits or self.reranker.waits

    @property
    def fingerprint(self) -> str:
        """Hash of engine, reranker and number of candidates."""
        return hash_of(
            ["reranked", self.engine.fingerprint, self.reranker.fingerprint, self.candidates]
        )

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits by the reranker's score; ties by docid."""
        return self.search_for(query, k, "")

    def search_for(self, query: str, k: int, context: str) -> list[Hit]:
        """``search`` for somebody whose task and earlier steps are ``context``."""
        found = self.engine.search(query, max(k, self.candidates))
        return self._rerank(query, found, context)[:k]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        found = self.engine.search_batch(queries, max(k, self.candidates))
        return [self._rerank(q, hits, "")[:k] for q, hits in zip(queries, found, strict=True)]

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError``."""
        return self.engine.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return self.engine.read_batch(docids)

    def headings(self, docids: Sequence[str]) -> list[Document]:
        """As the engine's, see ``HeadingEngine``."""
        return headings(self.engine, docids)

    def _rerank(self, query: str, hits: list[Hit], context: str) -> list[Hit]:
        if not hits:
            return []
        docids = [hit.docid for hit in hits]
        with_texts = getattr(self.reranker, "reads_texts", True)
        documents = self.read_batch(docids) if with_texts else self.headings(docids)
        scores = self.reranker.score(query, hits, documents, context)
        if len(scores) != len(hits) or not all(map(math.isfinite, scores)):
            raise DataError(f"the reranker must give {len(hits)} finite scores, got {scores}")
        order = sorted(zip(scores, hits, strict=True), key=lambda item: (-item[0], item[1].docid))
        return [
            Hit(docid=hit.docid, score=score, rank=rank, snippet=hit.snippet)
            for rank, (score, hit) in enumerate(order, start=1)
        ]
