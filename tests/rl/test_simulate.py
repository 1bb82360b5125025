"""The reference distribution of group times: median 23.6 minutes, 99th percentile 91.7."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.config import RLConfig
from spaniel.rl.simulate import Workload, simulate

REFERENCE = Workload(group_median=23.6, group_p99=91.7, update=20.0, slots=40)


def schedule(window, **values):
    start = 8 if window else None
    return RLConfig(groups_per_step=32, group_size=2, window=window, start_groups=start, **values)


def test_the_distribution_has_the_stated_median_and_percentile():
    assert REFERENCE.sigma == pytest.approx(0.5834, abs=1e-3)
    assert REFERENCE.group_mean == pytest.approx(23.6 * 1.1855, rel=1e-3)


def test_asynchronous_beats_synchronous_and_comes_close_to_the_bound():
    synchronous = simulate(schedule(0), REFERENCE, updates=40)
    ahead = simulate(schedule(8), REFERENCE, updates=40)
    assert synchronous.minutes / ahead.minutes >= 2.5
    # The last groups of a finite run are never trained, so that it can fall below the bound.
    assert ahead.minutes / ahead.bound_minutes <= 1.05
    assert synchronous.oldest == 0
    assert 0 < ahead.oldest <= 8


def test_a_run_is_a_function_of_its_seed():
    runs = [simulate(schedule(2), REFERENCE, updates=8, seed=s) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@settings(max_examples=15, deadline=None)
@given(
    window=st.integers(0, 8),
    slots=st.integers(8, 80),
    update=st.floats(1, 60),
    flat=st.floats(0, 0.4),
    seed=st.integers(0, 1000),
)
def test_the_age_limit_is_never_exceeded_and_shares_are_shares(window, slots, update, flat, seed):
    workload = Workload(
        group_median=10.0, group_p99=60.0, update=update, slots=slots, without_signal=flat
    )
    cfg = schedule(window, dynamic_sampling=True, max_refill=20.0)
    found = simulate(cfg, workload, updates=6, seed=seed)
    assert found.oldest <= window
    for share in (found.trainer_busy, found.slots_busy, found.too_old):
        assert 0 <= share <= 1 + 1e-9
    # The trainer cannot be faster than its own time.
    assert found.minutes >= 6 * update - 1e-6
