import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.config import RewardConfig
from spaniel.errors import ConfigError, DataError, RewardError
from spaniel.rewards.ranking import ndcg, reward, score
from spaniel.types import Question, StopReason, Trajectory

IDS = [f"d{i}" for i in range(8)]
lists = st.lists(st.sampled_from(IDS), max_size=10)
unique_lists = st.lists(st.sampled_from(IDS), unique=True, max_size=8)
target_sets = st.sets(st.sampled_from(IDS), min_size=1, max_size=5)


def trajectory(report=(), *, stop=StopReason.REPORTED, format_ok=True, qid="q"):
    return Trajectory(
        qid=qid,
        trajectory_id=f"{qid}/0",
        token_ids=(),
        loss_mask=(),
        sampler_logprobs=(),
        policy_versions=(),
        stop_reason=stop,
        report=tuple(report),
        format_ok=format_ok,
    )


@pytest.mark.parametrize(
    ("ranked", "targets", "k", "expected"),
    [
        # One target at rank 1, 2, 3: 1/log2(2), 1/log2(3), 1/log2(4).
        (["a", "x", "y"], {"a"}, None, 1.0),
        (["x", "a", "y"], {"a"}, None, 0.6309297535714575),
        (["x", "y", "a"], {"a"}, None, 0.5),
        # Two targets: ideal 1 + 0.63093 = 1.63093.
        (["a", "x", "b"], {"a", "b"}, None, 1.5 / 1.6309297535714573),
        (["a"], {"a", "b"}, None, 1 / 1.6309297535714573),
        (["x"], {"a"}, None, 0.0),
        ([], {"a", "b", "c"}, None, 0.0),
        # The cut takes rank 3 away, and an ideal of three is cut to two as well.
        (["a", "x", "b"], {"a", "b"}, 2, 1 / 1.6309297535714573),
        (["a", "b", "c"], {"a", "b", "c"}, 2, 1.0),
        # Fewer targets than k: the ideal is one document, not k.
        (["a", "x", "y", "z", "w"], {"a"}, 5, 1.0),
        # A repeated id counts once, at its first place.
        (["a", "a", "a"], {"a", "b", "c"}, None, 1 / (1 + 1 / math.log2(3) + 0.5)),
    ],
)
def test_ndcg_of_hand_computed_lists(ranked, targets, k, expected):
    assert ndcg(ranked, targets, k) == pytest.approx(expected, abs=1e-12)


@given(lists, target_sets, st.none() | st.integers(1, 10))
def test_ndcg_lies_between_zero_and_one(ranked, targets, k):
    assert 0.0 <= ndcg(ranked, targets, k) <= 1.0


@given(lists, target_sets)
def test_ndcg_is_one_exactly_when_the_targets_come_first(ranked, targets):
    unique = list(dict.fromkeys(ranked))
    assert (ndcg(ranked, targets) == 1.0) == (set(unique[: len(targets)]) == targets)


@given(unique_lists, target_sets, st.data())
def test_moving_a_hit_up_past_a_miss_raises_ndcg(ranked, targets, data):
    pairs = [
        (i, j)
        for j, hit in enumerate(ranked)
        for i, miss in enumerate(ranked[:j])
        if hit in targets and miss not in targets
    ]
    if pairs:
        i, j = data.draw(st.sampled_from(pairs))
        better = list(ranked)
        better[i], better[j] = ranked[j], ranked[i]
        assert ndcg(better, targets) > ndcg(ranked, targets)


@given(unique_lists, target_sets, st.data())
def test_repeating_an_id_later_changes_nothing(ranked, targets, data):
    if ranked:
        i = data.draw(st.integers(0, len(ranked) - 1))
        j = data.draw(st.integers(i + 1, len(ranked)))
        repeated = [*ranked[:j], ranked[i], *ranked[j:]]
        assert ndcg(repeated, targets) == ndcg(ranked, targets)


@given(lists, target_sets)
def test_no_cut_equals_a_cut_behind_everything(ranked, targets):
    assert ndcg(ranked, targets) == ndcg(ranked, targets, k=100)


