"""The three views on a cluster that speaks SphinxQL: Manticore, or Sphinx.

Documents and passages lie in tables over any number of shards; fusion, query language, snippets
and texts stay here. What is indexed are our own terms, one token each, so that stemming, stop
words and phrases are those of the embedded index, and only the statistics of BM25 are the
engine's, each shard its own.

    <documents>   body (title, then text), title; row, site
    <passages>    body; row of the parent, site

A shard that does not answer is a failure: the engine itself would only warn, and return fewer
rows.
"""

import hashlib
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from spaniel.config import IndexConfig, ShardConfig, SphinxConfig
from spaniel.errors import ArtifactError, ConfigError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.backend import View
from spaniel.index.passages import passages_of
from spaniel.index.query import Query, sites_of
from spaniel.index.remote.tokens import in_place, plain_token
from spaniel.index.snippet import bm25_idf
from spaniel.index.wanted import Phrase, wanted
from spaniel.progress import track
from spaniel.store import hash_of
from spaniel.types import Document

ROWS_AN_INSERT = 500
_SEPARATOR = "zzz0"
"""Between title and text, so that no phrase reaches from one into the other."""
_MARK = "zzz1"
"""Beginning of the one token of the row that says what a shard holds."""
_GAP = "zzz2"
"""In the place of a word too long to be indexed."""
_MARK_ID = 2**61
_SCALE = 100_000
"""Weights are whole numbers in Sphinx."""


