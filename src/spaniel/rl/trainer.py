"""Groups -> gradient -> weights -> sampler, and the proof at every step that they arrived."""

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spaniel.config import PPOConfig, RLConfig
from spaniel.errors import TrainingError
from spaniel.learner import Learner
from spaniel.microbatch import Microbatch, Predictions
from spaniel.policy.base import Policy
from spaniel.rl.loss import policy_loss
from spaniel.rl.ppo import value_loss, with_advantages
from spaniel.rl.samples import UpdateSamples
from spaniel.types import Group, TrainingSample

PROBE_TOKENS = 96
MAX_UNCHANGED = 3
"""Updates in a row that leave the sampler's log-probs bit-identical before the run stops."""

RefLogprobs = Callable[[Sequence[TrainingSample]], list[Tensor]]


class ProbedPolicy(Policy, Protocol):
    """A policy whose weights can be checked: training needs it, evaluation does not."""

    def probe(self, token_ids: Sequence[int]) -> Sequence[float]:
        """Log-probs [len - 1] of a sequence at temperature 1, as the sampler computes them."""
        ...

    def forget(self) -> None:
        """Drop every cache: the update needs the memory, and its weights make them stale."""
        ...


class PolicyTrainer:
    """The ``Trainer`` over a learner and the sampler that follows it.

    Args:
        sampler_weights: what ``policy.load`` takes after an update (None when the sampler
            shares the trainer's module).
        ref_logprobs: of the frozen reference, for ``cfg.kl_beta`` > 0.
    """

    def __init__(
        self,
        cfg: RLConfig,
        learner: Learner,
        policy: ProbedPolicy,
        sampler_weights: Callable[[], Any],
        ref_logprobs: RefLogprobs | None = None,
    ) -> None:
        self.cfg, self.learner, self.policy = cfg, learner, policy
        self._sampler_weights, self._ref_logprobs = sampler_weights, ref_logprobs
        self._check = SamplerCheck(policy, learner, cfg.max_logprob_gap)
        self._objective = PolicyObjective(cfg)
        self._update = self._new_update()
        self._kept: list[TrainingSample] = []
        """Of this update, for further passes over it."""

    def _new_update(self) -> UpdateSamples:
        return UpdateSamples(
            scale_by_std=self.cfg.scale_by_std,
            normalization=self.cfg.normalization,
            siblings=self.cfg.ppo is None,
            keep_without_signal=self.cfg.kl_beta > 0,
            version=self.learner.num_steps,
            max_age=self.cfg.token_age_limit,
        )

    async def start(self) -> None:
        """Give the sampler the weights to begin with."""
        await self.policy.load(self.learner.num_steps, self._sampler_weights())

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Add the gradient of some groups to the coming update."""
        if not self.cfg.overlaps:
            self.policy.forget()
            self._accumulate(groups)
        else:
            await asyncio.to_thread(self._accumulate, groups)

    def _accumulate(self, groups: Sequence[Group]) -> None:
        trajectories = self._update.add(groups)
        if self.cfg.ppo is not None:
            trajectories = self._with_critic(trajectories, self.cfg.ppo)
        samples = self._with_reference([sample for made in trajectories for sample in made])
        if self.cfg.ppo is not None and self.cfg.ppo.epochs > 1:
            self._kept += samples
        self.learner.accumulate(samples, self._objective, temperature=self.cfg.temperature)

    def _with_critic(
        self, trajectories: Sequence[Sequence[TrainingSample]], cfg: PPOConfig
    ) -> list[list[TrainingSample]]:
        flat = [sample for made in trajectories for sample in made]
        predictions = iter(self.learner.predictions(flat, temperature=self.cfg.temperature))
        out = []
        for made in trajectories:
            values = [next(predictions).values_T for _ in made]
            lists = [v.tolist() for v in values if v is not None]
            assert len(lists) == len(made), "rl.ppo needs a learner with a value head"
            out.append(with_advantages(made, lists, made[0].advantage, cfg))
        return out

    def _with_reference(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        if self.cfg.kl_beta == 0:
            return list(samples)
        assert self._ref_logprobs is not None, "kl_beta > 0 needs ref_logprobs"
        return [
            replace(sample, ref_logprobs=tuple(values.tolist()))
            for sample, values in zip(samples, self._ref_logprobs(samples), strict=True)
        ]

    async def update(self, version: int, groups: Sequence[Group]) -> dict[str, float]:
        """Step on what was accumulated, give the sampler the weights, and check both.

        No step is made when no group had a signal.

        Raises:
            TrainingError: sampler and trainer disagree, the update did not reach the sampler, or
                loss or gradient is not finite.
        """
        made, scale = self._update, 1 / max(1, self._update.denominator)
        num_epochs = self.cfg.ppo.epochs if self.cfg.ppo is not None else 1
        totals = self.learner.apply(scale, counts=num_epochs == 1)
        gap = totals.pop("gap/sum", 0.0) / max(1.0, totals.pop("gap/tokens", 0.0))
        for epoch in range(2, num_epochs + 1):
            await asyncio.to_thread(self._again)
            totals = self.learner.apply(scale, counts=epoch == num_epochs)
            totals = {key: value for key, value in totals.items() if not key.startswith("gap/")}
        own = ("grad_norm", "learning_rate")
        metrics = {key: value if key in own else value * scale for key, value in totals.items()}
        metrics["gap/mean"] = gap
        metrics["tokens/trained"] = float(made.num_tokens)
        metrics["tokens/too_old"] = float(made.num_too_old)
        metrics["tokens/oldest"] = float(made.oldest)
        if made.oldest == 0:
            self._check.agreement(version, gap)
        metrics["memory/peak_gb"] = peak_memory_gb(self.learner.device)
        started = time.perf_counter()
        await self.policy.load(version, self._sampler_weights())
        self._check.sampler_moved(version, groups, updated="grad_norm" in metrics)
        metrics["time/load_s"] = time.perf_counter() - started
        self._update, self._kept = self._new_update(), []
        return metrics

    def _again(self) -> None:
        """Accumulate the update's samples once more, under the weights of now."""
        self.learner.accumulate(self._kept, self._objective, temperature=self.cfg.temperature)


