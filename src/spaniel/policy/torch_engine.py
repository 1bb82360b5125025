"""The in-process sampling engine: many episodes, one model, continuous batches.

    complete() -> waiting -> [slot] -> running: prefill, then one token a pass -> Completion

Each episode keeps its keys and values in a slot between turns, so a turn prefills only the
tokens that are new. One task drives all of it, inside the event loop: it lets every other
coroutine run until no new request comes, then makes one forward pass with one token of each
decoding request and as much prefill as fits beside them. There are no threads and no
time-outs: the same requests, seeds and weights give the same batches and the same tokens.
A request's result does not depend on what else is in its batches, but for the last bits: matrix
products round differently at different sizes.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spaniel.errors import ConfigError, PolicyError
from spaniel.policy.base import Request
from spaniel.policy.kv_cache import Chunk, SlotCache
from spaniel.policy.model_runner import ModelRunner
from spaniel.policy.sampling import draw
from spaniel.policy.schedule import Feed, Job, Schedule
from spaniel.policy.weights import load_weights
from spaniel.types import Completion, FinishReason

QUIET_ROUNDS = 8
"""Turns of the event loop without a new request before a forward pass. A finished turn comes
back as the next request within two or three, through ``gather`` and the like."""

MAX_PASS_TOKENS = 2048
"""Tokens of one forward pass."""

PROBE_SINGLE_TOKENS = 8
"""Tokens that ``probe`` feeds one by one, as in decoding."""


class TorchEngine:
    """A policy that samples from a transformers causal LM in this process.

    The module may be shared with a trainer: it is only read, and left in the mode it was in.

    Args:
        model: a causal LM with full attention in every layer, or an LFM2; PEFT-wrapped or not.
        stop_ids: tokens that end a turn; a completion contains the one that ended it.
        decode: token ids to text, for ``Completion.text`` (without the stop token).
        max_live_episodes: slots. Further episodes wait while all are sampling; an idle
            episode loses its slot to a waiting one, and is prefilled anew later.
        max_pass_tokens: of one forward pass; bounds the memory of its activations.
        version: weight updates behind the model's weights.
        note_routes: tell with each completion which experts its tokens went through.

    Raises:
        ConfigError: the model has layers that the cache cannot hold.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stop_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        max_live_episodes: int = 128,
        max_pass_tokens: int = MAX_PASS_TOKENS,
        version: int = 0,
        note_routes: bool = False,
    ) -> None:
        self._model = model
        self._runner = ModelRunner(model, max_slots=max_live_episodes, note_routes=note_routes)
        self._schedule = Schedule(
            max_live_episodes,
            max_pass_tokens=max_pass_tokens,
            can_rewind=self._runner.can_rewind,
        )
        self._stop_ids = frozenset(stop_ids)
        self._decode = decode
        self._version = version
        self._driver: asyncio.Task[None] | None = None
        self._num_loading = 0
        self._counts = dict.fromkeys(("passes", "fed_tokens", "copied_tokens", "sampled_tokens"), 0)

    @property
    def version(self) -> int:
        """Weight updates behind the current weights."""
        return self._version

    @property
    def counts(self) -> dict[str, int]:
        """Since the start: forward passes, tokens fed (prefilled and decoded), copied from an
        equal prompt and sampled; idle episodes that lost their slot."""
        return {**self._counts, "evicted_episodes": self._schedule.num_evicted}

    async def complete(self, request: Request) -> Completion:
        """Sample one completion.

        Temperature 0 takes the most likely token with log-prob 0.0: the distribution it was
        drawn from is a point.

        Raises:
            ConfigError: the request cannot be met by this model: no prompt, ids outside the
                vocabulary, longer than the model's positions, or sampling out of range.
            PolicyError: the forward pass broke, its logits were not finite, or the episode
                has a request under way already.
        """
        self._check(request)
        sampling = request.sampling
        uniforms = np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens)
        job = Job(
            request=request,
            future=asyncio.get_running_loop().create_future(),
            uniforms=uniforms.tolist(),
        )
        self._schedule.add(job)
        self._wake()
        try:
            return await job.future
        finally:
            self._schedule.remove(job)

    async def end_episode(self, episode_id: str) -> None:
        """Free the episode's slot; a request of it that is still under way is cancelled."""
        for job in self._schedule.jobs_of(episode_id):
            job.future.cancel()
            self._schedule.remove(job)
        self._schedule.end_episode(episode_id)

    async def load(self, version: int, weights: Any) -> None:
        """Serve these weights from now on.

        Completions under way are finished by the weights that began them; new requests wait.
        Every cache is forgotten, since other weights made it.

        Args:
            version: weight updates behind them.
            weights: None when the trainer changed the shared module in place; else a state
                dict of the model (or of its adapters alone), copied in.

        Raises:
            ArtifactError: the state dict does not fit the model; nothing was loaded.
        """
        self._num_loading += 1
        try:
            while self._driver is not None and not self._driver.done():
                await asyncio.wait([self._driver])
            if weights is not None:
                load_weights(self._model, weights)
            self._version = version
            self.forget()
        finally:
            self._num_loading -= 1
            self._wake()

    def forget(self) -> None:
        """Drop every cache, as before an update that needs the memory. Nothing may be running."""
        self._runner.forget()
        self._schedule.forget()

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probs of a sequence's tokens under the weights that are being sampled from.

        Runs through the cached path in chunks and single tokens, in a cache of its own, so it
        shows that a weight update arrived, and what a trainer's log-probs must agree with.
        Synchronous; no episode is touched.

        Returns:
            [len(token_ids) - 1] nats at temperature 1, of each token given those before it.

        Raises:
            ConfigError: fewer than two tokens, or ids outside the vocabulary.
        """
        if len(token_ids) < 2:
            raise ConfigError(f"probe needs at least 2 tokens, got {len(token_ids)}")
        self._check_ids(token_ids)
        cache = SlotCache(1)
        last = len(token_ids) - 1
        single = max(last - PROBE_SINGLE_TOKENS, 0)
        cuts = sorted({0, single // 2, *range(single, last + 1)})
        parts = []
        for start, end in itertools.pairwise(cuts):
            chunk = Chunk(slot=0, start=start, token_ids=token_ids[start:end])
            parts.append(self._runner.forward([chunk], keep="all", cache=cache))
        logprobs = torch.cat(parts).log_softmax(-1)
        targets = torch.tensor(token_ids[1:], device=logprobs.device)
        return tuple(logprobs.gather(-1, targets[:, None])[:, 0].tolist())

    def _check(self, request: Request) -> None:
        episode, sampling = request.episode_id, request.sampling
        if self._schedule.jobs_of(episode):
            raise PolicyError(f"episode {episode} has a request under way already")
        if not request.token_ids:
            raise ConfigError(f"episode {episode}: the prompt is empty")
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.max_tokens < 1:
            raise ConfigError(
                f"sampling needs temperature >= 0, 0 < top_p <= 1 and max_tokens >= 1, got "
                f"{sampling.temperature}, {sampling.top_p} and {sampling.max_tokens}"
            )
        most = self._runner.max_positions
        if most is not None and len(request.token_ids) + sampling.max_tokens > most:
            raise ConfigError(
                f"episode {episode}: {len(request.token_ids)} prompt tokens and max_tokens "
                f"{sampling.max_tokens} exceed the model's {most} positions"
            )
        self._check_ids(request.token_ids)

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self._runner.vocab_size:
            raise ConfigError(
                f"token ids must lie in [0, {self._runner.vocab_size}), got {low} to {high}; "
                f"tokenizer and model do not belong together"
            )

    def _wake(self) -> None:
        if self._schedule.waiting and (self._driver is None or self._driver.done()):
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        """Until nothing runs: let requests come in, make a pass."""
        while True:
            await self._settle()
            if not self._num_loading:
                self._schedule.admit()
            if not self._schedule.running:
                return
            try:
                self._step()
            except Exception as cause:
                message = f"the forward pass failed: {type(cause).__name__}: {cause}"
                for job in list(self._schedule.running):
                    self._fail(job, message, cause)

    async def _settle(self) -> None:
        """Let the other coroutines run until they have no more requests to bring."""
        quiet = 0
        while quiet < QUIET_ROUNDS:
            before = self._schedule.num_arrived
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._schedule.num_arrived == before else 0

    def _step(self) -> None:
        """One forward pass, and a token drawn for each request that it brought up to date."""
        feeds = self._schedule.next_batch()
        logits = self._runner.forward([_chunk(feed) for feed in feeds])
        self._counts["passes"] += 1
        jobs: list[Job] = []
        rows: list[int] = []
        for row, feed in enumerate(feeds):
            self._counts["fed_tokens"] += feed.num_tokens
            if self._schedule.advance(feed):
                self._share(feed)
                jobs += (feed.job, *feed.twins)
                rows += [row] * (1 + len(feed.twins))
        if jobs:
            self._draw(jobs, logits[rows])

    def _share(self, feed: Feed) -> None:
        """Copy a prefilled prompt into the slots of its twins."""
        if not feed.twins:
            return
        prompt = feed.job.request.token_ids
        targets = [twin.slot.index for twin in feed.twins]
        self._runner.cache.copy(feed.job.slot.index, targets, len(prompt))
        for twin in feed.twins:
            twin.slot.token_ids, twin.pending = list(prompt), []
        self._counts["copied_tokens"] += len(prompt) * len(targets)

    def _draw(self, jobs: list[Job], logits: Tensor) -> None:
        """Draw the next token of each request, and finish those that end with it."""
        token_ids, logprobs = draw(
            logits,
            temperatures=[job.request.sampling.temperature for job in jobs],
            top_ps=[job.request.sampling.top_p for job in jobs],
            uniforms=[job.uniforms[len(job.token_ids)] for job in jobs],
        )
        self._counts["sampled_tokens"] += len(jobs)
        for job, token_id, logprob in zip(jobs, token_ids, logprobs, strict=True):
            if not math.isfinite(logprob):
                self._fail(job, f"episode {job.request.episode_id}: the logits are not finite")
                continue
            job.token_ids.append(token_id)
            job.logprobs.append(logprob)
            job.pending = [token_id]
            if token_id in self._stop_ids:
                self._finish(job, FinishReason.STOP)
            elif len(job.token_ids) == job.request.sampling.max_tokens:
                self._finish(job, FinishReason.LENGTH)

    def _finish(self, job: Job, reason: FinishReason) -> None:
        written = job.token_ids[:-1] if reason is FinishReason.STOP else job.token_ids
        completion = Completion(
            token_ids=tuple(job.token_ids),
            logprobs=tuple(job.logprobs),
            policy_version=self._version,
            finish_reason=reason,
            text=self._decode(written),
            routes=self._runner.cache.routes(
                job.slot.index, job.request.num_routed, len(job.slot.token_ids)
            ),
        )
        self._schedule.remove(job)
        if not job.future.done():
            job.future.set_result(completion)

    def _fail(self, job: Job, message: str, cause: Exception | None = None) -> None:
        """Tell the caller. What the slot holds is not known any more, so it is emptied."""
        self._schedule.remove(job)
        job.slot.clear()
        if not job.future.done():
            error = PolicyError(message)
            error.__cause__ = cause
            job.future.set_exception(error)


def _chunk(feed: Feed) -> Chunk:
    slot = feed.job.slot
    return Chunk(
        slot=slot.index,
        start=len(slot.token_ids),
        token_ids=feed.job.pending[: feed.num_tokens],
    )
