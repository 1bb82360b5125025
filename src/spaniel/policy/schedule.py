"""Which request gets which slot, and what the next forward pass feeds. Plain bookkeeping.

    waiting -> admit() -> running -> next_batch() -> advance() -> ... -> remove()

Everything follows the order in which requests came, so the same requests give the same
batches.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from spaniel.policy.base import Request
from spaniel.types import Completion


@dataclass(eq=False, slots=True, kw_only=True)
class Slot:
    """One place in the cache, and whose it is."""

    index: int
    episode_id: str | None = None
    token_ids: list[int] = field(default_factory=list)
    """What is cached."""
    busy: bool = False
    """A running request uses it."""
    last_used: int = 0

    def clear(self) -> None:
        """Nobody's, holding nothing."""
        self.episode_id, self.token_ids, self.busy = None, [], False


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """A request on its way to a completion."""

    request: Request
    future: "asyncio.Future[Completion]"
    uniforms: Sequence[float]
    """One number for each token that may be drawn."""
    slot: Slot = field(default_factory=lambda: Slot(index=-1))
    """A place of no cache until the request is admitted."""
    pending: list[int] = field(default_factory=list)
    """Tokens to feed before the next one can be drawn."""
    token_ids: list[int] = field(default_factory=list)
    """Drawn so far."""
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One request's part of a forward pass."""

    job: Job
    num_tokens: int
    """Of its pending tokens, from the front."""
    twins: list[Job]
    """Requests with the same prompt and an empty slot: they get a copy instead of a prefill."""


class Schedule:
    """Requests that wait or run, and the slots they run in.

    Args:
        num_slots: requests that can run at once.
        max_pass_tokens: tokens of one forward pass.
        can_rewind: a slot may be cut back to a prefix of what it holds; otherwise a prompt
            that does not extend it starts from nothing.
    """

    def __init__(self, num_slots: int, *, max_pass_tokens: int, can_rewind: bool) -> None:
        self.slots = [Slot(index=index) for index in range(num_slots)]
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.num_arrived = 0
        self.num_evicted = 0
        self._max_pass_tokens = max_pass_tokens
        self._can_rewind = can_rewind

    def add(self, job: Job) -> None:
        """A new request, behind those that wait."""
        self.waiting.append(job)
        self.num_arrived += 1

    def jobs_of(self, episode_id: str) -> list[Job]:
        """Requests of an episode that wait or run."""
        jobs = (*self.waiting, *self.running)
        return [job for job in jobs if job.request.episode_id == episode_id]

    def remove(self, job: Job) -> None:
        """Take a request out, wherever it is; what its slot holds stays with the episode."""
        if job in self.waiting:
            self.waiting.remove(job)
        if job in self.running:
            self.running.remove(job)
            job.slot.busy = False

    def end_episode(self, episode_id: str) -> None:
        """Free the episode's slot."""
        for slot in self.slots:
            if slot.episode_id == episode_id:
                slot.clear()

    def forget(self) -> None:
        """Free all slots. Nothing may be running."""
        for slot in self.slots:
            slot.clear()

    def admit(self) -> None:
        """Give waiting requests slots: their episode's own, a free one, or the one of the
        episode that has been idle longest."""
        # Episodes that hold a slot come first, or a newcomer would take it from under them.
        owned = {slot.episode_id: slot for slot in self.slots}
        newcomers = []
        for job in self.waiting:
            if slot := owned.get(job.request.episode_id):
                self._begin(job, slot)
            else:
                newcomers.append(job)
        idle = [slot for slot in self.slots if not slot.busy]
        idle.sort(key=lambda slot: (slot.episode_id is not None, slot.last_used, slot.index))
        for job, slot in zip(newcomers, idle, strict=False):
            self.num_evicted += slot.episode_id is not None
            slot.clear()
            slot.episode_id = job.request.episode_id
            self._begin(job, slot)
        self.waiting = newcomers[len(idle) :]

    def next_batch(self) -> list[Feed]:
        """What to feed next: one token of every decoding request, and prompts, oldest first,
        as far as they fit beside them. Single tokens come first; within both kinds by slot.
        """
        feeds = [Feed(job=j, num_tokens=1, twins=[]) for j in self.running if j.token_ids]
        room = max(self._max_pass_tokens - len(feeds), 1)
        by_prompt: dict[tuple[int, ...], list[Job]] = {}
        for job in self.running:
            if job.token_ids:
                continue
            twins = by_prompt.get(job.request.token_ids)
            if twins is not None and not job.slot.token_ids:
                twins.append(job)
            elif room > 0:
                size = min(len(job.pending), room)
                room -= size
                twins = by_prompt.setdefault(job.request.token_ids, [])
                feeds.append(Feed(job=job, num_tokens=size, twins=twins))
        return sorted(feeds, key=lambda feed: (feed.num_tokens > 1, feed.job.slot.index))

    def advance(self, feed: Feed) -> bool:
        """The pass has been made. True when the request's next token can be drawn."""
        job = feed.job
        job.slot.token_ids.extend(job.pending[: feed.num_tokens])
        del job.pending[: feed.num_tokens]
        return not job.pending

    def _begin(self, job: Job, slot: Slot) -> None:
        prompt = job.request.token_ids
        # At least one token must be fed: its logits give the next one.
        shared = _common_prefix(slot.token_ids, prompt[:-1])
        if shared < len(slot.token_ids) and not self._can_rewind:
            shared = 0
        del slot.token_ids[shared:]
        job.slot, job.pending = slot, list(prompt[shared:])
        slot.busy, slot.last_used = True, self.num_arrived
        self.running.append(job)


def _common_prefix(cached: list[int], prompt: tuple[int, ...]) -> int:
    """Length of the longest common prefix."""
    if tuple(cached) == prompt[: len(cached)]:
        return len(cached)
    pairs = zip(cached, prompt, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(cached), len(prompt)))
