"""Questions in two sets that share no page, so that one can be held out.

A wiki hangs together: questions over a small one share so many pages that no split of them is
free of leaks. So every page is given a side first, and a question is kept when all its targets
lie on one side. The other side's pages stay in the corpus as distractors.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from spaniel.errors import ConfigError
from spaniel.types import Question
from spaniel.world.generate import World
from spaniel.world.questions import KIND_WEIGHTS

TRAIN, TEST = "train", "test"
TEST_PAGES = 0.42
"""Share of the pages on the test side. A question of h hops falls on one side with probability
p^h; this keeps the draw short when a quarter to a third of the questions is held out."""
MAX_POOL = 60_000


def sided_questions(
    world: World,
    num: int,
    *,
    seed: int,
    min_hops: int,
    max_hops: int,
    test_frac: float,
    kinds: Sequence[str] = tuple(KIND_WEIGHTS),
) -> tuple[list[Question], dict[str, str]]:
    """``num`` questions, evenly over the hop counts, and the side of each.

    Raises:
        ConfigError: the world does not yield as many; ask for fewer, or for more pages.
    """
    questions: list[Question] = []
    sides: dict[str, str] = {}
    for hops in range(min_hops, max_hops + 1):
        share = _share(num, hops - min_hops, max_hops - min_hops + 1)
        num_test = round(share * test_frac)
        for side, wanted in ((TEST, num_test), (TRAIN, share - num_test)):
            drawn = _drawn(world, hops, side, wanted, seed, kinds)
            for number, question in enumerate(drawn):
                named = replace(question, qid=f"{hops}hop-{side}-{number}")
                questions.append(named)
                sides[named.qid] = side
    return questions, sides


def side_of(docid: str, seed: int) -> str:
    """The side of a page: a coin that only the docid and the seed decide."""
    digest = hashlib.blake2b(f"{seed}/{docid}".encode(), digest_size=4).digest()
    return TEST if int.from_bytes(digest, "big") < TEST_PAGES * 2**32 else TRAIN


def _drawn(
    world: World, hops: int, side: str, wanted: int, seed: int, kinds: Sequence[str]
) -> Sequence[Question]:
    share = TEST_PAGES if side == TEST else 1 - TEST_PAGES
    pool = min(MAX_POOL, round(1.5 * wanted / share**hops) + 20)
    while True:
        drawn = world.questions(pool, seed=seed, min_hops=hops, max_hops=hops, kinds=kinds)
        kept = [q for q in drawn if all(side_of(d, seed) == side for d in q.targets)]
        if len(kept) >= wanted:
            return kept[:wanted]
        if pool >= MAX_POOL:
            raise ConfigError(
                f"a world of {len(world):,} pages yielded {len(kept):,} of {wanted:,} {side} "
                f"questions of {hops} hops: ask for fewer, or for more pages"
            )
        pool = min(MAX_POOL, 2 * pool)


def _share(num: int, number: int, parts: int) -> int:
    return num // parts + (number < num % parts)
