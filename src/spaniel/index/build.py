"""Documents -> an index directory, published whole or not at all; and opening one.

<index>/manifest.json    counts, settings, fingerprint, versions; written last
<index>/texts/           the documents (texts.py)
<index>/documents/       tantivy: document and title view (views.py)
<index>/passages/        tantivy: passage view
<index>/rows.npy         where each lies, if not written at once (views.py)
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from spaniel import __version__
from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError
from spaniel.index.analysis import ANALYSIS_VERSION, Analyzer
from spaniel.index.backend import ViewBackend
from spaniel.index.ingest import ingest, write_order
from spaniel.index.lexical import LexicalEngine
from spaniel.index.texts import ContentHash, TextStore
from spaniel.index.views import ROWS, Views, ViewsWriter
from spaniel.progress import Progress, say, track
from spaniel.store import (
    MANIFEST,
    from_plain,
    hash_of,
    publish_directory,
    read_json,
    read_manifest,
    write_json,
)
from spaniel.types import Document

FORMAT = 3
"""Of the index directory; another number has to be built again."""
COMMIT_CHARS = 200_000_000
"""Characters of text after which what was indexed is on disk for good: a minute of work, and few
enough parts for fast searches."""
MADE_BY = "spaniel index build"
_BUILD_SETTINGS = ("language", "passage_words", "passage_stride_words")
_SEARCH_SETTINGS = ("rank_constant", "weight_document", "weight_passage", "weight_title")
_JOURNAL = "build.json"


def build_index(
    documents: Iterable[Document],
    directory: Path,
    cfg: IndexConfig,
    *,
    documents_id: str | None = None,
) -> dict[str, Any]:
    """Index documents into ``directory`` and return the manifest.

    Streams, in constant memory. An index that stood there serves until the new one is complete,
    and stays if the build dies. The order of the documents does not matter.

    Args:
        documents_id: names the documents, such as a hash of their file. A build that is
            interrupted is then kept beside the directory, and the next one with the same name
            and settings goes on with what is on disk.

    Raises:
        DataError: there are no documents, a docid is empty or comes twice, or a document
            cannot be stored.
        ConfigError: the language has no stemmer, or the stride is longer than a passage.
    """
    manifest: dict[str, Any] = {}
    key = hash_of([documents_id, _settings(cfg, _BUILD_SETTINGS), _versions()])
    with publish_directory(directory, manifest, keep_partial=documents_id is not None) as partial:
        journal = _open_journal(partial, key)
        if not journal.content:
            content = ingest(track(documents, "reading", None, "docs"), partial / "texts")
            write_order(partial / "texts")
            journal.content = str(content)
            _save_journal(partial, journal)
        texts = TextStore(partial / "texts")
        _index_texts(texts, partial, cfg, journal)
        counts = (len(texts), journal.num_passages)
        manifest |= make_manifest(partial, cfg, counts, documents=journal.content)
        (partial / _JOURNAL).unlink()
    return manifest


def _index_texts(texts: TextStore, partial: Path, cfg: IndexConfig, journal: "_Journal") -> None:
    """Write the views of all texts behind the journal's last entry."""
    _drop_what_is_not_journaled(partial, cfg, journal)
    progress = Progress("indexing", len(texts), "docs", done=journal.num_rows)
    with progress, ViewsWriter(partial, cfg) as writer:
        num_chars, num_passages = 0, journal.num_passages
        for row in range(journal.num_rows, len(texts)):
            document = texts.read_row(row)
            num_passages += writer.add(row, document)
            num_chars += len(document.text)
            progress.advance(1)
            if num_chars >= COMMIT_CHARS or row == len(texts) - 1:
                writer.commit()
                journal.num_rows, journal.num_passages = row + 1, num_passages
                journal.num_parts += 1
                _save_journal(partial, journal)
                num_chars = 0
    if journal.num_parts > 1:
        np.save(partial / ROWS, np.arange(len(texts), dtype=np.int64))


def _drop_what_is_not_journaled(partial: Path, cfg: IndexConfig, journal: "_Journal") -> None:
    """Begin the views anew if a crash came between the commits of their two indexes.

    Taking out what one of them has too much would leave it in BM25's statistics.
    """
    (partial / ROWS).unlink(missing_ok=True)
    if journal.num_rows:
        views = Views(partial, Analyzer(cfg.language))
        if (views.num_documents, views.num_passages) == (journal.num_rows, journal.num_passages):
            return
    for name in ("documents", "passages"):
        shutil.rmtree(partial / name, ignore_errors=True)
    journal.num_rows = journal.num_passages = journal.num_parts = 0


# --- going on after a crash -----------------------------------------------------------------


@dataclass(slots=True)
class _Journal:
    """How far a build came."""

    key: str
    """Of documents, settings and versions."""
    content: str = ""
    """Hash of the documents, once all are stored."""
    num_rows: int = 0
    """Documents that are indexed for good."""
    num_passages: int = 0
    num_parts: int = 0
    """Commits so far."""


def _open_journal(partial: Path, key: str) -> _Journal:
    """That of the interrupted build, if it was of the same key; otherwise a new one in an
    emptied directory."""
    path = partial / _JOURNAL
    if path.exists():
        journal = from_plain(_Journal, read_json(path), where=str(path))
        if journal.key == key:
            say(f"going on with the interrupted build: {journal.num_rows:,} documents are indexed")
            return journal
    shutil.rmtree(partial)
    partial.mkdir()
    journal = _Journal(key)
    _save_journal(partial, journal)
    return journal


def _save_journal(partial: Path, journal: _Journal) -> None:
    write_json(partial / _JOURNAL, asdict(journal))