def peak_memory_gb(device: torch.device) -> float:
    """Most memory held so far: of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024 / 1e9


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """The loss of the recipe, with PPO's value loss where there is a critic. Plain data, so that
    it can be sent to other ranks."""

    cfg: RLConfig

    def __call__(
        self, predictions: Predictions, batch: Microbatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of a microbatch, both sums."""
        logprobs_T, ppo = predictions.logprobs_T, self.cfg.ppo
        loss, metrics = policy_loss(
            logprobs_T,
            sampler_logprobs_T=batch.sampler_logprobs_T,
            advantages_T=batch.advantages_T,
            weights_T=batch.weights_T,
            surrogate=self.cfg.surrogate,
            clip_low=self.cfg.clip_low,
            clip_high=self.cfg.clip_high,
            band=(self.cfg.band_low, self.cfg.band_high),
            sequences_T=batch.samples_T if self.cfg.ratio == "sequence" else None,
            ref_logprobs_T=batch.ref_logprobs_T,
            kl_beta=self.cfg.kl_beta,
            kl_estimator=self.cfg.kl_estimator,
        )
        if ppo is not None:
            assert predictions.values_T is not None, "rl.ppo needs a value head"
            assert batch.values_T is not None, "rl.ppo needs values from before the update"
            error, of_values = value_loss(
                predictions.values_T,
                old_values_T=batch.values_T,
                returns_T=batch.values_T + batch.advantages_T,
                weights_T=batch.weights_T,
                clip=ppo.value_clip,
            )
            loss, metrics = loss + ppo.value_coef * error, metrics | of_values
        gap_T = (logprobs_T.detach() - batch.sampler_logprobs_T).abs()
        metrics["gap/sum"], metrics["gap/tokens"] = gap_T.sum(), torch.tensor(len(gap_T))
        return loss, metrics


class SamplerCheck:
    """Proof at every step that sampler and trainer hold the same weights, and new ones."""

    def __init__(self, policy: ProbedPolicy, learner: Learner, max_gap: float) -> None:
        self.policy, self.learner, self.max_gap = policy, learner, max_gap
        self.probe_ids: tuple[int, ...] = ()
        self.last: list[float] = []
        self.num_unchanged = 0

    def agreement(self, step: int, gap: float) -> None:
        """Sampler and trainer log-probs of the tokens just trained on agree.

        Where all of them came from the weights that the update started from, the gap is numerical
        noise unless something is wrong.
        """
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