def test_ndcg_without_targets_is_refused():
    with pytest.raises(DataError, match="at least one target"):
        ndcg(["a"], [])


def test_a_cut_below_one_is_refused():
    with pytest.raises(ConfigError, match="k of nDCG must be >= 1, got 0"):
        ndcg(["a"], ["a"], k=0)


def test_reward_of_a_hand_computed_report():
    # T = {a, b}, L = a, x, y, z, b: nDCG = (1 + 1/log2(6)) / (1 + 1/log2(3)) = 0.850345;
    # overlong = (5 - 1.5 * 2) / 2 = 1; R = 2 * 0.850345 + 0.3 - 0.2 * 1.
    question = Question(qid="q", text="?", targets=("a", "b"))
    cfg = RewardConfig(w_ndcg=2.0, w_format=0.3, overlong_penalty=0.2, overlong_tau=1.5)
    total, parts = reward(trajectory("axyzb"), question, cfg)
    gain = (1 + 1 / math.log2(6)) / (1 + 1 / math.log2(3))
    assert parts == {"ndcg": pytest.approx(gain), "format": 1.0, "overlong": 1.0}
    assert total == pytest.approx(2 * gain + 0.1)


def test_unknown_ids_are_misses_and_count_in_the_length():
    question = Question(qid="q", text="?", targets=("a",))
    cfg = RewardConfig(overlong_tau=1.0)
    _, parts = reward(trajectory(["unknown:a", "a"], format_ok=False), question, cfg)
    assert parts == {"ndcg": pytest.approx(1 / math.log2(3)), "format": 0.0, "overlong": 1.0}


@pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MAX_TOKENS])
def test_ending_without_a_report_scores_the_empty_list(stop):
    question = Question(qid="q", text="?", targets=("a",))
    total, parts = reward(trajectory("a", stop=stop), question, RewardConfig())
    assert total == 0.0
    assert parts == {"ndcg": 0.0, "format": 0.0, "overlong": 0.0}


def test_repeated_targets_count_once():
    once = Question(qid="q", text="?", targets=("a", "b"))
    twice = Question(qid="q", text="?", targets=("a", "b", "a"))
    cfg = RewardConfig()
    assert reward(trajectory("abcd"), once, cfg) == reward(trajectory("abcd"), twice, cfg)


@given(unique_lists, target_sets)
def test_the_reward_is_the_weighted_sum_of_its_parts(report, targets):
    cfg = RewardConfig(w_ndcg=0.9, w_format=0.2, overlong_penalty=0.3)
    question = Question(qid="q", text="?", targets=tuple(targets))
    total, parts = reward(trajectory(report), question, cfg)
    expected = 0.9 * parts["ndcg"] + 0.2 * parts["format"] - 0.3 * parts["overlong"]
    assert total == pytest.approx(expected)
    assert parts["overlong"] >= 0


def test_score_makes_a_new_trajectory():
    question = Question(qid="q", text="?", targets=("a",))
    before = trajectory("a")
    after = score(before, question, RewardConfig())
    assert before.reward is None
    assert after.reward == pytest.approx(1.1)
    assert after.reward_parts == {"ndcg": 1.0, "format": 1.0, "overlong": 0.0}


def test_a_failed_infrastructure_is_never_scored():
    question = Question(qid="q", text="?", targets=("a",))
    failed = trajectory(stop=StopReason.INFRASTRUCTURE)
    assert score(failed, question, RewardConfig()).reward is None
    with pytest.raises(RewardError, match="q/0 failed by the infrastructure"):
        reward(failed, question, RewardConfig())


def test_a_question_without_targets_is_refused():
    with pytest.raises(RewardError, match="question q has no targets"):
        score(trajectory("a"), Question(qid="q", text="?"), RewardConfig())


def test_another_questions_trajectory_is_refused():
    question = Question(qid="other", text="?", targets=("a",))
    with pytest.raises(RewardError, match="answers question q, got other"):
        score(trajectory("a"), question, RewardConfig())
