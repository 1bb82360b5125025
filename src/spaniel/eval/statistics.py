"""How far a mean over questions can be trusted, and whether two systems differ.

The question is the unit throughout: intervals and tests say what would happen with other
questions of the same kind. They say nothing about another training seed of the same recipe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaniel.errors import DataError

Floats = NDArray[np.float64]
MAX_EXACT = 12
"""Up to so many questions the paired test enumerates all sign patterns."""
_BLOCK = 2_000_000
"""Random numbers held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over questions with its bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int
    """Questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Two systems on the same questions."""

    difference: float
    """Mean of a - b over the questions."""
    low: float
    high: float
    """Percentile bootstrap interval of the difference, over questions."""
    p: float
    """In (0, 1]: see ``paired_test``."""
    n: int
    """Questions both systems answered."""


def bootstrap_interval(
    values: Sequence[float], *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """The mean with its percentile bootstrap interval (Efron, https://doi.org/10.1214/aos/1176344552).

    Questions are drawn again with replacement ``samples`` times; the interval holds the
    middle ``confidence`` of the resampled means. Over many sets of questions about 95 % of
    such intervals hold the true mean: fewer below some 20 questions, and with one question
    the interval is a point that says nothing.

    Args:
        values: [num_questions], finite, at least one.
        seed: the same seed and values give the same interval.

    Raises:
        DataError: there are no values, or one is not finite.
    """
    array = _finite(values)
    means = np.concatenate(list(_resampled_means(array, samples, seed)))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(mean=float(array.mean()), low=float(low), high=float(high), n=len(array))


def paired_test(
    a: Sequence[float],
    b: Sequence[float],
    *,
    permutations: int = 9999,
    bootstrap_samples: int = 2000,
    seed: int = 0,
) -> PairedTest:
    """Two-sided paired permutation test of the mean difference a - b, with its interval.

    If the two systems were interchangeable, each question's difference could as well have
    the other sign. p is the share of sign patterns whose mean difference is at least as far
    from zero as the one observed: the chance of such a difference between systems that
    do not differ. It is not the chance that they do not differ. Calling differences with
    p < 0.05 real raises a false alarm in 5 % of the comparisons of equal systems; with c
    comparisons the chance of at least one is up to 1 - 0.95^c (``false_alarm_chance``).

    All 2^n patterns are enumerated up to ``MAX_EXACT`` questions, so the smallest possible
    p is 2^(1-n): five questions or fewer cannot reach 0.05. Above, ``permutations`` random
    patterns are drawn and p = (1 + as far) / (1 + permutations), never 0
    (Phipson and Smyth, https://doi.org/10.2202/1544-6115.1585).

    Args:
        a, b: [num_questions] values of the same questions in the same order.

    Raises:
        DataError: lengths differ, there are no values, or one is not finite.
    """
    if len(a) != len(b):
        raise DataError(f"a paired test needs the same questions, got {len(a)} and {len(b)} values")
    differences = _finite(a) - _finite(b)
    interval = bootstrap_interval(differences.tolist(), samples=bootstrap_samples, seed=seed)
    return PairedTest(
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p=_sign_flip_p(differences, permutations, seed),
        n=len(differences),
    )


def false_alarm_chance(comparisons: int, alpha: float = 0.05) -> float:
    """Chance of at least one p < alpha among so many independent comparisons of equal systems."""
    return float(1.0 - (1.0 - alpha) ** comparisons)


def _sign_flip_p(differences: Floats, permutations: int, seed: int) -> float:
    observed = abs(differences.sum())
    # Patterns that tie with the observed one must count, though their sums round differently.
    at_least = observed - 1e-12 * np.abs(differences).sum()
    n = len(differences)
    if n <= MAX_EXACT:
        patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs(_signed_sums(patterns, differences)) >= at_least))
    rng = np.random.default_rng(seed)
    as_far = 0
    for rows in _blocks(permutations, n):
        sums = _signed_sums(rng.integers(0, 2, (rows, n), dtype=np.int8), differences)
        as_far += int(np.sum(np.abs(sums) >= at_least))
    return (1 + as_far) / (1 + permutations)


def _signed_sums(patterns: NDArray[np.signedinteger], differences: Floats) -> Floats:
    signs: Floats = patterns.astype(np.float64) * 2 - 1
    return signs @ differences


def _resampled_means(values: Floats, samples: int, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    for rows in _blocks(samples, len(values)):
        yield values[rng.integers(0, len(values), (rows, len(values)))].mean(axis=1)


def _blocks(rows: int, columns: int) -> Iterator[int]:
    """Row counts that add up to ``rows`` with at most ``_BLOCK`` numbers each."""
    size = max(1, _BLOCK // columns)
    while rows > 0:
        yield min(size, rows)
        rows -= size


def _finite(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise DataError("a mean needs at least one question, got none")
    if not np.isfinite(array).all():
        raise DataError(f"values must be finite, got {array[~np.isfinite(array)][0]}")
    return array
