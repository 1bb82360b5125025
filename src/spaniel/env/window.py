"""What of a long episode stays in sight: the sliding window over observations.

    observations = 3, dropped_at_once = 2

    turn       1   2   3   4   5   6   7
    after 4   o1  o2  o3  o4
    after 5    .   .  o3  o4  o5             the two oldest become markers
    after 6    .   .  o3  o4  o5  o6
    after 7    .   .   .   .  o5  o6  o7

System text, question, and what the policy wrote stay. The rule is a function of the number of turns
alone, so demonstrations, training and evaluation, which share the agent loop, see the same.
"""

from collections.abc import Callable, Sequence

from spaniel.config import WindowConfig
from spaniel.env.dialects import THINK_CLOSE

OMITTED = "An earlier result was left out here."


def num_omitted(num_observations: int, window: WindowConfig | None) -> int:
    """How many of the oldest observations are out of sight."""
    if window is None:
        return 0
    surplus = max(0, num_observations - window.observations)
    return surplus // window.dropped_at_once * window.dropped_at_once


def without_thoughts(
    token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> tuple[int, ...]:
    """The sampled ids behind the last ``</think>``; no id is made anew.

    All of them when there is no thought, or when its end and what follows share a token.
    """
    ids = tuple(token_ids)
    closings = decode(ids).count(THINK_CLOSE)
    if not closings:
        return ids
    # Decoding more ids never takes a closing tag away, so the first place with all is found by
    # halving.
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        if decode(ids[:middle]).count(THINK_CLOSE) < closings:
            low = middle + 1
        else:
            high = middle
    return ids[low:] if decode(ids[:low]).rstrip().endswith(THINK_CLOSE) else ids


def text_without_thoughts(text: str) -> str:
    """The same for text."""
    return text.rpartition(THINK_CLOSE)[2]
