import asyncio
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.policy.tiny_models import tiny
from tests.training_samples import samples

from spaniel.config import OptimizerConfig, PPOConfig, RLConfig
from spaniel.learner import Learner
from spaniel.rl.ppo import gae, value_loss, with_advantages
from spaniel.rl.trainer import PolicyTrainer
from spaniel.types import Group, Question, StopReason, Trajectory
from spaniel.value_head import ValueHead


def test_with_lambda_one_the_advantage_is_reward_minus_value():
    assert gae([0.25, 0.5, 0.75], 1.0, gamma=1.0, gae_lambda=1.0) == [0.75, 0.5, 0.25]


def test_with_lambda_zero_it_is_the_change_of_the_value():
    assert gae([0.25, 0.5, 0.75], 1.0, gamma=1.0, gae_lambda=0.0) == [0.25, 0.25, 0.25]


def test_a_case_by_hand():
    # delta_2 = 1 - 0.5 = 0.5; delta_1 = 0.9 * 0.5 - 0.2 = 0.25; A_1 = 0.25 + 0.9 * 0.5 * 0.5.
    got = gae([0.2, 0.5], 1.0, gamma=0.9, gae_lambda=0.5)
    assert got == pytest.approx([0.475, 0.5])


@given(
    st.lists(st.floats(-2, 2), min_size=1, max_size=12),
    st.floats(-1, 1),
    st.floats(0.1, 1),
    st.floats(0, 1),
)
def test_gae_is_the_sum_of_discounted_errors(values, reward, gamma, lam):
    count = len(values)
    rewards = [0.0] * (count - 1) + [reward]
    after = [*values[1:], 0.0]
    deltas = [rewards[k] + gamma * after[k] - values[k] for k in range(count)]
    expected = [
        sum((gamma * lam) ** (m - k) * deltas[m] for m in range(k, count)) for k in range(count)
    ]
    assert gae(values, reward, gamma=gamma, gae_lambda=lam) == pytest.approx(expected)


def test_advantages_run_through_the_segments_of_a_trajectory():
    first, second = samples((5, 6))
    cfg = PPOConfig(gae_lambda=0.0)
    values = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7]]
    made = with_advantages([first, second], values, 1.0, cfg)
    assert made[0].advantages == pytest.approx((0.1, 0.1, 0.1))
    assert made[1].advantages == pytest.approx((0.1, 0.1, 0.1, 0.3))
    assert made[1].values == (0.4, 0.5, 0.6, 0.7)


def test_the_value_loss_takes_the_worse_of_free_and_clipped():
    values_T = torch.tensor([0.9, 0.9, 0.1], requires_grad=True)
    loss, metrics = value_loss(
        values_T,
        old_values_T=torch.tensor([0.5, 0.5, 0.0]),
        returns_T=torch.tensor([1.0, 0.0, 0.5]),
        weights_T=torch.tensor([1.0, 1.0, 2.0]),
        clip=0.2,
    )
    # Clipped to 0.7: (0.3)^2 beats (0.1)^2; (0.9)^2 beats (0.7)^2; inside the clip (0.4)^2, twice.
    assert loss.item() == pytest.approx(0.5 * (0.09 + 0.81 + 2 * 0.16))
    assert metrics["value/clipped_frac"].item() == 1.0
    loss.backward()
    # Nothing pulls a value further that has moved too far towards its return already.
    assert values_T.grad.tolist() == pytest.approx([0.0, 0.9, -0.8])


def trajectory(reward, number, length=8):
    mask = (False,) * 4 + (True,) * (length - 4)
    ids = tuple((7 * number + 3 * i) % 90 for i in range(length))
    return Trajectory(
        qid="q",
        trajectory_id=f"q/{number}",
        token_ids=ids,
        loss_mask=mask,
        sampler_logprobs=tuple(-4.0 if m else 0.0 for m in mask),
        policy_versions=tuple(0 if m else -1 for m in mask),
        stop_reason=StopReason.REPORTED,
        reward=reward,
    )


