"""One GET of one public address: guarded, paced, bounded in size and time, never redirected."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spaniel.config import LiveConfig
from spaniel.errors import SpanielError
from spaniel.index.live.guard import Guard
from spaniel.index.remote.retry import Retries

PAGE_RETRIES = 1
"""Of one request for a page: a policy waits for it."""


class Unreadable(SpanielError):
    """A page that cannot be read, through its own fault. The message says why in a few words."""

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting
        """It will not be readable in an hour, either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A response, its body read and decompressed."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class Fetcher:
    """Gets addresses. Safe to use from several threads.

    Args:
        cfg: limits, pace, user agent, hosts that need not be public.
        httpx: the library.
    """

    def __init__(self, cfg: LiveConfig, httpx: Any) -> None:
        self._cfg, self._httpx = cfg, httpx
        self._guard = Guard(cfg.allow_hosts)
        self._pace = Pace(cfg.min_delay_s)
        self._headers = {
            "user-agent": cfg.user_agent,
            "accept": "text/html, text/plain;q=0.9",
            "accept-encoding": "gzip, deflate",
        }
        # The transport alone: a client would read redirects, keep cookies by address, and ask a
        # proxy to resolve the name again, out of reach of the guard.
        self._transport = httpx.HTTPTransport(
            trust_env=False,
            # Kept connections are chosen by address. One would carry the certificate of the host
            # it was made for to another host at the same address.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def get(self, url: str, *, delay_s: float = 0.0) -> Fetched:
        """What the server answers, redirects and errors included.

        Args:
            delay_s: that the host asks for between two requests.

        Raises:
            Unanswered: no answer, or only 429 and 5xx.
            Refused: the host is not public.
            Unreadable: the body is too long or too slow.
        """
        host = urlsplit(url).netloc

        def request() -> Fetched:
            self._pace.wait(host, delay_s)
            return self._once(url)

        failures = (self._httpx.TransportError, OSError)
        return Retries(host, PAGE_RETRIES, failures=failures).send(request)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _once(self, url: str) -> Fetched:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = self._guard.addresses(host, port)
        for address in addresses:
            try:
                response = self._transport.handle_request(self._request(url, host, address))
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout):
                if address == addresses[-1]:
                    raise
                continue
            try:
                return Fetched(
                    status_code=response.status_code,
                    headers=response.headers,
                    content=self._body(response),
                )
            finally:
                response.close()
        raise OSError(f"{host} has no address")

    def _request(self, url: str, host: str, address: str) -> Any:
        """A request whose Host header and certificate are the name's, its connection the
        address's."""
        timeout = self._httpx.Timeout(self._cfg.timeout_s).as_dict()
        extensions = {"timeout": timeout, "sni_hostname": host}
        request = self._httpx.Request("GET", url, headers=self._headers, extensions=extensions)
        request.url = request.url.copy_with(host=address)
        return request

    def _body(self, response: Any) -> bytes:
        limit = self._cfg.max_page_bytes
        too_long = Unreadable(f"it is longer than {limit:,} bytes")
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_long
        body = bytearray()
        until = time.monotonic() + self._cfg.timeout_s
        try:
            for part in response.iter_bytes():
                body += part
                if len(body) > limit:
                    raise too_long
                # The time-out of the library is for each part: a server could drip for ever.
                if time.monotonic() > until:
                    reason = f"it was not complete after {self._cfg.timeout_s:g} s"
                    raise Unreadable(reason, lasting=False)
        except self._httpx.DecodingError as error:
            raise Unreadable(f"its compression is broken: {error}") from None
        return bytes(body)


class Pace:
    """Keeps requests to one host apart. Safe to use from several threads.

    Args:
        min_delay_s: between two requests to one host, at least.
    """

    def __init__(self, min_delay_s: float) -> None:
        self._min_delay_s = min_delay_s
        self._last: dict[str, float] = {}
        """Host -> when its latest request was, or will be, sent."""
        self._lock = threading.Lock()

    def wait(self, host: str, delay_s: float = 0.0) -> None:
        """Return when a request to the host may be sent."""
        with self._lock:
            now = time.monotonic()
            last = self._last.get(host)
            delay = max(self._min_delay_s, delay_s)
            turn = now if last is None else max(now, last + delay)
            self._last[host] = turn
        if turn > now:
            time.sleep(turn - now)
