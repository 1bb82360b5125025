"""Killed and resumed on a clock that jumps: only what a checkpoint holds outlives a process.

Numbers of groups are what is accounted for. At every update of the history that survives, each
number that was ever sent off is exactly one of: trained, held (ready or under way), dropped.
"""

import asyncio
import json
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rl.test_scheduler import (
    FAILED,
    FLAT,
    GOOD,
    QUESTIONS,
    SOLVED,
    World,
    config,
)

from spaniel.rl.samples import UpdateSamples
from spaniel.rl.virtual_time import run_in_virtual_time

DROPS = ("groups/without_signal", "groups/failed", "groups/too_old")


@dataclass(frozen=True, kw_only=True)
class Update:
    """One finished update, and the scheduler's state behind it, as JSON."""

    step: int
    groups: list[int]
    ages: set[int]
    """Of its trained tokens."""
    metrics: dict[str, float]
    state: str


class Killed(Exception):
    """The end of a process."""


class Process(World):
    """Goes on from the update ``done`` and the state that was saved there."""

    def __init__(self, cfg, *, done, saved, kill_after, **world):
        state = None if saved is None else json.loads(saved)
        super().__init__(cfg, version=done, state=state, **world)
        self.version, self.kill_after = done, kill_after
        self.updates, self.trained_ages = [], set()

    async def accumulate(self, groups):
        samples = UpdateSamples(
            scale_by_std=False,
            normalization="token",
            keep_without_signal=True,
            version=self.version,
            max_age=self.cfg.token_age_limit,
        )
        # The ids of a token are the version that sampled it.
        self.trained_ages |= {
            self.version - version
            for made in samples.add(groups)
            for sample in made
            for version, weight in zip(sample.token_ids, sample.weights, strict=True)
            if weight
        }
        assert all(
            any(self.version - v <= self.cfg.token_age_limit for v in t.policy_versions)
            for group in groups
            for t in group.scored
        )
        await asyncio.sleep(self.update_s * len(groups) / self.cfg.groups_per_step)

    def on_step(self, step, metrics, groups):
        super().on_step(step, metrics, groups)
        state = json.dumps(self.scheduler.state())
        self.updates.append(
            Update(
                step=step,
                groups=self.trained[-1],
                ages=self.trained_ages,
                metrics=metrics,
                state=state,
            )
        )
        self.trained_ages = set()
        if step == self.kill_after:
            raise Killed

    def live(self, seconds):
        """Whether it came to its end before it was killed."""

        async def main():
            try:
                await asyncio.wait_for(self.train(), seconds)
            except (Killed, TimeoutError):
                return False
            return True

        return run_in_virtual_time(main())[0]


