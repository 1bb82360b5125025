"""Vector search over the documents of an index: exact, or approximate where they are many."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.corpus.encoder import Encoder
from spaniel.errors import ArtifactError, ConfigError
from spaniel.index.build import open_index
from spaniel.index.lexical import LexicalEngine
from spaniel.index.nearest import NEAREST, Nearest
from spaniel.index.query import Query, parse_query
from spaniel.index.vectors import MADE_BY, checked_vectors, encoder_of, vectors_directory
from spaniel.store import hash_of, read_manifest
from spaniel.types import Document, Hit

_DECIMALS = 6
"""Of a similarity; what differs behind them is a tie."""


class DenseEngine:
    """A ``SearchEngine`` by the similarity of vectors. ``open_dense`` opens one.

    Texts, snippets and the constraints of a query (quoted phrases, ``site:``) come from the
    lexical engine over the same documents; among those that are left, vectors rank.

    Args:
        lexical: the engine over the documents.
        vectors: float32 [num_documents, size], in docid order.
        encoder: what made the vectors.
        nearest: finds candidates among all documents; without it every vector is compared.
    """

    waits = False

    def __init__(
        self,
        lexical: LexicalEngine,
        vectors: NDArray[np.float32],
        encoder: Encoder,
        nearest: Nearest | None = None,
    ) -> None:
        if len(vectors) != len(lexical.texts):
            raise ArtifactError(f"{len(vectors)} vectors for {len(lexical.texts)} documents")
        self.lexical = lexical
        self.vectors = vectors
        self.encoder = encoder
        self.nearest = nearest

    @property
    def fingerprint(self) -> str:
        """Hash of documents, encoder, way of searching and snippet length."""
        way = "exact" if self.nearest is None else self.nearest.fingerprint
        return hash_of(["dense", self.lexical.fingerprint, self.encoder.fingerprint, way])

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits by similarity, with snippets; ties (to 6 decimals) by docid.

        Raises:
            QueryError: the query holds more than one ``site:``.
            ConfigError: ``k`` is below 1.
        """
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order; encodes them together."""
        if k < 1:
            raise ConfigError(f"k must be >= 1, got {k}")
        parsed = [parse_query(query) for query in queries]
        texts = [" ".join((*query.keywords, *query.phrases)) for query in parsed]
        asked = [i for i, text in enumerate(texts) if text]
        results: list[list[Hit]] = [[] for _ in queries]
        if not asked:
            return results
        encoded = checked_vectors(
            self.encoder.encode_queries([texts[i] for i in asked]), len(asked)
        )
        for i, vector in zip(asked, encoded, strict=True):
            ranked = self._rank(vector, k, self._allowed(parsed[i]))
            results[i] = self.lexical.hits(ranked, self.lexical.snippets.of_query(parsed[i]))
        return results

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError``."""
        return self.lexical.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return self.lexical.read_batch(docids)

    def _rank(
        self, vector: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None
    ) -> list[tuple[int, float]]:
        if rows is None and self.nearest is not None:
            rows = self.nearest.rows(vector, k)
        # One product a query: in a product of many the last bits depend on the others.
        scores = (self.vectors if rows is None else self.vectors[rows]) @ vector
        return top_rows(scores, k, rows)

    def _allowed(self, query: Query) -> NDArray[np.int64] | None:
        rows = self.lexical.views.allowed_rows(query)
        return None if rows is None else np.array(rows, dtype=np.int64)


def top_rows(
    scores: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None
) -> list[tuple[int, float]]:
    """The best ``k`` (row, score), ties by row; equal to a full sort.

    Args:
        scores: [num_rows], rounded to 6 decimals here: equal texts get products that differ in
            the last bits, which must not decide a rank.
        rows: [num_rows] the ascending rows that the scores are of; all by default.
    """
    if rows is None:
        rows = np.arange(len(scores))
    scores = np.round(scores, _DECIMALS)
    if k < len(rows):
        worst = np.partition(scores, len(rows) - k)[len(rows) - k]
        kept = scores >= worst
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return [(int(rows[i]), float(scores[i])) for i in order]


def open_dense(
    index: Path,
    cfg: IndexConfig,
    *,
    snippet_words: int = 48,
    encoder: Encoder | None = None,
    lexical: LexicalEngine | None = None,
) -> DenseEngine:
    """The vector engine over an index for which ``build_vectors`` was run.

    Args:
        lexical: the index's lexical engine, if it is open already.

    Raises:
        ArtifactError: the vectors are missing, or of other documents or another encoder.
    """
    lexical = lexical or open_index(index, cfg, snippet_words=snippet_words)
    encoder = encoder or encoder_of(cfg)
    directory = vectors_directory(index)
    manifest = read_manifest(directory, made_by=MADE_BY)
    if manifest["encoder"] != encoder.fingerprint:
        raise ArtifactError(
            f"{directory}: made by another encoder: run `spaniel index build` again"
        )
    if manifest["content"] != lexical.content:
        raise ArtifactError(
            f"{directory}: the vectors are of other documents: run `spaniel index build` again"
        )
    vectors = np.load(directory / "vectors.npy", mmap_mode="r")
    nearest = None
    if "nearest" in manifest:
        made = manifest["nearest"]
        nearest = Nearest(directory / NEAREST, expansion=made["expansion"], graph=made["graph"])
        if len(nearest) != len(vectors):
            raise ArtifactError(f"{directory}: graph and vectors differ: build the vectors again")
    return DenseEngine(lexical, vectors, encoder, nearest)
