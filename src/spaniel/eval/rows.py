"""What one system did on one question, made from trajectories or from returned lists."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spaniel.errors import ConfigError, DataError
from spaniel.eval.funnel import Funnel, funnel
from spaniel.eval.metrics import score_list
from spaniel.types import Group, Question, StopReason, Trajectory

SYSTEMS = (
    r"bm25",
    r"vector",
    r"hybrid",
    r"vector\+reranker",
    r"search\+reranker",
    r"policy-start",
    r"policy-sft",
    r"policy-rl",
    r"policy-rl-rrf[1-9]\d*",
    r"api:\S+",
)
"""Names a system may have, as patterns, in the order of the table."""

Fuse = Callable[[Sequence[Sequence[str]]], Sequence[str]]
"""Several ranked lists -> one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """One answer of one system to one question."""

    qid: str
    hops: int = 0
    """0 when unknown."""
    kind: str = ""
    ndcg: float
    recall: float
    precision: float
    f1: float
    num_returned: int
    searches: int = 0
    reads: int = 0
    prompt_tokens: int = 0
    """Summed over the calls of the model, each with its whole prompt, as an endpoint bills."""
    completion_tokens: int = 0
    latency_s: float = 0.0
    """From question to list, waiting included."""
    reward: float | None = None
    stop_reason: str = ""
    funnel: Funnel | None = None
    """Of a single rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResult:
    """All answers of one system; several rows of one question are several rollouts of it."""

    system: str
    """One of ``SYSTEMS``."""
    rows: tuple[QuestionRow, ...]
    failed: int = 0
    """Rollouts that failed by the infrastructure: counted, in no mean."""
    made_by: dict[str, Any] = field(default_factory=dict)
    """What reproduces it: checkpoint, seed, model, settings."""


def system_rank(system: str) -> int:
    """Place of a system in the table. Raises ``ConfigError`` for a name that is none."""
    for rank, pattern in enumerate(SYSTEMS):
        if re.fullmatch(pattern, system):
            return rank
    names = ", ".join(p.replace("\\", "") for p in SYSTEMS[:8])
    raise ConfigError(
        f"a system must be one of {names}, policy-rl-rrf<N>, api:<model>; got {system!r}"
    )


def list_row(
    question: Question, returned: Sequence[str], *, k: int | None = None, latency_s: float = 0.0
) -> QuestionRow:
    """The row of a classical search: one query, the first k of what it returned."""
    scores = score_list(returned, question.targets, k)
    return QuestionRow(
        qid=question.qid,
        hops=question.hops,
        kind=question.kind,
        ndcg=scores.ndcg,
        recall=scores.recall,
        precision=scores.precision,
        f1=scores.f1,
        num_returned=scores.num_returned,
        searches=1,
        latency_s=latency_s,
    )


def trajectory_row(
    trajectory: Trajectory, question: Question, *, usage: tuple[int, int] | None = None
) -> QuestionRow:
    """The row of one rollout; one that ended without a report returned nothing.

    Args:
        usage: (prompt, completion) tokens as counted by an endpoint; counted from the
            ledger by default.

    Raises:
        DataError: the trajectory failed by the infrastructure, or is another question's.
    """
    return _rollouts_row(question, [trajectory], _reported(trajectory), [usage])


def fused_row(
    trajectories: Sequence[Trajectory], question: Question, returned: Sequence[str]
) -> QuestionRow:
    """The row of several parallel rollouts fused to one list: costs add up, the slowest waits.

    Raises:
        DataError: there is no trajectory, or see ``trajectory_row``.
    """
    return _rollouts_row(question, trajectories, returned, [None] * len(trajectories))


def from_lists(
    system: str,
    lists: Mapping[str, Sequence[str]],
    questions: Sequence[Question],
    *,
    k: int,
    latency_s: Mapping[str, float] | None = None,
    made_by: dict[str, Any] | None = None,
) -> SystemResult:
    """The result of a classical search that answered every question.

    Raises:
        DataError: a question has no list; a search that found nothing has an empty one.
    """
    rows = []
    for question in questions:
        if question.qid not in lists:
            raise DataError(f"{system}: question {question.qid} has no list, not even an empty one")
        seconds = (latency_s or {}).get(question.qid, 0.0)
        rows.append(list_row(question, lists[question.qid], k=k, latency_s=seconds))
    return SystemResult(system=system, rows=tuple(rows), made_by=made_by or {})


def from_groups(
    system: str,
    groups: Iterable[Group],
    *,
    usage: Mapping[str, tuple[int, int]] | None = None,
    made_by: dict[str, Any] | None = None,
) -> SystemResult:
    """The result of a policy, every rollout a row of its own (the mean is taken per question).

    Args:
        usage: trajectory id -> (prompt, completion) tokens as counted by an endpoint.
    """
    rows: list[QuestionRow] = []
    failed = 0
    for group in groups:
        failed += len(group.trajectories) - len(group.scored)
        rows.extend(
            trajectory_row(t, group.question, usage=(usage or {}).get(t.trajectory_id))
            for t in group.scored
        )
    return SystemResult(system=system, rows=tuple(rows), failed=failed, made_by=made_by or {})


def from_fused(
    system: str, groups: Iterable[Group], fuse: Fuse, *, made_by: dict[str, Any] | None = None
) -> SystemResult:
    """The result of fusing each group's reports; a failed rollout is missing from its fusion."""
    rows: list[QuestionRow] = []
    failed = 0
    for group in groups:
        failed += len(group.trajectories) - len(group.scored)
        if group.scored:
            returned = fuse([_reported(t) for t in group.scored])
            rows.append(fused_row(group.scored, group.question, returned))
    return SystemResult(system=system, rows=tuple(rows), failed=failed, made_by=made_by or {})


