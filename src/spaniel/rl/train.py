"""The RL loop, synchronous and asynchronous alike.

    scheduler --ready groups--> trainer.accumulate   (until the batch is full)
                                trainer.update  -> new weights -> sampler
    scheduler <---- version, free slots --------------+

What is sampled when is the scheduler's affair (``scheduler.py``), what a gradient is the trainer's
(``trainer.py``). A run with a window of 0 is the same loop with nothing under way at an update.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from spaniel.config import RLConfig
from spaniel.progress import say
from spaniel.rl.metrics import group_metrics
from spaniel.rl.scheduler import EverythingSolved, Scheduler
from spaniel.types import Group


class Trainer(Protocol):
    """What turns groups into new weights, and puts them into the sampler."""

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Add the gradient of some groups to the coming update."""
        ...

    async def update(self, version: int, groups: Sequence[Group]) -> dict[str, float]:
        """Step on what was accumulated; when it returns the sampler has weights ``version``."""
        ...


async def train(
    cfg: RLConfig,
    scheduler: Scheduler,
    trainer: Trainer,
    *,
    done: int,
    on_step: Callable[[int, dict[str, float], Sequence[Group]], None],
) -> None:
    """Train from update ``done`` to ``cfg.steps``.

    Args:
        on_step: called after each finished step with (step from 1, metrics, groups); it logs
            and checkpoints.

    Raises:
        TrainingError: too many rollouts failed through the infrastructure, nothing becomes ready,
            sampler and trainer disagree, updates do not reach the sampler, or loss or gradient
            is not finite.
    """
    async with scheduler:
        for step in range(done + 1, cfg.steps + 1):
            started = time.perf_counter()
            groups: list[Group] = []
            training_s = 0.0
            try:
                async for part in scheduler.batch():
                    ready = time.perf_counter()
                    await trainer.accumulate(part)
                    training_s += time.perf_counter() - ready
                    groups += part
            except EverythingSolved:
                say(f"every question is solved by all its rollouts: stopped before step {step}")
                return
            full = time.perf_counter()
            metrics = group_metrics(groups)
            metrics |= await trainer.update(step, groups)
            metrics |= scheduler.updated(step)
            rollout_s = full - started - training_s
            update_s = time.perf_counter() - full + training_s
            metrics["time/rollout_s"], metrics["time/update_s"] = rollout_s, update_s
            tokens = sum(t.num_sampled_tokens for g in groups for t in g.trajectories)
            metrics["speed/sampled_tokens_per_s"] = tokens / max(rollout_s, 1e-9)
            context = sum(len(t.token_ids) for g in groups for t in g.trajectories)
            metrics["speed/update_tokens_per_s"] = context / max(update_s, 1e-9)
            on_step(step, metrics, groups)