@dataclass(kw_only=True)
class History:
    """The updates that survive of processes that follow each other."""

    cfg: object
    every: int = 1
    """Updates between checkpoints."""
    updates: list[Update] = field(default_factory=list)

    def go_on(self, *, seconds=None, kill_after=None, **world):
        """Another process, from the last checkpoint."""
        done = len(self.updates)
        saved = self.updates[-1].state if self.updates else None
        process = Process(self.cfg, done=done, saved=saved, kill_after=kill_after, **world)
        finished = process.live(seconds)
        check_what_was_sent_off(process.sent, saved)
        updates = self.updates + process.updates
        self.updates = updates if finished else updates[: len(updates) // self.every * self.every]
        return finished

    @property
    def batches(self):
        return [update.groups for update in self.updates]


def check_what_was_sent_off(sent, saved):
    """First what was under way, with the same questions; then new numbers, in order."""
    state = {"under_way": [], "next_number": 0, "questions": {"solved": []}}
    state = state if saved is None else json.loads(saved)
    again = [[d.number, d.question.qid] for d in sent[: len(state["under_way"])]]
    assert again == state["under_way"]
    new, first = sent[len(again) :], state["next_number"]
    assert [d.number for d in new] == list(range(first, first + len(new)))
    later_pass = {d.question.qid for d in new if d.number >= len(QUESTIONS)}
    assert later_pass.isdisjoint(state["questions"]["solved"])


def check(history):
    """Every update once, every number in one place, no token too old."""
    cfg = history.cfg
    assert [update.step for update in history.updates] == list(range(1, cfg.steps + 1))
    trained, gone, num_dropped, next_number = set(), set(), 0, 0
    for update in history.updates:
        state = json.loads(update.state)
        held = [n for n, _ in state["ready"]] + [n for n, _ in state["under_way"]]
        assert len(held) == len(set(held)) <= (cfg.window + 1) * cfg.groups_per_step
        assert len(update.groups) == len(set(update.groups)) <= cfg.groups_per_step
        assert trained.isdisjoint(update.groups), "trained twice"
        assert gone.isdisjoint(update.groups), "trained after it was dropped"
        trained |= set(update.groups)
        assert trained.isdisjoint(held), "trained, and still there"
        assert gone.isdisjoint(held), "dropped, and still there"
        assert state["next_number"] >= next_number
        next_number = state["next_number"]
        assert trained.union(held) <= set(range(next_number))
        gone = set(range(next_number)) - trained - set(held)
        num_dropped += sum(update.metrics[why] for why in DROPS)
        assert len(gone) == num_dropped, "lost without a reason"
        # A token from the future would be one of a history that is no more.
        assert all(0 <= age <= cfg.token_age_limit for age in update.ages)


class Luck:
    """What happens to a group: differs with the process that samples it, as in a real run."""

    def __init__(self, seed, process=0):
        self.seed, self.process = seed, process

    def _draw(self, n, what):
        return random.Random(f"{self.seed}/{self.process}/{n}/{what}")

    def minutes(self, n):
        return self._draw(n, "minutes").lognormvariate(1, 1)

    def ending(self, n):
        """A question is solved early or never, so that some are always left."""
        if n < 4:
            return SOLVED
        return self._draw(n, "ending").choices([GOOD, FLAT, FAILED], [6, 3, 1])[0]


@st.composite
def schedules(draw, windows):
    """(settings, seconds that an update takes)."""
    cfg = config(
        window=draw(windows),
        start_groups=draw(st.integers(1, 4)),
        max_token_age=draw(st.none() | st.integers(0, 3)),
        dynamic_sampling=draw(st.booleans()),
        max_refill=50.0,
        steps=8,
    )
    return cfg, draw(st.sampled_from([0, 30, 300]))


@settings(max_examples=60, deadline=None)
@given(schedules(st.integers(0, 4)), st.integers(0, 2**20))
def test_a_history_that_is_cut_at_every_update_is_sound(schedule, seed):
    cfg, update_s = schedule
    history = History(cfg=cfg)
    for step in range(1, cfg.steps):
        luck = Luck(seed, step)
        finished = history.go_on(
            kill_after=step, minutes=luck.minutes, ending=luck.ending, update_s=update_s
        )
        assert not finished
        assert len(history.updates) == step
    luck = Luck(seed)
    assert history.go_on(minutes=luck.minutes, ending=luck.ending, update_s=update_s)
    check(history)


@settings(max_examples=60, deadline=None)
@given(
    schedules(st.integers(0, 4)),
    st.integers(0, 2**20),
    st.integers(1, 3),
    st.lists(st.floats(1, 4000), min_size=1, max_size=5),
)
def test_processes_killed_at_any_moment_leave_a_sound_history(schedule, seed, every, moments):
    cfg, update_s = schedule
    history = History(cfg=cfg, every=every)
    for number, seconds in enumerate([*moments, None]):
        luck = Luck(seed, number)
        if history.go_on(
            seconds=seconds, minutes=luck.minutes, ending=luck.ending, update_s=update_s
        ):
            break
    check(history)


@settings(max_examples=30, deadline=None)
@given(
    schedules(st.just(0)),
    st.integers(0, 2**20),
    st.integers(1, 3),
    st.lists(st.floats(1, 4000), min_size=1, max_size=4),
)
def test_a_synchronous_run_killed_at_any_moment_trains_the_same_batches(
    schedule, seed, every, moments
):
    cfg, update_s = schedule
    luck = Luck(seed)
    world = {"minutes": luck.minutes, "ending": luck.ending, "update_s": update_s}
    whole, history = History(cfg=cfg), History(cfg=cfg, every=every)
    whole.go_on(**world)
    for seconds in [*moments, None]:
        if history.go_on(seconds=seconds, **world):
            break
    check(history)
    assert history.batches == whole.batches


def test_groups_too_old_for_the_next_update_are_counted_by_the_one_that_made_them_so():
    # With tokens of one version only, a second batch that waits is too old after the first.
    cfg = config(window=1, max_token_age=0, steps=2)
    history = History(cfg=cfg)
    history.go_on(kill_after=1, update_s=600)
    assert history.updates[0].metrics["groups/too_old"] == 4
    history.go_on(update_s=600)
    check(history)


def test_a_group_whose_sampling_broke_is_still_there_for_the_next_process():
    cfg = config(window=1, steps=4)
    history = History(cfg=cfg)
    broken = Process(cfg, done=0, saved=None, kill_after=None, update_s=600)
    sample = broken.scheduler._sample

    async def breaks_during_the_update(dispatch):
        group = await sample(dispatch)
        if dispatch.number == 6:
            await asyncio.sleep(60)
            raise ZeroDivisionError
        return group

    broken.scheduler._sample = breaks_during_the_update
    with pytest.raises(ZeroDivisionError):
        broken.live(None)
    history.updates = broken.updates
    assert len(history.updates) == 1
    history.go_on(update_s=600)
    check(history)
    assert 6 in {n for batch in history.batches for n in batch}