def billed_prompt_tokens(trajectory: Trajectory) -> int:
    """Prompt tokens summed over the turns: each call sends its segment's history again."""
    total = 0
    for turn in trajectory.turns:
        segment = max((s for s in trajectory.segments if s <= turn.start), default=0)
        total += turn.start - segment
    return total


def _reported(trajectory: Trajectory) -> tuple[str, ...]:
    return trajectory.report if trajectory.stop_reason is StopReason.REPORTED else ()


def _rollouts_row(
    question: Question,
    trajectories: Sequence[Trajectory],
    returned: Sequence[str],
    usage: Sequence[tuple[int, int] | None],
) -> QuestionRow:
    if not trajectories:
        raise DataError(f"question {question.qid}: a row needs at least one rollout")
    for t in trajectories:
        if t.failed_by_infrastructure:
            raise DataError(f"{t.trajectory_id} failed by the infrastructure: it has no scores")
        if t.qid != question.qid:
            raise DataError(f"{t.trajectory_id} answers question {t.qid}, got {question.qid}")
    scores = score_list(returned, question.targets)
    tokens = [
        used or (billed_prompt_tokens(t), t.num_sampled_tokens)
        for t, used in zip(trajectories, usage, strict=True)
    ]
    single = trajectories[0] if len(trajectories) == 1 else None
    return QuestionRow(
        qid=question.qid,
        hops=question.hops,
        kind=question.kind,
        ndcg=scores.ndcg,
        recall=scores.recall,
        precision=scores.precision,
        f1=scores.f1,
        num_returned=scores.num_returned,
        searches=sum(t.num_calls("search") for t in trajectories),
        reads=sum(len(turn.docids) for t in trajectories for turn in t.turns),
        prompt_tokens=sum(prompt for prompt, _ in tokens),
        completion_tokens=sum(completion for _, completion in tokens),
        latency_s=max(t.wall_s for t in trajectories),
        reward=single.reward if single else None,
        stop_reason=single.stop_reason.value if single else "",
        funnel=funnel(single, question.targets) if single else None,
    )
