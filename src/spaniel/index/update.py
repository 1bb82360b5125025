"""Documents come and go without a rebuild.

The changed index is another directory that takes the old one's place at once: what did not
change are hard links to the same files, so a change costs its own documents, the list of docids
and the time to hash what is new. Whoever has the old index open goes on reading it.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.errors import DataError
from spaniel.index.analysis import Analyzer
from spaniel.index.build import MADE_BY, make_manifest, open_index
from spaniel.index.ingest import ingest, new_docids, write_order
from spaniel.index.texts import ContentHash, TextStore, texts_file
from spaniel.index.views import ROWS, Views, ViewsWriter, load_rows
from spaniel.progress import track
from spaniel.store import MANIFEST, publish_directory, read_manifest
from spaniel.types import Document

_MADE_ANEW = (MANIFEST, ROWS, "spans.npy", "docids.bin", "docids.npy")
_COPIED = ("meta.json", ".managed.json")
"""Files that tantivy writes at each commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change did."""

    num_added: int
    num_replaced: int
    num_deleted: int
    manifest: dict[str, Any]
    """Of the changed index."""


def update_index(
    directory: Path,
    cfg: IndexConfig,
    *,
    add: Iterable[Document] = (),
    delete: Sequence[str] = (),
    replace: bool = False,
) -> Change:
    """Take documents out of an index and put others in, all or nothing.

    BM25's statistics still count what was taken out, until the engine merges it away, so ranks may
    differ a little from those of a new build; after additions alone they are the same.

    Args:
        delete: docids.
        replace: an added document may have the docid of one that is there, whose place it takes.

    Raises:
        ArtifactError: there is no index of these settings and version.
        DataError: a docid to delete is not there, one to add is (without ``replace``), comes twice
            or cannot be stored, or no document would be left.
    """
    open_index(directory, cfg)
    before = read_manifest(directory, made_by=MADE_BY)
    old = TextStore(directory / "texts")
    content, removed = ContentHash(before["documents"]), ContentHash(before["removed"])
    manifest: dict[str, Any] = {}
    with publish_directory(directory, manifest) as partial:
        _link(directory, partial)
        texts = partial / "texts"
        number = _next_number(texts)
        content.merge(ingest(track(add, "reading", None, "docs"), texts, number=number))
        deleted, replaced = set(_rows(old, delete)), _replaced(old, texts, replace)
        gone = deleted | replaced
        for row in gone:
            content.remove(old.record(row))
            removed.add(old.record(row))
        kept = (old.place(row) for row in range(len(old)) if row not in gone)
        new_rows = write_order(texts, number=number, kept=kept, num_kept=len(old) - len(gone))
        _drop_if_empty(texts_file(texts, number))
        slots = _slots_of_rows(load_rows(directory), len(old))
        rows = _rows_of_slots(load_rows(directory), slots, gone, new_rows)
        np.save(partial / ROWS, rows)
        counts = _change_views(partial, cfg, rows, slots[sorted(gone)].tolist(), new_rows)
        manifest |= make_manifest(
            partial, cfg, counts, documents=str(content), removed=str(removed), old=directory
        )
    return Change(
        num_added=len(new_rows) - len(replaced),
        num_replaced=len(replaced),
        num_deleted=len(deleted - replaced),
        manifest=manifest,
    )


# --- documents ----------------------------------------------------------------------------


def _link(directory: Path, partial: Path) -> None:
    """The files of an index once more, the same on disk where they do not change."""
    for path in directory.rglob("*"):
        if not path.is_file() or path.name in _MADE_ANEW or path.suffix == ".lock":
            continue
        other = partial / path.relative_to(directory)
        other.parent.mkdir(parents=True, exist_ok=True)
        if path.name in _COPIED:
            shutil.copy2(path, other)
            continue
        try:
            os.link(path, other)
        except OSError:  # a file system without hard links
            shutil.copy2(path, other)


def _next_number(texts: Path) -> int:
    return 1 + max(int(path.stem.removeprefix("texts-")) for path in texts.glob("texts-*.bin"))


def _drop_if_empty(path: Path) -> None:
    if not path.stat().st_size:
        path.unlink()


def _rows(old: TextStore, docids: Sequence[str]) -> Iterator[int]:
    for docid in docids:
        try:
            yield old.row(docid)
        except KeyError:
            raise DataError(f"docid {docid!r} is not in the index: nothing was changed") from None


def _replaced(old: TextStore, texts: Path, allowed: bool) -> set[int]:
    """Rows of documents whose docid a new one has."""
    rows = set()
    for docid in new_docids(texts):
        try:
            rows.add(old.row(docid))
        except KeyError:
            continue
        if not allowed:
            raise DataError(
                f"docid {docid!r} is in the index already: nothing was changed; add --replace to "
                "put the new document in its place"
            )
    return rows


# --- slots and rows -----------------------------------------------------------------------


def _slots_of_rows(rows: NDArray[np.int64] | None, num_rows: int) -> NDArray[np.int64]:
    """[num_rows] the inverse of ``rows.npy``."""
    if rows is None:
        return np.arange(num_rows, dtype=np.int64)
    slots = np.empty(num_rows, dtype=np.int64)
    present = rows >= 0
    slots[rows[present]] = np.flatnonzero(present)
    return slots


def _rows_of_slots(
    rows: NDArray[np.int64] | None,
    slots: NDArray[np.int64],
    gone: set[int],
    new_rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    """``rows.npy`` after a change; new documents get the slots behind the last."""
    num_slots = len(slots) if rows is None else len(rows)
    is_kept = np.ones(len(slots), dtype=bool)
    is_kept[sorted(gone)] = False
    is_old = np.ones(int(is_kept.sum()) + len(new_rows), dtype=bool)
    is_old[new_rows] = False
    changed = np.full(num_slots + len(new_rows), -1, dtype=np.int64)
    changed[slots[is_kept]] = np.flatnonzero(is_old)
    changed[num_slots:] = new_rows
    return changed


def _change_views(
    partial: Path,
    cfg: IndexConfig,
    rows: NDArray[np.int64],
    slots_gone: list[int],
    new_rows: NDArray[np.int64],
) -> tuple[int, int]:
    """Returns how many documents and passages there are."""
    texts = TextStore(partial / "texts")
    first_slot = len(rows) - len(new_rows)
    with ViewsWriter(partial, cfg) as writer:
        writer.remove(slots_gone)
        incoming = track(new_rows.tolist(), "indexing", len(new_rows), "docs")
        for slot, row in enumerate(incoming, start=first_slot):
            writer.add(slot, texts.read_row(row))
        writer.commit()
    views = Views(partial, Analyzer(cfg.language))
    return views.num_documents, views.num_passages
