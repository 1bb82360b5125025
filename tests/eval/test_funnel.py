"""Golden counts by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.eval.funnel import STEPS, Funnel, funnel, funnel_rates
from spaniel.types import FinishReason, Hit, StopReason, ToolCall, Trajectory, Turn


def search(*docids):
    hits = tuple(Hit(docid=d, score=1.0, rank=i) for i, d in enumerate(docids, start=1))
    return turn("search", hits=hits)


def read(docid):
    return turn("read", docids=(docid,))


def turn(tool, **fields):
    call = ToolCall(name=tool, arguments={})
    reason = FinishReason.STOP
    return Turn(start=0, end=1, text="", finish_reason=reason, call=call, **fields)


def walk(*turns, report=()):
    return Trajectory(
        qid="q",
        trajectory_id="q/0",
        token_ids=(0,),
        loss_mask=(True,),
        sampler_logprobs=(0.0,),
        policy_versions=(0,),
        turns=turns,
        stop_reason=StopReason.REPORTED,
        report=report,
    )


def test_a_perfect_walk_loses_nothing():
    turns = [search("a", "x"), read("a"), search("y", "b"), read("b")]
    found = funnel(walk(*turns, report=("a", "b")), ["a", "b"])
    assert found == Funnel(
        shown=(2, 2),
        read=(2, 2),
        reported=(2, 2),
        first_search=(1, 1),
        choice=(2, 2),
        later_search=(1, 1),
    )


def test_every_kind_of_loss_has_its_place():
    turns = [
        search("x", "a"),  # shows a target
        read("x"),  # which is not read
        search("y"),  # after a miss: counts nowhere
        read("a"),  # read at last, from no fresh list that showed it
        search("a", "z"),  # the next search shows no new one
        search("b"),  # asked again: only the search next after the reading counts
    ]
    found = funnel(walk(*turns, report=("a", "z")), ["a", "b", "c"])
    assert found == Funnel(
        shown=(3, 2),
        read=(3, 1),
        reported=(3, 1),
        first_search=(1, 1),
        choice=(1, 0),
        later_search=(1, 0),
    )


def test_a_search_after_the_last_target_is_no_miss():
    found = funnel(walk(search("a"), read("a"), search("x"), report=("a",)), ["a"])
    assert found.later_search == (0, 0)


def test_without_a_search_there_is_no_first_one():
    found = funnel(walk(report=("a",)), ["a"])
    assert (found.first_search, found.reported) == ((0, 0), (1, 1))


@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from("abxy")).map(lambda d: search(*d)),
            st.sampled_from("abxy").map(read),
        ),
        max_size=12,
    ),
    st.lists(st.sampled_from("abxy"), unique=True),
)
def test_good_cases_are_never_more_than_cases(turns, report):
    found = funnel(walk(*turns, report=tuple(report)), ["a", "b"])
    for step in STEPS:
        cases, good = getattr(found, step)
        assert 0 <= good <= cases


def test_rates_are_over_all_rollouts_and_none_without_cases():
    first = Funnel(shown=(2, 2), choice=(1, 0))
    rates = funnel_rates([first, Funnel(shown=(2, 1), choice=(3, 1))])
    assert rates["shown"] == {"n": 4, "rate": pytest.approx(0.75)}
    assert rates["choice"] == {"n": 4, "rate": pytest.approx(0.25)}
    assert rates["later_search"] == {"n": 0, "rate": None}
    assert funnel_rates([]) == {}
