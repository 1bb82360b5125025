"""The three views fused by weighted reciprocal rank, with snippets, over any backend."""

from collections.abc import Callable, Sequence
from pathlib import Path

from spaniel.config import IndexConfig
from spaniel.errors import ConfigError
from spaniel.index.analysis import Analyzer
from spaniel.index.backend import VIEWS, View, ViewBackend
from spaniel.index.fusion import MIN_DEPTH, rrf
from spaniel.index.query import parse_query, plain_query
from spaniel.index.snippet import Snippets
from spaniel.index.texts import TextStore
from spaniel.index.views import Views
from spaniel.store import hash_of
from spaniel.types import Document, Hit


class LexicalEngine:
    """A ``SearchEngine`` over an index directory. ``build.open_index`` opens one.

    Args:
        directory: what ``build.build_index`` published.
        cfg: the language it was built with; rank constant and weights of the views as wanted.
        content: hash of the documents and of how they were indexed.
        snippet_words: longest excerpt of a hit; 0 makes none.
        views: what ranks the rows; the embedded index of the directory by default.
    """

    def __init__(
        self,
        directory: Path,
        cfg: IndexConfig,
        *,
        content: str,
        snippet_words: int = 48,
        views: ViewBackend | None = None,
    ) -> None:
        analyzer = Analyzer(cfg.language)
        self.texts = TextStore(directory / "texts")
        self.views: ViewBackend = views or Views(directory, analyzer)
        self.snippets = Snippets(analyzer, self.views.idf, max_words=snippet_words)
        self.content = content
        self._rank_constant = cfg.rank_constant
        self._weights = (cfg.weight_document, cfg.weight_passage, cfg.weight_title)

    @property
    def waits(self) -> bool:
        """Whether the views are on another machine."""
        return self.views.waits

    @property
    def fingerprint(self) -> str:
        """Hash of documents, indexing, ranking, fusion and snippet length."""
        settings = [self._rank_constant, self._weights, self.snippets.max_words]
        return hash_of(["lexical", self.content, self.views.fingerprint, *settings])

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits with snippets, by ``sum_view weight / (rank_constant + rank)``.

        Each view brings its best 50 documents (``k``, if that is more); a document absent from
        a view gets nothing from it.

        Raises:
            QueryError: the query holds more than one ``site:``.
            ConfigError: ``k`` is below 1.
        """
        _check_k(k)
        parsed = parse_query(query)
        depth = max(k, MIN_DEPTH)
        rankings = [
            [row for row, _ in self.views.rank(view, parsed, depth)] if weight > 0 else []
            for view, weight in zip(VIEWS, self._weights, strict=True)
        ]
        # Rows are in docid order: ties by row are ties by docid.
        fused = rrf(rankings, self._rank_constant, self._weights)
        # Without excerpts no text has to be read.
        excerpt = self.snippets.of_query(parsed) if self.snippets.max_words else None
        return self.hits(fused[:k], excerpt)

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        return [self.search(query, k) for query in queries]

    def search_view(self, view: View, query: str, k: int) -> list[Hit]:
        """At most ``k`` documents by the BM25 of one view, without snippets.

        ``document`` is plain BM25 over title and text. The query is plain text here, such as a
        question as somebody wrote it: quotes and ``site:`` have no meaning.

        Raises:
            ConfigError: there is no such view, or ``k`` is below 1.
        """
        _check_k(k)
        if view not in VIEWS:
            raise ConfigError(f"view must be one of {', '.join(VIEWS)}, got {view!r}")
        return self.hits(self.views.rank(view, plain_query(query), k), None)

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError`` when the index has no such docid."""
        return self.texts.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return [self.texts.read(docid) for docid in docids]

    def hits(
        self, ranked: Sequence[tuple[int, float]], excerpt: Callable[[str], str] | None
    ) -> list[Hit]:
        """Hits of (row, score) pairs, best first; ``excerpt`` cuts the snippet from a text."""
        hits = []
        for rank, (row, score) in enumerate(ranked, start=1):
            snippet = excerpt(self.texts.read_row(row).text) if excerpt else ""
            docid = self.texts.docid(row)
            hits.append(Hit(docid=docid, score=score, rank=rank, snippet=snippet))
        return hits


def _check_k(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k must be >= 1, got {k}")
