"""An index's documents -> the two indexes of a cluster, marked when they are complete.

Names carry a hash of content and BM25 settings, so that a load never changes what somebody else
is searching; whoever wants the room back deletes the old ones.
"""

import hashlib
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from spaniel.config import IndexConfig, OpenSearchConfig
from spaniel.errors import ArtifactError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.passages import passages_of
from spaniel.index.query import sites_of
from spaniel.index.remote.cluster import Cluster, json_lines
from spaniel.index.remote.tokens import in_place
from spaniel.progress import track
from spaniel.store import hash_of
from spaniel.types import Document

FORMAT = 1
"""Of the two indexes; another number has to be loaded again."""
GAP = "_"
"""Takes a place and is not indexed: for a word too long to be, and between title and text, so
that no phrase reaches from one into the other. No term holds this character."""
ROWS_A_REQUEST = 1000
CHARS_A_REQUEST = 4_000_000
LOAD_TIMEOUT_S = 120.0
MAX_ATTEMPTS = 10
"""Of a row that the cluster has no room for at the moment."""
LONGEST_PAUSE_S = 10.0
_WRITTEN = (200, 201, 409)
"""409: by an attempt whose answer was lost; nobody else writes these names."""
_BUSY = (429, 503)
_MAX_SITE_BYTES = 500


def index_names(cfg: OpenSearchConfig, content: str) -> tuple[str, str]:
    """Of documents and passages."""
    name = f"{cfg.index}-{hash_of([FORMAT, content, cfg.k1, cfg.b])}"
    return f"{name}-documents", f"{name}-passages"


def site_token(site: str) -> str:
    """A site as a term; a cluster refuses a very long one."""
    data = site.encode()
    return site if len(data) <= _MAX_SITE_BYTES else hashlib.sha256(data).hexdigest()


def loaded_counts(cluster: Cluster, cfg: OpenSearchConfig, content: str) -> tuple[int, int] | None:
    """(documents, passages) of what was loaded to the end; None without it."""
    marks = [_mark_of(cluster, name) for name in index_names(cfg, content)]
    if marks[0] is None or marks[0] != marks[1] or marks[0].get("content") != content:
        return None
    return int(marks[0]["documents"]), int(marks[0]["passages"])


def load_opensearch(
    documents: Iterable[Document],
    count: int,
    cfg: OpenSearchConfig,
    index: IndexConfig,
    content: str,
) -> tuple[int, int]:
    """Fill a cluster with an index's documents, given in row order, unless it holds them.

    What a load that died left behind is made again.

    Returns:
        (documents, passages) that the cluster holds.

    Raises:
        ConfigError: httpx is missing, or the cluster does not let us in.
        ToolError: the cluster does not answer, or refuses a row.
        ArtifactError: it does not hold what was sent.
    """
    cluster = Cluster(cfg, timeout_s=LOAD_TIMEOUT_S)
    try:
        counts = loaded_counts(cluster, cfg, content)
        if counts is None:
            counts = _load(cluster, documents, count, cfg, index, content)
        return counts
    finally:
        cluster.close()


def _load(
    cluster: Cluster,
    documents: Iterable[Document],
    count: int,
    cfg: OpenSearchConfig,
    index: IndexConfig,
    content: str,
) -> tuple[int, int]:
    analyzer = Analyzer(index.language)
    names = index_names(cfg, content)
    for name, fields in zip(names, (("body", "title"), ("body",)), strict=True):
        cluster.ask("DELETE", f"/{name}", missing={})
        cluster.ask("PUT", f"/{name}", index_body(cfg, fields, max_hits=count))
    whole, parts = (_Bulk(cluster, name) for name in names)
    for row, document in enumerate(track(documents, "loading", count, "docs")):
        sites = [site_token(site) for site in sites_of(document.url)]
        whole.add(str(row), {**_document_fields(document, analyzer), "site": sites, "row": row})
        for number, body in enumerate(_passage_bodies(document, analyzer, index)):
            parts.add(f"{row}-{number}", {"body": body, "site": sites, "row": row})
    counts = (whole.finish(), parts.finish())
    for name, sent in zip(names, counts, strict=True):
        _complete(cluster, name, sent, cfg.num_replicas)
    mark = {"content": content, "documents": counts[0], "passages": counts[1]}
    for name in names:
        cluster.ask("PUT", f"/{name}/_mapping", {"_meta": {"spaniel": mark}})
    return counts


