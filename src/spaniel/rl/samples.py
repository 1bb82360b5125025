"""Groups -> training samples: advantages spread, segments split, losses normalised."""

from collections.abc import Iterator, Sequence
from typing import Literal

from spaniel.errors import TrainingError
from spaniel.rl.advantage import group_advantages
from spaniel.types import Group, TrainingSample, Trajectory

Normalization = Literal["token", "sequence", "group"]


class UpdateSamples:
    """The weighted samples of one update, made part by part as its groups come.

        trajectory  prompt [q]  a0  o0  a1     advantage A
        -> tokens   [q  a0 o0 a1]
           weights  [0  w  0  w ]              w / denominator, by normalization:
                                                 token     1 / tokens of the update
                                                 sequence  1 / (its own tokens * trajectories)
                                                 group     1 / (its group's tokens * groups)

    ``token`` is the global token mean (DAPO, https://arxiv.org/abs/2503.14476, and without
    std Dr. GRPO up to a constant); ``sequence`` is the original GRPO's, which pays a long
    failure less per token than a short one. Weights hold the first factor; the second one, which
    is known when all groups are there, is ``denominator``.

    Trajectories that the infrastructure failed take no part, neither in the loss nor in their
    group's mean. Groups without signal (all advantages zero) give no samples, yet their tokens
    count: a batch that is half solved takes half a step. Tokens that are too old stay as context
    and count nowhere.

    Args:
        siblings: advantages are relative to the group. Else ``advantage`` is the reward, and a
            critic makes advantages of it (``ppo.py``).
        keep_without_signal: keep the samples of groups without signal too, for a KL term.
        version: of the policy that is trained.
        max_age: versions that a token may be older than that.
    """

    def __init__(
        self,
        *,
        scale_by_std: bool,
        normalization: Normalization,
        siblings: bool = True,
        keep_without_signal: bool = False,
        version: int = 0,
        max_age: int = 0,
    ) -> None:
        self.scale_by_std, self.normalization = scale_by_std, normalization
        self.siblings = siblings
        self.keep_without_signal = keep_without_signal or not siblings
        self.version, self.max_age = version, max_age
        self.num_tokens = self.num_trajectories = self.num_groups = 0
        self.num_too_old = 0
        """Tokens that were left out for their age."""
        self.oldest = 0
        """Age of the oldest trained token, versions."""

    @property
    def denominator(self) -> int:
        """What the weights of all samples have to be divided by."""
        return {
            "token": self.num_tokens,
            "sequence": self.num_trajectories,
            "group": self.num_groups,
        }[self.normalization]

    def add(self, groups: Sequence[Group]) -> list[list[TrainingSample]]:
        """Samples of some groups, a list for each trajectory.

        Raises ``TrainingError`` when a trajectory has no reward.
        """
        enough = 2 if self.siblings else 1
        return [
            made for group in groups if len(group.scored) >= enough for made in self._add(group)
        ]

    def _add(self, group: Group) -> Iterator[list[TrainingSample]]:
        advantages = [_reward(t) for t in group.scored]
        if self.siblings:
            advantages = group_advantages(advantages, scale_by_std=self.scale_by_std)
        masks = [self._mask(t) for t in group.scored]
        group_tokens = sum(map(sum, masks))
        self.num_groups += int(group_tokens > 0)
        for trajectory, mask, advantage in zip(group.scored, masks, advantages, strict=True):
            own = sum(mask)
            self.num_tokens += own
            self.num_trajectories += int(own > 0)
            if own == 0 or (advantage == 0.0 and not self.keep_without_signal):
                continue
            factor = {"token": 1, "sequence": own, "group": group_tokens}[self.normalization]
            yield trajectory_samples(trajectory, mask, advantage, weight=1.0 / factor)

    def _mask(self, trajectory: Trajectory) -> list[bool]:
        """The sampled tokens that are young enough."""
        ages = [self.version - version for version in trajectory.policy_versions]
        young = [
            m and age <= self.max_age for m, age in zip(trajectory.loss_mask, ages, strict=True)
        ]
        self.num_too_old += sum(trajectory.loss_mask) - sum(young)
        trained = (age for age, is_young in zip(ages, young, strict=True) if is_young)
        self.oldest = max(self.oldest, *trained, 0)
        return young


def trajectory_samples(
    trajectory: Trajectory, trained: Sequence[bool], advantage: float, *, weight: float
) -> list[TrainingSample]:
    """One sample for each segment of the ledger; ``weight`` on every token that is trained."""
    samples = []
    for start, end in trajectory.segment_bounds:
        mask = trained[start:end]
        if any(mask):
            samples.append(
                TrainingSample(
                    token_ids=trajectory.token_ids[start:end],
                    weights=tuple(weight if m else 0.0 for m in mask),
                    sampler_logprobs=trajectory.sampler_logprobs[start:end],
                    routes=trajectory.routes[start:end],
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
