"""The three views ranked by bm25s, for other k1 and b than tantivy's.

Only ranking is bm25s's: the query's constraints (quoted phrases, ``site:``) on documents come
from the embedded index beside it, so the same documents match. In detail:

- A keyword of neighbouring characters matches where they stand side by side, and scores as a
  term of its own.
- A phrase is required, and scores as the sum of its words.
- Passages that hold the words of a phrase are read, best first, until enough hold the phrase.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError
from spaniel.index.analysis import Analyzer
from spaniel.index.backend import VIEWS, View, ViewBackend
from spaniel.index.bm25s_build import (
    bm25s_directory,
    check_bm25s,
    import_bm25s,
    is_indexed_pair,
    pair_term,
)
from spaniel.index.build import open_index
from spaniel.index.lexical import LexicalEngine
from spaniel.index.query import Query
from spaniel.index.texts import TextStore
from spaniel.index.wanted import Phrase, Wanted, wanted
from spaniel.store import hash_of

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]
Mask = NDArray[np.bool_]


def open_bm25s(index: Path, cfg: IndexConfig, *, snippet_words: int = 48) -> LexicalEngine:
    """The engine over an index for which ``bm25s_build.build_bm25s`` was run.

    Raises:
        ArtifactError: there is no complete index, or the scores are missing, broken, or of other
            documents or settings.
        ConfigError: bm25s is not installed.
    """
    embedded = open_index(index, cfg)
    manifest = check_bm25s(index, cfg)
    return open_index(
        index,
        cfg,
        snippet_words=snippet_words,
        views=lambda analyzer, _: Bm25sViews(
            bm25s_directory(index), manifest, analyzer, embedded.views, embedded.texts
        ),
    )


class Bm25sViews:
    """A ``ViewBackend`` over a directory that ``bm25s_build.build_bm25s`` made.

    Args:
        manifest: of the directory.
        embedded: what says which documents meet a constraint.
        texts: the documents.
    """

    waits = False

    def __init__(
        self,
        directory: Path,
        manifest: dict[str, Any],
        analyzer: Analyzer,
        embedded: ViewBackend,
        texts: TextStore,
    ) -> None:
        self._analyzer, self._embedded, self._texts = analyzer, embedded, texts
        self.num_documents: int = manifest["num_documents"]
        self.num_passages: int = manifest["num_passages"]
        self.fingerprint = hash_of(["bm25s", manifest["k1"], manifest["b"]])
        self.idf = embedded.idf
        try:
            self._passages = np.load(directory / "passages.npy", mmap_mode="r")
            self._term_ids = _Places(np.load(directory / "terms.npy", mmap_mode="r"))
            self._pair_ids = _Places(np.load(directory / "pairs.npy", mmap_mode="r"))
            names = manifest["matrices"]
            self._terms = {v: _Matrix(directory / v, v in names) for v in VIEWS}
            self._pairs = {
                v: _Matrix(directory / f"{v}-pairs", f"{v}-pairs" in names) for v in VIEWS
            }
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{directory} cannot be read: {error}") from None
        self._parents: Rows = self._passages[:, 0].astype(np.int64)
        self._side_by_side = lru_cache(maxsize=1000)(self._find_side_by_side)

    def rank(self, view: View, query: Query, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (row, score) of a view, ties by row; every row once."""
        w = wanted(self._analyzer, view, query)
        allowed = self._embedded.allowed_rows(query)
        if not w.terms and allowed is None:
            return []
        scores = self._scores(view, w)
        mask = self._mask(view, allowed)
        if w.needs_term:
            mask &= scores > 0
        texts = np.flatnonzero(mask)
        if view != "passage":
            return _best(texts, scores[texts], k)
        if w.phrases:
            words = {word for phrase in w.phrases for _, word in phrase}
            texts = np.intersect1d(texts, self._with_all("passage", words))
        phrases = [phrase for phrase in w.phrases if len(phrase) > 1]
        if phrases:
            return self._best_with_phrases(texts, scores[texts], phrases, k)
        return self._best_parents(texts, scores[texts], k)

    def allowed_rows(self, query: Query) -> list[int] | None:
        """Ascending rows of the documents that meet the query's phrases and site; None for all."""
        return self._embedded.allowed_rows(query)

    # -- scores ------------------------------------------------------------------------------

    def _num_texts(self, view: View) -> int:
        return self.num_passages if view == "passage" else self.num_documents

    def _scores(self, view: View, w: Wanted) -> Scores:
        """[num_texts] sums over what is wanted: above 0 exactly where some of it is found."""
        words = [term[0] for term in w.terms if len(term) == 1]
        if view != "title":
            words += [word for phrase in w.phrases for _, word in phrase]
        pairs = [term for term in w.terms if len(term) == 2]
        indexed = [pair_term(*pair) for pair in pairs if is_indexed_pair(*pair)]
        scores = np.zeros(self._num_texts(view), dtype=np.float32)
        self._terms[view].add(scores, self._term_ids.of(words))
        self._pairs[view].add(scores, self._pair_ids.of(indexed))
        for pair in pairs:
            if not is_indexed_pair(*pair):
                texts = self._side_by_side(view, pair)
                for number in self._term_ids.of(pair):
                    scores[texts] += self._terms[view].at(number, texts)
        return scores

    def _mask(self, view: View, allowed: list[int] | None) -> Mask:
        """[num_texts] whether a text's document is allowed."""
        if allowed is None:
            return np.ones(self._num_texts(view), dtype=bool)
        rows = np.zeros(self.num_documents, dtype=bool)
        rows[allowed] = True
        return rows[self._parents] if view == "passage" else rows

    def _best_parents(self, passages: Rows, scores: Scores, k: int) -> list[tuple[int, float]]:
        """Each document by its best passage."""
        parents = self._parents[passages]  # ascending, as passages come in row order
        first = np.flatnonzero(np.diff(parents, prepend=-1))
        if not len(first):
            return []
        return _best(parents[first], np.maximum.reduceat(scores, first), k)

    # -- what has to be read -----------------------------------------------------------------

    def _best_with_phrases(
        self, passages: Rows, scores: Scores, phrases: Iterable[Phrase], k: int
    ) -> list[tuple[int, float]]:
        best: dict[int, float] = {}
        for i in np.lexsort((passages, -scores)):
            row = int(self._parents[passages[i]])
            if row in best:
                continue
            (terms,) = self._read("passage", int(passages[i]))
            if all(holds(terms, phrase) for phrase in phrases):
                best[row] = float(scores[i])
                if len(best) == k:
                    break
        return list(best.items())

    def _find_side_by_side(self, view: View, pair: tuple[str, str]) -> Rows:
        """Texts with a pair that the matrix of pairs leaves out, such as full-width Latin."""
        phrase = ((0, pair[0]), (1, pair[1]))
        found = [
            text
            for text in self._with_all(view, pair).tolist()
            if any(holds(part, phrase) for part in self._read(view, text))
        ]
        return np.array(found, dtype=np.int64)

    def _with_all(self, view: View, words: Iterable[str]) -> Rows:
        """Ascending texts that hold every one of the words."""
        distinct = set(words)
        numbers = self._term_ids.of(distinct)
        if len(numbers) < len(distinct):
            return np.array([], dtype=np.int64)
        columns = sorted((self._terms[view].column(n)[0] for n in numbers), key=len)
        found = columns[0].astype(np.int64)
        for column in columns[1:]:
            found = np.intersect1d(found, column, assume_unique=True)
        return found

    def _read(self, view: View, text: int) -> Iterator[list[tuple[int, str]]]:
        """The positioned terms of a text; of title and body apart, as no phrase spans them."""
        row, start, end = self._passages[text].tolist() if view == "passage" else (text, 0, None)
        document = self._texts.read_row(row)
        if view != "passage":
            yield self._analyzer.positioned(document.title)
        if view != "title":
            yield self._analyzer.positioned(document.text[start:end])


