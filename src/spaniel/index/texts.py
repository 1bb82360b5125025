"""The documents of an index on disk: read one by docid in microseconds, open at once.

    texts.bin     one JSON array a document, in the order they came
    spans.npy     int64 [num_documents, 2]: begin and end in texts.bin, in docid order
    docids.bin    the docids, sorted, end to end
    docids.npy    int64 [num_documents + 1]: where each docid begins in docids.bin

A document's *row* is the place of its docid in sorted order, so that sorting by row is sorting
by docid. Files are memory-mapped: processes share the pages, and nothing is loaded at opening.
"""

import hashlib
import json
import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spaniel.errors import ArtifactError, DataError
from spaniel.types import Document

_FILES = ("texts.bin", "spans.npy", "docids.bin", "docids.npy")


def write_texts(documents: Iterable[Document], directory: Path) -> int:
    """Stream documents into a new store; returns how many.

    Raises:
        DataError: there is none, a docid is empty or comes twice, or a document is not text
            (lone surrogates, NaN in the metadata).
    """
    directory.mkdir(parents=True, exist_ok=True)
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    with (directory / "texts.bin").open("wb") as file:
        for document in documents:
            if not document.docid:
                raise DataError(f"document {len(spans) + 1} has an empty docid")
            if document.docid in spans:
                raise DataError(f"docid {document.docid!r} comes twice: docids must be unique")
            record = _encode(document)
            file.write(record)
            spans[document.docid] = (end, end + len(record))
            end += len(record)
    if not spans:
        raise DataError("there are no documents to index")
    docids = sorted(spans)
    encoded = [docid.encode() for docid in docids]
    (directory / "docids.bin").write_bytes(b"".join(encoded))
    begins = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    np.save(directory / "docids.npy", begins)
    np.save(directory / "spans.npy", np.array([spans[d] for d in docids], dtype=np.int64))
    return len(docids)


class TextStore:
    """A store made by ``write_texts``. Safe to use from several threads.

    Raises:
        ArtifactError: a file is missing or shorter than its offsets say.
    """

    def __init__(self, directory: Path) -> None:
        for name in _FILES:
            if not (directory / name).exists():
                raise ArtifactError(f"{directory / name} is missing: build the index again")
        self._texts, self._docids = _map(directory / "texts.bin"), _map(directory / "docids.bin")
        # Plain arrays over the same mapped pages: indexing a memmap costs several times as much.
        try:
            self._spans = np.asarray(np.load(directory / "spans.npy", mmap_mode="r"))
            self._begins = np.asarray(np.load(directory / "docids.npy", mmap_mode="r"))
        except ValueError as error:
            raise ArtifactError(f"{directory}: offsets cannot be read ({error})") from None
        if len(self._texts) != int(self._spans.max()) or len(self._docids) != self._begins[-1]:
            raise ArtifactError(f"{directory}: texts and offsets differ: build the index again")

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
        docid, title, text, url, links, metadata = json.loads(self._record(row))
        return Document(
            docid=docid, title=title, text=text, url=url, links=tuple(links), metadata=metadata
        )

    def __iter__(self) -> Iterator[Document]:
        """All documents in docid order."""
        return map(self.read_row, range(len(self)))

    def content_hash(self) -> str:
        """Hash of all documents, whatever order they came in: 16 hex digits."""
        digest = hashlib.sha256()
        for row in range(len(self)):
            digest.update(self._record(row))
        return digest.hexdigest()[:16]

    def _record(self, row: int) -> bytes:
        begin, end = self._spans[row].tolist()
        return self._texts[begin:end]

    def _docid_bytes(self, row: int) -> bytes:
        return self._docids[int(self._begins[row]) : int(self._begins[row + 1])]


def _encode(document: Document) -> bytes:
    fields: list[Any] = [document.docid, document.title, document.text, document.url]
    fields += [document.links, document.metadata]
    try:
        text = json.dumps(
            fields, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        return text.encode() + b"\n"
    except (ValueError, TypeError) as error:
        raise DataError(f"document {document.docid!r} cannot be stored: {error}") from None


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
