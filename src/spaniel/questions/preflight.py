"""Pre-flight: roll a small group on each candidate question, keep those that teach, say why the
others do not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spaniel.config import PreflightConfig
from spaniel.env.aliases import UNKNOWN
from spaniel.types import Group, StopReason, Trajectory

TOO_EASY, TOO_HARD, NO_VARIANCE = "solved every time", "failed every time", "same score every time"
SOLVED = 0.99
MAX_TRACES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What pre-flight says about one question."""

    qid: str
    hops: int
    mean: float
    """Mean reward of the group."""
    std: float
    """Population std of the rewards; the question is kept iff it is above the threshold."""
    ndcg: float
    """Mean nDCG: difficulty is measured on the task, not on the shaped reward."""
    kept: bool
    why: str = ""
    """Why a question without variance has none; empty when kept."""
    causes: dict[str, int] = field(default_factory=dict)
    """Rollouts that show each cause of a zero (``diagnose``)."""


def judge(group: Group, cfg: PreflightConfig) -> Verdict:
    """Keep a question iff std(rewards) > ``cfg.min_std``. A group without two scored
    trajectories is not kept: the infrastructure failed it, which says nothing."""
    question, scored = group.question, group.scored
    if len(scored) < 2:
        return Verdict(
            qid=question.qid,
            hops=question.hops,
            mean=0.0,
            std=0.0,
            ndcg=0.0,
            kept=False,
            why="the infrastructure failed",
        )
    rewards = [t.reward or 0.0 for t in scored]
    ndcg = [t.reward_parts["ndcg"] for t in scored]
    std = float(np.std(rewards))
    causes: Counter[str] = Counter()
    for trajectory in scored:
        causes.update(diagnose(trajectory, question.targets))
    return Verdict(
        qid=question.qid,
        hops=question.hops,
        mean=float(np.mean(rewards)),
        std=std,
        ndcg=float(np.mean(ndcg)),
        kept=std > cfg.min_std,
        why="" if std > cfg.min_std else _why(ndcg),
        causes=dict(causes),
    )


def _why(ndcg: Sequence[float]) -> str:
    if min(ndcg) >= SOLVED:
        return TOO_EASY
    return TOO_HARD if max(ndcg) == 0.0 else NO_VARIANCE


def diagnose(trajectory: Trajectory, targets: Sequence[str]) -> list[str]:
    """Causes of a zero that one trajectory shows, most telling first; none when nDCG > 0.

    These are what a wall of zeros is usually made of: a bug between the prompt, the parser and
    the labels far more often than a hard question.
    """
    if trajectory.reward_parts.get("ndcg", 0.0) > 0.0:
        return []
    causes = []
    errors = {error for turn in trajectory.turns for error in turn.errors}
    if all(turn.call is None for turn in trajectory.turns):
        causes.append("no tool was ever executed")
    if "invented_result" in errors:
        causes.append("tool results invented by the model")
    if errors & {"bad_syntax", "no_call", "call_in_thinking", "unclosed_thinking"}:
        causes.append("calls that cannot be parsed")
    if "cut" in errors:
        causes.append("turns cut by the token limit")
    if any(docid.startswith(UNKNOWN) for docid in trajectory.report):
        causes.append("reported ids that are no ids of this episode")
    if not targets:
        causes.append("labels missing from the corpus")
    if trajectory.stop_reason in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS):
        causes.append("the budget ran out before a report")
    shown = {hit.docid for turn in trajectory.turns for hit in turn.hits}
    if targets and not shown & set(targets):
        causes.append("no search showed a target")
    elif targets and not set(trajectory.report) & set(targets):
        causes.append("a target was shown but not reported")
    return causes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The difficulty report, as data; ``lines`` says it to a person."""

    num_candidates: int
    num_kept: int
    kept: tuple[str, ...]
    """qids to train on."""
    without_variance: dict[str, int]
    """Reason -> questions."""
    causes: dict[str, int]
    """Cause of a zero -> rollouts that show it, over all candidates."""
    num_zero_rollouts: int
    num_rollouts: int
    by_hops: dict[str, dict[str, float]]
    """hops -> n, ndcg, kept share."""
    traces: dict[str, tuple[str, ...]]
    """Cause -> a few trajectories that show it, as text."""

    def lines(self) -> list[str]:
        """The report in words."""
        out = [f"kept {self.num_kept} of {self.num_candidates} questions (rewards that vary)"]
        out += [f"  {count} {reason}" for reason, count in self.without_variance.items()]
        if self.num_zero_rollouts:
            share = self.num_zero_rollouts / max(1, self.num_rollouts)
            out.append(f"{self.num_zero_rollouts} rollouts ({share:.0%}) found nothing:")
            out += [f"  {count} {cause}" for cause, count in self.causes.items()]
        for hops, row in self.by_hops.items():
            out.append(
                f"  {hops} hops: n {row['n']:.0f}, nDCG {row['ndcg']:.3f}, kept {row['kept']:.0%}"
            )
        return out


def preflight_report(groups: Sequence[Group], cfg: PreflightConfig) -> PreflightReport:
    """Judge every group and add up the reasons."""
    verdicts = [judge(group, cfg) for group in groups]
    kept = tuple(v.qid for v in verdicts if v.kept)
    causes: Counter[str] = Counter()
    for verdict in verdicts:
        causes.update(verdict.causes)
    scored = [t for g in groups for t in g.scored]
    return PreflightReport(
        num_candidates=len(verdicts),
        num_kept=len(kept),
        kept=kept,
        without_variance=dict(Counter(v.why for v in verdicts if v.why).most_common()),
        causes=dict(causes.most_common()),
        num_zero_rollouts=sum(t.reward_parts.get("ndcg", 0.0) == 0.0 for t in scored),
        num_rollouts=len(scored),
        by_hops=_by_hops(verdicts),
        traces=_traces(groups),
    )


def _by_hops(verdicts: Sequence[Verdict]) -> dict[str, dict[str, float]]:
    out = {}
    for hops in sorted({v.hops for v in verdicts}):
        rows = [v for v in verdicts if v.hops == hops]
        out[str(hops)] = {
            "n": float(len(rows)),
            "ndcg": float(np.mean([v.ndcg for v in rows])),
            "kept": float(np.mean([v.kept for v in rows])),
        }
    return out


def _traces(groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    traces: dict[str, list[str]] = {}
    for group in groups:
        for trajectory in group.scored:
            for cause in diagnose(trajectory, group.question.targets):
                examples = traces.setdefault(cause, [])
                if len(examples) < MAX_TRACES:
                    examples.append(trace_text(group.question.text, trajectory))
    return {cause: tuple(examples) for cause, examples in traces.items()}


def trace_text(question: str, trajectory: Trajectory) -> str:
    """A trajectory as a person reads it: what the policy wrote, and what came back."""
    lines = [f"question: {question}"]
    for turn in trajectory.turns:
        lines.append(f"policy:   {turn.text.strip()}")
        if turn.errors:
            lines.append(f"problem:  {', '.join(turn.errors)}")
        if turn.observation:
            lines.append(f"observed: {turn.observation[:300]}")
    lines.append(f"ended:    {trajectory.stop_reason}, report {list(trajectory.report)}")
    return "\n".join(lines)
