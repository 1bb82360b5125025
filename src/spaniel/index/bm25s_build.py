"""The three views for bm25s, whose k1 and b can be set: scores made beside the embedded index.

<index>-bm25s/manifest.json     what they are of; written last
<index>-bm25s/terms.npy         bytes [num_terms], sorted: a term's id is its place
<index>-bm25s/pairs.npy         the same for pairs of neighbours, ``a b``
<index>-bm25s/passages.npy      int32 [num_passages, 3]: row, first character, one past the last
<index>-bm25s/<view>/           bm25s: one matrix of scores, by terms
<index>-bm25s/<view>-pairs/     by pairs; a matrix without any entry is left out

bm25s has no phrases. Neighbouring characters of the scripts without spaces, which keywords search
for, are therefore terms of a second kind, in matrices of their own, so that they do not make their
texts longer.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.index.analysis import NO_SPACE, Analyzer
from spaniel.index.backend import VIEWS, View
from spaniel.index.build import MADE_BY
from spaniel.index.passages import passages_of
from spaniel.index.texts import TextStore
from spaniel.progress import track
from spaniel.store import publish_directory, read_manifest
from spaniel.types import Document

FORMAT = 1
"""Of the directory; another number has to be built again."""
_UNSPACED = re.compile(f"[{NO_SPACE}]")


def bm25s_directory(index: Path) -> Path:
    """Where the scores of an index lie."""
    return index.with_name(f"{index.name}-bm25s")


def build_bm25s(index: Path, cfg: IndexConfig) -> bool:
    """Make the scores of an index for ``index.k1`` and ``index.b``; False when they are there.

    Built in memory: some 90 bytes for each word of the corpus.

    Args:
        index: a directory made by ``build.build_index``.

    Raises:
        ArtifactError: there is no complete index.
        ConfigError: bm25s is not installed.
    """
    content = read_manifest(index, made_by=MADE_BY)["content"]
    manifest = {"content": content, "k1": cfg.k1, "b": cfg.b, "versions": bm25s_versions()}
    try:
        check_bm25s(index, cfg)
        return False
    except (ArtifactError, DataError):
        pass  # none, old or broken ones: made anew
    texts = TextStore(index / "texts")
    with publish_directory(bm25s_directory(index), manifest) as partial:
        corpus = _Corpus(cfg)
        for document in track(texts, "reading for bm25s", len(texts), "docs"):
            corpus.add(document)
        manifest |= corpus.write(partial, cfg)
        manifest["files"] = {
            str(path.relative_to(partial)): file_facts(path)
            for path in sorted(partial.rglob("*"))
            if path.is_file()
        }
    return True


def verify_bm25s(index: Path, cfg: IndexConfig) -> int:
    """Read every byte of the scores and compare it with what was built; returns the bytes.

    Raises:
        ArtifactError: the first thing that is wrong.
    """
    directory = bm25s_directory(index)
    manifest = check_bm25s(index, cfg)
    for name, facts in track(
        manifest["files"].items(), "verifying", len(manifest["files"]), "files"
    ):
        if file_facts(directory / name) != facts:
            raise ArtifactError(
                f"{directory / name} is not as it was built: delete {directory}, and run "
                f"`{MADE_BY} --force`"
            )
    return sum(facts["bytes"] for facts in manifest["files"].values())


def check_bm25s(index: Path, cfg: IndexConfig) -> dict[str, Any]:
    """The manifest of the scores of an index.

    Raises:
        ArtifactError: there are none, they are of other documents, settings or versions, or a
            file is missing or of another size.
        ConfigError: bm25s is not installed.
    """
    directory = bm25s_directory(index)
    manifest = read_manifest(directory, made_by=MADE_BY)
    content = read_manifest(index, made_by=MADE_BY)["content"]
    if manifest.get("versions") != bm25s_versions():
        raise ArtifactError(f"{directory}: made by another version: run `{MADE_BY} --force`")
    if manifest.get("content") != content:
        raise ArtifactError(f"{directory}: of other documents: run `{MADE_BY} --force`")
    found = (manifest.get("k1"), manifest.get("b"))
    if found != (cfg.k1, cfg.b):
        raise ArtifactError(
            f"{directory}: built with index.k1 {found[0]} and index.b {found[1]}, wanted {cfg.k1} "
            f"and {cfg.b}: run `{MADE_BY} --force`"
        )
    for name, facts in manifest["files"].items():
        path = directory / name
        if not path.exists() or path.stat().st_size != facts["bytes"]:
            raise ArtifactError(f"{path} is missing or of another size: run `{MADE_BY} --force`")
    return manifest


def file_facts(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def bm25s_versions() -> dict[str, Any]:
    """What another reading of the directory would come from."""
    import_bm25s()
    # Its files carry no format number of their own.
    release = ".".join(version("bm25s").split(".")[:2])
    return {"format": FORMAT, "bm25s": release}


def import_bm25s() -> ModuleType:
    """The library. Raises ``ConfigError`` where it is not installed."""
    try:
        import bm25s
    except ImportError:
        raise ConfigError(
            "index.backend = bm25s needs bm25s: pip install 'spaniel[bm25s]'"
        ) from None
    module: ModuleType = bm25s
    return module


# --- texts to terms -----------------------------------------------------------------------


class _Ids:
    """Numbers of terms, in the order they came; ``places`` says where they are when sorted."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, terms: Iterable[str]) -> "array[int]":
        ids = self._ids
        return array("i", [ids.setdefault(term, len(ids)) for term in terms])

    def sorted(self) -> tuple[NDArray[np.bytes_], list[int]]:
        """All terms, sorted, and the place of each number among them."""
        terms = np.array([term.encode() for term in self._ids], dtype=bytes)
        order = np.argsort(terms)
        return terms[order], np.argsort(order).tolist()


