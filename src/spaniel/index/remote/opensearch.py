"""The three views on a cluster of OpenSearch, or of Elasticsearch from version 7 on.

Documents and passages lie in two indexes over any number of shards; fusion, query language,
snippets and texts stay here. What is indexed are our own terms (``opensearch_load.py``), so that
stemming, stop words and phrases are those of the embedded index. Each search first gathers the
statistics of all shards, so BM25 is that of one index.

    <name>-documents   body (title, then text), title, site, row
    <name>-passages    body, site, row of the parent

A part of the index that does not answer in time is a failure: on its own the cluster would
return what the others found.
"""

from functools import lru_cache
from typing import Any

from spaniel.config import OpenSearchConfig
from spaniel.errors import ArtifactError, QueryError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.backend import View
from spaniel.index.query import Query
from spaniel.index.remote.cluster import Cluster
from spaniel.index.remote.opensearch_load import GAP, index_names, loaded_counts, site_token
from spaniel.index.remote.tokens import in_place
from spaniel.index.snippet import bm25_idf
from spaniel.index.wanted import Phrase, Wanted, wanted
from spaniel.store import hash_of

MAX_WORDS = 900
"""Words of a query's phrases; a cluster refuses a query of more than 1,024 clauses."""
_PAGE = 10_000
"""Rows of one answer: the most that a cluster gives by default."""

Clause = dict[str, Any]
"""A query of the cluster's query language."""


