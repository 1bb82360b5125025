"""Progress of long work: a live bar on a terminal, a plain line now and then elsewhere.

Everything goes to stderr; stdout belongs to results.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
PLAIN_EVERY_S = 15.0


def say(message: str) -> None:
    """One line of news on stderr; of several ranks the first speaks."""
    if os.environ.get("RANK", "0") != "0":
        return
    print(message, file=sys.stderr, flush=True)


class Progress:
    """A counter with rate and time left. Use as a context manager.

    ``done`` of the total is left from earlier. One counts at a time: inside another's block a
    second one is silent.
    """

    _counting: "Progress | None" = None

    def __init__(self, what: str, total: int | None, unit: str = "it", *, done: int = 0) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = self._earlier = done
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._live = self._live and not os.environ.get("CI")
        self._started = self._last = time.monotonic()

    def __enter__(self) -> "Progress":
        if Progress._counting is None:
            Progress._counting = self
        return self

    def __exit__(self, *exc: object) -> None:
        if Progress._counting is not self:
            return
        Progress._counting = None
        if self._live:
            sys.stderr.write("\r\x1b[2K")
        if exc[0] is None and (self.done or self.total):
            say(self._line(final=True))

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count some more done; ``note`` is shown behind."""
        self.done += count
        if Progress._counting is not self:
            return
        now = time.monotonic()
        if now - self._last < (0.1 if self._live else PLAIN_EVERY_S):
            return
        self._last = now
        line = self._line() + (f"  {note}" if note else "")
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{line[:110]}")
            sys.stderr.flush()
        else:
            say(line)

    def _line(self, *, final: bool = False) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        rate = (self.done - self._earlier) / elapsed
        of = f"/{self.total:,}" if self.total is not None else ""
        line = f"{self.what}: {self.done:,}{of} {self.unit}, {rate:,.3g} {self.unit}/s"
        if final:
            return f"{line}, {elapsed:.1f} s"
        if self.total is not None and rate:
            line += f", {_duration((self.total - self.done) / rate)} left"
        return line


def track(items: Iterable[T], what: str, total: int | None, unit: str = "it") -> Iterator[T]:
    """Iterate with progress."""
    with Progress(what, total, unit) as progress:
        for item in items:
            yield item
            progress.advance()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d} min" if minutes else f"{seconds} s"