class _Corpus:
    """The terms and pairs of every text of the three views."""

    def __init__(self, cfg: IndexConfig) -> None:
        self._cfg = cfg
        self._analyzer = Analyzer(cfg.language)
        self._terms, self._pairs = _Ids(), _Ids()
        self._term_texts: dict[View, list[array[int]]] = {view: [] for view in VIEWS}
        self._pair_texts: dict[View, list[array[int]]] = {view: [] for view in VIEWS}
        self._num_terms = {view: array("i") for view in VIEWS}
        self._passages: list[tuple[int, int, int]] = []
        self._num_documents = 0

    def add(self, document: Document) -> None:
        """One document, in row order."""
        row = self._num_documents
        self._num_documents += 1
        self._add("document", (document.title, document.text))
        self._add("title", (document.title,))
        cfg = self._cfg
        for passage in passages_of(
            document, words=cfg.passage_words, stride=cfg.passage_stride_words
        ):
            self._add("passage", (document.text[passage.start : passage.end],))
            self._passages.append((row, passage.start, passage.end))

    def _add(self, view: View, texts: Iterable[str]) -> None:
        positioned = [self._analyzer.positioned(text) for text in texts]
        terms = [term for part in positioned for _, term in part]
        pairs = [pair for part in positioned for pair in pairs_of(part)]
        self._num_terms[view].append(len(terms))
        self._term_texts[view].append(self._terms.of(terms))
        self._pair_texts[view].append(self._pairs.of(pairs))

    def write(self, directory: Path, cfg: IndexConfig) -> dict[str, Any]:
        """Write everything; returns counts, and which matrices there are."""
        np.save(directory / "passages.npy", np.array(self._passages, dtype=np.int32).reshape(-1, 3))
        matrices = []
        for kind, suffix, ids, texts in (
            ("terms", "", self._terms, self._term_texts),
            ("pairs", "-pairs", self._pairs, self._pair_texts),
        ):
            terms, places = ids.sorted()
            np.save(directory / f"{kind}.npy", terms)
            for view in VIEWS:
                if any(texts[view]):
                    name = f"{view}{suffix}"
                    # Of the same integers: objects of their own would take four times the room.
                    numbers = [[places[number] for number in text] for text in texts[view]]
                    if kind == "pairs":
                        _fill(numbers, self._num_terms[view], filler=len(ids))
                    _write_matrix(directory / name, numbers, len(ids) + 1, cfg)
                    matrices.append(name)
                texts[view] = []
        return {
            "num_documents": self._num_documents,
            "num_passages": len(self._passages),
            "matrices": matrices,
        }


def pairs_of(positioned: list[tuple[int, str]]) -> list[str]:
    """Neighbours of which one is a character of a script without spaces, as ``a b``."""
    return [
        pair_term(first, second)
        for (p, first), (q, second) in pairwise(positioned)
        if q == p + 1 and is_indexed_pair(first, second)
    ]


def pair_term(first: str, second: str) -> str:
    """How a pair is written among the terms."""
    return f"{first} {second}"


def is_indexed_pair(first: str, second: str) -> bool:
    """Whether the pair has a place in the matrix of pairs."""
    return bool(_UNSPACED.search(first) or _UNSPACED.search(second))


def _fill(texts: list[list[int]], lengths: Iterable[int], *, filler: int) -> None:
    """Make each text as long as it is in words: BM25 shall know it by that length."""
    for text, length in zip(texts, lengths, strict=True):
        text += [filler] * (length - len(text))


def _write_matrix(
    directory: Path, texts: list[list[int]], num_terms: int, cfg: IndexConfig
) -> None:
    bm25s = import_bm25s()
    model = bm25s.BM25(k1=cfg.k1, b=cfg.b, method="lucene", backend="numpy")
    vocabulary = {number: number for number in range(num_terms)}
    model.index((texts, vocabulary), create_empty_token=False, show_progress=False)
    model.vocab_dict = {}  # terms are found in our own file, without reading all of it
    model.save(directory, show_progress=False)
