"""The scheduler on a clock that jumps: real code, no model."""

import asyncio
import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.config import RLConfig
from spaniel.errors import TrainingError
from spaniel.rl.samples import UpdateSamples
from spaniel.rl.scheduler import EverythingSolved, Scheduler
from spaniel.rl.train import train
from spaniel.rl.virtual_time import run_in_virtual_time
from spaniel.types import Group, Question, StopReason, Trajectory

QUESTIONS = [Question(qid=f"q{i}", text="?", targets=("d",)) for i in range(10)]
FLAT, GOOD, FAILED, SOLVED = "flat", "good", "failed", "solved"
REWARDS = {FLAT: (0.2, 0.2), GOOD: (0.0, 1.0), FAILED: (None, None), SOLVED: (1.0, 1.0)}


def config(**values):
    values = {"groups_per_step": 4, "group_size": 2, "max_failed_frac": 1.0, "steps": 6, **values}
    return RLConfig(**values)


def trajectory(dispatch, number, versions, reward):
    return Trajectory(
        qid=dispatch.question.qid,
        trajectory_id=f"{dispatch.number}/{number}",
        token_ids=tuple(versions),
        loss_mask=(True,) * len(versions),
        sampler_logprobs=(-1.0,) * len(versions),
        policy_versions=tuple(versions),
        stop_reason=StopReason.REPORTED if reward is not None else StopReason.INFRASTRUCTURE,
        error="" if reward is not None else "retriever down",
        reward=reward,
    )


class World:
    """Groups that take a time and end in a way, both by their number."""

    def __init__(self, cfg, *, minutes=lambda n: 1.0, ending=lambda n: GOOD, update_s=0.0, **more):
        self.cfg, self.minutes, self.ending, self.update_s = cfg, minutes, ending, update_s
        self.version, self.running, self.sent, self.trained, self.seen = 0, 0, [], [], []
        self.ages = []
        self.scheduler = Scheduler(
            cfg,
            QUESTIONS,
            self.sample,
            seed=1,
            is_solved=lambda t: t.reward == 1.0,
            **more,
        )

    async def sample(self, dispatch):
        self.sent.append(dispatch)
        self.running += 1
        versions = []
        try:
            for _ in range(4):
                versions.append(self.version)
                await asyncio.sleep(self.minutes(dispatch.number) * 15)
        finally:
            self.running -= 1
        rewards = REWARDS[self.ending(dispatch.number)]
        return Group(
            question=dispatch.question,
            trajectories=tuple(
                trajectory(dispatch, n, versions, reward) for n, reward in enumerate(rewards)
            ),
        )

    async def accumulate(self, groups):
        samples = UpdateSamples(
            scale_by_std=False,
            normalization="token",
            version=self.version,
            max_age=self.cfg.token_age_limit,
        )
        samples.add(groups)
        self.ages.append(samples.oldest)
        await asyncio.sleep(self.update_s * len(groups) / self.cfg.groups_per_step)

    async def update(self, version, groups):
        self.version = version
        return {}

    def on_step(self, step, metrics, groups):
        self.trained.append([int(g.trajectories[0].trajectory_id.split("/")[0]) for g in groups])
        self.seen.append(metrics)

    async def train(self):
        await train(self.cfg, self.scheduler, self, done=self.version, on_step=self.on_step)

    def run(self):
        return run_in_virtual_time(self.train())[1]


def numbers(world):
    return [n for batch in world.trained for n in batch]


# --- synchronous --------------------------------------------------------------------------


