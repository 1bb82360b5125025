from typing import get_args

import pytest

from spaniel.config import AlarmName
from spaniel.errors import TrainingError
from spaniel.rl.alarms import RULES, SPAN, Alarms

HEALTHY = {
    "reward/mean": 0.4,
    "reward/ndcg": 0.3,
    "reward/group_std": 0.2,
    "groups/without_signal_frac": 0.1,
    "entropy/sampled": 0.3,
    "kl/sampler_k3": 1e-6,
    "ratio/outside_band_frac": 0.0,
    "advantage/token_mean": -0.01,
    "calls/search": 3.0,
    "stop/max_turns": 0.05,
    "stop/max_tokens": 0.0,
    "rollouts/failed_frac": 0.0,
    "tokens/oldest": 0.0,
    "tokens/too_old": 0.0,
    "tokens/trained": 1000.0,
}
ILL = {
    "no_signal": {"groups/without_signal_frac": 0.9},
    "entropy_collapsed": {"entropy/sampled": 0.05},
    "sampler_differs": {"kl/sampler_k3": 0.05},
    "far_ratios": {"ratio/outside_band_frac": 0.1},
    "advantage_drifts": {"advantage/token_mean": -0.1},
    "reward_is_gamed": {"reward/mean": 0.5, "reward/ndcg": 0.2},
    "stopped_searching": {"calls/search": 0.1},
    "budgets_end_episodes": {"stop/max_turns": 0.4, "stop/max_tokens": 0.2},
    "infrastructure_fails": {"rollouts/failed_frac": 0.05},
    "tokens_are_stale": {"tokens/too_old": 400.0},
}


def sounded(rows, **settings):
    alarms = Alarms(**settings)
    return [[alarm.name for alarm in alarms.check(row)] for row in rows]


def test_a_healthy_training_is_silent():
    assert not any(sounded([HEALTHY] * 40))


def test_every_rule_has_a_case_and_a_setting():
    assert set(ILL) == set(RULES) == set(get_args(AlarmName))


@pytest.mark.parametrize("name", ILL)
def test_each_illness_sounds_its_alarm_once_and_no_other(name):
    rows = [HEALTHY] * (2 * SPAN) + [{**HEALTHY, **ILL[name]}] * (2 * SPAN)
    said = [alarm for step in sounded(rows) for alarm in step]
    assert said == [name]


def test_one_bad_step_is_noise():
    rows = [HEALTHY] * 25 + [{**HEALTHY, "kl/sampler_k3": 0.05}] + [HEALTHY] * 5
    assert not any(sounded(rows))


def test_an_alarm_sounds_again_after_it_was_silent():
    ill = {**HEALTHY, **ILL["no_signal"]}
    rows = ([HEALTHY] * (2 * SPAN) + [ill] * SPAN) * 2
    assert [alarm for step in sounded(rows) for alarm in step] == ["no_signal"] * 2


def test_tokens_of_other_weights_do_not_count_as_a_difference():
    stale = {**HEALTHY, "kl/sampler_k3": 0.05, "tokens/oldest": 1.0}
    assert not any(sounded([HEALTHY] * 20 + [stale] * 20))


def test_missing_metrics_sound_nothing():
    assert not any(sounded([{}] * 40))


def test_after_an_interruption_it_remembers_what_was_normal_and_said():
    ill = {**HEALTHY, **ILL["entropy_collapsed"]}
    before = [HEALTHY] * 20 + [ill] * 12
    again = Alarms(earlier=before)
    assert not any(again.check(ill) for _ in range(20))
    later = Alarms(earlier=[HEALTHY] * 20)
    assert [a.name for _ in range(12) for a in later.check(ill)] == ["entropy_collapsed"]


def test_a_chosen_alarm_stops_the_training():
    rows = [HEALTHY] * 20 + [{**HEALTHY, **ILL["entropy_collapsed"]}] * 20
    with pytest.raises(TrainingError, match=r"entropy_collapsed: entropy fell from 0\.300"):
        sounded(rows, stop_on=["entropy_collapsed"])
    sounded(rows, stop_on=["no_signal"])