class Sampler:
    """A sampler that always agrees."""

    def __init__(self, learner):
        self.learner = learner

    def forget(self):
        pass

    def probe(self, token_ids):
        from spaniel.types import TrainingSample

        weights = (0.0,) + (1.0,) * (len(token_ids) - 1)
        sample = TrainingSample(
            token_ids=tuple(token_ids), weights=weights, sampler_logprobs=(0.0,) * len(weights)
        )
        return self.learner.logprobs([sample])[0].tolist()

    async def load(self, version, weights):
        pass


def trained(cfg, groups, steps=1):
    """Metrics of some updates on the same groups, sampled anew by the weights of each."""
    model = tiny("llama")
    learner = Learner(
        model,
        OptimizerConfig(learning_rate=1e-3, warmup_frac=0.0),
        total_steps=steps,
        value_head=ValueHead(32),
        value_factor=cfg.ppo.value_factor,
    )
    trainer = PolicyTrainer(cfg, learner, Sampler(learner), lambda: None)
    out = []
    for step in range(1, steps + 1):
        fresh = [
            replace(g, trajectories=tuple(resampled(t, learner, step) for t in g.trajectories))
            for g in groups
        ]

        async def update(step=step, fresh=fresh):
            await trainer.accumulate(fresh)
            return await trainer.update(step, fresh)

        out.append(asyncio.run(update()))
    return learner, out


def resampled(t, learner, step):
    from spaniel.types import TrainingSample

    sample = TrainingSample(
        token_ids=t.token_ids,
        weights=tuple(float(m) for m in t.loss_mask),
        sampler_logprobs=t.sampler_logprobs,
    )
    values = iter(learner.logprobs([sample])[0].tolist())
    return replace(
        t,
        sampler_logprobs=tuple(next(values) if m else 0.0 for m in t.loss_mask),
        policy_versions=tuple(step - 1 if m else -1 for m in t.loss_mask),
    )


QUESTION = Question(qid="q", text="?", targets=("d",))


def test_a_single_rollout_trains_and_the_critic_learns_its_reward():
    cfg = RLConfig(group_size=1, groups_per_step=2, ppo=PPOConfig(value_factor=30.0))
    groups = [
        Group(question=QUESTION, trajectories=(trajectory(1.0, 1),)),
        Group(question=QUESTION, trajectories=(trajectory(0.0, 2),)),
    ]
    learner, metrics = trained(cfg, groups, steps=40)
    assert metrics[0]["value/mean"] == 0.0
    assert metrics[0]["value/loss"] == pytest.approx(0.5 * 0.5)
    assert metrics[-1]["value/loss"] < 0.05
    assert metrics[-1]["value/return_mean"] == pytest.approx(0.5, abs=1e-5)
    assert learner.num_steps == 40


def test_further_epochs_step_again_but_count_once():
    groups = [
        Group(question=QUESTION, trajectories=(trajectory(1.0, 1), trajectory(0.0, 2))),
    ]
    once, first = trained(RLConfig(groups_per_step=1, ppo=PPOConfig()), groups)
    thrice, third = trained(RLConfig(groups_per_step=1, ppo=PPOConfig(epochs=3)), groups)
    assert once.num_steps == thrice.num_steps == 1
    assert third[0]["value/loss"] < first[0]["value/loss"]
    assert first[0]["ratio/mean"] == pytest.approx(1.0)
    assert third[0]["ratio/mean"] != pytest.approx(1.0, abs=1e-6)


def test_a_restored_critic_goes_on_where_it_was(tmp_path):
    groups = [
        Group(question=QUESTION, trajectories=(trajectory(1.0, 1), trajectory(0.0, 2))),
    ]
    learner, _ = trained(RLConfig(groups_per_step=1, ppo=PPOConfig()), groups, steps=3)
    learner.save(tmp_path / "c", {})
    fresh = Learner(
        tiny("llama"),
        OptimizerConfig(learning_rate=1e-3, warmup_frac=0.0),
        total_steps=3,
        value_head=ValueHead(32),
        value_factor=10.0,
    )
    fresh.restore(tmp_path / "c")
    assert torch.equal(fresh.value_head.linear.weight, learner.value_head.linear.weight)
    assert fresh.value_head.linear.weight.abs().max() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size must be >= 2 unless rl.ppo is set, got 1"),
        ({"ppo": {}, "dynamic_sampling": True}, "about siblings"),
        ({"ppo": {}, "scale_by_std": True}, "about siblings"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        RLConfig(**settings)
