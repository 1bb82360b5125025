import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.rl.virtual_time import run_in_virtual_time


def test_hours_pass_in_no_time():
    started = time.perf_counter()
    result, seconds = run_in_virtual_time(asyncio.sleep(36_000, "done"))
    assert (result, seconds) == ("done", 36_000)
    assert time.perf_counter() - started < 10


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=10))
def test_sleepers_wake_in_the_order_of_their_times(delays):
    woken = []

    async def sleeper(number, delay):
        await asyncio.sleep(delay)
        woken.append((asyncio.get_running_loop().time(), number))

    async def main():
        await asyncio.gather(*(sleeper(n, d) for n, d in enumerate(delays)))

    _, seconds = run_in_virtual_time(main())
    assert seconds == pytest.approx(max(delays), abs=1e-3)
    times = [at for at, _ in woken]
    assert times == sorted(times)
    for at, number in woken:
        assert at == pytest.approx(delays[number], abs=1e-3)


def test_waiting_for_what_never_comes_is_an_error_and_no_hang():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer will bring"):
        run_in_virtual_time(main())