def holds(positioned: list[tuple[int, str]], phrase: Phrase) -> bool:
    """Whether a text has the words of a phrase at their distances."""
    terms = dict(positioned)
    first = phrase[0][0]
    return any(
        term == phrase[0][1] and all(terms.get(at + p - first) == word for p, word in phrase)
        for at, term in positioned
    )


def _best(rows: Rows, scores: Scores, k: int) -> list[tuple[int, float]]:
    """The best ``k`` of ascending rows, ties by row."""
    if k < len(rows):
        worst = np.partition(scores, len(rows) - k)[len(rows) - k]
        kept = scores >= worst
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return [(int(rows[i]), float(scores[i])) for i in order]


class _Places:
    """The number of a term: its place among all, sorted, found without reading them all."""

    def __init__(self, terms: NDArray[np.bytes_]) -> None:
        self._terms = terms

    def of(self, terms: Iterable[str]) -> list[int]:
        """Numbers, in order; terms that no text holds are left out."""
        numbers = []
        for term in terms:
            data = term.encode()
            place = int(np.searchsorted(self._terms, np.bytes_(data)))
            if place < len(self._terms) and self._terms[place] == data:
                numbers.append(place)
        return numbers


class _Matrix:
    """The score of each term in each text that holds it, as bm25s keeps it; mapped from disk."""

    def __init__(self, directory: Path, is_there: bool) -> None:
        self._model: Any = None
        if is_there:
            load: Callable[..., Any] = import_bm25s().BM25.load
            self._model = load(directory, mmap=True, load_vocab=False, show_progress=False)

    def add(self, scores: Scores, terms: list[int]) -> None:
        """Add the scores of all terms."""
        if self._model is not None and terms:
            scores += self._model.get_scores_from_ids(terms)

    def column(self, term: int) -> tuple[NDArray[np.int32], Scores]:
        """(ascending texts, scores) of one term."""
        if self._model is None:
            return np.array([], dtype=np.int32), np.array([], dtype=np.float32)
        matrix = self._model.scores
        begin, end = matrix["indptr"][term : term + 2]
        return matrix["indices"][begin:end], matrix["data"][begin:end]

    def at(self, term: int, texts: Rows) -> Scores:
        """Scores of one term in ascending texts that all hold it."""
        holders, scores = self.column(term)
        return np.asarray(scores[np.searchsorted(holders, texts)])
