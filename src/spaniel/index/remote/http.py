"""The engine of an index that another process serves (``index/server.py``)."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from spaniel.config import HttpConfig
from spaniel.errors import ArtifactError, ConfigError, QueryError, ToolError
from spaniel.index.remote.retry import Breaker, Retries
from spaniel.store import from_plain
from spaniel.types import Document, Hit

DOCUMENTS_KEPT = 4096
"""Documents that are not fetched again: an episode shows a hit's title, then reads it."""


class HttpEngine:
    """A ``SearchEngine`` that asks a search server. Returns what its engine returns.

    Connections are kept and shared between threads. A request that cannot be sent, runs out of
    time, or is answered by 429 or 5xx is sent again after a growing, random pause, or after the
    server's ``Retry-After``. When requests keep failing, ``Breaker`` fails the next ones at once.

    Args:
        cfg: address, time-outs, retries.

    Raises:
        ConfigError: httpx is not installed.
        ToolError: the server does not answer.
    """

    waits = True

    def __init__(self, cfg: HttpConfig) -> None:
        try:
            import httpx
        except ImportError:
            raise ConfigError(
                "index.engine = http needs httpx: pip install 'spaniel[serve]'"
            ) from None
        self._url = cfg.url.rstrip("/")
        self._client = httpx.Client(
            base_url=self._url,
            timeout=httpx.Timeout(cfg.timeout_s, connect=cfg.connect_timeout_s),
            limits=httpx.Limits(
                max_connections=cfg.max_connections, max_keepalive_connections=cfg.max_connections
            ),
            trust_env=False,  # a proxy of the environment is not for the machine next door
        )
        self._retries = Retries(
            f"search server {self._url}",
            cfg.max_retries,
            failures=httpx.TransportError,
            breaker=Breaker(cfg.failures_before_pause, cfg.pause_s),
        )
        self._documents: OrderedDict[str, Document] = OrderedDict()
        self._headings: OrderedDict[str, Document] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self._fingerprint = self._ask("GET", "/health")["fingerprint"]
        except BaseException:
            self.close()
            raise

    @property
    def fingerprint(self) -> str:
        """The served engine's."""
        fingerprint: str = self._fingerprint
        return fingerprint

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits.

        Raises:
            QueryError: the query breaks the query language.
            ToolError: the server failed after all retries, or is known to be down.
            ArtifactError: the server now holds another index.
        """
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in one request."""
        if k < 1:
            raise ConfigError(f"k must be >= 1, got {k}")
        answer = self._ask("POST", "/search", {"queries": list(queries), "k": k})
        self._check(answer)
        results = answer["results"]
        if len(results) != len(queries):
            raise ToolError(f"{self._url}: {len(queries)} queries, {len(results)} results")
        return [[from_plain(Hit, hit, where=self._url) for hit in hits] for hits in results]

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError`` when the index has no such docid."""
        return self.read_batch([docid])[0]

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid; those that are not at hand in one request."""
        return self._read(docids, self._documents, texts=True)

    def headings(self, docids: Sequence[str]) -> list[Document]:
        """Each document without its text; those that are not at hand in one request."""
        return self._read(docids, self._headings, texts=False)

    def _read(
        self, docids: Sequence[str], kept: OrderedDict[str, Document], *, texts: bool
    ) -> list[Document]:
        with self._lock:
            found = {d: kept[d] for d in docids if d in kept}
        missing = [d for d in dict.fromkeys(docids) if d not in found]
        if missing:
            answer = self._ask("POST", "/read", {"docids": missing, "texts": texts})
            self._check(answer)
            for row in answer["documents"]:
                document = from_plain(Document, row, where=self._url)
                found[document.docid] = document
        self._keep(found, kept)
        return [found[docid] for docid in docids]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- one request -------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/json"}
        return self._answer(
            self._retries.send(
                lambda: self._client.request(method, path, content=content, headers=headers)
            )
        )

    def _answer(self, response: Any) -> dict[str, Any]:
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ToolError(f"search server {self._url}: the answer is not a JSON object")
        if response.status_code == 200:
            return answer
        message, kind = str(answer.get("error", "")), answer.get("kind")
        if kind == "query":
            raise QueryError(message)
        if kind == "docid":
            raise KeyError(message)
        raise ToolError(f"search server {self._url}: status {response.status_code}: {message}")

    def _check(self, answer: dict[str, Any]) -> None:
        if answer.get("fingerprint") != self._fingerprint:
            raise ArtifactError(
                f"search server {self._url} now holds another index "
                f"({answer.get('fingerprint')} instead of {self._fingerprint}): start again"
            )

    def _keep(self, documents: dict[str, Document], kept: OrderedDict[str, Document]) -> None:
        with self._lock:
            for docid, document in documents.items():
                kept[docid] = document
                kept.move_to_end(docid)
            while len(kept) > DOCUMENTS_KEPT:
                kept.popitem(last=False)
