import asyncio
import itertools
from dataclasses import replace

import pytest
from tests.doubles import BrokenEngine, WordEngine, lighthouse_documents

from spaniel.config import EnvConfig, RewardConfig
from spaniel.env.episode import Environment
from spaniel.env.window import OMITTED
from spaniel.errors import ConfigError, PolicyError, TrainingError
from spaniel.policy.scripted import ScriptedPolicy
from spaniel.renderer import ByteRenderer
from spaniel.rollout import Runner, check_failures, check_ledger, seed_of
from spaniel.types import Question, StopReason

QUESTION = Question(
    qid="q", text="Who founded the company of the lighthouse?", targets=("d1", "d2")
)


def shown_id(request, title):
    """What a policy would copy: the id behind a title in the latest observation."""
    for message in reversed(request.messages):
        for line in message.content.split("\n"):
            if line.startswith(f"{title} ["):
                return line[len(title) + 2 :].split("]")[0]
    raise AssertionError(f"{title} was not shown")


def good_policy(request):
    """Searches twice, reads once, reports both targets."""
    turn = (len(request.messages) - 2) // 2
    return [
        lambda: 'search("lighthouse")',
        lambda: f'read("{shown_id(request, "Ardent Lighthouse")}")',
        lambda: 'search("Marrow company")',
        lambda: (
            f'report(["{shown_id(request, "Ardent Lighthouse")}", "{shown_id(request, "Marrow")}"])'
        ),
    ][turn]()


def runner(script, engine=None, **settings):
    cfg = EnvConfig(**{"dialect": "plain", "max_turns": 6, **settings})
    environment = Environment(engine or WordEngine(lighthouse_documents()), cfg)
    renderer = ByteRenderer()
    policy = ScriptedPolicy(renderer, script)
    return Runner(policy, renderer, environment, RewardConfig())


def roll(script, engine=None, **settings):
    made = runner(script, engine, **settings)
    return asyncio.run(made.trajectory(QUESTION, seed=3, name="q/0")), made


def test_a_perfect_walk_is_scored_one_and_its_calls_are_recorded():
    trajectory, _ = roll(good_policy)
    assert trajectory.stop_reason is StopReason.REPORTED
    assert trajectory.report == ("d1", "d2")
    assert trajectory.reward_parts["ndcg"] == 1.0
    assert trajectory.format_ok
    calls = [turn.call.name for turn in trajectory.turns if turn.call]
    assert calls == ["search", "read", "search", "report"]
    assert trajectory.turns[1].docids == ("d1",)


def test_the_ledger_is_what_the_policy_was_asked_and_answered():
    trajectory, made = roll(good_policy)
    renderer = ByteRenderer()
    for request, turn in zip(made.policy.requests, trajectory.turns, strict=True):
        assert request.token_ids == trajectory.token_ids[: turn.start]
        sampled = trajectory.token_ids[turn.start : turn.end]
        assert sampled == renderer.encode_completion(turn.text)
    assert all(
        trajectory.loss_mask[i] for turn in trajectory.turns for i in range(turn.start, turn.end)
    )
    assert trajectory.num_sampled_tokens == sum(t.end - t.start for t in trajectory.turns)


def test_the_prompt_of_each_turn_extends_the_one_before():
    _, made = roll(good_policy)
    prompts = [r.token_ids for r in made.policy.requests]
    for before, after in itertools.pairwise(prompts):
        assert after[: len(before)] == before


def test_true_docids_are_never_shown():
    documents = [replace(d, docid=f"secret-{d.docid}") for d in lighthouse_documents()]
    _, made = roll(
        lambda r: 'search("the lighthouse company founder teacher town")', WordEngine(documents)
    )
    shown = "".join(m.content for r in made.policy.requests for m in r.messages)
    assert "secret-" not in shown


def test_a_dead_retriever_is_an_infrastructure_failure_never_a_zero():
    trajectory, _ = roll(good_policy, BrokenEngine(lighthouse_documents()))
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert trajectory.reward is None
    assert "search failed: ConnectionError: the retriever is down" in trajectory.error


