"""The vectors of an index's documents: made once for each text, however often a build is cut off.

    <index>-vectors/manifest.json    what was encoded, and by what; written last
    <index>-vectors/vectors.npy      float32 [num_documents, size], in docid order
    <index>-vectors/hashes.npy       uint8 [num_documents, 16]: of each encoded text
    <index>-vectors/nearest.usearch  for approximate search, of many documents only

The directory stands beside the index's own, so that it outlives a rebuild of the index: a text
that was encoded before, by the same encoder, is never encoded again.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.corpus.encoder import Encoder, SentenceEncoder
from spaniel.errors import DataError
from spaniel.index.nearest import NEAREST, build_nearest
from spaniel.index.texts import TextStore
from spaniel.progress import Progress
from spaniel.store import MANIFEST, hash_of, publish_directory, read_manifest
from spaniel.types import Document

MADE_BY = "spaniel index build"
_CHUNK = 512
"""Texts encoded between two looks at the progress."""
_HASH_BYTES = 16


def vectors_directory(index: Path) -> Path:
    """Where the vectors of an index lie."""
    return index.with_name(f"{index.name}-vectors")


def encoder_of(cfg: IndexConfig) -> SentenceEncoder:
    """The encoder that the settings name."""
    return SentenceEncoder(cfg.encoder, max_tokens=cfg.max_encoder_tokens)


def text_of(document: Document) -> str:
    """What is encoded of a document: its title, then its text."""
    return f"{document.title}\n{document.text}" if document.title else document.text


def build_vectors(index: Path, cfg: IndexConfig, *, encoder: Encoder | None = None) -> int:
    """Encode the documents of an index; returns how many texts had to be encoded.

    What was encoded when it is interrupted is kept beside the directory for the next time.

    Args:
        index: a directory made by ``build.build_index``.
        encoder: the recipe's ``index.encoder`` by default.

    Raises:
        ArtifactError: there is no complete index.
        ConfigError: there are many documents and usearch is missing.
        DataError: the encoder gives vectors of another number or that are not finite.
    """
    content = read_manifest(index, made_by=MADE_BY)["content"]
    encoder = encoder or encoder_of(cfg)
    texts = TextStore(index / "texts")
    directory = vectors_directory(index)
    wanted: dict[str, Any] = {
        "content": content,
        "encoder": encoder.fingerprint,
        "num_documents": len(texts),
        "recall": cfg.approximate_recall if len(texts) >= cfg.approximate_from else None,
    }
    old = read_manifest(directory, made_by=MADE_BY) if (directory / MANIFEST).exists() else {}
    if wanted.items() <= old.items():
        return 0
    manifest = dict(wanted)
    with publish_directory(directory, manifest, keep_partial=True) as partial:
        log = _EncodedLog(partial / f"encoded-{hash_of(encoder.fingerprint)}.log")
        hashes = _text_hashes(texts)
        if old.get("encoder") == encoder.fingerprint:
            log.know(np.load(directory / "hashes.npy"), directory / "vectors.npy")
        num_encoded = _encode_missing(texts, hashes, log, encoder)
        vectors = _write_vectors(partial / "vectors.npy", hashes, log)
        np.save(partial / "hashes.npy", hashes)
        if wanted["recall"] is not None:
            asked = _sample_queries(texts)
            queries = checked_vectors(encoder.encode_queries(asked), len(asked))
            path = partial / NEAREST
            manifest["nearest"] = build_nearest(vectors, queries, path, wanted["recall"])
        for path in partial.glob("encoded-*.log"):
            path.unlink()
    return num_encoded


def _encode_missing(
    texts: TextStore, hashes: NDArray[np.uint8], log: "_EncodedLog", encoder: Encoder
) -> int:
    """Encode each text that is not known, long ones first: batches of one length waste no
    padding."""
    first: dict[bytes, int] = {}
    for row, digest in enumerate(map(bytes, hashes)):
        if digest not in log:
            first.setdefault(digest, row)
    rows = sorted(first.values(), key=lambda row: -len(texts.read_row(row).text))
    with Progress("encoding", len(rows), "docs") as progress:
        for begin in range(0, len(rows), _CHUNK):
            chunk = rows[begin : begin + _CHUNK]
            encoded = encoder.encode_documents([text_of(texts.read_row(row)) for row in chunk])
            log.append(hashes[chunk], checked_vectors(encoded, len(chunk)))
            progress.advance(len(chunk))
    return len(rows)


def _write_vectors(
    path: Path, hashes: NDArray[np.uint8], log: "_EncodedLog"
) -> NDArray[np.float32]:
    shape = (len(hashes), log.size)
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for row, vector in enumerate(log.lookup(hashes)):
        vectors[row] = vector
    vectors.flush()
    return vectors


def _text_hashes(texts: TextStore) -> NDArray[np.uint8]:
    digests = (
        hashlib.blake2b(text_of(d).encode(), digest_size=_HASH_BYTES).digest() for d in texts
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _HASH_BYTES)


def _sample_queries(texts: TextStore, count: int = 200) -> list[str]:
    """What somebody might ask: titles, or first words, spread over the documents."""
    rows = range(0, len(texts), max(1, len(texts) // count))
    documents = (texts.read_row(row) for row in rows[:count])
    return [d.title or " ".join(d.text.split()[:12]) or d.docid for d in documents]


def checked_vectors(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """What an encoder gave for ``count`` texts. Raises ``DataError`` unless so many are finite."""
    if vectors.ndim != 2 or len(vectors) != count:
        raise DataError(f"the encoder gave vectors of shape {vectors.shape} for {count} texts")
    if not np.isfinite(vectors).all():
        raise DataError("the encoder gave a vector that is not finite")
    return vectors


class _EncodedLog:
    """Vectors by the hash of their text, in a file that is only appended to.

    The file is the vectors' length as int64, then records: a hash and its vector. A record that
    a crash cut short is dropped at opening.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0
        """Numbers of a vector; 0 while none is known."""
        self._places: dict[bytes, int] = {}
        """Hash -> place in the file."""
        self._known: dict[bytes, int] = {}
        """Hash -> row of the vectors that were there before."""
        self._vectors_before: NDArray[np.float32] | None = None
        if path.exists():
            self._load()

    def _load(self) -> None:
        if self._path.stat().st_size < 8:
            os.truncate(self._path, 0)
            return
        self.size = int(np.fromfile(self._path, dtype=np.int64, count=1)[0])
        whole = (self._path.stat().st_size - 8) // self._record.itemsize
        os.truncate(self._path, 8 + whole * self._record.itemsize)
        if whole:
            hashes = self._records()["hash"]
            self._places = {bytes(digest): place for place, digest in enumerate(hashes)}

    def know(self, hashes: NDArray[np.uint8], vectors: Path) -> None:
        """Take vectors that an earlier build made."""
        self._vectors_before = np.load(vectors, mmap_mode="r")
        self.size = self._vectors_before.shape[1]
        self._known = {bytes(digest): row for row, digest in enumerate(hashes)}

    def append(self, hashes: NDArray[np.uint8], vectors: NDArray[np.float32]) -> None:
        """Vectors [num_texts, size] and the hashes of their texts, on disk when it returns."""
        if not self.size:
            self.size = vectors.shape[1]
        records = np.empty(len(hashes), dtype=self._record)
        records["hash"], records["vector"] = hashes, vectors
        with self._path.open("ab") as file:
            if not file.tell():
                file.write(np.int64(self.size).tobytes())
            file.write(records.tobytes())
            file.flush()
            os.fsync(file.fileno())
        for digest in map(bytes, hashes):
            self._places[digest] = len(self._places)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places or digest in self._known

    def lookup(self, hashes: NDArray[np.uint8]) -> Iterator[NDArray[np.float32]]:
        """The vector of each hash."""
        records = self._records() if self._places else None
        for digest in map(bytes, hashes):
            if records is not None and digest in self._places:
                yield records[self._places[digest]]["vector"]
            else:
                assert self._vectors_before is not None
                yield self._vectors_before[self._known[digest]]

    @property
    def _record(self) -> np.dtype[Any]:
        return np.dtype([("hash", np.uint8, _HASH_BYTES), ("vector", np.float32, self.size)])

    def _records(self) -> NDArray[Any]:
        return np.memmap(self._path, dtype=self._record, mode="r", offset=8)
