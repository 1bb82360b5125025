from collections import Counter

import pytest

from spaniel.errors import ConfigError
from spaniel.world import generate_world, sided_questions, verify_question


@pytest.fixture(scope="module")
def world():
    return generate_world(400, 3)


def draw(world, num, **settings):
    return sided_questions(
        world, num, **{"seed": 1, "min_hops": 2, "max_hops": 4, "test_frac": 0.3, **settings}
    )


def test_the_two_sides_share_no_target(world):
    questions, sides = draw(world, 120)
    pages = {
        side: {d for q in questions if sides[q.qid] == side for d in q.targets}
        for side in ("train", "test")
    }
    assert pages["train"]
    assert pages["test"]
    assert not pages["train"] & pages["test"]


def test_every_question_has_a_name_of_its_own_and_is_true(world):
    questions, sides = draw(world, 120)
    assert len({q.qid for q in questions}) == 120 == len(sides)
    for question in questions:
        verify_question(world, question)


def test_hops_are_even_on_both_sides(world):
    questions, sides = draw(world, 120)
    counts = Counter((sides[q.qid], q.hops) for q in questions)
    assert counts == {(s, h): n for s, n in (("train", 28), ("test", 12)) for h in (2, 3, 4)}


def test_a_world_too_small_says_what_to_do(monkeypatch):
    monkeypatch.setattr("spaniel.world.sides.MAX_POOL", 500)
    with pytest.raises(ConfigError, match="ask for fewer, or for more pages"):
        draw(generate_world(200, 3), 2_000, max_hops=2)