def test_with_a_window_of_0_nothing_is_under_way_at_an_update():
    world = World(config(), minutes=lambda n: 1 + n % 3, update_s=600)
    seconds = world.run()
    assert world.trained == [list(range(4 * s, 4 * s + 4)) for s in range(6)]
    assert [d.version for d in world.sent] == [n // 4 for n in range(24)]
    # Each step waits for its slowest group, then for the update.
    assert seconds == pytest.approx(6 * (3 * 60 + 600))


def test_every_pass_asks_all_questions_in_an_order_of_its_own():
    world = World(config(steps=5))
    world.run()
    asked = [d.question.qid for d in world.sent]
    passes = [asked[:10], asked[10:20]]
    assert [sorted(p) for p in passes] == [sorted(q.qid for q in QUESTIONS)] * 2
    assert passes[0] != passes[1]


# --- asynchronous -------------------------------------------------------------------------


def test_ready_groups_are_trained_before_slow_ones_that_were_sent_off_earlier():
    world = World(config(window=1), minutes=lambda n: 100 if n == 0 else 1 + n / 100)
    world.run()
    assert world.trained[0] == [1, 2, 3, 4]
    assert 0 not in numbers(world)[:20]


def test_a_straggler_stays_eligible_and_only_its_young_tokens_are_trained():
    world = World(config(window=2, steps=30), minutes=lambda n: 8 if n == 0 else 1, update_s=150)
    world.run()
    assert 0 in numbers(world)
    assert max(world.ages) <= 2


def test_the_gradient_starts_with_the_first_ready_groups():
    parts = []

    class Watching(World):
        async def accumulate(self, groups):
            parts.append((asyncio.get_running_loop().time(), len(groups)))
            await super().accumulate(groups)

    world = Watching(config(steps=1, start_groups=2), minutes=lambda n: n + 1)
    world.run()
    assert parts == [(120, 2), (180, 1), (240, 1)]


def test_updates_overlap_with_sampling():
    sync = World(config(steps=20), minutes=lambda n: 1 + 9 * (n % 4 == 0), update_s=200)
    ahead = World(config(steps=20, window=2), minutes=lambda n: 1 + 9 * (n % 4 == 0), update_s=200)
    assert ahead.run() < 0.4 * sync.run()


def test_slots_bound_what_is_under_way():
    most = []

    class Watching(World):
        async def sample(self, dispatch):
            group = await super().sample(dispatch)
            most.append(self.running + 1)
            return group

    world = Watching(config(window=2, steps=10), minutes=lambda n: 1 + n % 5, update_s=30)
    world.run()
    assert max(most) <= 12


# --- what is dropped ----------------------------------------------------------------------


def test_groups_without_signal_are_replaced_in_the_same_step():
    world = World(config(dynamic_sampling=True), ending=lambda n: FLAT if n % 3 == 0 else GOOD)
    world.run()
    assert [len(batch) for batch in world.trained] == [4] * 6
    assert all(n % 3 for n in numbers(world))
    assert sum(m["groups/without_signal"] for m in world.seen) == 12


def test_without_dynamic_sampling_they_take_their_place_in_the_batch():
    world = World(config(), ending=lambda n: FLAT if n % 3 == 0 else GOOD)
    world.run()
    assert numbers(world) == list(range(24))


def test_failed_groups_are_replaced_and_counted():
    world = World(config(), ending=lambda n: FAILED if n == 2 else GOOD)
    world.run()
    assert world.trained[0] == [0, 1, 3, 4]
    assert world.seen[0]["groups/failed"] == 1
    assert world.seen[0]["rollouts/failed_frac"] == pytest.approx(2 / 10)


def test_a_step_makes_do_with_fewer_groups_when_the_refill_is_spent():
    cfg = config(dynamic_sampling=True, max_refill=1.0, steps=1)
    world = World(cfg, ending=lambda n: GOOD if n == 1 else FLAT)
    world.run()
    assert world.trained == [[1]]


def test_a_step_without_any_signal_says_so():
    world = World(config(dynamic_sampling=True), ending=lambda n: FLAT)
    message = r"none of (\d+) groups can be trained: \1 without signal"
    with pytest.raises(TrainingError, match=message):
        world.run()


def test_too_many_failures_stop_the_run_with_their_cause():
    world = World(config(max_failed_frac=0.1), ending=lambda n: FAILED if n > 5 else GOOD)
    with pytest.raises(TrainingError, match=r"failed through the infrastructure.*retriever down"):
        world.run()


def test_a_later_pass_leaves_out_what_every_rollout_solved():
    cfg = config(steps=4, groups_per_step=5)
    world = World(cfg, ending=lambda n: SOLVED if n in (1, 3) else GOOD)
    world.run()
    asked = [d.question.qid for d in world.sent]
    solved = {asked[1], asked[3]}
    assert solved.isdisjoint(asked[10:])


def test_training_ends_when_everything_is_solved(capsys):
    world = World(config(steps=50, groups_per_step=5), ending=lambda n: SOLVED)
    world.run()
    assert len(world.trained) == 2
    assert "every question is solved" in capsys.readouterr().err


# --- when things break --------------------------------------------------------------------


def test_an_exception_while_sampling_stops_the_run_and_what_is_under_way():
    world = World(config(window=1), minutes=lambda n: 5.0)

    async def broken(dispatch):
        if dispatch.number == 3:
            raise ZeroDivisionError
        return await World.sample(world, dispatch)

    world.scheduler._sample = broken
    with pytest.raises(ZeroDivisionError):
        world.run()
    assert world.running == 0


def test_a_stalled_run_stops_and_names_the_oldest_question():
    world = World(config(stall_s=3600.0), minutes=lambda n: 1e9 if n == 2 else 1)
    with pytest.raises(TrainingError, match=r"no group was finished for 3600 s.*'q\d'.*3 of 4"):
        world.run()


def test_a_long_update_is_no_stall():
    world = World(config(stall_s=600.0, window=1, steps=3), minutes=lambda n: 5, update_s=7200)
    world.run()
    assert len(world.trained) == 3


def test_leaving_cancels_everything_and_leaves_no_task():
    world = World(config(window=3), minutes=lambda n: 1e6)

    async def main():
        async with world.scheduler:
            await asyncio.sleep(1)
            assert world.running == 16
        return len(asyncio.all_tasks())

    assert run_in_virtual_time(main())[0] == 1
    assert world.running == 0


# --- resume -------------------------------------------------------------------------------


def interrupted_and_resumed(cfg, stop_after, **world):
    first = World(cfg.model_copy(update={"steps": stop_after}), **world)
    states = []
    first.on_step = lambda *a: (World.on_step(first, *a), states.append(first.scheduler.state()))
    first.run()
    # As from a file: nothing but plain data.
    state = json.loads(json.dumps(states[-1]))
    second = World(cfg, version=stop_after, state=state, **world)
    second.version = stop_after
    second.run()
    return first.trained + second.trained


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_synchronous_run_goes_on_with_the_same_batches(stop_after):
    world = {
        "minutes": lambda n: 1 + n % 3,
        "ending": lambda n: FLAT if n % 3 == 0 else SOLVED if n == 4 else GOOD,
    }
    cfg = config(dynamic_sampling=True)
    whole = World(cfg, **world)
    whole.run()
    assert interrupted_and_resumed(cfg, stop_after, **world) == whole.trained


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(0, 3))
def test_no_group_is_lost_or_trained_twice_over_an_interruption(seed, stop_after, window):
    cfg = config(window=window)

    def minutes(n):
        return random.Random(f"{seed}/{n}").expovariate(1 / 3)

    batches = interrupted_and_resumed(cfg, stop_after, minutes=minutes, update_s=40)
    trained = [n for batch in batches for n in batch]
    assert len(trained) == len(set(trained)) == 24
    assert max(trained) < 24 + (window + 1) * 4


