"""Supervised fine-tuning: loss on the policy's own tokens, normalised over the update."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from spaniel.config import SFTConfig
from spaniel.errors import DataError
from spaniel.learner import Learner
from spaniel.microbatch import Microbatch, Predictions
from spaniel.rollout import seed_of
from spaniel.types import TrainingSample, Trajectory


def num_sft_steps(num_trajectories: int, cfg: SFTConfig) -> int:
    """Optimizer steps of the whole fine-tuning."""
    return max(1, math.ceil(num_trajectories * cfg.epochs / cfg.trajectories_per_step))


def train_sft(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    cfg: SFTConfig,
    *,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None],
) -> None:
    """Train from ``learner.num_steps`` to the end; ``on_step`` gets (step from 1, metrics).

    Raises:
        DataError: a trajectory has no token to train on.
        TrainingError: loss or gradient is not finite.
    """
    if not trajectories:
        raise DataError("no demonstrations to train on: all were filtered; lower min_reward")
    total = num_sft_steps(len(trajectories), cfg)
    for step, batch in _batches(trajectories, cfg, seed=seed, start=learner.num_steps, total=total):
        samples = sft_samples(batch, observation_weight=cfg.observation_loss_weight)
        on_step(step, learner.step(samples, cross_entropy))


def sft_samples(
    trajectories: Sequence[Trajectory], *, observation_weight: float = 0.0
) -> list[TrainingSample]:
    """A sample for each segment; weight 1 / N on each own token, N own tokens of the update.

    A turn that went wrong inside a good trajectory is not imitated: its tokens are context,
    and the error it got stays in view. ``observation_weight`` puts some loss on context too, but
    not on what a segment repeats of the one before.
    """
    masks = [_imitated(t) for t in trajectories]
    for trajectory, mask in zip(trajectories, masks, strict=True):
        if not any(mask):
            raise DataError(f"demonstration {trajectory.trajectory_id} has no token to train on")
    own = 1.0 / sum(sum(mask) for mask in masks)
    samples = []
    for trajectory, mask in zip(trajectories, masks, strict=True):
        for start, end in trajectory.segment_bounds:
            sampled = trajectory.loss_mask[start:end]
            repeated = sampled.index(True) if start and True in sampled else 0
            weights = [own if m else own * observation_weight for m in mask[start:end]]
            weights[:repeated] = [0.0] * repeated
            if any(weights[1:]):
                samples.append(
                    TrainingSample(
                        token_ids=trajectory.token_ids[start:end],
                        weights=tuple(weights),
                        sampler_logprobs=trajectory.sampler_logprobs[start:end],
                    )
                )
    return samples


def _imitated(trajectory: Trajectory) -> list[bool]:
    mask = list(trajectory.loss_mask)
    for turn in trajectory.turns:
        if turn.errors:
            mask[turn.start : turn.end] = [False] * (turn.end - turn.start)
    return mask


def cross_entropy(predictions: Predictions, batch: Microbatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted negative log-likelihood; ``loss/own_tokens`` leaves context out."""
    own_T = batch.weights_T == batch.weights_T.max()
    loss_T = -predictions.logprobs_T * batch.weights_T
    loss, own_loss = loss_T.sum(), (loss_T * own_T).sum()
    return loss, {"loss": loss.detach(), "loss/own_tokens": own_loss.detach()}


def _batches(
    trajectories: Sequence[Trajectory], cfg: SFTConfig, *, seed: int, start: int, total: int
) -> Iterator[tuple[int, list[Trajectory]]]:
    """(step from 1, its trajectories); every epoch in its own order, a function of the seed."""
    size = cfg.trajectories_per_step
    orders: dict[int, np.ndarray] = {}

    def at(position: int) -> Trajectory:
        epoch, offset = divmod(position, len(trajectories))
        if epoch not in orders:
            rng = np.random.default_rng(seed_of(seed, "sft", epoch))
            orders[epoch] = rng.permutation(len(trajectories))
        return trajectories[int(orders[epoch][offset])]

    for step in range(start, total):
        yield step + 1, [at(step * size + i) for i in range(size)]
