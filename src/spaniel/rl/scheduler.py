"""Which groups are sampled, and which are trained, and when: synchronous and asynchronous alike.

    questions -> [slot] -> sample -> settle -> ready -> batch -> update -> [slot freed]
                   ^                   |  \\ dropped: no signal, failed, too old
                   +-------------------+    (its slot is free at once: another question)

Ready first: a group can be trained as soon as all its trajectories are scored, whatever was sent
off before it. A slot is held from the moment a group is sent off until the update that used it is
over; with P groups an update there are (window + 1) P slots, so that nothing is sent off more than
``window`` batches ahead, and a window of 0 is synchronous. Groups that were sent off stay eligible
however long they take; of their tokens only those at most ``max_token_age`` versions old are
trained (``samples.py`` leaves the others out).

There is no clock in here but the event loop's, and no model: ``simulate.py`` runs this code on
a clock of its own.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spaniel.config import RLConfig
from spaniel.errors import TrainingError
from spaniel.rollout import seed_of
from spaniel.store import from_plain, to_plain
from spaniel.types import Group, Question, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """One group on its way."""

    number: int
    """Of the group, from 0 on: names and seeds it."""
    question: Question
    version: int
    """Of the policy when it was sent off."""
    since: float
    """Time of the event loop, seconds."""


class EverythingSolved(Exception):
    """No question is left that a later pass may ask."""


@dataclass(slots=True)
class _Counts:
    """Since the last update."""

    groups: Counter[str] = field(default_factory=Counter)
    trajectories: int = 0
    failed_trajectories: int = 0
    first_failure: str = ""


class Scheduler:
    """Sends groups off, and hands out batches of those that are ready.

    Use as an asynchronous context: leaving it cancels what is under way and waits for it.

    Args:
        sample: samples and scores one group; an exception from it stops the run.
        is_solved: whether nothing can be better than this trajectory; a question that all its
            rollouts solve is not asked in a later pass.
        version: of the policy at the start.
        state: of an earlier ``state``; its groups under way are sent off again, under the same
            numbers.
    """

    def __init__(
        self,
        cfg: RLConfig,
        questions: Sequence[Question],
        sample: Callable[[Dispatch], Awaitable[Group]],
        *,
        seed: int,
        is_solved: Callable[[Trajectory], bool] = lambda trajectory: False,
        version: int = 0,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.cfg, self._sample, self.version = cfg, sample, version
        self._questions = _QuestionOrder(questions, is_solved, seed=seed)
        self._number = 0
        self._under_way: dict[asyncio.Task[Group], Dispatch] = {}
        self._ready: deque[tuple[int, Group]] = deque()
        self._num_taken = 0
        self._counts = _Counts()
        self._again: list[tuple[int, Question]] = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        if state is not None:
            self._restore(state)

    @property
    def num_under_way(self) -> int:
        """Groups that are being sampled."""
        return len(self._under_way)

    @property
    def num_ready(self) -> int:
        """Groups that wait for their update."""
        return len(self._ready)

    # -- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> "Scheduler":
        self._last_settled = self._now()
        self._send_off()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._under_way)
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- sending off ---------------------------------------------------------------------------

    def _send_off(self) -> None:
        """Fill the free slots."""
        limit = (self.cfg.window + 1) * self.cfg.groups_per_step
        while len(self._under_way) + len(self._ready) + self._num_taken < limit:
            try:
                number, question = self._next()
            except EverythingSolved:
                self._changed.set()
                return
            dispatch = Dispatch(
                number=number, question=question, version=self.version, since=self._now()
            )
            task = asyncio.ensure_future(self._sample(dispatch))
            self._under_way[task] = dispatch
            task.add_done_callback(self._settle)
            self._counts.groups["sent_off"] += 1

    def _next(self) -> tuple[int, Question]:
        if self._again:
            return self._again.pop(0)
        question = next(self._questions)
        self._number += 1
        return self._number - 1, question

    def _settle(self, task: "asyncio.Task[Group]") -> None:
        """A group is done: ready, or dropped and its slot free."""
        dispatch = self._under_way.pop(task, None)
        if dispatch is None or task.cancelled():
            return
        self._changed.set()
        if (error := task.exception()) is not None:
            self._error = self._error or error
            # The run ends, yet a checkpoint may come first: it must not lose the group.
            self._again.append((dispatch.number, dispatch.question))
            return
        group = task.result()
        self._last_settled = self._now()
        self._count_trajectories(group)
        self._questions.came_back(group)
        dropped = self._why_dropped(group)
        if dropped:
            self._counts.groups[dropped] += 1
            if not self._spent():
                self._send_off()
        else:
            self._ready.append((dispatch.number, group))

    def _why_dropped(self, group: Group) -> str:
        """What keeps a group out of training; empty when nothing does."""
        if len(group.scored) < self.cfg.min_scored:
            return "failed"
        if self.cfg.dynamic_sampling and len({t.reward for t in group.scored}) == 1:
            return "without_signal"
        return "" if self._is_young(group) else "too_old"

    def _is_young(self, group: Group) -> bool:
        """Whether a token of it may still be trained."""
        newest = max((v for t in group.scored for v in t.policy_versions), default=-1)
        return self.version - newest <= self.cfg.token_age_limit

    def _count_trajectories(self, group: Group) -> None:
        failed = [t for t in group.trajectories if t.failed_by_infrastructure]
        self._counts.trajectories += len(group.trajectories)
        self._counts.failed_trajectories += len(failed)
        if failed and not self._counts.first_failure:
            self._counts.first_failure = f"{failed[0].trajectory_id}: {failed[0].error}"

    # -- batches -------------------------------------------------------------------------------

    async def batch(self) -> AsyncIterator[list[Group]]:
        """The groups of one update, in parts as they become ready.

        The first part waits for ``start_groups`` of them, each later one takes what there is, until
        there are ``groups_per_step``. Fewer come only when dropped groups have used up
        ``max_refill`` batches, or no question is left.

        Raises:
            TrainingError: too many trajectories failed through the infrastructure, nothing
                became ready for ``stall_s``, or none of the dropped groups had a signal.
            EverythingSolved: there is nothing left to train on.
        """
        needed = self.cfg.groups_per_step
        wanted = self.cfg.start_groups or needed
        while self._num_taken < needed:
            await self._until_ready(min(wanted, needed - self._num_taken))
            part = sorted(self._take(needed - self._num_taken), key=lambda ready: ready[0])
            if not part:
                break
            self._num_taken += len(part)
            yield [group for _, group in part]
            wanted = 1
        if not self._num_taken:
            self._nothing_to_train()

    async def _until_ready(self, count: int) -> None:
        waiting_since = self._now()
        while len(self._ready) < count and self._can_come():
            self._changed.clear()
            self._check()
            # An update that took long is no stall of the groups.
            quiet_since = max(self._last_settled, waiting_since)
            patience = quiet_since + self.cfg.stall_s - self._now()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, patience))
            except TimeoutError:
                self._stalled()
        self._check()

    def _can_come(self) -> bool:
        return self._error is not None or bool(self._under_way)

    def _take(self, count: int) -> list[tuple[int, Group]]:
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def _spent(self) -> bool:
        """Whether this update has had its share of dropped groups."""
        dropped = sum(self._counts.groups[why] for why in ("failed", "without_signal", "too_old"))
        return dropped >= self.cfg.max_refill * self.cfg.groups_per_step

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        counts = self._counts
        allowed = self.cfg.max_failed_frac * max(
            counts.trajectories, self.cfg.groups_per_step * self.cfg.group_size
        )
        if counts.failed_trajectories > allowed:
            raise TrainingError(
                f"{counts.failed_trajectories} of {counts.trajectories} rollouts failed through "
                f"the infrastructure (allowed: {self.cfg.max_failed_frac:.0%}); the first: "
                f"{counts.first_failure}"
            )

    def _stalled(self) -> None:
        oldest = min(self._under_way.values(), key=lambda d: d.since)
        raise TrainingError(
            f"no group was finished for {self.cfg.stall_s:g} s (rl.stall_s): {self.num_under_way} "
            f"are under way, the oldest, question {oldest.question.qid!r}, for "
            f"{self._now() - oldest.since:.0f} s; {self.num_ready} of "
            f"{self.cfg.groups_per_step} are ready"
        )

    def _nothing_to_train(self) -> None:
        counts = self._counts.groups
        if self._questions.exhausted:
            raise EverythingSolved
        raise TrainingError(
            f"none of {sum(counts.values()) - counts['sent_off']} groups can be trained: "
            f"{counts['without_signal']} without signal (all rewards of a group equal), "
            f"{counts['failed']} failed, {counts['too_old']} too old: the questions are solved, or "
            "hopeless for this policy; run `spaniel questions preflight`"
        )

    def updated(self, version: int) -> dict[str, float]:
        """The batch has been used and the sampler has the weights of ``version``: its slots are
        free. Returns what happened since the last update, by metric."""
        self.version = version
        young = deque(ready for ready in self._ready if self._is_young(ready[1]))
        # Counted now: a checkpoint that follows holds no counts.
        self._counts.groups["too_old"] += len(self._ready) - len(young)
        self._ready = young
        metrics = self._metrics()
        self._num_taken, self._counts = 0, _Counts()
        self._send_off()
        return metrics

    def _metrics(self) -> dict[str, float]:
        counts = self._counts
        metrics = {
            f"groups/{why}": float(counts.groups[why])
            for why in ("sent_off", "without_signal", "failed", "too_old")
        }
        metrics["groups/ready"] = float(self.num_ready)
        metrics["groups/under_way"] = float(self.num_under_way)
        oldest = min((d.since for d in self._under_way.values()), default=self._now())
        metrics["time/oldest_group_s"] = self._now() - oldest
        metrics["rollouts/failed_frac"] = counts.failed_trajectories / max(1, counts.trajectories)
        return metrics

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that an exact resume needs, as plain data; between two updates."""
        under_way = [(d.number, d.question.qid) for d in self._under_way.values()]
        again = [(number, question.qid) for number, question in self._again]
        return {
            "next_number": self._number,
            "under_way": sorted([*under_way, *again]),
            "ready": [[number, to_plain(group)] for number, group in self._ready],
            "questions": self._questions.state(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self._number = state["next_number"]
        self._questions.restore(state["questions"])
        self._again = [(n, self._questions.by_qid[qid]) for n, qid in state["under_way"]]
        self._ready = deque(
            (number, from_plain(Group, group, where="checkpoint"))
            for number, group in state["ready"]
        )


class _QuestionOrder:
    """Pass after pass over the questions, each in an order of its own.

    A later pass leaves out the questions that every rollout of an earlier one solved in full: they
    cannot teach any more. The order is a function of seed and position alone.
    """

    def __init__(
        self, questions: Sequence[Question], is_solved: Callable[[Trajectory], bool], *, seed: int
    ) -> None:
        self._is_solved = is_solved
        self.by_qid = {question.qid: question for question in questions}
        self._questions, self._seed = questions, seed
        self._position = 0
        self._solved: set[str] = set()
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def exhausted(self) -> bool:
        """Whether every question is solved."""
        return len(self._solved) == len(self._questions)

    def came_back(self, group: Group) -> None:
        """Remember a question that needs not be asked again."""
        everyone = group.trajectories
        if len(group.scored) == len(everyone) and all(map(self._is_solved, everyone)):
            self._solved.add(group.question.qid)

    def __next__(self) -> Question:
        while not self.exhausted:
            number, offset = divmod(self._position, len(self._questions))
            if self._order[0] != number:
                rng = np.random.default_rng(seed_of(self._seed, "order", number))
                self._order = (number, rng.permutation(len(self._questions)).tolist())
            self._position += 1
            question = self._questions[self._order[1][offset]]
            if number == 0 or question.qid not in self._solved:
                return question
        raise EverythingSolved

    def state(self) -> dict[str, Any]:
        """Position and solved questions."""
        return {"position": self._position, "solved": sorted(self._solved)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from an earlier ``state``."""
        self._position, self._solved = state["position"], set(state["solved"])
