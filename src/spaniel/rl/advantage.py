"""Rewards of one group -> advantages."""

from collections.abc import Sequence

EPSILON = 1e-6


def group_advantages(rewards: Sequence[float], *, scale_by_std: bool = False) -> list[float]:
    """Credit each trajectory of one group against its siblings: ``r - mean(r)``.

    Args:
        rewards: [group_size], any scale, at least one.
        scale_by_std: also divide by the population std, as in DeepSeekMath
            (https://arxiv.org/abs/2402.03300, eq. 3). Off by default: dividing up-weights
            questions that are almost always or almost never solved
            (Dr. GRPO, https://arxiv.org/abs/2503.20783).

    Returns:
        [group_size] advantages summing to zero; all zero when rewards are equal.

    Raises:
        ValueError: ``rewards`` is empty.

    Example:
        >>> group_advantages([1.0, 0.0, 0.0, 1.0])
        [0.5, -0.5, -0.5, 0.5]
    """
    if not rewards:
        raise ValueError("rewards must hold at least one value, got an empty group")
    mean = sum(rewards) / len(rewards)
    centered = [r - mean for r in rewards]
    if not scale_by_std:
        return centered
    std = (sum(c * c for c in centered) / len(centered)) ** 0.5
    return [c / (std + EPSILON) for c in centered]