def site_number(site: str) -> int:
    """A site as a positive 63-bit number."""
    digest = hashlib.sha256(site.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SphinxViews:
    """A ``ViewBackend`` on a cluster that ``load_sphinx`` filled.

    Args:
        cfg: where the cluster answers, and its tables.
        analyzer: that of the index.
        content: hash of the documents and their analysis; the cluster has to hold the same.

    Raises:
        ConfigError: PyMySQL is missing.
        ToolError: the cluster does not answer.
        ArtifactError: it holds other documents, or was not loaded to the end.
    """

    waits = True

    def __init__(self, cfg: SphinxConfig, analyzer: Analyzer, *, content: str) -> None:
        self._cfg, self._analyzer = cfg, analyzer
        self._connections = _Connections(cfg.host, cfg.port, cfg.timeout_s)
        for table in (cfg.documents, cfg.passages):
            marks = self._count(table, _MARK + content)
            if marks != cfg.num_shards:
                raise ArtifactError(
                    f"{cfg.host}:{cfg.port}: {marks} of {cfg.num_shards} shards of {table} hold "
                    "this index: run `spaniel index load` (and check sphinx.shards)"
                )
        self.num_documents = self._count(cfg.documents) - cfg.num_shards
        self.num_passages = self._count(cfg.passages) - cfg.num_shards
        self.idf = lru_cache(maxsize=100_000)(self._idf)

    @property
    def fingerprint(self) -> str:
        """Hash of the formula and the number of shards, which have statistics of their own."""
        return hash_of(["sphinx", self._cfg.k1, self._cfg.b, self._cfg.num_shards])

    def rank(self, view: View, query: Query, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (row, score) of a view, ties by row; every row once.

        Raises:
            ToolError: the cluster, or a shard of it, does not answer.
        """
        match, sites = _MatchOf(self._analyzer, view, query).build()
        if match is None and not sites:
            return []
        table = self._cfg.passages if view == "passage" else self._cfg.documents
        where = [*(["MATCH(%s)"] if match else []), *(["site = %s"] * len(sites))]
        scored = "title" if view == "title" else "body"
        fields = ["body"] if view == "passage" else ["body", "title"]
        weights = ", ".join(f"{f}={int(f == scored)}" for f in fields)
        ranker = f"bm25f({self._cfg.k1}, {self._cfg.b}, {{{weights}}}) * {_SCALE}"
        sql = (
            f"SELECT row, WEIGHT() AS w FROM {table} WHERE {' AND '.join(where)} "
            f"GROUP BY row WITHIN GROUP ORDER BY w DESC ORDER BY w DESC, row ASC LIMIT {k} "
            f"OPTION ranker = expr(%s), idf = 'plain,tfidf_unnormalized', "
            f"max_matches = {max(1000, 20 * k)}"
        )
        arguments = [*([match] if match else []), *sites, ranker]
        rows, _ = self._connections.ask(sql, arguments)
        return [(int(row), weight / _SCALE) for row, weight in rows]

    def allowed_rows(self, query: Query) -> list[int] | None:
        """Ascending rows of the documents that meet the query's phrases and site; None for all."""
        built = _MatchOf(self._analyzer, "title", query)
        phrases, sites = built.phrases_in_body(), built.sites()
        if not phrases and not sites:
            return None
        where = [*(["MATCH(%s)"] if phrases else []), *(["site = %s"] * len(sites))]
        sql = (
            f"SELECT row FROM {self._cfg.documents} WHERE {' AND '.join(where)} "
            f"ORDER BY row ASC LIMIT {self.num_documents} "
            f"OPTION max_matches = {max(1000, self.num_documents)}"
        )
        rows, _ = self._connections.ask(sql, [*([phrases] if phrases else []), *sites])
        return sorted(int(row) for (row,) in rows)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _idf(self, term: str) -> float:
        return bm25_idf(self._count(self._cfg.documents, plain_token(term)), self.num_documents)

    def _count(self, table: str, token: str | None = None) -> int:
        where, arguments = ("WHERE MATCH(%s)", [f"@body {token}"]) if token else ("", [])
        sql = f"SELECT row FROM {table} {where} LIMIT 1 OPTION ranker = none"
        _, meta = self._connections.ask(sql, arguments)
        return int(meta["total_found"])


class _MatchOf:
    """A query of one view as text for ``MATCH`` and numbers for ``site``."""

    def __init__(self, analyzer: Analyzer, view: View, query: Query) -> None:
        self.view = view
        self.wanted = wanted(analyzer, view, query)

    def build(self) -> tuple[str | None, list[int]]:
        """(match, sites); no match when there is nothing to look for but the site."""
        field = "title" if self.view == "title" else "body"
        keywords = " | ".join(_term(term) for term in self.wanted.terms)
        any_of = f"(@{field} ({keywords}))" if keywords else ""
        phrases = self.phrases_in_body()
        if phrases and any_of and not self.wanted.needs_term:
            return f"({phrases}) MAYBE {any_of}", self.sites()
        return " ".join(part for part in (any_of, phrases) if part) or None, self.sites()

    def phrases_in_body(self) -> str:
        """All phrases as a constraint; empty without any."""
        return " ".join(f"(@body {_phrase(phrase)})" for phrase in self.wanted.phrases)

    def sites(self) -> list[int]:
        """The number of the site, if there is one."""
        return [] if self.wanted.site is None else [site_number(self.wanted.site)]


def _term(term: Sequence[str]) -> str:
    tokens = " ".join(map(plain_token, term))
    return tokens if len(term) == 1 else f'"{tokens}"'


def _phrase(phrase: Phrase) -> str:
    """Tokens at their distance; a word that is not indexed leaves a place that anything fills."""
    places = in_place(phrase, "*", first=phrase[0][0], token=plain_token)
    return places[0] if len(places) == 1 else f'"{" ".join(places)}"'


# --- loading ------------------------------------------------------------------------------


def load_sphinx(
    documents: Iterable[Document], count: int, cfg: SphinxConfig, index: IndexConfig, content: str
) -> tuple[int, int]:
    """Fill the cluster's tables with an index's documents, given in row order.

    Rows go to the shards in turn, a document's passages to its own shard. Each shard is marked
    when it is complete, so that a load that died is noticed.

    Returns:
        (documents, passages) loaded.

    Raises:
        ToolError: a shard does not answer.
    """
    analyzer = Analyzer(index.language)
    loaded = cfg.loaded_shards()
    shards = [_Shard(shard, i, len(loaded), cfg.timeout_s) for i, shard in enumerate(loaded)]
    num_passages = 0
    try:
        for row, document in enumerate(track(documents, "loading", count, "docs")):
            num_passages += shards[row % len(shards)].add(row, document, analyzer, index)
        for shard in shards:
            shard.finish(content)
    finally:
        for shard in shards:
            shard.close()
    return row + 1, num_passages


class _Shard:
    """The tables of one shard, filled from empty.

    Ids differ between shards: a distributed table takes equal ones for one and the same row.
    """

    def __init__(self, cfg: ShardConfig, number: int, num_shards: int, timeout_s: float) -> None:
        self._cfg, self._number, self._num_shards = cfg, number, num_shards
        self._connections = _Connections(cfg.host, cfg.port, timeout_s)
        self._waiting: dict[str, list[tuple[Any, ...]]] = {cfg.documents: [], cfg.passages: []}
        self._num_passages = 0
        for table in self._waiting:
            self._connections.ask(f"TRUNCATE RTINDEX {table}", [])

    def add(self, row: int, document: Document, analyzer: Analyzer, index: IndexConfig) -> int:
        """One document and its passages; returns their number."""
        cfg = self._cfg
        title = _tokens(analyzer, document.title)
        text = _tokens(analyzer, document.text)
        sites = [site_number(site) for site in sites_of(document.url)]
        body = f"{title} {_SEPARATOR} {text}"
        self._put(cfg.documents, (row + 1, body, title, row, sites))
        passages = passages_of(
            document, words=index.passage_words, stride=index.passage_stride_words
        )
        for passage in passages:
            self._num_passages += 1
            own_id = self._num_passages * self._num_shards + self._number
            tokens = _tokens(analyzer, document.text[passage.start : passage.end])
            self._put(cfg.passages, (own_id, tokens, row, sites))
        return len(passages)

    def finish(self, content: str) -> None:
        """Write what waits, and the mark."""
        for table in self._waiting:
            self._flush(table)
        mark = _MARK + content
        self._put(self._cfg.documents, (_MARK_ID + self._number, mark, "", 0, []))
        self._put(self._cfg.passages, (_MARK_ID + self._number, mark, 0, []))
        for table in self._waiting:
            self._flush(table)

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()

    def _put(self, table: str, values: tuple[Any, ...]) -> None:
        self._waiting[table].append(values)
        if len(self._waiting[table]) >= ROWS_AN_INSERT:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows, self._waiting[table] = self._waiting[table], []
        if not rows:
            return
        names = "id, body, title, row, site" if len(rows[0]) == 5 else "id, body, row, site"
        marks = ", ".join(_placeholders(values) for values in rows)
        arguments = [v for values in rows for v in values if not isinstance(v, list)]
        self._connections.ask(f"INSERT INTO {table} ({names}) VALUES {marks}", arguments)


def _placeholders(values: tuple[Any, ...]) -> str:
    parts = [f"({', '.join(map(str, v))})" if isinstance(v, list) else "%s" for v in values]
    return f"({', '.join(parts)})"


def _tokens(analyzer: Analyzer, text: str) -> str:
    return " ".join(in_place(analyzer.positioned(text), _GAP, token=plain_token))


def sphinx_tables(documents: str, passages: str, path: str, *, memory: str = "256M") -> str:
    """The two tables of a shard, for the configuration file of Sphinx or Manticore.

    Args:
        path: folder of the table files.
    """
    lines = []
    for table, fields in ((documents, ("body", "title")), (passages, ("body",))):
        lines += [f"index {table} {{", "  type = rt", f"  path = {path}/{table}"]
        lines += [f"  rt_field = {field}" for field in fields]
        lines += ["  rt_attr_bigint = row", "  rt_attr_multi_64 = site"]
        lines += ["  index_field_lengths = 1", f"  rt_mem_limit = {memory}", "}"]
    return "\n".join(lines) + "\n"


# --- the wire -----------------------------------------------------------------------------


class _Connections:
    """One connection a thread; a broken one is opened again once."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            import pymysql
        except ImportError:
            raise ConfigError("SphinxQL needs PyMySQL: pip install 'spaniel[sphinx]'") from None
        self._pymysql = pymysql
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._local = threading.local()
        self._all: list[Any] = []

    def ask(
        self, sql: str, arguments: Sequence[Any]
    ) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
        """Rows, and what the engine says about the query.

        Raises:
            ToolError: it failed, or a part of it did.
        """
        for attempt in (1, 2):
            try:
                rows, meta = self._asked(sql, arguments)
                break
            except (self._pymysql.MySQLError, OSError) as error:
                self._drop()
                # Nothing was written by a query that could not be sent or is only read.
                if attempt == 2 or not self._is_lost(error) or not sql.startswith("SELECT"):
                    raise ToolError(f"SphinxQL at {self._host}:{self._port}: {error}") from None
        complaint = meta.get("warning") or meta.get("error")
        if complaint:
            raise ToolError(
                f"SphinxQL at {self._host}:{self._port}: a part of the index failed: {complaint}"
            )
        return rows, meta

    def close(self) -> None:
        """Close all."""
        for connection in self._all:
            if connection.open:
                connection.close()

    def _asked(
        self, sql: str, arguments: Sequence[Any]
    ) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._pymysql.connect(
                host=self._host,
                port=self._port,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=self._timeout_s,
                read_timeout=self._timeout_s,
                write_timeout=self._timeout_s,
            )
            self._all.append(connection)
        with closing(connection.cursor()) as cursor:
            cursor.execute(sql, list(arguments))
            rows = list(cursor.fetchall())
            meta: dict[str, str] = {}
            if sql.startswith("SELECT"):
                cursor.execute("SHOW META")
                meta = {str(name): str(value) for name, value in cursor.fetchall()}
        return rows, meta

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None and connection.open:
            connection.close()

    def _is_lost(self, error: Exception) -> bool:
        """Whether the connection broke, and not the query."""
        return isinstance(error, OSError) or (
            isinstance(error, self._pymysql.OperationalError) and error.args[0] in (2006, 2013, 0)
        )
