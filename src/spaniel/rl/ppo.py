"""Advantages by GAE from a critic's values (``value_head.py``), and the loss of the values.

    trained tokens   a_1 ... a_K      of a trajectory, over all of its turns; what was observed in
    values           V_1 ... V_K      between is part of the state and no step
    rewards            0 ... r        of the whole trajectory, behind its last token

    delta_k = r_k + gamma V_(k+1) - V_k,  V_(K+1) = 0
    A_k     = delta_k + gamma lambda A_(k+1)
    return  = A_k + V_k

PPO, https://arxiv.org/abs/1707.06347, eq. 11 and 12; GAE, https://arxiv.org/abs/1506.02438.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spaniel.config import PPOConfig
from spaniel.types import TrainingSample


def gae(values: Sequence[float], reward: float, *, gamma: float, gae_lambda: float) -> list[float]:
    """Advantages of the K trained tokens of a trajectory.

    Args:
        values: of the state before each of them.
        reward: comes behind the last.
    """
    advantages = [0.0] * len(values)
    following, value_after = 0.0, 0.0
    for k in reversed(range(len(values))):
        delta = (reward if k == len(values) - 1 else 0.0) + gamma * value_after - values[k]
        following = delta + gamma * gae_lambda * following
        advantages[k], value_after = following, values[k]
    return advantages


def with_advantages(
    segments: Sequence[TrainingSample],
    values: Sequence[Sequence[float]],
    reward: float,
    cfg: PPOConfig,
) -> list[TrainingSample]:
    """The samples of one trajectory, each trained token with its advantage and value.

    Args:
        segments: of the trajectory, in order.
        values: of each segment's trained tokens, under the weights before the update.
    """
    flat = [value for part in values for value in part]
    advantages = gae(flat, reward, gamma=cfg.gamma, gae_lambda=cfg.gae_lambda)
    out, at = [], 0
    for segment, part in zip(segments, values, strict=True):
        own = tuple(advantages[at : at + len(part)])
        out.append(replace(segment, advantages=own, values=tuple(part)))
        at += len(part)
    return out


def value_loss(
    values_T: Tensor,
    *,
    old_values_T: Tensor,
    returns_T: Tensor,
    weights_T: Tensor,
    clip: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """0.5 max((V - R)^2, (clipped V - R)^2), V clipped to ``clip`` around the old value.

    Returns:
        Scalar loss and detached metrics; both add up over microbatches.
    """
    clipped_T = old_values_T + (values_T - old_values_T).clamp(-clip, clip)
    free_T, bound_T = (values_T - returns_T) ** 2, (clipped_T - returns_T) ** 2
    loss = 0.5 * (torch.maximum(free_T, bound_T) * weights_T).sum()
    with torch.no_grad():
        metrics = {
            "value/loss": loss.detach(),
            "value/mean": (values_T * weights_T).sum(),
            "value/return_mean": (returns_T * weights_T).sum(),
            "value/clipped_frac": ((bound_T > free_T) * weights_T).sum(),
        }
    return loss, metrics