def index_body(cfg: OpenSearchConfig, fields: Iterable[str], *, max_hits: int) -> dict[str, Any]:
    """Settings and mapping of an index.

    Args:
        fields: names of its texts.
        max_hits: the most that one search may ask for.
    """
    text = {"type": "text", "analyzer": "terms", "similarity": "bm25", "index_options": "positions"}
    return {
        "settings": {
            "index": {
                "number_of_shards": cfg.num_shards,
                "number_of_replicas": 0,
                "refresh_interval": "-1",  # once, when all is there
                "max_result_window": max(10_000, max_hits),
                "similarity": {
                    # Every token counts to the length, as in the embedded index.
                    "bm25": {"type": "BM25", "k1": cfg.k1, "b": cfg.b, "discount_overlaps": False}
                },
                "analysis": {
                    # The stop filter keeps the place of what it drops, in phrases too.
                    "filter": {"gaps": {"type": "stop", "stopwords": [GAP]}},
                    "analyzer": {
                        "terms": {"type": "custom", "tokenizer": "whitespace", "filter": ["gaps"]}
                    },
                },
            }
        },
        "mappings": {
            "dynamic": "strict",
            "_source": {"enabled": False},  # the texts are in the store beside the index
            "properties": {
                **dict.fromkeys(fields, text),
                "site": {"type": "keyword", "doc_values": False},
                "row": {"type": "long"},
            },
        },
    }


def _document_fields(document: Document, analyzer: Analyzer) -> dict[str, str]:
    title, text = _tokens(analyzer, document.title), _tokens(analyzer, document.text)
    return {"title": title, "body": f"{title} {GAP} {text}"}


def _passage_bodies(document: Document, analyzer: Analyzer, index: IndexConfig) -> Iterator[str]:
    passages = passages_of(document, words=index.passage_words, stride=index.passage_stride_words)
    for passage in passages:
        yield _tokens(analyzer, document.text[passage.start : passage.end])


def _tokens(analyzer: Analyzer, text: str) -> str:
    return " ".join(in_place(analyzer.positioned(text), GAP))


def _complete(cluster: Cluster, name: str, sent: int, num_replicas: int) -> None:
    """Make the rows searchable, check that all are there, and have copies made."""
    cluster.ask("POST", f"/{name}/_refresh")
    held = cluster.ask("POST", f"/{name}/_count", {"query": {"match_all": {}}})["count"]
    if held != sent:
        raise ArtifactError(f"{cluster.who}: {name} holds {held} of {sent} rows: load again")
    settings = {"index": {"number_of_replicas": num_replicas}}
    cluster.ask("PUT", f"/{name}/_settings", settings)


def _mark_of(cluster: Cluster, name: str) -> dict[str, Any] | None:
    answer = cluster.ask("GET", f"/{name}/_mapping", missing={})
    for found in answer.values():
        mark = found.get("mappings", {}).get("_meta", {}).get("spaniel")
        return mark if isinstance(mark, dict) else None
    return None


class _Bulk:
    """Rows on their way into one index."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._num_chars = self._sent = 0

    def add(self, row_id: str, fields: dict[str, Any]) -> None:
        """One row, under an id of its own."""
        self._waiting.append((row_id, fields))
        self._num_chars += len(fields["body"])
        if len(self._waiting) >= ROWS_A_REQUEST or self._num_chars >= CHARS_A_REQUEST:
            self.finish()

    def finish(self) -> int:
        """Write what waits; returns the rows written so far."""
        rows, self._waiting, self._num_chars = self._waiting, [], 0
        self._sent += len(rows)
        for attempt in range(MAX_ATTEMPTS):
            if not rows:
                return self._sent
            if attempt:
                pause = min(0.1 * 2**attempt, LONGEST_PAUSE_S)
                time.sleep(pause * random.uniform(0.5, 1.0))
            rows = self._write(rows)
        if rows:
            raise ToolError(
                f"{self._cluster.who} had no room for {len(rows)} rows of {self._name} in "
                f"{MAX_ATTEMPTS} attempts"
            )
        return self._sent

    def _write(self, rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
        """Write rows; returns those that the cluster had no room for."""
        lines = (line for i, fields in rows for line in ({"create": {"_id": i}}, fields))
        answer = self._cluster.ask("POST", f"/{self._name}/_bulk", json_lines(lines))
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(rows):
            raise ToolError(f"{self._cluster.who}: a bulk answer does not name each row sent")
        left = []
        for row, item in zip(rows, items, strict=True):
            result = item["create"]
            if result["status"] in _BUSY:
                left.append(row)
            elif result["status"] not in _WRITTEN:
                reason = result.get("error", {}).get("reason", f"status {result['status']}")
                raise ToolError(f"{self._cluster.who}: row {row[0]} of {self._name}: {reason}")
        return left
