"""Documents -> the text store of an index, in constant memory, able to go on after a crash.

    documents -> texts-<n>.bin (as they come) + docids.sqlite -> docids.*, spans.npy (sorted)

A database on disk sorts the docids and finds those that come twice; a dictionary in memory
would need gigabytes for some ten million documents. It is gone when the store is whole.
"""

import heapq
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spaniel.errors import ArtifactError, DataError
from spaniel.index.texts import Codec, ContentHash, encode, texts_file, train_dictionary
from spaniel.types import Document

COMMIT_DOCUMENTS = 20_000
"""Documents after which what came so far is on disk for good."""
DICTIONARY_SAMPLES = 2_000
"""First documents from which the compression learns."""
_DATABASE = "docids.sqlite"

Place = tuple[bytes, tuple[int, int, int]]
"""Docid, and (file, begin, end) of its record."""


@dataclass(slots=True)
class _State:
    """How far an ingestion came, as of its last commit."""

    count: int = 0
    end: int = 0
    last: str = ""
    content: str = "0"


def ingest(documents: Iterable[Document], directory: Path, *, number: int = 0) -> ContentHash:
    """Append documents to ``texts-<number>.bin`` and remember their docids.

    After a crash the same call with the same documents goes on behind the last commit. What came
    is in the store after ``write_order``.

    Returns:
        The hash of all documents that came.

    Raises:
        DataError: a docid is empty or comes twice, or a document is not text (lone surrogates,
            NaN in the metadata).
        ArtifactError: the documents are not those of the interrupted ingestion.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with closing(_open(directory)) as database:
        state = _load(database)
        path = texts_file(directory, number)
        path.touch()
        os.truncate(path, state.end)
        with path.open("ab") as file:
            return _append(_behind(documents, state), directory, database, file, state)


def _append(
    documents: Iterator[Document],
    directory: Path,
    database: sqlite3.Connection,
    file: BinaryIO,
    state: _State,
) -> ContentHash:
    content = ContentHash(state.content)
    incoming = ((document.docid, encode(document)) for document in documents)
    codec, records = _codec(directory, incoming)
    for docid, record in records:
        if not docid:
            raise DataError(f"document {state.count + 1} has an empty docid")
        frame = codec.compress(record)
        place = (docid.encode(), state.end, state.end + len(frame))
        try:
            database.execute("INSERT INTO docids VALUES (?, ?, ?)", place)
        except sqlite3.IntegrityError:
            raise DataError(f"docid {docid!r} comes twice: docids must be unique") from None
        file.write(frame)
        content.add(record)
        state.count, state.end, state.last = state.count + 1, place[2], docid
        if state.count % COMMIT_DOCUMENTS == 0:
            _commit(database, file, state, content)
    _commit(database, file, state, content)
    return content


def _codec(
    directory: Path, records: Iterator[tuple[str, bytes]]
) -> tuple[Codec, Iterator[tuple[str, bytes]]]:
    """The store's codec, with a dictionary from the first records if it has none yet."""
    path = directory / "dictionary.bin"
    if not path.exists():
        first = list(itertools.islice(records, DICTIONARY_SAMPLES))
        path.write_bytes(train_dictionary([record for _, record in first]))
        records = itertools.chain(first, records)
    return Codec(path.read_bytes()), records


def _behind(documents: Iterable[Document], state: _State) -> Iterator[Document]:
    """The documents behind those that a crash left on disk."""
    incoming = iter(documents)
    skipped = list(itertools.islice(incoming, state.count - 1, state.count)) if state.count else []
    if state.count and (not skipped or skipped[0].docid != state.last):
        raise ArtifactError(
            f"document {state.count} must be {state.last!r}, as when the build was cut off: the "
            "documents have changed"
        )
    return incoming


def _open(directory: Path) -> sqlite3.Connection:
    database = sqlite3.connect(directory / _DATABASE)
    # The texts are synced before each commit; a lost commit only costs its documents.
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS docids"
        " (docid BLOB PRIMARY KEY, begin INTEGER, end INTEGER) WITHOUT ROWID"
    )
    database.execute(
        "CREATE TABLE IF NOT EXISTS state"
        " (one INTEGER PRIMARY KEY, count INTEGER, end INTEGER, last TEXT, content TEXT)"
    )
    database.commit()
    return database


def _load(database: sqlite3.Connection) -> _State:
    row = database.execute("SELECT count, end, last, content FROM state").fetchone()
    return _State(*row) if row else _State()


def _commit(
    database: sqlite3.Connection, file: BinaryIO, state: _State, content: ContentHash
) -> None:
    file.flush()
    os.fsync(file.fileno())
    values = (state.count, state.end, state.last, str(content))
    database.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?)", values)
    database.commit()


# --- in docid order -----------------------------------------------------------------------


def new_docids(directory: Path) -> Iterator[str]:
    """Docids that were ingested but are not in the order yet, sorted."""
    return (docid.decode() for docid, _ in _new_places(directory, number=0))


def write_order(
    directory: Path, *, number: int = 0, kept: Iterable[Place] = (), num_kept: int = 0
) -> NDArray[np.int64]:
    """Write docids and spans in docid order, and end the ingestion.

    Args:
        number: of the file that the new documents lie in.
        kept: the ``num_kept`` documents that the store had before, sorted; none is among the new.

    Returns:
        [num_new] the ascending rows of the new documents among all.

    Raises:
        DataError: no document is left.
    """
    num_new = _num_new(directory)
    total = num_kept + num_new
    if not total:
        raise DataError("there are no documents to index")
    spans = _array(directory / "spans.npy", (total, 3))
    begins = _array(directory / "docids.npy", (total + 1,))
    rows_of_new = np.empty(num_new, dtype=np.int64)
    new = ((docid, place, True) for docid, place in _new_places(directory, number))
    old = ((docid, place, False) for docid, place in kept)
    begins[0] = found = 0
    with (directory / "docids.bin").open("wb") as file:
        for row, (docid, place, is_new) in enumerate(heapq.merge(old, new, key=lambda p: p[0])):
            file.write(docid)
            begins[row + 1] = begins[row] + len(docid)
            spans[row] = place
            if is_new:
                rows_of_new[found] = row
                found += 1
    for array in (spans, begins):
        array.flush()
    (directory / _DATABASE).unlink()
    return rows_of_new


def _num_new(directory: Path) -> int:
    with closing(sqlite3.connect(directory / _DATABASE)) as database:
        return int(database.execute("SELECT count(*) FROM docids").fetchone()[0])


def _new_places(directory: Path, number: int) -> Iterator[Place]:
    with closing(sqlite3.connect(directory / _DATABASE)) as database:
        rows = database.execute("SELECT docid, begin, end FROM docids ORDER BY docid")
        for docid, begin, end in rows:
            yield docid, (number, begin, end)


def _array(path: Path, shape: tuple[int, ...]) -> "np.memmap[Any, np.dtype[np.int64]]":
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=shape)
