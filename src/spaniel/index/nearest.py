"""Approximate nearest vectors (HNSW, by usearch), with a recall that was measured."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.corpus.extras import import_extra
from spaniel.errors import ArtifactError
from spaniel.progress import Progress, say
from spaniel.store import hash_of

NEAREST = "nearest.usearch"
_CONNECTIVITY = 16
_EXPANSION_ADD = 128
_EXPANSIONS = (64, 128, 256, 512, 1024, 2048)
"""Candidates looked at in a search: from the first on, until the recall is reached."""
_CHUNK = 10_000
RECALL_AT = 10


def build_nearest(
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    path: Path,
    recall: float,
) -> dict[str, Any]:
    """Write the graph over ``vectors`` to a file, and choose how hard it has to be searched.

    Args:
        vectors: [num_rows, size] of length 1.
        queries: [num_queries, size] to measure with.
        recall: share of the exact best 10 that must be found; where even the hardest search
            finds less, that is said.

    Returns:
        ``expansion`` (candidates of a search), ``recall`` (as measured) over so many ``queries``,
        ``graph`` (hash of the file).

    Raises:
        ConfigError: usearch is missing.
    """
    usearch = import_extra("usearch.index", "dense")
    graph = usearch.Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="f16",
        connectivity=_CONNECTIVITY,
        expansion_add=_EXPANSION_ADD,
    )
    with Progress("linking", len(vectors), "vectors") as progress:
        for begin in range(0, len(vectors), _CHUNK):
            chunk = np.asarray(vectors[begin : begin + _CHUNK])
            graph.add(np.arange(begin, begin + len(chunk)), chunk)
            progress.advance(len(chunk))
    graph.save(str(path))
    exact = [_exact_best(vectors, query) for query in queries]
    nearest = Nearest(path, expansion=_EXPANSIONS[0])
    for expansion in _EXPANSIONS:
        nearest.set_expansion(expansion)
        measured = _recall(nearest, queries, exact)
        if measured >= recall:
            break
    else:
        say(f"warning: approximate search reaches a recall of {measured:.3f}, wanted {recall}")
    say(f"approximate search: recall@{RECALL_AT} {measured:.3f} over {len(queries)} queries")
    with path.open("rb") as file:
        graph_hash = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {
        "expansion": expansion,
        "recall": round(measured, 4),
        "queries": len(queries),
        "graph": graph_hash,
    }


class Nearest:
    """A graph that ``build_nearest`` wrote, memory-mapped. Safe to share between threads.

    Args:
        graph: hash of the file.

    Raises:
        ConfigError: usearch is missing.
        ArtifactError: the file is missing or cannot be read.
    """

    def __init__(self, path: Path, *, expansion: int, graph: str = "") -> None:
        usearch = import_extra("usearch.index", "dense")
        if not path.exists():
            raise ArtifactError(f"{path} is missing: run `spaniel index build --force`")
        try:
            graph_of_file = usearch.Index.restore(str(path), view=True)
        except Exception as error:  # usearch raises RuntimeError and others
            raise ArtifactError(f"{path} cannot be read: {error}") from None
        if graph_of_file is None:
            raise ArtifactError(f"{path} is no graph of vectors: run `spaniel index build --force`")
        self._graph, self._hash = graph_of_file, graph
        self.set_expansion(expansion)

    def __len__(self) -> int:
        return len(self._graph)

    @property
    def fingerprint(self) -> str:
        """Hash of the graph and of how hard it is searched."""
        return hash_of([self._hash, self._expansion])

    def set_expansion(self, expansion: int) -> None:
        """How many candidates a search looks at."""
        self._expansion = expansion
        self._graph.expansion_search = expansion

    def rows(self, vector: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """Ascending rows of about the nearest ``k``, never fewer than the expansion finds."""
        matches = self._graph.search(vector, max(k, self._expansion), threads=1)
        return np.sort(np.asarray(matches.keys, dtype=np.int64))


def _exact_best(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> set[int]:
    scores = vectors @ query
    count = min(RECALL_AT, len(scores))
    return set(np.argpartition(-scores, count - 1)[:count].tolist())


def _recall(nearest: Nearest, queries: NDArray[np.float32], exact: list[set[int]]) -> float:
    found = [
        len(best.intersection(nearest.rows(query, RECALL_AT).tolist())) / len(best)
        for query, best in zip(queries, exact, strict=True)
    ]
    return float(np.mean(found))
