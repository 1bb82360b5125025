"""How another machine is asked: again after a pause while it fails for a while, and not at all
while it keeps failing."""

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

from spaniel.errors import ToolError

RETRIED = (429, 500, 502, 503, 504)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
_ERROR_FIELDS = ("error", "message", "detail", "reason")


class Response(Protocol):
    """What is read of an HTTP response here."""

    @property
    def status_code(self) -> int:
        """Of HTTP."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in any case."""
        ...

    @property
    def content(self) -> bytes:
        """The body, decompressed."""
        ...


def error_of(content: bytes) -> str:
    """What the body of a failure says, in 120 characters of one line.

    Servers name it ``error``, ``message``, ``detail`` or ``reason``, and some wrap one in another.
    """
    said: Any = None
    try:
        said = json.loads(content)
        while isinstance(said, dict):
            said = next(
                said[name] for name in ("error", "message", "detail", "reason") if name in said
            )
    except (ValueError, StopIteration):
        said = None
    text = said if isinstance(said, str) else content.decode("utf-8", errors="replace")
    return " ".join(text.split())[:120]


def seconds_of(header: str | None) -> float:
    """Seconds that a ``Retry-After`` asks for, as a number or a date; 0 without a valid one."""
    if not header:
        return 0.0
    try:
        return min(max(0.0, float(header)), 1e9)
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


R = TypeVar("R", bound=Response)


class Unanswered(ToolError):
    """A request that failed after all attempts."""

    def __init__(self, message: str, *, reached: bool) -> None:
        super().__init__(message)
        self.reached = reached
        """The server answered at last, if only that it cannot: the network works."""


class Retries:
    """Sends a request until it is answered. Safe to use from several threads.

    Args:
        who: the server, for messages.
        max_retries: attempts after the first.
        failures: what a request that got no answer raises.
        breaker: fails calls at once while the server is known to be down.
        describe: what the body of a failure says.
    """

    def __init__(
        self,
        who: str,
        max_retries: int,
        *,
        failures: type[Exception] | tuple[type[Exception], ...],
        breaker: "Breaker | None" = None,
        describe: Callable[[bytes], str] = error_of,
    ) -> None:
        self.who = who
        self._max_retries = max_retries
        self._failures = failures
        self._breaker = breaker
        self._describe = describe
        self._random = random.Random()

    def send(self, request: Callable[[], R]) -> R:
        """The first response whose status is not in ``RETRIED``.

        Pauses grow and are random; a ``Retry-After`` comes before them.

        Raises:
            Unanswered: there was none.
            ToolError: the breaker is open.
        """
        cause, reached = "", False
        for attempt in range(self._max_retries + 1):
            if self._breaker is not None:
                self._breaker.check(self.who)
            retry_after, busy = 0.0, False
            try:
                response = request()
            except self._failures as error:
                cause, reached = f"{type(error).__name__}: {error}".rstrip(": "), False
            else:
                if response.status_code not in RETRIED:
                    if self._breaker is not None:
                        self._breaker.worked()
                    return response
                reached, busy = True, response.status_code == 429
                cause = f"status {response.status_code}: {self._describe(response.content)}".rstrip(
                    ": "
                )
                retry_after = seconds_of(response.headers.get("retry-after"))
            # A server that is busy is not a server that is down.
            if self._breaker is not None and not busy:
                self._breaker.failed(cause)
            if attempt < self._max_retries:
                time.sleep(self._pause(attempt, retry_after))
        count = self._max_retries + 1
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        raise Unanswered(f"{self.who}: {cause} (after {attempts})", reached=reached)

    def _pause(self, attempt: int, retry_after: float) -> float:
        backoff: float = FIRST_PAUSE_S * 2**attempt
        # Random: clients that failed together must not come back together.
        wait = backoff * self._random.uniform(0.5, 1.5)
        return min(retry_after + wait, LONGEST_PAUSE_S)


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
                    f"{who} failed {self._failures} times in a row, the last time with "
                    f"{self._cause}; next try in {left:.0f} s"
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
