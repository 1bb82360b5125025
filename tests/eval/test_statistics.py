import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.errors import DataError
from spaniel.eval.statistics import bootstrap_interval, false_alarm_chance, paired_test

scores = st.floats(0, 1, allow_nan=False)
pairs = st.lists(st.tuples(scores, scores), min_size=1, max_size=30)


def enumerated_p(differences):
    observed = abs(sum(differences))
    patterns = itertools.product([1, -1], repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(p, differences, strict=True))) for p in patterns]
    return sum(total >= observed - 1e-12 for total in sums) / len(sums)


@given(st.lists(st.floats(-1, 1).map(lambda d: round(d, 3)), min_size=1, max_size=8))
def test_small_samples_get_the_enumerated_p(differences):
    test = paired_test(differences, [0.0] * len(differences), bootstrap_samples=100)
    assert test.p == pytest.approx(enumerated_p(differences))


def test_five_wins_of_five_cannot_reach_five_percent():
    # 2 of 2^5 patterns are as extreme: all plus and all minus.
    assert paired_test([0.3] * 5, [0.1] * 5).p == 2 / 32


def test_large_samples_agree_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    a, b = rng.random(60), rng.random(60) * 0.9
    theirs = scipy_stats.permutation_test(
        (a - b,), np.mean, permutation_type="samples", n_resamples=9999, rng=1
    )
    # Two Monte Carlo estimates of one p, each with a standard error below 0.005.
    assert paired_test(a.tolist(), b.tolist()).p == pytest.approx(theirs.pvalue, abs=0.02)


def test_bootstrap_interval_agrees_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(4).random(80)
    ours = bootstrap_interval(values.tolist(), samples=5000)
    theirs = scipy_stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=5000, rng=1
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_a_clear_difference_has_the_smallest_possible_p_and_never_zero():
    test = paired_test([0.9] * 50, [0.1] * 50, permutations=999)
    assert test.p == 1 / 1000
    assert test.difference == pytest.approx(0.8)


def test_equal_systems_have_p_one_and_a_difference_of_zero():
    test = paired_test([0.2, 0.7] * 20, [0.2, 0.7] * 20)
    assert (test.difference, test.low, test.high, test.p) == (0, 0, 0, 1)


@settings(max_examples=50)
@given(pairs)
def test_swapping_the_systems_mirrors_the_difference_and_keeps_p(values):
    a, b = [x for x, _ in values], [y for _, y in values]
    forth = paired_test(a, b, permutations=200, bootstrap_samples=200)
    back = paired_test(b, a, permutations=200, bootstrap_samples=200)
    assert forth.difference == -back.difference
    assert forth.p == back.p
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
    assert 0 < forth.p <= 1


@settings(max_examples=50)
@given(st.lists(scores, min_size=1, max_size=50), st.integers(0, 5))
def test_the_interval_lies_within_the_values_and_repeats_with_its_seed(values, seed):
    first = bootstrap_interval(values, samples=200, seed=seed)
    assert first == bootstrap_interval(values, samples=200, seed=seed)
    assert min(values) - 1e-12 <= first.low <= first.high <= max(values) + 1e-12
    assert first.mean == pytest.approx(math.fsum(values) / len(values))
    assert first.n == len(values)


def test_most_intervals_hold_the_true_mean():
    rng = np.random.default_rng(0)
    holds = 0
    for i in range(200):
        found = bootstrap_interval(rng.random(40).tolist(), samples=400, seed=i)
        holds += found.low <= 0.5 <= found.high
    assert 180 <= holds <= 198  # 95 % of 200 is 190; a percentile bootstrap falls a little short


def test_tests_of_equal_systems_raise_about_five_percent_false_alarms():
    rng = np.random.default_rng(1)
    alarms = sum(
        paired_test(
            rng.random(30).tolist(), rng.random(30).tolist(), permutations=199, bootstrap_samples=1
        ).p
        < 0.05
        for _ in range(400)
    )
    assert 8 <= alarms <= 34  # 20 expected, standard deviation 4.4


def test_a_wider_confidence_gives_a_wider_interval():
    values = np.random.default_rng(2).random(50).tolist()
    narrow, wide = bootstrap_interval(values, confidence=0.5), bootstrap_interval(values)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_false_alarms_add_up_over_comparisons():
    assert false_alarm_chance(1) == pytest.approx(0.05)
    assert false_alarm_chance(14) == pytest.approx(0.5123, abs=1e-4)


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf]])
def test_values_that_are_no_numbers_are_refused(values):
    with pytest.raises(DataError):
        bootstrap_interval(values)


def test_a_paired_test_needs_pairs():
    with pytest.raises(DataError, match="got 2 and 1 values"):
        paired_test([0.1, 0.2], [0.1])
