from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rl.updates import samples_of_update as samples

from spaniel.errors import TrainingError
from spaniel.rl.advantage import group_advantages
from spaniel.rl.samples import UpdateSamples
from spaniel.types import Group, Question, StopReason, Trajectory

QUESTION = Question(qid="q", text="?", targets=("d",))
rewards = st.lists(st.floats(-5, 5), min_size=1, max_size=16)


def trajectory(reward, own=3, context=2, number=0, stop=StopReason.REPORTED, segments=(0,)):
    length = own + context
    return Trajectory(
        qid="q",
        trajectory_id=f"q/{number}",
        token_ids=tuple(range(length)),
        loss_mask=(False,) * context + (True,) * own,
        sampler_logprobs=(0.0,) * context + (-1.0,) * own,
        policy_versions=(-1,) * context + (0,) * own,
        segments=segments,
        stop_reason=stop,
        reward=reward,
    )


def group(*trajectories):
    return Group(question=QUESTION, trajectories=trajectories)


@given(rewards, st.booleans())
def test_advantages_sum_to_zero(values, scale):
    advantages = group_advantages(values, scale_by_std=scale)
    assert abs(sum(advantages)) < 1e-6 * len(values) + 1e-9


@given(rewards.flatmap(lambda r: st.tuples(st.just(r), st.permutations(range(len(r))))))
def test_advantages_follow_a_permutation(pair):
    values, order = pair
    advantages = group_advantages(values)
    permuted = group_advantages([values[i] for i in order])
    assert permuted == pytest.approx([advantages[i] for i in order])


def test_the_std_form_divides_by_the_population_std():
    assert group_advantages([1.0, 0.0], scale_by_std=True) == pytest.approx([1.0, -1.0], rel=1e-4)


def test_an_empty_group_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([])


def test_global_token_weights_are_one_over_all_sampled_tokens_of_the_update():
    made = samples([group(trajectory(1.0, own=3), trajectory(0.0, own=5, number=1))])
    assert {w for s in made for w in s.weights if w} == {1 / 8}
    assert [s.advantage for s in made] == [0.5, -0.5]
    assert sum(w for s in made for w in s.weights) == pytest.approx(1.0)


def test_sequence_weights_pay_each_trajectory_the_same():
    made = samples([group(trajectory(1.0, own=2), trajectory(0.0, own=8, number=1))], "sequence")
    assert [sum(s.weights) for s in made] == pytest.approx([0.5, 0.5])


def test_group_weights_pay_each_group_the_same():
    first = group(trajectory(1.0, own=1), trajectory(0.0, own=1, number=1))
    second = group(trajectory(1.0, own=9), trajectory(0.0, own=9, number=1))
    made = samples([first, second], "group")
    assert sum(sum(s.weights) for s in made[:2]) == pytest.approx(0.5)
    assert sum(sum(s.weights) for s in made[2:]) == pytest.approx(0.5)


def test_groups_without_signal_give_no_samples_but_count_in_the_denominator():
    flat = group(trajectory(0.3, own=4), trajectory(0.3, own=4, number=1))
    made = samples([flat, group(trajectory(1.0, own=1), trajectory(0.0, own=1, number=1))])
    assert len(made) == 2
    assert max(made[0].weights) == pytest.approx(1 / 10)


def test_groups_without_signal_stay_for_a_kl_term():
    flat = group(trajectory(0.3), trajectory(0.3, number=1))
    assert len(samples([flat], keep_without_signal=True)) == 2


def test_an_infrastructure_failure_is_neither_trained_on_nor_part_of_the_mean():
    broken = trajectory(None, own=50, number=2, stop=StopReason.INFRASTRUCTURE)
    made = samples([group(trajectory(1.0, own=2), trajectory(0.0, own=2, number=1), broken)])
    assert [s.advantage for s in made] == [0.5, -0.5]
    assert max(made[0].weights) == pytest.approx(1 / 4)


def test_a_group_with_one_survivor_teaches_nothing():
    broken = trajectory(None, number=1, stop=StopReason.INFRASTRUCTURE)
    assert samples([group(trajectory(1.0), broken)]) == []


def test_an_unscored_trajectory_is_an_error_not_a_zero():
    with pytest.raises(TrainingError, match="no reward"):
        samples([group(trajectory(None), trajectory(1.0, number=1))])


def test_each_segment_is_its_own_sequence():
    t = Trajectory(
        qid="q",
        trajectory_id="q/0",
        token_ids=(1, 10, 3, 12),
        loss_mask=(False, True, False, True),
        sampler_logprobs=(0.0, -1.0, 0.0, -2.0),
        policy_versions=(-1, 0, -1, 0),
        segments=(0, 2),
        stop_reason=StopReason.REPORTED,
        reward=1.0,
    )
    made = samples([group(t, trajectory(0.0, own=2, number=1))])
    assert [s.token_ids for s in made[:2]] == [(1, 10), (3, 12)]
    assert made[1].sampler_logprobs == (0.0, -2.0)


# --- in parts, and by age -----------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["token", "sequence", "group"])
def test_parts_add_up_to_the_whole(normalization):
    groups = [
        group(trajectory(1.0, own=2), trajectory(0.0, own=5, number=1)),
        group(trajectory(0.3, own=4), trajectory(0.3, own=1, number=1)),
        group(trajectory(0.0, own=7), trajectory(0.9, own=3, number=1)),
    ]
    update = UpdateSamples(scale_by_std=False, normalization=normalization)
    parts = [made for one in groups for made in update.add([one])]
    whole = UpdateSamples(scale_by_std=False, normalization=normalization)
    assert parts == whole.add(groups)
    assert update.denominator == whole.denominator


def aged(versions, reward, number=0):
    return replace(
        trajectory(reward, own=len(versions), number=number),
        policy_versions=(-1, -1, *versions),
    )


def test_tokens_that_are_too_old_are_context_and_count_nowhere():
    update = UpdateSamples(scale_by_std=False, normalization="token", version=9, max_age=2)
    (made,) = update.add([group(aged([5, 6, 7, 9], 1.0), aged([4, 4], 0.0, number=1))])
    assert [s.weights for s in made] == [(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)]
    # The old trajectory's reward still counts in the mean of its group.
    assert made[0].advantage == 0.5
    assert (update.denominator, update.num_too_old, update.oldest) == (2, 4, 2)


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), min_size=2, max_size=4),
    st.integers(0, 4),
)
def test_no_trained_token_is_older_than_allowed(versions, max_age):
    update = UpdateSamples(scale_by_std=False, normalization="token", version=12, max_age=max_age)
    members = [aged(v, float(n % 2), number=n) for n, v in enumerate(versions)]
    made = update.add([group(*members)])
    trained = sum(1 for samples in made for s in samples for w in s.weights if w)
    assert trained == sum(12 - v <= max_age for vs in versions for v in vs) == update.num_tokens
    assert update.num_too_old == sum(map(len, versions)) - trained
    assert update.oldest <= max_age
