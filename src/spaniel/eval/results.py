"""``results.json``: every system on the same held-out questions, with intervals and tests."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spaniel.errors import DataError
from spaniel.eval.funnel import funnel_rates
from spaniel.eval.rows import QuestionRow, SystemResult, system_rank
from spaniel.eval.statistics import bootstrap_interval, paired_test
from spaniel.store import to_plain, write_json

QUALITY = ("ndcg", "recall", "precision", "f1")
COSTS = ("num_returned", "searches", "reads", "prompt_tokens", "completion_tokens", "latency_s")
COMPARED = ("ndcg", "f1")
"""Measures with an interval in each row and a paired test in each comparison."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProtocol:
    """What a number needs beside it to be reproduced."""

    recipe: str
    corpus_hash: str
    num_documents: int
    index_fingerprint: str
    questions_hash: str
    num_questions: int
    """Held out, the same for every system."""
    system_prompt: str
    tools: str
    """Dialect and tools as the policy sees them."""
    judge: str = "none: labels are document ids"
    k: int
    """Documents a classical search returns."""
    temperature: float
    seed: int
    version: str
    """Of Spaniel; the commit where it is known."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings: environment, reward, reranker, encoder."""


def build_results(
    results: Sequence[SystemResult],
    *,
    protocol: EvalProtocol,
    not_run: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    bootstrap_samples: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """The content of ``results.json`` as plain data, free of NaN.

    A question's value is the mean over its rollouts; a system's is the mean over its
    questions. Rollouts that failed by the infrastructure are counted in ``failed`` and are
    in no mean; a question all of whose rollouts failed is missing from ``n``.

    Args:
        results: one per system, in any order.
        not_run: system -> why it was left out.
        pairs: systems to compare on the questions both answered; ``default_pairs`` by default.

    Returns:
        ``{"protocol", "rows", "comparisons", "not_run", "non_finite"}``; the last counts
        values that were NaN or infinite and are null.

    Raises:
        ConfigError: a system has no known name.
        DataError: a system occurs twice, a quality measure lies outside [0, 1], or rollouts
            disagree about their question.
    """
    ordered = sorted(results, key=lambda r: (system_rank(r.system), r.system))
    names = [r.system for r in ordered]
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(f"system {name} must occur once in the results, got {count}")
    values = {r.system: question_values(r) for r in ordered}
    pairs = default_pairs(names) if pairs is None else pairs
    left_out = sorted((not_run or {}).items(), key=lambda item: (system_rank(item[0]), item[0]))
    plain, non_finite = finite(
        {
            "protocol": to_plain(protocol),
            "rows": [_row(r, values[r.system], bootstrap_samples, seed) for r in ordered],
            "comparisons": [
                _comparison(a, b, metric, values, bootstrap_samples, seed)
                for a, b in pairs
                for metric in COMPARED
                if values[a].keys() & values[b].keys()
            ],
            "not_run": [{"system": system, "reason": reason} for system, reason in left_out],
        }
    )
    return {**plain, "non_finite": non_finite}


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write ``results.json`` whole or not at all."""
    write_json(path, dict(results))


def default_pairs(systems: Sequence[str]) -> list[tuple[str, str]]:
    """The comparisons that matter: the furthest trained policy against every other system.

    Fused rollouts are compared the other way round: they against the single rollout. The
    demonstrated policy is also compared with its start.
    """
    trained = [s for s in ("policy-rl", "policy-sft", "policy-start") if s in systems]
    if not trained:
        return []
    main = trained[0]
    pairs = [
        (system, main) if system.startswith("policy-rl-rrf") else (main, system)
        for system in systems
        if system != main
    ]
    if main == "policy-rl" and {"policy-sft", "policy-start"} <= set(systems):
        pairs.append(("policy-sft", "policy-start"))
    return pairs


def question_values(result: SystemResult) -> dict[str, Values]:
    """qid -> each numeric field's mean over the rollouts of that question.

    ``reward`` is there when every rollout of the question has one.

    Raises:
        DataError: a quality measure is not in [0, 1], or two rows of a question differ in
            hops or kind.
    """
    rows_of: dict[str, list[QuestionRow]] = {}
    for row in result.rows:
        for name in QUALITY:
            if not 0 <= getattr(row, name) <= 1:  # NaN fails this too
                raise DataError(
                    f"{result.system}, question {row.qid}: {name} must be in [0, 1], "
                    f"got {getattr(row, name)}"
                )
        rows = rows_of.setdefault(row.qid, [])
        rows.append(row)
        if (row.hops, row.kind) != (rows[0].hops, rows[0].kind):
            raise DataError(f"{result.system}, question {row.qid}: rows differ in hops or kind")
    return {qid: _means(rows) for qid, rows in rows_of.items()}


def finite(value: Any) -> tuple[Any, int]:
    """Plain data with NaN and infinities as None, and how many there were."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1
    if isinstance(value, Mapping):
        cleaned = {str(key): finite(v) for key, v in value.items()}
        return {k: v for k, (v, _) in cleaned.items()}, sum(n for _, n in cleaned.values())
    if isinstance(value, (list, tuple)):
        items = [finite(v) for v in value]
        return [v for v, _ in items], sum(n for _, n in items)
    return value, 0


def _means(rows: Sequence[QuestionRow]) -> Values:
    values = {name: _mean([getattr(r, name) for r in rows]) for name in (*QUALITY, *COSTS)}
    rewards = [r.reward for r in rows if r.reward is not None]
    if len(rewards) == len(rows):
        values["reward"] = _mean(rewards)
    return values


def _row(
    result: SystemResult, values: Mapping[str, Values], samples: int, seed: int
) -> dict[str, Any]:
    per_question = list(values.values())
    row: dict[str, Any] = {"system": result.system, "n": len(per_question)}
    row |= {name: _mean_of(per_question, name) for name in (*QUALITY, *COSTS, "reward")}
    for name in COMPARED:
        interval = None
        if per_question:
            column = [v[name] for v in per_question]
            found = bootstrap_interval(column, samples=samples, seed=seed)
            interval = [found.low, found.high]
        row[f"{name}_ci"] = interval
    first = {r.qid: r for r in reversed(result.rows)}
    row["by_hops"] = _by(values, {q: str(r.hops) if r.hops else "" for q, r in first.items()})
    row["by_kind"] = _by(values, {q: r.kind for q, r in first.items()})
    row["by_searched"] = _by(
        values, {q: "yes" if v["searches"] > 0 else "no" for q, v in values.items()}
    )
    row["stops"] = dict(
        sorted(Counter(r.stop_reason for r in result.rows if r.stop_reason).items())
    )
    row["funnel"] = funnel_rates(r.funnel for r in result.rows if r.funnel is not None)
    return row | {
        "num_rollouts": len(result.rows),
        "failed": result.failed,
        "made_by": result.made_by,
    }


def _by(values: Mapping[str, Values], segment_of: Mapping[str, str]) -> dict[str, Any]:
    """Means per segment; questions without one are ``unknown``, unless no question has one."""
    if not any(segment_of.values()):
        return {}
    members: dict[str, list[Values]] = {}
    for qid, segment in segment_of.items():
        members.setdefault(segment or "unknown", []).append(values[qid])
    return {
        segment: {"n": len(members[segment])}
        | {name: _mean_of(members[segment], name) for name in (*QUALITY, "searches")}
        for segment in sorted(members, key=lambda s: (s == "unknown", len(s), s))
    }


def _comparison(
    a: str, b: str, metric: str, values: Mapping[str, Mapping[str, Values]], samples: int, seed: int
) -> dict[str, Any]:
    shared = [qid for qid in values[a] if qid in values[b]]
    test = paired_test(
        [values[a][qid][metric] for qid in shared],
        [values[b][qid][metric] for qid in shared],
        bootstrap_samples=samples,
        seed=seed,
    )
    return {
        "a": a,
        "b": b,
        "metric": metric,
        "difference": test.difference,
        "ci": [test.low, test.high],
        "p": test.p,
        "n": test.n,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_of(rows: Sequence[Values], name: str) -> float | None:
    """Mean of a field over the questions; None unless every question has it."""
    column = [row[name] for row in rows if name in row]
    return _mean(column) if column and len(column) == len(rows) else None
