"""One web-search API asked over HTTP: key, budget, retries, and every failure as an error."""

import json
import os
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from spaniel.config import LiveConfig
from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError, ToolError
from spaniel.index.live.providers import PROVIDERS, WebResult
from spaniel.index.live.urls import normalised_url
from spaniel.index.query import Query
from spaniel.index.remote.retry import Breaker, Retries, error_of

FAILURES_BEFORE_PAUSE = 8
PAUSE_S = 5.0
"""After so many failures in a row calls fail at once, for so long."""


class SearchApi:
    """Asks the API. Safe to use from several threads.

    Attributes:
        num_requests: sent so far, repeated ones included.

    Raises:
        ConfigError: there is no key, or the address is none.
    """

    def __init__(self, cfg: LiveConfig) -> None:
        httpx = import_extra("httpx", "live")
        self._cfg = cfg
        self._provider = PROVIDERS[cfg.provider]
        self._base = base_url(cfg)
        self._key = _key(cfg)
        self._client = httpx.Client(timeout=cfg.timeout_s)
        self._who = f"{cfg.provider} at {self._base}"
        self._retries = Retries(
            self._who,
            cfg.max_retries,
            failures=httpx.TransportError,
            breaker=Breaker(FAILURES_BEFORE_PAUSE, PAUSE_S),
            describe=self._said,
        )
        self._lock = threading.Lock()
        self.num_requests = 0

    def search(self, query: Query, count: int) -> list[WebResult]:
        """The results, as the API gives them; an empty list when nothing was found.

        Raises:
            ConfigError: the key is refused.
            ToolError: the API failed after all retries, its answer cannot be read, or the
                budget is spent.
        """
        request = self._provider.request(query, count, self._key)

        def send() -> Any:
            self._count()
            return self._client.request(
                request.method,
                self._base + request.path,
                params=request.params,
                json=request.json,
                headers=request.headers,
            )

        return self._results(self._retries.send(send))

    def can_be_reached(self) -> bool:
        """Whether its server takes a connection: the network works. Costs nothing."""
        parts = urlsplit(self._base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname, port), timeout=self._cfg.timeout_s):
                return True
        except OSError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _results(self, response: Any) -> list[WebResult]:
        status, said = response.status_code, self._said(response.content)
        if status in (401, 403):
            raise ConfigError(self._refused(status, said))
        if status != 200:
            raise ToolError(f"{self._who}: status {status}: {said}")
        try:
            answer = json.loads(response.content)
        except ValueError:
            raise ToolError(f"{self._who}: the answer is not JSON: {said[:60]!r}") from None
        try:
            return self._provider.results(answer)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ToolError(
                f"{self._who}: the answer is none of {self._cfg.provider}'s: {said[:60]!r}"
            ) from None

    def _refused(self, status: int, said: str) -> str:
        if self._cfg.provider == "searxng" and not self._key:
            return (
                f"{self._who} refuses to answer (status {status}): its settings.yml must list "
                "json under search.formats"
            )
        return f"{self._who} refuses the key in {_key_env(self._cfg)} (status {status}): {said}"

    def _count(self) -> None:
        with self._lock:
            if self.num_requests >= self._cfg.max_requests:
                raise ToolError(
                    f"the budget of {self._cfg.max_requests:,} requests to {self._cfg.provider} is "
                    "spent: raise index.live.max_requests to go on"
                )
            self.num_requests += 1

    def _said(self, content: bytes) -> str:
        # Some servers repeat the key that they refuse.
        said = content.decode("utf-8", errors="replace")
        hidden = said.replace(self._key, "(key)") if self._key else said
        return error_of(hidden.encode())


def base_url(cfg: LiveConfig) -> str:
    """The API's address, without a last slash. Raises ``ConfigError`` when it is none."""
    url = cfg.base_url or PROVIDERS[cfg.provider].base_url or ""
    if not normalised_url(url):
        raise ConfigError(f"index.live.base_url must be an http or https address, got {url!r}")
    return url.rstrip("/")


def _key_env(cfg: LiveConfig) -> str | None:
    return cfg.api_key_env or PROVIDERS[cfg.provider].key_env


def _key(cfg: LiveConfig) -> str:
    name = _key_env(cfg)
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"the key of {cfg.provider} must be in the environment variable {name}")
    # The library would quote it, whole, in its refusal of such a header.
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {name} holds characters that no key has")
    return key
