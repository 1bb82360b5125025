"""What is logged about one step's rollouts. Metric keys are paths."""

from collections.abc import Sequence

import numpy as np

from spaniel.types import Group, StopReason


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the scored trajectories of a step; failed ones are only counted.

    ``reward/*`` are unweighted reward parts, ``stop/*`` and ``problem/*`` shares of the
    trajectories that ended so or had such a turn.
    """
    everyone = [t for g in groups for t in g.trajectories]
    scored = [t for g in groups for t in g.scored]
    metrics: dict[str, float] = {}
    if not scored:
        return metrics
    rewards = [[t.reward or 0.0 for t in g.scored] for g in groups if g.scored]
    metrics["reward/mean"] = float(np.mean([r for group in rewards for r in group]))
    metrics["reward/group_std"] = float(np.mean([np.std(group) for group in rewards]))
    metrics["groups/without_signal_frac"] = float(np.mean([np.ptp(g) == 0.0 for g in rewards]))
    for part in scored[0].reward_parts:
        metrics[f"reward/{part}"] = float(np.mean([t.reward_parts[part] for t in scored]))
    metrics["completion_tokens/mean"] = float(np.mean([t.num_sampled_tokens for t in scored]))
    longest = [max(end - start for start, end in t.segment_bounds) for t in scored]
    metrics["context_tokens/mean"] = float(np.mean(longest))
    metrics["calls/mean"] = float(
        np.mean([sum(x.call is not None for x in t.turns) for t in scored])
    )
    for tool in ("search", "read", "visit"):
        metrics[f"calls/{tool}"] = float(np.mean([t.num_calls(tool) for t in scored]))
    metrics["time/tools_s"] = sum(t.tool_s for t in scored)
    metrics["report/size"] = float(np.mean([len(t.report) for t in scored]))
    for reason in StopReason:
        metrics[f"stop/{reason}"] = float(np.mean([t.stop_reason is reason for t in everyone]))
    problems = [{p for turn in t.turns for p in turn.errors} for t in scored]
    for problem in sorted(set().union(*problems)):
        metrics[f"problem/{problem}"] = float(np.mean([problem in p for p in problems]))
    return metrics
