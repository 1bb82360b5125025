"""Groups -> training samples: advantages spread, segments split, losses normalised."""

import itertools
from collections.abc import Sequence
from typing import Literal

from spaniel.errors import TrainingError
from spaniel.rl.advantage import group_advantages
from spaniel.types import Group, TrainingSample, Trajectory

Normalization = Literal["token", "sequence", "group"]


def group_samples(
    groups: Sequence[Group],
    *,
    scale_by_std: bool,
    normalization: Normalization,
    keep_without_signal: bool = False,
) -> list[TrainingSample]:
    """Flatten one update's groups into weighted samples.

        trajectory  prompt [q]  a0  o0  a1     advantage A
        -> tokens   [q  a0 o0 a1]
           weights  [0  w  0  w ]              w by normalization, N trained tokens in all:
                                                 token     1 / N
                                                 sequence  1 / (trajectories * its own tokens)
                                                 group     1 / (groups * its group's tokens)

    ``token`` is the global token mean (DAPO, https://arxiv.org/abs/2503.14476, and without
    std Dr. GRPO up to a constant); ``sequence`` is the original GRPO's, which pays a long
    failure less per token than a short one. Trajectories that the infrastructure failed take
    no part, neither in the loss nor in their group's mean. Groups without signal (all
    advantages zero) give no samples, yet their tokens count in N: a batch that is half
    solved takes half a step. ``keep_without_signal`` keeps those samples too, for a KL term.

    Raises:
        TrainingError: a trajectory has no reward.
    """
    members = [(group, group.scored) for group in groups if len(group.scored) >= 2]
    num_tokens = sum(t.num_sampled_tokens for _, ts in members for t in ts)
    num_trajectories = sum(len(ts) for _, ts in members)
    samples = []
    for _, trajectories in members:
        rewards = [_reward(t) for t in trajectories]
        advantages = group_advantages(rewards, scale_by_std=scale_by_std)
        group_tokens = sum(t.num_sampled_tokens for t in trajectories)
        for trajectory, advantage in zip(trajectories, advantages, strict=True):
            own = trajectory.num_sampled_tokens
            if own == 0 or (advantage == 0.0 and not keep_without_signal):
                continue
            denominator = {
                "token": num_tokens,
                "sequence": num_trajectories * own,
                "group": len(members) * group_tokens,
            }[normalization]
            samples += trajectory_samples(trajectory, advantage, weight=1.0 / denominator)
    return samples


def trajectory_samples(
    trajectory: Trajectory, advantage: float, *, weight: float
) -> list[TrainingSample]:
    """One sample for each segment of the ledger; ``weight`` on every sampled token."""
    bounds = [*trajectory.segments, len(trajectory.token_ids)]
    samples = []
    for start, end in itertools.pairwise(bounds):
        mask = trajectory.loss_mask[start:end]
        if any(mask):
            samples.append(
                TrainingSample(
                    token_ids=trajectory.token_ids[start:end],
                    weights=tuple(weight if m else 0.0 for m in mask),
                    sampler_logprobs=trajectory.sampler_logprobs[start:end],
                    advantage=advantage,
                )
            )
    return samples


def _reward(trajectory: Trajectory) -> float:
    if trajectory.reward is None:
        raise TrainingError(
            f"trajectory {trajectory.trajectory_id} has no reward: score the group before "
            "building training samples"
        )
    return trajectory.reward