class OpenSearchViews:
    """A ``ViewBackend`` on a cluster that ``load_opensearch`` filled.

    Args:
        cfg: where the cluster answers, and its settings of BM25.
        analyzer: that of the index.
        content: hash of the documents and their analysis; the cluster has to hold the same.

    Raises:
        ConfigError: httpx is missing, or the cluster does not let us in.
        ToolError: the cluster, or a part of it, does not answer.
        ArtifactError: it does not hold this index, or was not loaded to the end.
    """

    waits = True

    def __init__(self, cfg: OpenSearchConfig, analyzer: Analyzer, *, content: str) -> None:
        self._cfg, self._analyzer = cfg, analyzer
        self._documents, self._passages = index_names(cfg, content)
        self._cluster = Cluster(cfg, timeout_s=cfg.timeout_s)
        try:
            counts = loaded_counts(self._cluster, cfg, content)
            if counts is None:
                raise ArtifactError(
                    f"{self._cluster.who} does not hold this index with k1={cfg.k1}, b={cfg.b}, or "
                    "was not loaded to the end: run `spaniel index load`"
                )
            self.num_documents, self.num_passages = counts
            found = (self._count(self._documents), self._count(self._passages))
            if found != counts:
                raise ArtifactError(
                    f"{self._cluster.who}: documents and passages must number {counts}, got "
                    f"{found}: delete {self._documents} and {self._passages}, and run `spaniel "
                    "index load`"
                )
        except BaseException:
            self.close()
            raise
        self.idf = lru_cache(maxsize=100_000)(self._idf)

    @property
    def fingerprint(self) -> str:
        """Hash of the formula; statistics are those of the whole index."""
        return hash_of(["opensearch", self._cfg.k1, self._cfg.b])

    def rank(self, view: View, query: Query, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (row, score) of a view, ties by row; every row once.

        Raises:
            QueryError: the query's phrases hold more than ``MAX_WORDS`` words.
            ToolError: the cluster, or a part of it, does not answer.
        """
        clause = view_clause(view, wanted(self._analyzer, view, query))
        if clause is None:
            return []
        body: dict[str, Any] = {
            "query": clause,
            "sort": [{"_score": "desc"}, {"row": "asc"}],
            "size": min(k, self.num_documents),
        }
        if view == "passage":
            body["collapse"] = {"field": "row"}
        hits = self._search(self._passages if view == "passage" else self._documents, body)
        return [(int(row), float(score)) for score, row in hits]

    def allowed_rows(self, query: Query) -> list[int] | None:
        """Ascending rows of the documents that meet the query's phrases and site; None for all."""
        filters = _filters(wanted(self._analyzer, "title", query))
        if not filters:
            return None
        rows: list[int] = []
        while True:
            # By row and not by search_after, which has lost rows over several shards
            # (https://github.com/opensearch-project/OpenSearch/issues/14824).
            behind = [{"range": {"row": {"gt": rows[-1]}}}] if rows else []
            body = {
                "query": {"bool": {"filter": filters + behind}},
                "sort": [{"row": "asc"}],
                "size": _PAGE,
            }
            page = [int(row) for (row,) in self._search(self._documents, body)]
            rows += page
            if len(page) < _PAGE:
                return rows

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _idf(self, term: str) -> float:
        found = self._count(self._documents, _term("body", (term,)))
        return bm25_idf(found, self.num_documents)

    def _search(self, index: str, body: dict[str, Any]) -> list[list[Any]]:
        """What each hit was sorted by."""
        body |= {
            "_source": False,
            "track_total_hits": False,
            "timeout": f"{round(self._cfg.timeout_s * 1000)}ms",
        }
        whole = {
            "search_type": "dfs_query_then_fetch",
            "allow_partial_search_results": "false",
        }
        answer = self._cluster.ask("POST", f"/{index}/_search", body, params=whole)
        _check_whole(answer, self._cluster.who)
        try:
            return [hit["sort"] for hit in answer["hits"]["hits"]]
        except (KeyError, TypeError) as error:
            raise ToolError(f"{self._cluster.who}: no search result: {error!r}") from None

    def _count(self, index: str, clause: Clause | None = None) -> int:
        body = {"query": clause or {"match_all": {}}}
        answer = self._cluster.ask("POST", f"/{index}/_count", body)
        _check_whole(answer, self._cluster.who)
        return int(answer["count"])


def _check_whole(answer: dict[str, Any], who: str) -> None:
    """Raise ``ToolError`` unless every shard answered in time."""
    if answer.get("timed_out"):
        raise ToolError(f"{who}: a part of the index did not answer in time")
    shards = answer.get("_shards")
    if not isinstance(shards, dict):
        raise ToolError(f"{who}: the answer does not say which shards it is from")
    # A shard that is on the move has been neither failed nor successful
    # (https://github.com/elastic/elasticsearch/pull/45739).
    if shards.get("failed") != 0 or shards.get("successful") != shards.get("total"):
        raise ToolError(
            f"{who}: a part of the index failed: {shards.get('successful')} of "
            f"{shards.get('total')} shards answered"
        )


# --- queries ------------------------------------------------------------------------------


def view_clause(view: View, w: Wanted) -> Clause | None:
    """The query of one view; None when it names nothing to look for.

    Raises:
        QueryError: the phrases hold more than ``MAX_WORDS`` words.
    """
    if not w.terms and not w.phrases and w.site is None:
        return None
    terms = [_term("title" if view == "title" else "body", term) for term in w.terms]
    if view == "title":
        required, filters = [], _filters(w)
    else:
        required, filters = _phrases(w), _site_filter(w)
    if w.needs_term:
        required.append({"bool": {"should": terms, "minimum_should_match": 1}})
        terms = []
    return {
        "bool": {"must": required, "filter": filters, "should": terms, "minimum_should_match": 0}
    }


def _filters(w: Wanted) -> list[Clause]:
    """Phrases and site as constraints on a document, without a score."""
    return _phrases(w) + _site_filter(w)


def _site_filter(w: Wanted) -> list[Clause]:
    return [] if w.site is None else [{"term": {"site": {"value": site_token(w.site)}}}]


def _phrases(w: Wanted) -> list[Clause]:
    num_words = sum(map(len, w.phrases))
    if num_words > MAX_WORDS:
        raise QueryError(f"exact phrases may hold {MAX_WORDS} words, got {num_words}")
    return [_phrase(phrase) for phrase in w.phrases]


def _phrase(phrase: Phrase) -> Clause:
    if len(phrase) == 1:
        return _term("body", (phrase[0][1],))
    text = " ".join(in_place(phrase, GAP, first=phrase[0][0]))
    return {"match_phrase": {"body": {"query": text}}}


def _term(field: str, term: tuple[str, ...]) -> Clause:
    if len(term) == 1:
        return {"term": {field: {"value": term[0]}}}
    return {"match_phrase": {field: {"query": " ".join(term)}}}
