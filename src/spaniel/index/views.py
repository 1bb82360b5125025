"""Two tantivy indexes a corpus, and the three views that search them by BM25.

Two, because BM25's statistics count every row of an index:

    documents/    body (title, then text), title, site (host, domains above, paths), slot
    passages/     text, site, slot (of the parent)
    rows.npy      int64 [num_slots]: the row of each slot, -1 where the document is gone; not in
                  an index that was written at once, whose slots are rows and in order

A *slot* is the number under which a document came, and stays; its row, the place in docid order,
moves when others come and go.

The views are ``document`` (searches body), ``title`` and ``passage``, whose hits stand for their
parents. Scores are BM25 with k1 = 1.2 and b = 0.75, which tantivy fixes, over document lengths
as tantivy rounds them (about three significant bits).
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import tantivy
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError
from spaniel.index.analysis import Analyzer, normalize
from spaniel.index.backend import View
from spaniel.index.passages import passages_of
from spaniel.index.query import Query, sites_of
from spaniel.index.snippet import bm25_idf
from spaniel.index.wanted import Phrase, Wanted, wanted
from spaniel.types import Document

ROWS = "rows.npy"
_SPARE = 16
_FIELDS: dict[View, str] = {"document": "body", "passage": "text", "title": "title"}
_ANALYZER = "spaniel"
# With one thread and room for everything an index is one segment, in row order. Only what is
# needed is allocated: about 0.4 GB for a million passages.
_HEAP_BYTES = 3_000_000_000


# --- writing ------------------------------------------------------------------------------


class ViewsWriter:
    """Writes the indexes of a directory, new or not; what is committed outlasts a crash.

    Use as a context: what was added or removed since the last ``commit`` is lost when the body
    raises.

    Raises:
        ConfigError: the language has no stemmer.
        ArtifactError: the directory holds something that is no index.
        OSError: something cannot be written, such as to a full disk; from all methods.
    """

    def __init__(self, directory: Path, cfg: IndexConfig) -> None:
        self._cfg, self._directory = cfg, directory
        analyzer = Analyzer(cfg.language)
        self._whole, whole = _open_or_create(directory / "documents", ("body", "title"), analyzer)
        self._parts, parts = _open_or_create(directory / "passages", ("text",), analyzer)
        self._schemas = (whole, parts)

    def __enter__(self) -> "ViewsWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failure too: their threads would go on writing into a directory being removed.
        for writer in (self._whole, self._parts):
            try:
                writer.wait_merging_threads()
            except ValueError as error:
                if kind is None:
                    raise self._failed(error) from None

    def add(self, slot: int, document: Document) -> int:
        """Index a document under a number of its own; returns how many passages it has.

        Raises:
            ConfigError: the stride is longer than a passage.
        """
        sites = [("site", site) for site in sites_of(document.url)]
        title = normalize(document.title)
        # Two values of one field: no phrase reaches from the title into the text.
        texts = [("body", title), ("body", normalize(document.text)), ("title", title)]
        self._write(self._whole, _entry(slot, texts + sites))
        passages = passages_of(
            document, words=self._cfg.passage_words, stride=self._cfg.passage_stride_words
        )
        for passage in passages:
            text = normalize(document.text[passage.start : passage.end])
            self._write(self._parts, _entry(slot, [("text", text), *sites]))
        return len(passages)

    def remove(self, slots: Sequence[int]) -> None:
        """Take documents and their passages out."""
        unsigned = tantivy.FieldType.Unsigned
        for writer, schema in zip((self._whole, self._parts), self._schemas, strict=True):
            for slot in slots:
                query = tantivy.Query.range_query(schema, "slot", unsigned, slot, slot)
                writer.delete_documents_by_query(query)

    def commit(self) -> None:
        """What was done so far is on disk for good."""
        for writer in (self._whole, self._parts):
            try:
                writer.commit()
            except ValueError as error:
                raise self._failed(error) from None

    def _write(self, writer: tantivy.IndexWriter, entry: tantivy.Document) -> None:
        try:
            writer.add_document(entry)
        except ValueError as error:
            raise self._failed(error) from None

    def _failed(self, error: ValueError) -> OSError:
        # tantivy tells why its thread died in words that a user can do nothing with.
        free = shutil.disk_usage(self._directory).free
        return OSError(
            f"{self._directory}: the index cannot be written, with {free / 2**20:,.0f} MiB free on "
            f"that disk ({error})"
        )


def _open_or_create(
    directory: Path, fields: Sequence[str], analyzer: Analyzer
) -> tuple[tantivy.IndexWriter, tantivy.Schema]:
    directory.mkdir(parents=True, exist_ok=True)
    builder = tantivy.SchemaBuilder()
    for name in fields:
        builder.add_text_field(name, tokenizer_name=_ANALYZER, index_option="position")
    builder.add_text_field("site", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("slot", fast=True, indexed=True)
    try:
        index = tantivy.Index(builder.build(), path=str(directory))
    except ValueError as error:
        raise ArtifactError(f"{directory} is no index to write to: {error}") from None
    index.register_tokenizer(_ANALYZER, analyzer.engine_analyzer)
    # More threads would deal the documents out to segments in another way each time.
    return index.writer(_HEAP_BYTES, num_threads=1), index.schema


def _entry(slot: int, texts: Iterable[tuple[str, str]]) -> tantivy.Document:
    entry = tantivy.Document()
    # As a plain int it would be a signed value, which kills the writer of an unsigned field.
    entry.add_unsigned("slot", slot)
    for field, text in texts:
        entry.add_text(field, text)
    return entry


# --- searching ----------------------------------------------------------------------------


class Views:
    """The ``ViewBackend`` over a directory that a ``ViewsWriter`` wrote and ``rows.npy``."""

    waits = False
    fingerprint = "embedded"

    def __init__(self, directory: Path, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        rows = load_rows(directory)
        self._documents = _OpenIndex(directory / "documents", analyzer, rows)
        self._passages = _OpenIndex(directory / "passages", analyzer, rows)

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
        built = _ViewQuery(index.schema, view, wanted(self._analyzer, view, query)).build()
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
        asked = wanted(self._analyzer, "title", query)
        constraints = _ViewQuery(self._documents.schema, "title", asked).filters()
        if not constraints:
            return None
        ranked = self._documents.top_rows(
            tantivy.Query.boolean_query(constraints), self.num_documents
        )
        return [row for row, _ in ranked]


def load_rows(directory: Path) -> NDArray[np.int64] | None:
    """The row of each slot; None where slots are rows, and in their order in the index.

    Raises:
        ArtifactError: the file cannot be read.
    """
    path = directory / ROWS
    if not path.exists():
        return None
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except (ValueError, EOFError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}): build the index again") from None


class _OpenIndex:
    """One tantivy index, open for reading."""

    def __init__(self, directory: Path, analyzer: Analyzer, rows: NDArray[np.int64] | None) -> None:
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
        self._rows = rows
        # Inside a segment that was written at once tantivy breaks ties in the order of the slots.
        self._ties_by_row = rows is None

    def all_rows(self) -> list[int]:
        """Rows of everything that is indexed."""
        found = self.searcher.search(tantivy.Query.all_query(), max(1, self.num_rows), count=False)
        return self._rows_at([address for _, address in found.hits])

    def _rows_at(self, addresses: Sequence[tantivy.DocAddress]) -> list[int]:
        slots = cast(list[int], self.searcher.fast_field_values("slot", list(addresses)))
        return slots if self._rows is None else cast(list[int], self._rows[slots].tolist())

    def top_rows(
        self, query: tantivy.Query, k: int, at_first: int | None = None
    ) -> list[tuple[int, float]]:
        """The best ``k`` (row, score), each row once; ``at_first`` hits are fetched to begin."""
        # With some to spare a tie at the end need not be fetched again.
        limit = (at_first or k) + (0 if self._ties_by_row else _SPARE)
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            rows = self._rows_at([address for _, address in hits])
            best: dict[int, float] = {}
            for row, (score, _) in zip(rows, hits, strict=True):
                if row not in best:
                    best[row] = score
            ranked = list(best.items())
            if not self._ties_by_row:
                ranked.sort(key=lambda item: (-item[1], item[0]))
            if len(hits) < limit:
                return ranked[:k]
            # A tie cut by the limit may hide a row that comes first.
            if len(ranked) >= k and (self._ties_by_row or hits[-1][0] < ranked[k - 1][1]):
                return ranked[:k]
            limit *= 2


class _ViewQuery:
    """Builds the tantivy query of what a view looks for; text never reaches tantivy's own query
    parser."""

    def __init__(self, schema: tantivy.Schema, view: View, wanted: Wanted) -> None:
        self.schema, self.view, self.wanted = schema, view, wanted

    def build(self) -> tantivy.Query | None:
        """None when there is nothing to look for."""
        must, should = tantivy.Occur.Must, tantivy.Occur.Should
        field = _FIELDS[self.view]
        keywords = [(should, self._term(field, term)) for term in self.wanted.terms]
        if self.view == "title":
            clauses = self.filters()
        else:
            phrases = [(must, self._phrase(field, p)) for p in self.wanted.phrases]
            clauses = phrases + self._site_filter()
        if self.wanted.needs_term:
            clauses.append((must, tantivy.Query.boolean_query(keywords)))
        else:
            clauses += keywords
        return tantivy.Query.boolean_query(clauses) if clauses else None

    def filters(self) -> list[tuple[tantivy.Occur, tantivy.Query]]:
        """Phrases and site as constraints on a document, without a score."""
        must = tantivy.Occur.Must
        phrases = [(must, _unscored(self._phrase("body", p))) for p in self.wanted.phrases]
        return phrases + self._site_filter()

    def _site_filter(self) -> list[tuple[tantivy.Occur, tantivy.Query]]:
        site = self.wanted.site
        if site is None:
            return []
        query = tantivy.Query.term_query(self.schema, "site", site, index_option="basic")
        return [(tantivy.Occur.Must, _unscored(query))]

    def _term(self, field: str, term: tuple[str, ...]) -> tantivy.Query:
        if len(term) == 1:
            return tantivy.Query.term_query(self.schema, field, term[0])
        return tantivy.Query.phrase_query(self.schema, field, list(term))

    def _phrase(self, field: str, tokens: Phrase) -> tantivy.Query:
        if len(tokens) == 1:
            return self._term(field, (tokens[0][1],))
        # With positions, a word too long to be indexed leaves its gap.
        return tantivy.Query.phrase_query(self.schema, field, list(tokens))


def _unscored(query: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.const_score_query(query, 0.0)
