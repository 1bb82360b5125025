"""The reward of the document finder: nDCG over the target set, shaped.

R = w_ndcg nDCG + w_format [format ok] - overlong_penalty max(0, |L| - tau |T|) / |T|

L is the reported list, T the question's set of targets. The parts are kept unweighted
beside the reward, so that the task's own measure can be read off a shaped run.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

from spaniel.config import RewardConfig
from spaniel.errors import ConfigError, DataError, RewardError
from spaniel.types import Question, StopReason, Trajectory


def ndcg(ranked: Sequence[str], targets: Collection[str], k: int | None = None) -> float:
    """Normalised discounted cumulative gain of a ranked list, binary relevance, in [0, 1].

        DCG  = sum_i [ranked_i in targets] / log2(i + 1)
        IDCG = sum_{i <= |targets|} 1 / log2(i + 1)

    The ideal comes from all targets, never from what was returned, so a short list of
    hits scores below 1. It is exactly 1 iff the first |targets| are the targets, in any order.

    Args:
        ranked: best first. A repeated id counts at its first place; later copies are
            dropped and the ranks behind them close up.
        targets: at least one; order and repetition carry no meaning.
        k: cut both sums after rank k; None takes the list as it is.

    Raises:
        DataError: there are no targets: nDCG is undefined.
        ConfigError: ``k`` is below 1.
    """
    wanted = set(targets)
    if not wanted:
        raise DataError("nDCG needs at least one target, got none")
    if k is not None and k < 1:
        raise ConfigError(f"the cut-off k of nDCG must be >= 1, got {k}")
    top = list(dict.fromkeys(ranked))[:k]
    gain = sum(_discount(rank) for rank, docid in enumerate(top, start=1) if docid in wanted)
    num_ideal = len(wanted) if k is None else min(k, len(wanted))
    return gain / sum(_discount(rank) for rank in range(1, num_ideal + 1))


def reward(
    trajectory: Trajectory, question: Question, cfg: RewardConfig
) -> tuple[float, dict[str, float]]:
    """The shaped reward and its unweighted parts ``ndcg``, ``format`` and ``overlong``.

    A trajectory that ended without a report is scored with the empty list. An id the
    episode never showed (``unknown:<id>``) is a miss and counts in the length.

    Returns:
        (R, parts): ndcg in [0, 1]; format 0 or 1; overlong >= 0, in target sets' worth of
        documents beyond the allowance.

    Raises:
        RewardError: the question has no targets, is another one than the trajectory's, or
            the trajectory failed by the infrastructure.
    """
    if trajectory.failed_by_infrastructure:
        raise RewardError(f"{trajectory.trajectory_id} failed by the infrastructure: no reward")
    if trajectory.qid != question.qid:
        raise RewardError(
            f"{trajectory.trajectory_id} answers question {trajectory.qid}, got {question.qid}"
        )
    num_targets = len(set(question.targets))
    if not num_targets:
        raise RewardError(f"question {question.qid} has no targets to score against")
    reported = trajectory.stop_reason is StopReason.REPORTED
    ranked = trajectory.report if reported else ()
    parts = {
        "ndcg": ndcg(ranked, question.targets),
        "format": float(reported and trajectory.format_ok),
        "overlong": max(0.0, len(ranked) - cfg.overlong_tau * num_targets) / num_targets,
    }
    total = cfg.w_ndcg * parts["ndcg"] + cfg.w_format * parts["format"]
    return total - cfg.overlong_penalty * parts["overlong"], parts


def is_solved(trajectory: Trajectory) -> bool:
    """Whether a scored trajectory found all targets and nothing else counts against it."""
    parts = trajectory.reward_parts
    found = parts.get("ndcg") == 1.0 and parts.get("format") == 1.0
    return found and parts.get("overlong") == 0.0


def score(trajectory: Trajectory, question: Question, cfg: RewardConfig) -> Trajectory:
    """The trajectory with its reward; one failed by the infrastructure comes back unscored.

    Raises:
        RewardError: see ``reward``.
    """
    if trajectory.failed_by_infrastructure:
        return trajectory
    total, parts = reward(trajectory, question, cfg)
    return dataclasses.replace(trajectory, reward=total, reward_parts=parts)


def _discount(rank: int) -> float:
    return 1.0 / math.log2(rank + 1)
