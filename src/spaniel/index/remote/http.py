"""The engine of an index that another process serves (``index/server.py``)."""

import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from spaniel.config import HttpConfig
from spaniel.errors import ArtifactError, ConfigError, QueryError, ToolError
from spaniel.store import from_plain
from spaniel.types import Document, Hit

RETRIED = (429, 500, 502, 503, 504)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
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
        self._httpx = httpx
        self._cfg = cfg
        self._url = cfg.url.rstrip("/")
        self._client = httpx.Client(
            base_url=self._url,
            timeout=httpx.Timeout(cfg.timeout_s, connect=cfg.connect_timeout_s),
            limits=httpx.Limits(
                max_connections=cfg.max_connections, max_keepalive_connections=cfg.max_connections
            ),
            trust_env=False,  # a proxy of the environment is not for the machine next door
        )
        self._breaker = Breaker(cfg.failures_before_pause, cfg.pause_s)
        self._random = random.Random()
        self._documents: OrderedDict[str, Document] = OrderedDict()
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
        with self._lock:
            found = {d: self._documents[d] for d in docids if d in self._documents}
        missing = [d for d in dict.fromkeys(docids) if d not in found]
        if missing:
            answer = self._ask("POST", "/read", {"docids": missing})
            self._check(answer)
            for row in answer["documents"]:
                document = from_plain(Document, row, where=self._url)
                found[document.docid] = document
        self._keep(found)
        return [found[docid] for docid in docids]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- one request -------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        for attempt in range(self._cfg.max_retries + 1):
            self._breaker.check(self._url)
            cause, retry_after = "", 0.0
            try:
                response = self._client.request(
                    method, path, content=content, headers={"content-type": "application/json"}
                )
            except self._httpx.TransportError as error:
                cause = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if response.status_code not in RETRIED:
                    self._breaker.worked()
                    return self._answer(response)
                cause = f"status {response.status_code}: {_error_of(response)}"
                retry_after = _seconds(response.headers.get("retry-after"))
            # A server that is busy is not a server that is down.
            if not cause.startswith("status 429"):
                self._breaker.failed(cause)
            if attempt < self._cfg.max_retries:
                time.sleep(self._pause(attempt, retry_after))
        raise ToolError(
            f"search server {self._url}: {cause} (after {self._cfg.max_retries + 1} attempts)"
        )

    def _pause(self, attempt: int, retry_after: float) -> float:
        backoff: float = FIRST_PAUSE_S * 2**attempt
        # Random: clients that failed together must not come back together.
        wait = backoff * self._random.uniform(0.5, 1.5)
        return min(retry_after + wait, LONGEST_PAUSE_S)

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

    def _keep(self, documents: dict[str, Document]) -> None:
        with self._lock:
            for docid, document in documents.items():
                self._documents[docid] = document
                self._documents.move_to_end(docid)
            while len(self._documents) > DOCUMENTS_KEPT:
                self._documents.popitem(last=False)


class Breaker:
    """Stops asking a server that keeps failing, so that nobody waits for every time-out.

    After ``limit`` failures in a row calls fail at once for ``pause_s``; then one may try, and
    its outcome decides. Safe to use from several threads.
    """

    def __init__(self, limit: int, pause_s: float) -> None:
        self._limit, self._pause_s = limit, pause_s
        self._failures = 0
        self._open_until = 0.0
        self._cause = ""
        self._lock = threading.Lock()

    def check(self, who: str) -> None:
        """Raise ``ToolError`` while the pause lasts."""
        with self._lock:
            if self._failures < self._limit:
                return
            left = self._open_until - time.monotonic()
            if left > 0:
                raise ToolError(
                    f"search server {who} failed {self._failures} times in a row, the last time "
                    f"with {self._cause}; next try in {left:.0f} s"
                )
            # This caller tries; the others go on waiting for its outcome.
            self._open_until = time.monotonic() + self._pause_s

    def worked(self) -> None:
        """A request was answered."""
        with self._lock:
            self._failures = 0

    def failed(self, cause: str) -> None:
        """A request was not answered."""
        with self._lock:
            self._failures += 1
            self._cause = cause
            if self._failures >= self._limit:
                self._open_until = time.monotonic() + self._pause_s


def _error_of(response: Any) -> str:
    try:
        return str(json.loads(response.content)["error"])
    except (ValueError, KeyError, TypeError):
        text: str = response.text
        return text[:120]


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header)) if header else 0.0
    except ValueError:
        return 0.0  # a date: our own pause will do
