"""What robots.txt allows (RFC 9309)."""

import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from spaniel.index.live.fetch import Fetched, Fetcher, Unreadable
from spaniel.index.live.urls import normalised_url
from spaniel.index.remote.retry import Unanswered

MAX_REDIRECTS = 5
MAX_BYTES = 512_000
"""Of a robots.txt that is read; the standard asks for 500 KiB at least."""
KEPT_S = 24 * 3600.0
"""How long rules may be used, by the standard."""
MAX_DELAY_S = 30.0
"""A host that wants longer pauses is not read: an episode waits for each page."""
REFUSAL_KEPT_S = 600.0
"""How long a host that could not say its rules is left alone."""


@dataclass(frozen=True, slots=True)
class _Rules:
    parsed: Any
    """None when nothing may be fetched."""
    until: float


class Robots:
    """Rules of hosts, fetched when first needed. Safe to use from several threads.

    Section 2.3.1 of the standard: a robots.txt that does not exist (4xx, or more than five
    redirects) allows everything; one that cannot be had (5xx, 429) forbids everything. One that
    cannot be reached is as the page itself: ``Unanswered``.

    Args:
        fetcher: gets it.
        user_agent: whose rules; its first word counts.
        protego: the library.
    """

    def __init__(self, fetcher: Fetcher, user_agent: str, protego: Any) -> None:
        self._fetcher, self._protego = fetcher, protego
        self._agent = user_agent.split("/")[0].split()[0]
        self._rules: dict[str, _Rules] = {}
        self._lock = threading.Lock()

    def delay_s(self, url: str) -> float:
        """Seconds that the host wants between requests, 0 when it says nothing.

        Raises:
            Unreadable: the page may not be fetched.
            Unanswered: the host does not answer.
        """
        rules = self._of(url)
        if rules.parsed is None:
            raise Unreadable("its host could not say what robots may read", lasting=False)
        if not rules.parsed.can_fetch(url, self._agent):
            raise Unreadable("its host does not let robots read it")
        delay = float(rules.parsed.crawl_delay(self._agent) or 0.0)
        if delay > MAX_DELAY_S:
            raise Unreadable(f"its host wants {delay:g} s between two requests")
        return delay

    def _of(self, url: str) -> _Rules:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        now = time.monotonic()
        with self._lock:
            rules = self._rules.get(origin)
        if rules is None or rules.until < now:
            rules = self._fetched(f"{origin}/robots.txt", now)
            with self._lock:
                self._rules[origin] = rules
        return rules

    def _fetched(self, url: str, now: float) -> _Rules:
        try:
            answer = self._follow(url)
        except Unanswered as error:
            if not error.reached:
                raise
            return _Rules(None, now + REFUSAL_KEPT_S)
        except Unreadable as error:
            return _Rules(None, now + (KEPT_S if error.lasting else REFUSAL_KEPT_S))
        text = ""
        if answer is not None and 200 <= answer.status_code < 300:
            text = answer.content[:MAX_BYTES].decode("utf-8", errors="replace")
        return _Rules(self._protego.Protego.parse(text), now + KEPT_S)

    def _follow(self, url: str) -> Fetched | None:
        """The answer behind redirects; None when they lead nowhere."""
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._fetcher.get(url)
            location = answer.headers.get("location")
            if not (300 <= answer.status_code < 400 and location):
                return answer
            try:
                url = normalised_url(urljoin(url, location))
            except ValueError:
                return None
            if not url:
                return None
        return None