def test_a_sampler_that_breaks_is_an_infrastructure_failure_with_what_came_before():
    def script(request):
        if len(request.messages) > 2:
            raise PolicyError("out of memory")
        return 'search("lighthouse")'

    trajectory, made = roll(script)
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert len(trajectory.turns) == 1
    assert made.policy.ended == ["q/0"]


def test_running_out_of_turns_ends_without_a_report_and_scores_zero():
    trajectory, _ = roll(lambda r: 'search("lighthouse")', max_turns=3)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(trajectory.turns) == 3
    assert trajectory.reward_parts["ndcg"] == 0.0
    assert trajectory.loss_mask[-1]  # nothing is appended behind the last completion


def test_running_out_of_tokens_ends_without_a_report():
    trajectory, _ = roll(lambda r: 'search("lighthouse")', max_tokens=700)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert len(trajectory.token_ids) <= 700


def test_a_turn_longer_than_its_budget_is_cut_and_its_call_ignored():
    trajectory, _ = roll(lambda r: 'search("lighthouse company")', max_tokens_per_turn=10)
    assert all(turn.errors == ("cut",) for turn in trajectory.turns)
    assert all(turn.end - turn.start == 10 for turn in trajectory.turns)


def test_a_cut_turn_is_closed_by_a_marker_the_policy_did_not_sample():
    trajectory, _ = roll(lambda r: "x" * 50, max_tokens_per_turn=10, max_turns=2)
    first = trajectory.turns[0]
    closing = trajectory.token_ids[first.end]
    assert closing == ByteRenderer().encode_completion("")[-1]
    assert not trajectory.loss_mask[first.end]


def test_siblings_of_a_group_get_other_shown_ids_and_other_seeds():
    made = runner(lambda r: 'search("lighthouse")')
    group = asyncio.run(made.group(QUESTION, 4, seed=1, name="q"))
    shown = {t.turns[0].observation.split("[")[1][:3] for t in group.trajectories}
    assert len(shown) == 4
    assert len({r.sampling.seed for r in made.policy.requests}) == len(made.policy.requests)


def test_the_same_seed_gives_the_same_trajectory():
    first, _ = roll(good_policy)
    second, _ = roll(good_policy)
    assert replace(first, wall_s=0, tool_s=0) == replace(second, wall_s=0, tool_s=0)


def test_too_many_failures_stop_the_run_with_the_cause():
    made = runner(good_policy, BrokenEngine(lighthouse_documents()))
    with pytest.raises(TrainingError, match=r"4 of 4 .*the retriever is down"):
        asyncio.run(made.groups([QUESTION], 4, seed=0, what="test"))


def test_a_few_failures_are_counted_and_do_not_stop():
    trajectory, _ = roll(good_policy)
    broken = replace(trajectory, stop_reason=StopReason.INFRASTRUCTURE, reward=None)
    check_failures([trajectory] * 9 + [broken], 0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, loss_mask=t.loss_mask[:-1]),
        lambda t: replace(t, policy_versions=(0, *t.policy_versions[1:])),
        lambda t: replace(t, sampler_logprobs=(-1.0, *t.sampler_logprobs[1:])),
        lambda t: replace(t, sampler_logprobs=(*t.sampler_logprobs[:-1], float("nan"))),
        lambda t: replace(t, sampler_logprobs=(*t.sampler_logprobs[:-1], 0.5)),
        lambda t: replace(t, turns=t.turns[:-1]),
        lambda t: replace(t, turns=(replace(t.turns[0], end=t.turns[0].end + 1), *t.turns[1:])),
    ],
)
def test_a_broken_ledger_stops_the_run(change):
    trajectory, _ = roll(good_policy)
    with pytest.raises(TrainingError, match="token ledger is broken"):
        check_ledger(change(trajectory))


