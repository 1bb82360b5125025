"""Documents -> an index directory, published whole or not at all; and opening one.

<index>/manifest.json    counts, settings, fingerprint, versions; written last
<index>/texts/           the documents (texts.py)
<index>/documents/       tantivy: document and title view (views.py)
<index>/passages/        tantivy: passage view
"""

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spaniel import __version__
from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError
from spaniel.index.analysis import ANALYSIS_VERSION, Analyzer
from spaniel.index.backend import ViewBackend
from spaniel.index.lexical import LexicalEngine
from spaniel.index.texts import TextStore, write_texts
from spaniel.index.views import Views, write_views
from spaniel.progress import track
from spaniel.store import hash_of, publish_directory, read_manifest
from spaniel.types import Document

FORMAT = 2
"""Of the index directory; another number has to be built again."""
_MADE_BY = "spaniel index build"
_BUILD_SETTINGS = ("language", "passage_words", "passage_stride_words")
_SEARCH_SETTINGS = ("rank_constant", "weight_document", "weight_passage", "weight_title")


def build_index(documents: Iterable[Document], directory: Path, cfg: IndexConfig) -> dict[str, Any]:
    """Index documents into ``directory`` and return the manifest.

    Streams: only the docids are held in memory. An index that stood there serves until the new
    one is complete, and stays if the build dies. The order of the documents does not matter.

    Raises:
        DataError: there are no documents, a docid is empty or comes twice, or a document
            cannot be stored.
        ConfigError: the language has no stemmer, or the stride is longer than a passage.
    """
    manifest: dict[str, Any] = {}
    with publish_directory(directory, manifest) as partial:
        incoming = track(documents, "reading", None, "docs")
        count = write_texts(incoming, partial / "texts")
        texts = TextStore(partial / "texts")
        num_passages = write_views(track(texts, "indexing", count, "docs"), partial, cfg)
        content = hash_of([texts.content_hash(), _settings(cfg, _BUILD_SETTINGS), _versions()])
        manifest |= {
            "num_documents": count,
            "num_passages": num_passages,
            "content": content,
            "fingerprint": hash_of([content, _settings(cfg, _SEARCH_SETTINGS)]),
            "settings": _settings(cfg, _BUILD_SETTINGS + _SEARCH_SETTINGS),
            "versions": {**_versions(), "spaniel": __version__},
            "files": {str(f.relative_to(partial)): _file_facts(f) for f in _files(partial)},
        }
    return manifest


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
    manifest = read_manifest(directory, made_by=_MADE_BY)
    made_by, needed = manifest.get("versions", {}), _versions()
    for name, wanted in needed.items():
        if made_by.get(name) != wanted:
            raise ArtifactError(
                f"{directory}: made with {name} {made_by.get(name)}, this is {name} {wanted}: "
                f"run `{_MADE_BY}` again"
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
                f"{getattr(cfg, name)}: run `{_MADE_BY}` again"
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
            f"run `{_MADE_BY}` again"
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
    files = read_manifest(directory, made_by=_MADE_BY)["files"]
    for name, facts in track(files.items(), "verifying", len(files), "files"):
        _check_size(directory / name, facts["bytes"])
        if _file_facts(directory / name) != facts:
            raise ArtifactError(
                f"{directory / name} is not as it was built: run `{_MADE_BY} --force`"
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


def _files(directory: Path) -> list[Path]:
    # tantivy's lock files are empty and no part of an index.
    found = (f for f in directory.rglob("*") if f.is_file() and not f.name.endswith(".lock"))
    return sorted(found)


def _file_facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _check_size(path: Path, size: int) -> None:
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `{_MADE_BY} --force`")
    if path.stat().st_size != size:
        raise ArtifactError(
            f"{path} has {path.stat().st_size:,} bytes, was built with {size:,}: run "
            f"`{_MADE_BY} --force`"
        )


def _settings(cfg: IndexConfig, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(cfg, name) for name in names}


def _versions() -> dict[str, Any]:
    # Patch releases keep the file format and the analysis; minor ones have changed both.
    release = ".".join(version("tantivy").split(".")[:2])
    return {"format": FORMAT, "analysis": ANALYSIS_VERSION, "tantivy": release}