# --- the manifest -------------------------------------------------------------------------


def make_manifest(
    directory: Path,
    cfg: IndexConfig,
    counts: tuple[int, int],
    *,
    documents: str,
    removed: str = str(ContentHash()),
    old: Path | None = None,
) -> dict[str, Any]:
    """What an index says about itself.

    Args:
        counts: documents and passages.
        documents: hash of the documents (``texts.ContentHash``).
        removed: hash of documents that were taken out: BM25's statistics remember them.
        old: an index whose hashes of files that are the same file are taken over.
    """
    content = hash_of([documents, removed, _settings(cfg, _BUILD_SETTINGS), _versions()])
    return {
        "num_documents": counts[0],
        "num_passages": counts[1],
        "content": content,
        "documents": documents,
        "removed": removed,
        "fingerprint": hash_of([content, _settings(cfg, _SEARCH_SETTINGS)]),
        "settings": _settings(cfg, _BUILD_SETTINGS + _SEARCH_SETTINGS),
        "versions": {**_versions(), "spaniel": __version__},
        "files": _files_facts(directory, old),
    }


def _files_facts(directory: Path, old: Path | None) -> dict[str, dict[str, Any]]:
    known = read_json(old / MANIFEST)["files"] if old is not None else {}
    facts = {}
    for path in sorted(f for f in directory.rglob("*") if f.is_file()):
        name = str(path.relative_to(directory))
        # tantivy's lock files are empty and no part of an index.
        if path.suffix != ".lock" and name != _JOURNAL:
            same = old is not None and name in known and _is_same(path, old / name)
            facts[name] = known[name] if same else _file_facts(path)
    return facts


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and os.path.samefile(path, other)


def _file_facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _settings(cfg: IndexConfig, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(cfg, name) for name in names}


def _versions() -> dict[str, Any]:
    # Patch releases keep the file format and the analysis; minor ones have changed both.
    release = ".".join(version("tantivy").split(".")[:2])
    return {"format": FORMAT, "analysis": ANALYSIS_VERSION, "tantivy": release}


# --- opening ------------------------------------------------------------------------------


def open_index(
    directory: Path,
    cfg: IndexConfig | None = None,
    *,
    snippet_words: int = 48,
    views: Callable[[Analyzer, str], ViewBackend] | None = None,
) -> LexicalEngine:
    """The engine over an index that ``build_index`` made; takes milliseconds.

    Args:
        cfg: rank constant and weights to search with; as at the build by default. What the
            index was built with (language, passages) has to be the same.
        snippet_words: longest excerpt of a hit; 0 makes none.
        views: (analyzer, hash of the content) -> what ranks the rows; the embedded index by
            default.

    Raises:
        ArtifactError: there is no complete index, or it was made by other settings or versions.
    """
    manifest = read_manifest(directory, made_by=MADE_BY)
    made_by, needed = manifest.get("versions", {}), _versions()
    for name, wanted in needed.items():
        if made_by.get(name) != wanted:
            raise ArtifactError(
                f"{directory}: made with {name} {made_by.get(name)}, this is {name} {wanted}: "
                f"run `{MADE_BY}` again"
            )
    for name, facts in manifest["files"].items():
        _check_size(directory / name, facts["bytes"])
    built = manifest["settings"]
    if cfg is None:
        cfg = IndexConfig(**built)
    for name in _BUILD_SETTINGS:
        if getattr(cfg, name) != built[name]:
            raise ArtifactError(
                f"{directory}: built with index.{name} {built[name]}, wanted "
                f"{getattr(cfg, name)}: run `{MADE_BY}` again"
            )
    content = manifest["content"]
    backend = views(Analyzer(cfg.language), content) if views is not None else None
    engine = LexicalEngine(
        directory, cfg, content=content, snippet_words=snippet_words, views=backend
    )
    found = (len(engine.texts), engine.views.num_documents, engine.views.num_passages)
    counts = (manifest["num_documents"], manifest["num_documents"], manifest["num_passages"])
    if found != counts:
        raise ArtifactError(
            f"{directory}: texts, documents and passages must number {counts}, got {found}: "
            f"run `{MADE_BY}` again"
        )
    return engine


def verify_index(directory: Path, cfg: IndexConfig | None = None) -> dict[str, int]:
    """Read every byte of an index and compare it with what was built; takes a second a GB.

    Returns:
        Counts: ``files``, ``bytes``, ``documents``, ``passages``.

    Raises:
        ArtifactError: the first thing that is wrong: a file missing, changed or left over, rows
            that do not match the documents, or what ``open_index`` refuses.
    """
    files = read_manifest(directory, made_by=MADE_BY)["files"]
    for name, facts in track(files.items(), "verifying", len(files), "files"):
        _check_size(directory / name, facts["bytes"])
        if _file_facts(directory / name) != facts:
            raise ArtifactError(
                f"{directory / name} is not as it was built: run `{MADE_BY} --force`"
            )
    engine = open_index(directory, cfg)
    assert isinstance(engine.views, Views)
    engine.views.check_rows(len(engine.texts))
    return {
        "files": len(files),
        "bytes": sum(facts["bytes"] for facts in files.values()),
        "documents": engine.views.num_documents,
        "passages": engine.views.num_passages,
    }


def _check_size(path: Path, size: int) -> None:
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `{MADE_BY} --force`")
    if path.stat().st_size != size:
        raise ArtifactError(
            f"{path} has {path.stat().st_size:,} bytes, was built with {size:,}: run "
            f"`{MADE_BY} --force`"
        )