def test_seeds_are_stable_and_differ_by_path():
    assert seed_of(1, "a") == seed_of(1, "a") == 6104050150092007499
    assert len({seed_of(1, "a"), seed_of(1, "b"), seed_of(2, "a"), seed_of("1/a", "")}) == 4


def thinking(request):
    """Ten searches, each behind a thought, then a report of the first hit."""
    turn = (len(request.messages) - 2) // 2
    if turn < 10:
        return f'<think>turn {turn}</think>\nsearch("lighthouse")'
    return f'report(["{shown_id(request, "Ardent Lighthouse")}"])'


WINDOW = {"observations": 2, "dropped_at_once": 3}


def test_a_window_replaces_old_observations_by_markers_and_starts_segments():
    trajectory, made = roll(thinking, max_turns=12, window=WINDOW)
    assert trajectory.stop_reason is StopReason.REPORTED
    assert len(trajectory.segments) == 1 + 2  # after observations 5 and 8
    renderer = ByteRenderer()
    for number, request in enumerate(made.policy.requests):
        text = renderer.decode(request.token_ids)
        omitted = max(0, number - 2) // 3 * 3
        assert text.count(OMITTED) == omitted
        assert text.count("Ardent Lighthouse [") == number - omitted
        assert all(f"turn {earlier}</think>" in text for earlier in range(number))
        # What an endpoint is asked says the same.
        assert [m.content for m in request.messages].count(f"Results:\n{OMITTED}") == omitted


@pytest.mark.parametrize(
    "settings",
    [
        {"window": WINDOW},
        {"window": {"observations": 1, "dropped_at_once": 1}},
        {"drop_thoughts": True},
        {"window": WINDOW, "drop_thoughts": True},
    ],
)
def test_every_turn_is_sampled_once_and_asked_with_its_segment(settings):
    trajectory, made = roll(thinking, max_turns=12, **settings)
    renderer = ByteRenderer()
    assert len(trajectory.turns) == 11
    for request, turn in zip(made.policy.requests, trajectory.turns, strict=True):
        start = max(s for s in trajectory.segments if s <= turn.start)
        assert request.token_ids == trajectory.token_ids[start : turn.start]
        sampled = trajectory.token_ids[turn.start : turn.end]
        assert sampled == renderer.encode_completion(turn.text)
        assert request.token_ids[: len(made.policy.requests[0].token_ids)] == (
            made.policy.requests[0].token_ids
        )


def test_dropped_thoughts_are_seen_by_no_later_turn():
    _, made = roll(thinking, max_turns=12, drop_thoughts=True)
    for request in made.policy.requests:
        assert "think>" not in ByteRenderer().decode(request.token_ids).split("Question")[1]
        assert not any("think>" in m.content for m in request.messages[1:])


def test_the_budget_counts_what_is_in_sight():
    whole, _ = roll(thinking, max_turns=12, max_tokens=1500)
    windowed, _ = roll(
        thinking, max_turns=12, max_tokens=1500, window={"observations": 1, "dropped_at_once": 1}
    )
    assert whole.stop_reason is StopReason.MAX_TOKENS
    assert len(windowed.turns) > len(whole.turns)
    assert all(end - start <= 1500 for start, end in windowed.segment_bounds)


def test_a_segment_that_starts_inside_a_turn_breaks_the_ledger():
    trajectory, _ = roll(good_policy)
    inside = trajectory.turns[1].start + 1
    with pytest.raises(TrainingError, match="segments start out of order or inside a turn"):
        check_ledger(replace(trajectory, segments=(0, inside)))


def test_a_template_that_opens_thoughts_itself_refuses_to_drop_them():
    made = runner(thinking, drop_thoughts=True)

    class Opening(ByteRenderer):
        def observation(self, text, *, ended):
            return (*super().observation(text, ended=ended), *b"<think>")

    made.renderer = Opening()
    with pytest.raises(ConfigError, match=r"env\.drop_thoughts must be false"):
        asyncio.run(made.trajectory(QUESTION, seed=3, name="q/0"))
