"""The RL loop, synchronous and asynchronous alike, and what it checks at every step."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spaniel.config import RLConfig
from spaniel.errors import TrainingError
from spaniel.learner import Learner, Microbatch
from spaniel.policy.base import Policy
from spaniel.rl.loss import policy_loss
from spaniel.rl.metrics import group_metrics
from spaniel.rl.samples import group_samples
from spaniel.rollout import Runner, check_failures, seed_of
from spaniel.types import Group, Question, TrainingSample

PROBE_TOKENS = 96
MAX_UNCHANGED = 3
"""Updates in a row that leave the sampler's log-probs bit-identical before the run stops."""


class ProbedPolicy(Policy, Protocol):
    """A policy whose weights can be checked: training needs it, evaluation does not."""

    def probe(self, token_ids: Sequence[int]) -> Sequence[float]:
        """Log-probs [len - 1] of a sequence at temperature 1, as the sampler computes them."""
        ...

    def forget(self) -> None:
        """Drop every cache: the update needs the memory, and its weights make them stale."""
        ...


def question_order(questions: Sequence[Question], *, seed: int, start: int) -> Iterator[Question]:
    """An endless stream, every epoch in its own order; ``start`` questions are skipped.

    The order depends on the seed and the position alone, so a resumed run goes on with
    exactly the question that an uninterrupted one would have taken.
    """
    position = start
    while True:
        epoch, offset = divmod(position, len(questions))
        order = np.random.default_rng(seed_of(seed, "order", epoch)).permutation(len(questions))
        for index in order[offset:]:
            position += 1
            yield questions[int(index)]


async def train(
    cfg: RLConfig,
    *,
    questions: Sequence[Question],
    runner: Runner,
    policy: ProbedPolicy,
    learner: Learner,
    sampler_weights: Callable[[], Any],
    seed: int,
    ref_logprobs: Callable[[Sequence[TrainingSample]], list[Tensor]] | None = None,
    on_step: Callable[[int, dict[str, float], Sequence[Group]], None],
) -> None:
    """Train from ``learner.num_steps`` to ``cfg.steps``.

    A slot is held from the moment a group starts sampling until the update that used it has
    reached the sampler. With P groups a step and (S + 1) P slots, consumed in the order they
    started, no group is trained more than S updates after its policy; S = 0 is synchronous.

        questions -> [slot] -> runner.group -> FIFO -> learner.step -> policy.load -> [slot freed]

    Args:
        sampler_weights: what ``policy.load`` takes after an update (None when the sampler
            shares the trainer's module).
        ref_logprobs: of the frozen reference, for ``cfg.kl_beta`` > 0.
        on_step: called after each finished step with (step from 1, metrics, groups); it logs
            and checkpoints.

    Raises:
        TrainingError: too many rollouts failed through the infrastructure, sampler and trainer
            disagree, updates do not reach the sampler, or loss or gradient is not finite.
    """
    done = learner.num_steps
    stream = question_order(questions, seed=seed, start=done * cfg.groups_per_step)
    check = SamplerCheck(policy, learner, cfg.max_logprob_gap)
    await policy.load(done, sampler_weights())

    async with _sampled_groups(cfg, runner, stream, seed=seed, start=done) as (
        groups_of_step,
        free,
    ):
        for step in range(done + 1, cfg.steps + 1):
            started = time.perf_counter()
            groups = await groups_of_step()
            check_failures([t for g in groups for t in g.trajectories], cfg.max_failed_frac)
            sampled = time.perf_counter()

            policy.forget()
            metrics = group_metrics(groups)
            metrics |= update(cfg, learner, groups, ref_logprobs)
            check.agreement(step, metrics)
            await policy.load(step, sampler_weights())
            check.sampler_moved(step, groups, updated="grad_norm" in metrics)
            free()

            metrics["time/rollout_s"] = sampled - started
            metrics["time/update_s"] = time.perf_counter() - sampled
            on_step(step, metrics, groups)


def update(
    cfg: RLConfig,
    learner: Learner,
    groups: Sequence[Group],
    ref_logprobs: Callable[[Sequence[TrainingSample]], list[Tensor]] | None,
) -> dict[str, float]:
    """One optimizer step on one step's groups; no step when no group has a signal."""
    samples = group_samples(
        groups,
        scale_by_std=cfg.scale_by_std,
        normalization=cfg.normalization,
        keep_without_signal=cfg.kl_beta > 0,
    )
    # The k-th trained token of the update carries the k-th reference log-prob: the learner
    # walks samples by length, and ``sorted`` is stable, so the walk can be repeated here.
    samples.sort(key=lambda s: len(s.token_ids))
    reference: Iterator[Tensor] = iter(())
    if cfg.kl_beta > 0:
        assert ref_logprobs is not None, "kl_beta > 0 needs ref_logprobs"
        reference = iter(torch.cat(ref_logprobs(samples)))
    num_tokens = sum(1 for s in samples for w in s.weights if w)

    def objective(logprobs_T: Tensor, batch: Microbatch) -> tuple[Tensor, dict[str, Tensor]]:
        ref_T = None
        if cfg.kl_beta > 0:
            ref_T = torch.stack([next(reference) for _ in range(len(logprobs_T))])
            ref_T = ref_T.to(logprobs_T.device)
        loss, metrics = policy_loss(
            logprobs_T,
            sampler_logprobs_T=batch.sampler_logprobs_T,
            advantages_T=batch.advantages_T,
            weights_T=batch.weights_T,
            clip_low=cfg.clip_low,
            clip_high=cfg.clip_high,
            ref_logprobs_T=ref_T,
            kl_beta=cfg.kl_beta,
        )
        gap_T = (logprobs_T.detach() - batch.sampler_logprobs_T).abs()
        metrics["gap/mean"] = gap_T.sum() / num_tokens
        return loss, metrics

    return learner.step(samples, objective, temperature=cfg.temperature)


