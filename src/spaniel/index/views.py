"""Two tantivy indexes a corpus, and the three views that search them by BM25.

Two, because BM25's statistics count every row of an index:

    documents/    body (title, then text), title, site (host, domains above, paths), row
    passages/     text, site, row (of the parent)

The views are ``document`` (searches body), ``title`` and ``passage``, whose hits stand for their
parents. Scores are BM25 with k1 = 1.2 and b = 0.75, which tantivy fixes, over document lengths
as tantivy rounds them (about three significant bits).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import tantivy

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError
from spaniel.index.analysis import Analyzer, normalize
from spaniel.index.backend import View
from spaniel.index.passages import passages_of
from spaniel.index.query import Query, sites_of
from spaniel.index.snippet import bm25_idf
from spaniel.types import Document

MAX_QUERY_TERMS = 64
"""Keyword terms behind these are not searched."""

_FIELDS: dict[View, str] = {"document": "body", "passage": "text", "title": "title"}
_ANALYZER = "spaniel"
# With one thread and room for everything an index is one segment, in row order. Only what is
# needed is allocated: about 0.4 GB for a million passages.
_HEAP_BYTES = 3_000_000_000


# --- writing ------------------------------------------------------------------------------


def write_views(documents: Iterable[Document], directory: Path, cfg: IndexConfig) -> int:
    """Index documents, given in row order; returns how many passages they have.

    Raises:
        ConfigError: the language has no stemmer, or the stride is longer than a passage.
    """
    num_passages = 0
    with _writers(directory, Analyzer(cfg.language)) as (whole, parts):
        for row, document in enumerate(documents):
            sites = [("site", site) for site in sites_of(document.url)]
            title = normalize(document.title)
            # Two values of one field: no phrase reaches from the title into the text.
            texts = [("body", title), ("body", normalize(document.text)), ("title", title)]
            whole.add_document(_entry(row, texts + sites))
            for passage in passages_of(
                document, words=cfg.passage_words, stride=cfg.passage_stride_words
            ):
                text = normalize(document.text[passage.start : passage.end])
                parts.add_document(_entry(row, [("text", text), *sites]))
                num_passages += 1
    return num_passages


@contextmanager
def _writers(
    directory: Path, analyzer: Analyzer
) -> Iterator[tuple[tantivy.IndexWriter, tantivy.IndexWriter]]:
    """Writers of the documents and of the passages, committed at the end."""
    whole = _create(directory / "documents", ("body", "title"), analyzer)
    parts = _create(directory / "passages", ("text",), analyzer)
    try:
        yield whole, parts
        for writer in (whole, parts):
            writer.commit()
    finally:
        # After a failure too: their threads would go on writing into a directory being removed.
        for writer in (whole, parts):
            writer.wait_merging_threads()


def _create(directory: Path, fields: Sequence[str], analyzer: Analyzer) -> tantivy.IndexWriter:
    directory.mkdir(parents=True)
    builder = tantivy.SchemaBuilder()
    for name in fields:
        builder.add_text_field(name, tokenizer_name=_ANALYZER, index_option="position")
    builder.add_text_field("site", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("row", fast=True)
    index = tantivy.Index(builder.build(), path=str(directory))
    index.register_tokenizer(_ANALYZER, analyzer.engine_analyzer)
    # More threads would deal the rows out to segments in another way each time.
    return index.writer(_HEAP_BYTES, num_threads=1)


def _entry(row: int, texts: Iterable[tuple[str, str]]) -> tantivy.Document:
    entry = tantivy.Document()
    # As a plain int it would be a signed value, which kills the writer of an unsigned field.
    entry.add_unsigned("row", row)
    for field, text in texts:
        entry.add_text(field, text)
    return entry


# --- searching ----------------------------------------------------------------------------


class Views:
    """The ``ViewBackend`` over a directory that ``write_views`` wrote."""

    waits = False
    fingerprint = "embedded"

    def __init__(self, directory: Path, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._documents = _OpenIndex(directory / "documents", analyzer)
        self._passages = _OpenIndex(directory / "passages", analyzer)

    @property
    def num_documents(self) -> int:
        """Rows of the document and title views."""
        return self._documents.num_rows

    @property
    def num_passages(self) -> int:
        """Rows of the passage view."""
        return self._passages.num_rows

    def idf(self, term: str) -> float:
        """BM25's weight of a term of the document view."""
        return bm25_idf(self._documents.searcher.doc_freq("body", term), self.num_documents)

    def rank(self, view: View, query: Query, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (row, score) of a view, ties by row; every row once."""
        index = self._passages if view == "passage" else self._documents
        built = _ViewQuery(index.schema, self._analyzer, view, query).build()
        if built is None:
            return []
        # Neighbouring passages overlap, so a parent's passages tend to come together.
        return index.top_rows(built, k, at_first=2 * k if view == "passage" else k)

    def check_rows(self, num_documents: int) -> None:
        """Raise ``ArtifactError`` unless every document is indexed once, and every passage
        belongs to one."""
        rows = self._documents.all_rows()
        if sorted(rows) != list(range(num_documents)):
            raise ArtifactError(
                f"{num_documents:,} documents, but the document view holds {len(rows):,} rows: "
                "build the index again"
            )
        strays = set(self._passages.all_rows()) - set(rows)
        if strays:
            raise ArtifactError(f"passages of no document: row {min(strays)}; build again")

    def allowed_rows(self, query: Query) -> list[int] | None:
        """Ascending rows of the documents that meet the query's phrases and site; None for all."""
        constraints = _ViewQuery(self._documents.schema, self._analyzer, "title", query).filters()
        if not constraints:
            return None
        ranked = self._documents.top_rows(
            tantivy.Query.boolean_query(constraints), self.num_documents
        )
        return [row for row, _ in ranked]


class _OpenIndex:
    """One tantivy index, open for reading."""

    def __init__(self, directory: Path, analyzer: Analyzer) -> None:
        try:
            index = tantivy.Index.open(str(directory))
        except ValueError as error:
            raise ArtifactError(f"{directory} is no readable index: {error}") from None
        index.register_tokenizer(_ANALYZER, analyzer.engine_analyzer)
        # The directory never changes once published: no thread has to watch it.
        index.config_reader(reload_policy="manual")
        index.reload()
        self.schema = index.schema
        self.searcher = index.searcher()
        self.num_rows = self.searcher.num_docs

    def all_rows(self) -> list[int]:
        """Rows of everything that is indexed."""
        found = self.searcher.search(tantivy.Query.all_query(), max(1, self.num_rows), count=False)
        addresses = [address for _, address in found.hits]
        return cast(list[int], self.searcher.fast_field_values("row", addresses))

    def top_rows(
        self, query: tantivy.Query, k: int, at_first: int | None = None
    ) -> list[tuple[int, float]]:
        """The best ``k`` (row, score), each row once; ``at_first`` hits are fetched to begin."""
        limit = at_first or k
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            addresses = [address for _, address in hits]
            rows = cast(list[int], self.searcher.fast_field_values("row", addresses))
            best: dict[int, float] = {}
            for row, (score, _) in zip(rows, hits, strict=True):
                best.setdefault(row, score)
            ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
            if len(hits) < limit:
                return ranked[:k]
            # A tie cut by the limit may hide a row that comes first; inside one segment tantivy
            # itself breaks ties in row order.
            in_order = self.searcher.num_segments == 1 or hits[-1][0] < ranked[k - 1][1]
            if len(ranked) >= k and in_order:
                return ranked[:k]
            limit *= 2


class _ViewQuery:
    """Builds the tantivy query of one view; text never reaches tantivy's own query parser.

    Phrases and the site are constraints (on the document; in the passage view a phrase has to
    stand in the passage). Where no scored phrase is required, a keyword has to match, so that
    a constraint alone does not fill a view with documents that the keywords do not touch.
    """

    def __init__(
        self, schema: tantivy.Schema, analyzer: Analyzer, view: View, query: Query
    ) -> None:
        self.schema = schema
        self.view = view
        self.site = query.site
        self.phrases = [p for text in query.phrases if (p := analyzer.positioned(text))]
        # A title is ranked by the words of phrases too: the phrase itself is sought in the body.
        words = query.keywords + query.phrases if view == "title" else query.keywords
        self.terms = analyzer.keyword_terms(" ".join(words))[:MAX_QUERY_TERMS]

    def build(self) -> tantivy.Query | None:
        """None when the query names nothing to look for."""
        must, should = tantivy.Occur.Must, tantivy.Occur.Should
        field = _FIELDS[self.view]
        keywords = [(should, self._term(field, term)) for term in self.terms]
        if self.view == "title":
            clauses = self.filters()
        else:
            clauses = [(must, self._phrase(field, p)) for p in self.phrases] + self._site_filter()
        if keywords and (self.view == "title" or not self.phrases):
            clauses.append((must, tantivy.Query.boolean_query(keywords)))
        else:
            clauses += keywords
        return tantivy.Query.boolean_query(clauses) if clauses else None

    def filters(self) -> list[tuple[tantivy.Occur, tantivy.Query]]:
        """Phrases and site as constraints on a document, without a score."""
        phrases = [(tantivy.Occur.Must, _unscored(self._phrase("body", p))) for p in self.phrases]
        return phrases + self._site_filter()

    def _site_filter(self) -> list[tuple[tantivy.Occur, tantivy.Query]]:
        if self.site is None:
            return []
        query = tantivy.Query.term_query(self.schema, "site", self.site, index_option="basic")
        return [(tantivy.Occur.Must, _unscored(query))]

    def _term(self, field: str, term: tuple[str, ...]) -> tantivy.Query:
        if len(term) == 1:
            return tantivy.Query.term_query(self.schema, field, term[0])
        return tantivy.Query.phrase_query(self.schema, field, list(term))

    def _phrase(self, field: str, tokens: list[tuple[int, str]]) -> tantivy.Query:
        if len(tokens) == 1:
            return self._term(field, (tokens[0][1],))
        # With positions, a word too long to be indexed leaves its gap.
        return tantivy.Query.phrase_query(self.schema, field, list(tokens))


def _unscored(query: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.const_score_query(query, 0.0)
