"""A split of questions that hang together: hold some out and leave out what touches them.

Where nearly all questions are tied into one component (many questions over few documents), no
whole component can be held out. A cut can:

    train: q1 q2      left out: q3      test: q4 q5          q2 - d2 - q3 - d3 - q4 - d4 - q5

Each held-out question costs the training questions that share a document with it, so the cut
grows the test side where it costs least: among questions already left out, and their
neighbours. Held-out questions therefore lie close together, about a part of the corpus that
training never asks about.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from spaniel.types import Question

Tie = tuple[str, str]
MAX_CANDIDATES = 32
"""Questions compared for each one held out; more find a slightly cheaper cut, more slowly."""


def cut(
    questions: Sequence[Question],
    wanted: Counter[int],
    ties: Callable[[Question], list[Tie]],
    seed: int,
) -> tuple[list[Question], list[Question]]:
    """(train, test) without a tie between them, in source order; the rest is left out.

    Greedy and deterministic for a seed. Stops before the last training question would go, so
    ``test`` may be smaller than wanted, and is empty when every question is tied to every other.

    Args:
        wanted: questions to hold out, by hop count.
        ties: what a question must not share with one on the other side.
    """
    tied = [ties(q) for q in questions]
    train, test = set(range(len(questions))), set[int]()
    holders: dict[Tie, set[int]] = defaultdict(set)
    """Training questions by tie."""
    for i, own in enumerate(tied):
        for tie in own:
            holders[tie].add(i)

    def cost(i: int) -> int:
        return len(set().union(*(holders[tie] for tie in tied[i])))

    pools = _pools(questions, seed)
    rng = random.Random(seed)
    for hops in _turns(wanted, rng):
        pool = pools[hops]
        places = rng.sample(range(len(pool)), min(MAX_CANDIDATES, len(pool)))
        cheapest = min(places, key=lambda place: cost(pool[place]))
        chosen = pool[cheapest]
        gone = set().union(*(holders[tie] for tie in tied[chosen]))
        if len(gone) == len(train):
            break
        pool[cheapest] = pool[-1]
        pool.pop()
        test.add(chosen)
        train -= gone
        for i in gone:
            for tie in tied[i]:
                holders[tie].discard(i)
    return [questions[i] for i in sorted(train)], [questions[i] for i in sorted(test)]


def _pools(questions: Sequence[Question], seed: int) -> dict[int, list[int]]:
    """Positions of the questions of each hop count, shuffled."""
    pools: dict[int, list[int]] = defaultdict(list)
    for i, question in enumerate(questions):
        pools[question.hops].append(i)
    for hops, pool in pools.items():
        random.Random(f"{seed}/{hops}").shuffle(pool)
    return pools


def _turns(wanted: Counter[int], rng: random.Random) -> list[int]:
    """The hop count of each question to hold out, mixed, so that an early stop cuts all alike."""
    turns = sorted(wanted.elements())
    rng.shuffle(turns)
    return turns