# --- whatever happens ---------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    window=st.integers(0, 4),
    start=st.integers(1, 4),
    age=st.none() | st.integers(0, 5),
    dynamic=st.booleans(),
    update_s=st.sampled_from([0, 30, 300]),
)
def test_any_delays_and_endings_give_full_batches_of_young_tokens(
    seed, window, start, age, dynamic, update_s
):
    def draw(n, what):
        return random.Random(f"{seed}/{n}/{what}")

    world = World(
        config(
            window=window,
            start_groups=start,
            max_token_age=age,
            dynamic_sampling=dynamic,
            max_refill=50.0,
            steps=8,
        ),
        minutes=lambda n: draw(n, "minutes").lognormvariate(1, 1),
        ending=lambda n: draw(n, "ending").choices([GOOD, FLAT, FAILED], [6, 3, 1])[0],
        update_s=update_s,
    )
    world.run()
    assert [len(batch) for batch in world.trained] == [4] * 8
    assert len(set(numbers(world))) == 32
    assert max(world.ages) <= world.cfg.token_age_limit
    assert world.running == 0
    sent = [d.since for d in world.sent]
    assert all(a <= b for a, b in pairwise(sent))


def test_an_empty_stream_is_the_end_and_no_error():
    world = World(config(), ending=lambda n: SOLVED)
    world.scheduler._questions._solved = {q.qid for q in QUESTIONS}

    async def main():
        async with world.scheduler as scheduler:
            with pytest.raises(EverythingSolved):
                async for _ in scheduler.batch():
                    pass

    run_in_virtual_time(main())
