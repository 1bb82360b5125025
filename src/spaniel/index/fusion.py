"""Several rankings into one, by reciprocal rank."""

import math
from collections.abc import Sequence
from typing import TypeVar

from spaniel.errors import ConfigError
from spaniel.index.engine import SearchEngine
from spaniel.store import hash_of
from spaniel.types import Document, Hit

DocId = TypeVar("DocId", str, int)
MIN_DEPTH = 50
"""Results taken from each ranking before they are fused."""


def rrf(
    rankings: Sequence[Sequence[DocId]], k: float = 60, weights: Sequence[float] | None = None
) -> list[tuple[DocId, float]]:
    """Reciprocal rank fusion: ``score(d) = sum_n weight_n / (k + rank_n(d))``, ranks from 1.

    Cormack, Clarke, Büttcher 2009 (https://doi.org/10.1145/1571941.1572114).

    Args:
        rankings: document ids, best first. A repeated id counts at its first place and takes
            up no rank after it.
        k: rank constant; the smaller, the more the first places count.
        weights: one per ranking; all 1 by default.

    Returns:
        (docid, score), best first, ties by docid. An id absent from a ranking gets nothing
        from it.

    Raises:
        ConfigError: there are not as many weights as rankings.

    Example:
        >>> [docid for docid, _ in rrf([["a", "b"], ["b", "c"]])]
        ['b', 'a', 'c']
    """
    if weights is None:
        weights = [1.0] * len(rankings)
    if len(weights) != len(rankings):
        raise ConfigError(f"got {len(weights)} weights for {len(rankings)} rankings")
    shares: dict[DocId, list[float]] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, docid in enumerate(dict.fromkeys(ranking), start=1):
            shares.setdefault(docid, []).append(weight / (k + rank))
    # fsum rounds once, so that equal shares in another order are a tie and not 1 ulp apart.
    # A sort without a key: a search fuses some hundred ids.
    order = sorted([(-math.fsum(parts), docid) for docid, parts in shares.items()])
    return [(docid, -negative) for negative, docid in order]


class FusedEngine:
    """Engines over one corpus, fused by reciprocal rank. Texts come from the first.

    Args:
        engines: at least one.
        k: rank constant.
        weights: one per engine; all 1 by default.
    """

    def __init__(
        self,
        engines: Sequence[SearchEngine],
        k: float = 60,
        weights: Sequence[float] | None = None,
    ) -> None:
        if not engines:
            raise ConfigError("a fused engine needs at least one engine")
        self.engines = tuple(engines)
        self.k = k
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(engines)
        if len(self.weights) != len(self.engines):
            raise ConfigError(f"got {len(self.weights)} weights for {len(self.engines)} engines")

    @property
    def waits(self) -> bool:
        """Whether one of the engines does."""
        return any(engine.waits for engine in self.engines)

    @property
    def fingerprint(self) -> str:
        """Hash of the engines' fingerprints, the weights and the constant."""
        return hash_of(["fused", [e.fingerprint for e in self.engines], self.k, self.weights])

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits by fused rank; the snippet is the first engine's that has one."""
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        depth = max(k, MIN_DEPTH)
        per_engine = [engine.search_batch(queries, depth) for engine in self.engines]
        return [self._fuse(rankings, k) for rankings in zip(*per_engine, strict=True)]

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError``."""
        return self.engines[0].read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return self.engines[0].read_batch(docids)

    def _fuse(self, rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
        snippets: dict[str, str] = {}
        for hit in (hit for ranking in rankings for hit in ranking):
            snippets[hit.docid] = snippets.get(hit.docid) or hit.snippet
        fused = rrf([[hit.docid for hit in r] for r in rankings], self.k, self.weights)
        return [
            Hit(docid=docid, score=score, rank=rank, snippet=snippets[docid])
            for rank, (docid, score) in enumerate(fused[:k], start=1)
        ]
