"""An event loop whose clock jumps: hours of waiting pass in no time, in the same order.

Coroutines that wait on ``asyncio.sleep``, queues, events and each other run as they would on a
real clock. Nothing in the loop may wait for the world outside: no sockets, no threads.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Waits by moving the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing is ever ready but time."""
        if timeout is None:
            raise RuntimeError("every coroutine waits for something that no timer will bring")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The event loop; its clock starts at 0 s."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the start."""
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a coroutine to its end; returns its result and the seconds that passed in it."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(main)
        return result, runner.get_loop().time()
