"""The documents of an index on disk: read one by docid in microseconds, open at once.

    texts-0.bin ...  one compressed JSON array a document, in the order they came; a file of its
                     own for those of the build and for those of each later change
    dictionary.bin   what the compression knows beforehand; made from the first documents
    spans.npy        int64 [num_documents, 3]: file, begin and end in it, in docid order
    docids.bin       the docids, sorted, end to end
    docids.npy       int64 [num_documents + 1]: where each docid begins in docids.bin

A document's *row* is the place of its docid in sorted order, so that sorting by row is sorting
by docid. Files are memory-mapped: processes share the pages, and nothing is loaded at opening.
``ingest.py`` writes them.
"""

import hashlib
import json
import mmap
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from spaniel.errors import ArtifactError, DataError
from spaniel.types import Document

_LEVEL = 3
_DICTIONARY_BYTES = 65_536
_MIN_SAMPLES = 200
"""Documents below which a dictionary would be larger than what it saves."""


def texts_file(directory: Path, number: int) -> Path:
    """The file with the documents of the build (0) or of a later change."""
    return directory / f"texts-{number}.bin"


class TextStore:
    """A store that ``ingest`` made. Safe to use from several threads.

    Raises:
        ArtifactError: a file is missing or shorter than its offsets say.
    """

    def __init__(self, directory: Path) -> None:
        for name in ("spans.npy", "docids.bin", "docids.npy", "dictionary.bin"):
            if not (directory / name).exists():
                raise ArtifactError(f"{directory / name} is missing: build the index again")
        self._docids = _map(directory / "docids.bin")
        # Plain arrays over the same mapped pages: indexing a memmap costs several times as much.
        try:
            self._spans = np.asarray(np.load(directory / "spans.npy", mmap_mode="r"))
            self._begins = np.asarray(np.load(directory / "docids.npy", mmap_mode="r"))
        except (ValueError, EOFError) as error:
            raise ArtifactError(f"{directory}: offsets cannot be read ({error})") from None
        if len(self._docids) != self._begins[-1] or len(self._begins) != len(self._spans) + 1:
            raise ArtifactError(f"{directory}: docids and offsets differ: build the index again")
        self._files = self._map_files(directory)
        self._codec = Codec((directory / "dictionary.bin").read_bytes())

    def _map_files(self, directory: Path) -> dict[int, mmap.mmap]:
        files = {}
        for number in np.unique(self._spans[:, 0]).tolist():
            path = texts_file(directory, number)
            if not path.exists():
                raise ArtifactError(f"{path} is missing: build the index again")
            files[number] = _map(path)
            if len(files[number]) < int(self._spans[self._spans[:, 0] == number, 2].max()):
                raise ArtifactError(f"{directory}: texts and offsets differ: build the index again")
        return files

    def __len__(self) -> int:
        return len(self._spans)

    def docid(self, row: int) -> str:
        """The docid of a row."""
        return self._docid_bytes(row).decode()

    def row(self, docid: str) -> int:
        """The row of a docid. Raises ``KeyError`` when there is no such document."""
        # UTF-8 sorts as code points do, and a lone surrogate is in no store.
        wanted = docid.encode(errors="surrogatepass")
        row = bisect_left(range(len(self)), wanted, key=self._docid_bytes)
        if row == len(self) or self._docid_bytes(row) != wanted:
            raise KeyError(docid)
        return row

    def read(self, docid: str) -> Document:
        """The document. Raises ``KeyError`` when there is none."""
        return self.read_row(self.row(docid))

    def read_row(self, row: int) -> Document:
        """The document of a row."""
        docid, title, text, url, links, metadata = json.loads(self.record(row))
        return Document(
            docid=docid, title=title, text=text, url=url, links=tuple(links), metadata=metadata
        )

    def __iter__(self) -> Iterator[Document]:
        """All documents in docid order."""
        return map(self.read_row, range(len(self)))

    def record(self, row: int) -> bytes:
        """The document of a row as it is stored, a JSON array."""
        number, begin, end = self._spans[row].tolist()
        return self._codec.decompress(self._files[number][begin:end])

    def place(self, row: int) -> tuple[bytes, tuple[int, int, int]]:
        """(docid, (file, begin, end)) of a row."""
        number, begin, end = self._spans[row].tolist()
        return self._docid_bytes(row), (number, begin, end)

    def _docid_bytes(self, row: int) -> bytes:
        return self._docids[int(self._begins[row]) : int(self._begins[row + 1])]


class Codec:
    """Compresses records with what a dictionary knows. Safe to use from several threads."""

    def __init__(self, dictionary: bytes) -> None:
        self._dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        # A compressor must not be used by two threads at once.
        self._own = threading.local()

    def compress(self, record: bytes) -> bytes:
        """One frame."""
        if not hasattr(self._own, "compressor"):
            self._own.compressor = zstandard.ZstdCompressor(
                level=_LEVEL, dict_data=self._dictionary, write_dict_id=False
            )
        frame: bytes = self._own.compressor.compress(record)
        return frame

    def decompress(self, frame: bytes) -> bytes:
        """The record of a frame. Raises ``ArtifactError`` when the frame is damaged."""
        if not hasattr(self._own, "decompressor"):
            self._own.decompressor = zstandard.ZstdDecompressor(dict_data=self._dictionary)
        try:
            record: bytes = self._own.decompressor.decompress(frame)
        except zstandard.ZstdError as error:
            raise ArtifactError(f"a stored text is damaged ({error}): build again") from None
        return record


def train_dictionary(records: Sequence[bytes]) -> bytes:
    """What records of this kind have in common; empty when they are too few to say."""
    if len(records) < _MIN_SAMPLES:
        return b""
    try:
        dictionary: bytes = zstandard.train_dictionary(_DICTIONARY_BYTES, list(records)).as_bytes()
    except zstandard.ZstdError:  # nothing in common, or too short
        return b""
    return dictionary


def encode(document: Document) -> bytes:
    """A document as it is stored. Raises ``DataError`` when it is not text or not JSON."""
    fields: list[Any] = [document.docid, document.title, document.text, document.url]
    fields += [document.links, document.metadata]
    try:
        text = json.dumps(
            fields, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        return text.encode()
    except (ValueError, TypeError) as error:
        raise DataError(f"document {document.docid!r} cannot be stored: {error}") from None


class ContentHash:
    """Hash of a set of documents: the sum of their hashes, so that some can come and go.

    AdHash (Bellare and Micciancio 1997) over SHA-256; it does not depend on the order.
    """

    def __init__(self, hexdigits: str = "0") -> None:
        self._sum = int(hexdigits, 16)

    def add(self, record: bytes) -> None:
        """A document comes."""
        self._sum = (self._sum + _number(record)) % 2**256

    def remove(self, record: bytes) -> None:
        """A document goes."""
        self._sum = (self._sum - _number(record)) % 2**256

    def merge(self, other: "ContentHash") -> None:
        """All documents of another set come."""
        self._sum = (self._sum + int(str(other), 16)) % 2**256

    def __str__(self) -> str:
        return f"{self._sum:064x}"


def _number(record: bytes) -> int:
    return int.from_bytes(hashlib.sha256(record).digest(), "big")


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
