"""JSON over HTTP with the nodes of an OpenSearch or Elasticsearch cluster."""

import json
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from spaniel.config import OpenSearchConfig
from spaniel.errors import ConfigError, ToolError
from spaniel.index.remote.retry import Breaker, Retries, error_of

_CONNECT_S = 3.0
_MARGIN_S = 5.0
"""The cluster is to notice first that time is up, and stop its work."""
_FAILURES_BEFORE_PAUSE = 8
_PAUSE_S = 5.0


class Cluster:
    """Asks one node, and the next when that one does not answer. Safe to share between threads.

    Args:
        cfg: addresses and credentials.
        timeout_s: of one request.

    Raises:
        ConfigError: httpx is missing, or a credential or certificate is not there.
    """

    def __init__(self, cfg: OpenSearchConfig, *, timeout_s: float) -> None:
        try:
            import httpx
        except ImportError:
            raise ConfigError(
                "index.opensearch needs httpx: pip install 'spaniel[serve]'"
            ) from None
        self._urls = [url.rstrip("/") for url in cfg.urls]
        self._node = 0
        self.who = f"cluster at {', '.join(self._urls)}"
        """For messages."""
        self._lost: type[Exception] = httpx.TransportError
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s + _MARGIN_S, connect=min(timeout_s, _CONNECT_S)),
            verify=_verify(cfg),
            trust_env=False,  # a proxy of the environment is not for the machine next door
            **_credentials(cfg),
        )
        self._retries = Retries(
            self.who,
            cfg.max_retries,
            failures=httpx.TransportError,
            breaker=Breaker(_FAILURES_BEFORE_PAUSE, _PAUSE_S),
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        missing: Any = None,
    ) -> dict[str, Any]:
        """The answer, a JSON object.

        Args:
            body: sent as JSON; bytes are sent as lines of JSON.
            missing: what to return when there is no such index; an error by default.

        Raises:
            ConfigError: the cluster does not let us in.
            ToolError: it does not answer, or not with what was asked for.
        """
        lines = isinstance(body, bytes)
        content = body if body is None or lines else json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/x-ndjson" if lines else "application/json"}

        def request() -> Any:
            url = self._urls[self._node % len(self._urls)]
            try:
                return self._client.request(
                    method, url + path, params=params, content=content, headers=headers
                )
            except self._lost:
                self._node += 1
                raise

        response = self._retries.send(request)
        status: int = response.status_code
        if status in (401, 403):
            raise ConfigError(
                f"{self.who} does not let us in ({status}): check index.opensearch.user_env, "
                "password_env, api_key_env and the user's rights"
            )
        if status == 404 and missing is not None:
            return dict(missing)
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = None
        if status >= 300 or not isinstance(answer, dict):
            raise ToolError(f"{self.who}: {method} {path}: {status} {error_of(response.content)}")
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def json_lines(rows: Iterable[Any]) -> bytes:
    """Rows as the body of a bulk request."""
    dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return "".join(dump(row) + "\n" for row in rows).encode()


def _verify(cfg: OpenSearchConfig) -> Any:
    if cfg.ca_file is None or not cfg.verify_tls:
        return cfg.verify_tls
    try:
        return ssl.create_default_context(cafile=str(cfg.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"index.opensearch.ca_file {cfg.ca_file}: {error}") from None


def _credentials(cfg: OpenSearchConfig) -> dict[str, Any]:
    if cfg.api_key_env is not None:
        return {"headers": {"authorization": f"ApiKey {_secret(cfg.api_key_env)}"}}
    if cfg.user_env is not None and cfg.password_env is not None:
        return {"auth": (_secret(cfg.user_env), _secret(cfg.password_env))}
    return {}


def _secret(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(f"index.opensearch: the environment variable {variable} is not set")
    return value