class SamplerCheck:
    """Proof at every step that sampler and trainer hold the same weights, and new ones."""

    def __init__(self, policy: ProbedPolicy, learner: Learner, max_gap: float) -> None:
        self.policy, self.learner, self.max_gap = policy, learner, max_gap
        self.probe_ids: tuple[int, ...] = ()
        self.last: list[float] = []
        self.num_unchanged = 0

    def agreement(self, step: int, metrics: dict[str, float]) -> None:
        """Sampler and trainer log-probs of the tokens just trained on agree.

        The update's own forward pass ran on the weights that sampled (window 0), so the gap
        is numerical noise unless something is wrong.
        """
        gap = metrics.get("gap/mean", 0.0)
        if gap > self.max_gap:
            raise TrainingError(
                f"step {step}: sampler and trainer disagree by {gap:.4f} nats a token on the same "
                f"tokens (rl.max_logprob_gap = {self.max_gap}): the sampler does not run the "
                "trainer's weights, or computes them differently"
            )

    def sampler_moved(self, step: int, groups: Sequence[Group], *, updated: bool) -> None:
        """After ``load``: the sampler's log-probs equal the trainer's and are not the old ones."""
        if not self.probe_ids:
            first = next((t for g in groups for t in g.scored), None)
            if first is None:
                return
            self.probe_ids = first.token_ids[:PROBE_TOKENS]
        sampler = list(self.policy.probe(self.probe_ids))
        trainer = self._trainer_probe()
        gap = float(np.mean(np.abs(np.array(sampler) - np.array(trainer))))
        if gap > self.max_gap:
            raise TrainingError(
                f"step {step}: after the weight update the sampler is {gap:.4f} nats a token away "
                f"from the trainer on a fixed text (allowed: {self.max_gap}): the update did not "
                "reach it"
            )
        self.num_unchanged = self.num_unchanged + 1 if updated and sampler == self.last else 0
        self.last = sampler
        if self.num_unchanged >= MAX_UNCHANGED:
            raise TrainingError(
                f"step {step}: {MAX_UNCHANGED} updates in a row left the sampler's log-probs "
                "bit-identical: training is a no-op. Raise the learning rate or the precision."
            )

    def _trainer_probe(self) -> list[float]:
        weights = (0.0, *([1.0] * (len(self.probe_ids) - 1)))
        sample = TrainingSample(
            token_ids=self.probe_ids, weights=weights, sampler_logprobs=(0.0,) * len(weights)
        )
        return [float(v) for v in self.learner.logprobs([sample])[0]]


@asynccontextmanager
async def _sampled_groups(
    cfg: RLConfig, runner: Runner, questions: Iterator[Question], *, seed: int, start: int
) -> AsyncIterator[tuple[Callable[[], Any], Callable[[], None]]]:
    """Start groups as slots allow; yields (await the groups of one step, free their slots)."""
    slots = asyncio.Semaphore((cfg.max_off_policy_steps + 1) * cfg.groups_per_step)
    in_flight: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()

    async def start_groups() -> None:
        number = start * cfg.groups_per_step
        while True:
            await slots.acquire()
            question = next(questions)
            step, slot = divmod(number, cfg.groups_per_step)
            group = runner.group(
                question,
                cfg.group_size,
                seed=seed_of(seed, "rollout", step + 1, slot),
                name=f"step{step + 1}/{slot}/{question.qid}",
            )
            in_flight.put_nowait(asyncio.create_task(group))
            number += 1

    producer = asyncio.create_task(start_groups())

    async def groups_of_step() -> list[Group]:
        groups = []
        for _ in range(cfg.groups_per_step):
            next_task = asyncio.ensure_future(in_flight.get())
            await asyncio.wait({next_task, producer}, return_when=asyncio.FIRST_COMPLETED)
            if producer.done():
                producer.result()  # raises what stopped it: it has no other way to end
            groups.append(await next_task.result())
        return groups

    def free() -> None:
        for _ in range(cfg.groups_per_step):
            slots.release()

    try:
        yield groups_of_step, free
    finally:
        producer.cancel()
        while not in_flight.empty():
            in_flight.get_nowait().cancel()
