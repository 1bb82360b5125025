"""The bill: what training cost, what a query costs, and what a frontier model would charge.

Seconds and tokens are measured; prices are stated (``PriceConfig``). Machine time is wall
time of the whole machine, so a query's share is the evaluation's seconds divided by its
queries, not the latency one of many concurrent queries sees.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spaniel.config import PriceConfig, RLConfig
from spaniel.errors import DataError
from spaniel.eval.formats import duration, usd


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """What one stage of training used."""

    stage: str
    machine_s: float
    """Wall seconds of the machine."""
    tokens: int = 0
    """Tokens sampled or trained on; 0 when the stage has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryUse:
    """What one query uses: means over the evaluation."""

    prompt_tokens: float
    """Summed over its calls, each with its whole prompt, as an endpoint bills."""
    completion_tokens: float
    latency_s: float
    """What a user waits."""
    machine_s: float
    """Machine seconds a query takes: evaluation's wall seconds / queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Costs in US dollars at the stated prices."""

    stages: tuple[StageUse, ...]
    query: QueryUse
    machine_usd_per_hour: float
    api_name: str
    api_usd_per_million_input: float
    api_usd_per_million_output: float
    training_hours: float
    training_usd: float
    query_usd: float
    """One query on this machine."""
    api_query_usd: float
    """The same prompt and completion tokens, billed per token, without a prompt cache."""
    break_even_queries: int | None
    """Queries after which the endpoint has cost more than training and as many queries here;
    None when the endpoint is not dearer. Says nothing about the quality of either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What a training run will cost, before it is started."""

    rollouts: int
    hours: float
    usd: float


def make_bill(stages: Sequence[StageUse], query: QueryUse, prices: PriceConfig) -> Bill:
    """Turn measured seconds and tokens into money.

    Raises:
        DataError: a measurement is negative or not finite.
    """
    for name in ("prompt_tokens", "completion_tokens", "latency_s", "machine_s"):
        _check(getattr(query, name), f"{name} of a query")
    for stage in stages:
        _check(stage.machine_s, f"machine_s of stage {stage.stage}")
    hours = sum(stage.machine_s for stage in stages) / 3600
    training_usd = hours * prices.machine_usd_per_hour
    query_usd = query.machine_s / 3600 * prices.machine_usd_per_hour
    api_query_usd = (
        query.prompt_tokens * prices.api_usd_per_million_input
        + query.completion_tokens * prices.api_usd_per_million_output
    ) / 1e6
    saving = api_query_usd - query_usd
    return Bill(
        stages=tuple(stages),
        query=query,
        machine_usd_per_hour=prices.machine_usd_per_hour,
        api_name=prices.api_name,
        api_usd_per_million_input=prices.api_usd_per_million_input,
        api_usd_per_million_output=prices.api_usd_per_million_output,
        training_hours=hours,
        training_usd=training_usd,
        query_usd=query_usd,
        api_query_usd=api_query_usd,
        break_even_queries=_break_even(training_usd, saving),
    )


def project_training(
    rl: RLConfig, *, rollout_s: float, update_s: float, prices: PriceConfig
) -> Projection:
    """Cost of a reinforcement-learning run from what a small group has measured.

    Args:
        rollout_s: machine seconds per rollout (wall seconds of a group / its size).
        update_s: machine seconds of one optimizer step.

    Raises:
        DataError: a measurement is negative or not finite.
    """
    _check(rollout_s, "rollout_s")
    _check(update_s, "update_s")
    rollouts = rl.steps * rl.groups_per_step * rl.group_size
    hours = (rollouts * rollout_s + rl.steps * update_s) / 3600
    return Projection(rollouts=rollouts, hours=hours, usd=hours * prices.machine_usd_per_hour)


def bill_lines(bill: Bill) -> list[str]:
    """The bill in sentences, for terminal, README and report."""
    query = bill.query
    lines = [
        f"training: {duration(bill.training_hours * 3600)} of the machine at "
        f"{usd(bill.machine_usd_per_hour)} an hour: {usd(bill.training_usd)}",
        f"a query: {query.prompt_tokens:,.0f} prompt and {query.completion_tokens:,.0f} completion "
        f"tokens, {duration(query.latency_s)} to the answer, {duration(query.machine_s)} of the "
        f"machine: {usd(bill.query_usd)}",
        f"the same tokens from {bill.api_name} at {usd(bill.api_usd_per_million_input)} and "
        f"{usd(bill.api_usd_per_million_output)} a million: {usd(bill.api_query_usd)}",
    ]
    if bill.break_even_queries is None:
        lines.append("at these prices the endpoint is not dearer: training never pays for itself")
    else:
        lines.append(
            f"training costs as much as {bill.break_even_queries:,} such queries to the endpoint; "
            "whether they are worth it, the table above says"
        )
    return lines


def _break_even(training_usd: float, saving: float) -> int | None:
    """Queries until the savings reach the cost; None when they never do."""
    queries = training_usd / saving if saving > 0 else math.inf
    return math.ceil(queries) if math.isfinite(queries) else None


def _check(value: float, what: str) -> None:
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{what} must be finite and >= 0, got {value}")
