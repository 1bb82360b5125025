"""Vector search over the documents of an index: exact, by one matrix product.

    <index>-vectors/manifest.json    what was encoded, and by what; written last
    <index>-vectors/vectors.npy      float32 [num_documents, size], in docid order
    <index>-vectors/hashes.npy       uint8 [num_documents, 16]: of each encoded text

The directory stands beside the index's own, so that it outlives a rebuild of the index: a text
that was encoded before, by the same encoder, is never encoded again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.corpus.encoder import Encoder, SentenceEncoder
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.index.build import open_index
from spaniel.index.lexical import LexicalEngine
from spaniel.index.query import Query, parse_query
from spaniel.index.texts import TextStore
from spaniel.progress import Progress
from spaniel.store import MANIFEST, hash_of, publish_directory, read_manifest
from spaniel.types import Document, Hit

_CHUNK = 512
"""Texts encoded between two looks at the progress."""
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
    """

    waits = False

    def __init__(
        self, lexical: LexicalEngine, vectors: NDArray[np.float32], encoder: Encoder
    ) -> None:
        if len(vectors) != len(lexical.texts):
            raise ArtifactError(f"{len(vectors)} vectors for {len(lexical.texts)} documents")
        self.lexical = lexical
        self.vectors = vectors
        self.encoder = encoder

    @property
    def fingerprint(self) -> str:
        """Hash of documents, encoder and snippet length."""
        return hash_of(["dense", self.lexical.fingerprint, self.encoder.fingerprint])

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
        encoded = _checked(self.encoder.encode_queries([texts[i] for i in asked]), len(asked))
        for i, vector in zip(asked, encoded, strict=True):
            # One product a query: in a product of many the last bits depend on the others.
            scores = self.vectors @ vector
            ranked = top_rows(scores, k, self._allowed(parsed[i]))
            results[i] = self.lexical.hits(ranked, self.lexical.snippets.of_query(parsed[i]))
        return results

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError``."""
        return self.lexical.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return self.lexical.read_batch(docids)

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
        rows: ascending rows to choose from; all by default.
    """
    if rows is None:
        rows = np.arange(len(scores))
    scores = np.round(scores[rows], _DECIMALS)
    if k < len(rows):
        worst = np.partition(scores, len(rows) - k)[len(rows) - k]
        kept = scores >= worst
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return [(int(rows[i]), float(scores[i])) for i in order]


# --- building -----------------------------------------------------------------------------


def vectors_directory(index: Path) -> Path:
    """Where the vectors of an index lie."""
    return index.with_name(f"{index.name}-vectors")


def build_dense(index: Path, cfg: IndexConfig, *, encoder: Encoder | None = None) -> int:
    """Encode the documents of an index; returns how many texts had to be encoded.

    Args:
        index: a directory made by ``build.build_index``.
        encoder: the recipe's ``index.encoder`` by default.

    Raises:
        ArtifactError: there is no complete index.
        DataError: the encoder gives vectors of another number or that are not finite.
    """
    content = read_manifest(index, made_by="spaniel index build")["content"]
    encoder = encoder or encoder_of(cfg)
    texts = TextStore(index / "texts")
    directory = vectors_directory(index)
    manifest = {"content": content, "encoder": encoder.fingerprint, "num_documents": len(texts)}
    old = _OldVectors(directory, encoder.fingerprint)
    if old.manifest == manifest:
        return 0
    hashes = _text_hashes(texts)
    with publish_directory(directory, manifest) as partial:
        num_encoded = _write_vectors(partial / "vectors.npy", texts, hashes, old, encoder)
        np.save(partial / "hashes.npy", hashes)
    return num_encoded


def open_dense(
    index: Path,
    cfg: IndexConfig,
    *,
    snippet_words: int = 48,
    encoder: Encoder | None = None,
    lexical: LexicalEngine | None = None,
) -> DenseEngine:
    """The vector engine over an index for which ``build_dense`` was run.

    Args:
        lexical: the index's lexical engine, if it is open already.

    Raises:
        ArtifactError: the vectors are missing, or of other documents or another encoder.
    """
    lexical = lexical or open_index(index, cfg, snippet_words=snippet_words)
    encoder = encoder or encoder_of(cfg)
    directory = vectors_directory(index)
    manifest = read_manifest(directory, made_by="spaniel index build")
    if manifest["encoder"] != encoder.fingerprint:
        raise ArtifactError(
            f"{directory}: made by another encoder: run `spaniel index build` again"
        )
    if manifest["content"] != lexical.content:
        raise ArtifactError(
            f"{directory}: the vectors are of other documents: run `spaniel index build` again"
        )
    vectors = np.load(directory / "vectors.npy", mmap_mode="r")
    return DenseEngine(lexical, vectors, encoder)


def encoder_of(cfg: IndexConfig) -> SentenceEncoder:
    """The encoder that the settings name."""
    return SentenceEncoder(cfg.encoder, max_tokens=cfg.max_encoder_tokens)


def text_of(document: Document) -> str:
    """What is encoded of a document: its title, then its text."""
    return f"{document.title}\n{document.text}" if document.title else document.text


class _OldVectors:
    """What an earlier build encoded with the same encoder: vectors by hash of their text."""

    def __init__(self, directory: Path, encoder: str) -> None:
        self.manifest: dict[str, Any] | None = None
        self.rows: dict[bytes, int] = {}
        if not (directory / MANIFEST).exists():
            return
        manifest = read_manifest(directory, made_by="spaniel index build")
        if manifest.get("encoder") == encoder:
            self.manifest = manifest
            hashes = np.load(directory / "hashes.npy")
            self.rows = {h.tobytes(): row for row, h in enumerate(hashes)}
            self.vectors = np.load(directory / "vectors.npy", mmap_mode="r")


def _write_vectors(
    path: Path, texts: TextStore, hashes: NDArray[np.uint8], old: _OldVectors, encoder: Encoder
) -> int:
    size = _checked(encoder.encode_documents(["size"]), 1).shape[1]
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(texts), size))
    first: dict[bytes, int] = {}
    for row, digest in enumerate(map(bytes, hashes)):
        if digest in old.rows:
            vectors[row] = old.vectors[old.rows[digest]]
        else:
            first.setdefault(digest, row)
    _encode_rows(vectors, list(first.values()), texts, encoder)
    for row, digest in enumerate(map(bytes, hashes)):
        if digest in first:
            vectors[row] = vectors[first[digest]]
    vectors.flush()
    return len(first)


def _encode_rows(
    vectors: NDArray[np.float32], rows: list[int], texts: TextStore, encoder: Encoder
) -> None:
    """Encode the texts of rows, long ones first: batches of one length waste no padding."""
    rows = sorted(rows, key=lambda row: -len(texts.read_row(row).text))
    with Progress("encoding", len(rows), "docs") as progress:
        for begin in range(0, len(rows), _CHUNK):
            chunk = rows[begin : begin + _CHUNK]
            encoded = encoder.encode_documents([text_of(texts.read_row(row)) for row in chunk])
            vectors[chunk] = _checked(encoded, len(chunk))
            progress.advance(len(chunk))


def _text_hashes(texts: TextStore) -> NDArray[np.uint8]:
    digests = (hashlib.blake2b(text_of(d).encode(), digest_size=16).digest() for d in texts)
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def _checked(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    if vectors.ndim != 2 or len(vectors) != count:
        raise DataError(f"the encoder gave vectors of shape {vectors.shape} for {count} texts")
    if not np.isfinite(vectors).all():
        raise DataError("the encoder gave a vector that is not finite")
    return vectors
