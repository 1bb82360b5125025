"""What a schedule would do, before any GPU is paid for: the same scheduler and the same loop, with
a clock that jumps and groups that only take time.

    utilisation  share of the time in which the trainer trains, or a rollout slot is in use
    staleness    age of the trained tokens, in updates
    throughput   updates an hour, against the synchronous run and against the bound

The bound is perfect overlap: an update takes as long as the busier side needs for it,
``max(P * group time / slots, time of the update)``.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spaniel.config import RLConfig
from spaniel.rl.samples import UpdateSamples
from spaniel.rl.scheduler import Dispatch, Scheduler
from spaniel.rl.train import train
from spaniel.rl.virtual_time import run_in_virtual_time
from spaniel.types import Group, Question, StopReason, Trajectory

TOKENS = 16
"""Of a simulated trajectory: each gets the version of the moment it would be sampled."""
_Z99 = 2.3263478740408408
"""99th percentile of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What takes how long. Times are minutes."""

    group_median: float
    """Of a group's sampling, from its dispatch to its last reward; log-normal."""
    group_p99: float
    update: float
    """Of one update: all of its gradient, and the weights' way to the sampler."""
    slots: int
    """Groups that the generation side can sample at once."""
    without_signal: float = 0.0
    """Share of groups whose rewards are all equal."""
    failed: float = 0.0
    """Share of groups that the infrastructure fails."""

    @property
    def sigma(self) -> float:
        """Of the logarithm of a group's time."""
        return math.log(self.group_p99 / self.group_median) / _Z99

    @property
    def group_mean(self) -> float:
        """Of the log-normal distribution."""
        return self.group_median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came out."""

    updates: int
    minutes: float
    trainer_busy: float
    """Share of the time."""
    slots_busy: float
    """Share of slots and time."""
    oldest: int
    """Largest age of a trained token, updates."""
    mean_age: float
    """Of the trained tokens."""
    too_old: float
    """Share of sampled tokens that were context only for their age."""
    bound_minutes: float
    """Of the same number of updates at perfect overlap."""

    @property
    def minutes_per_update(self) -> float:
        """Mean over the run."""
        return self.minutes / self.updates


def simulate(cfg: RLConfig, workload: Workload, *, updates: int, seed: int = 0) -> Simulation:
    """Run ``updates`` updates of a schedule on a virtual clock.

    Deterministic for a seed.
    """
    patient = {"steps": updates, "stall_s": math.inf, "max_failed_frac": 1.0}
    world = _World(cfg.model_copy(update=patient), workload, seed)
    _, seconds = run_in_virtual_time(world.run())
    minutes = seconds / 60
    ages = [age for age, count in world.ages.items() for _ in range(count)]
    num_tokens = len(ages)
    per_update = max(
        workload.update,
        cfg.groups_per_step
        * workload.group_mean
        / ((1 - workload.without_signal - workload.failed) * workload.slots),
    )
    return Simulation(
        updates=updates,
        minutes=minutes,
        trainer_busy=world.trained_s / seconds,
        slots_busy=world.sampled_s / (seconds * workload.slots),
        oldest=max(ages, default=0),
        mean_age=sum(ages) / max(1, num_tokens),
        too_old=world.num_too_old / max(1, num_tokens + world.num_too_old),
        bound_minutes=per_update * updates,
    )


def comparison(
    cfg: RLConfig, workload: Workload, windows: Sequence[int], *, updates: int, seed: int = 0
) -> list[str]:
    """A table of some windows, the synchronous run first, for a person."""
    lines = [
        "window  min/update  vs sync  vs bound  trainer  slots  mean age  oldest  too old",
    ]
    synchronous = 0.0
    for window in sorted({0, *windows}):
        start = cfg.start_groups if window else None
        at = cfg.model_copy(update={"window": window, "start_groups": start})
        found = simulate(at, workload, updates=updates, seed=seed)
        synchronous = synchronous or found.minutes
        lines.append(
            f"{window:>6}  {found.minutes_per_update:>10.1f}  "
            f"{synchronous / found.minutes:>6.2f}x  {found.minutes / found.bound_minutes:>8.3f}  "
            f"{found.trainer_busy:>7.0%}  {found.slots_busy:>5.0%}  {found.mean_age:>8.2f}  "
            f"{found.oldest:>6}  {found.too_old:>7.1%}"
        )
    lines.append(
        f"bound (perfect overlap): {found.bound_minutes / updates:.1f} min/update; {updates} "
        f"updates of {cfg.groups_per_step} groups"
    )
    return lines


class _World:
    """Generation workers and a trainer that only take time."""

    def __init__(self, cfg: RLConfig, workload: Workload, seed: int) -> None:
        self.cfg, self.workload, self.seed = cfg, workload, seed
        self.version = 0
        self.sampled_s = self.trained_s = 0.0
        self.ages: dict[int, int] = {}
        self.num_too_old = 0

    async def run(self) -> None:
        self.slots = asyncio.Semaphore(self.workload.slots)
        questions = [Question(qid=f"q{i}", text="?", targets=("d",)) for i in range(1000)]
        scheduler = Scheduler(self.cfg, questions, self.sample, seed=self.seed)
        await train(self.cfg, scheduler, self, done=0, on_step=lambda *_: None)

    async def sample(self, dispatch: Dispatch) -> Group:
        """A group that takes its time; each token has the version of its moment."""
        rng = random.Random(f"{self.seed}/{dispatch.number}")
        async with self.slots:
            minutes = self.workload.group_median * math.exp(self.workload.sigma * rng.gauss(0, 1))
            versions = []
            for _ in range(TOKENS):
                versions.append(self.version)
                await asyncio.sleep(minutes * 60 / TOKENS)
            self.sampled_s += minutes * 60
        luck = rng.random()
        failed = luck < self.workload.failed
        flat = luck < self.workload.failed + self.workload.without_signal
        rewards = (0.0, 0.0) if flat else (0.0, 1.0)
        return Group(
            question=dispatch.question,
            trajectories=tuple(
                _trajectory(dispatch, n, versions, None if failed else reward)
                for n, reward in enumerate(rewards)
            ),
        )

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """A share of the update's time, and the ages of what is trained."""
        samples = UpdateSamples(
            scale_by_std=False,
            normalization="token",
            version=self.version,
            max_age=self.cfg.token_age_limit,
        )
        for sample in itertools.chain.from_iterable(samples.add(groups)):
            for weight, version in zip(sample.weights, sample.token_ids, strict=True):
                if weight:
                    age = self.version - version
                    self.ages[age] = self.ages.get(age, 0) + 1
        self.num_too_old += samples.num_too_old
        await self._train(len(groups) / self.cfg.groups_per_step)

    async def update(self, version: int, groups: Sequence[Group]) -> dict[str, float]:
        """The new weights are there at once: their way is part of the update's time."""
        self.version = version
        return {}

    async def _train(self, share: float) -> None:
        seconds = self.workload.update * 60 * share
        self.trained_s += seconds
        await asyncio.sleep(seconds)


def _trajectory(
    dispatch: Dispatch, number: int, versions: Sequence[int], reward: float | None
) -> Trajectory:
    ok: Any = StopReason.REPORTED if reward is not None else StopReason.INFRASTRUCTURE
    return Trajectory(
        qid=dispatch.question.qid,
        trajectory_id=f"{dispatch.number}/{number}",
        # The ids are the versions, so that ages can be read off the samples.
        token_ids=tuple(versions),
        loss_mask=(True,) * len(versions),
        sampler_logprobs=(-1.0,) * len(versions),
        policy_versions=tuple(versions),
        stop_reason=ok,
        reward=reward,
        reward_parts={} if reward is None else {"ndcg": reward},
    )
