"""Sampled behind a window, trained as segments: the same log-probs."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from tests.doubles import WordEngine, lighthouse_documents
from tests.policy.tiny_models import tiny

from spaniel.config import EnvConfig, RewardConfig
from spaniel.env.episode import Environment
from spaniel.errors import TrainingError
from spaniel.microbatch import microbatches, sample_predictions
from spaniel.policy.scripted import ScriptedPolicy
from spaniel.policy.torch_engine import TorchEngine
from spaniel.renderer import ByteRenderer
from spaniel.rl.samples import trajectory_samples
from spaniel.rollout import Runner, check_ledger
from spaniel.sft.train import sft_samples
from spaniel.store import dump_line, from_plain
from spaniel.types import Question, Trajectory

QUESTION = Question(qid="q", text="Who founded it?", targets=("d1", "d2"))


def rolled(kind, **settings):
    renderer = ByteRenderer()
    model = tiny(kind, vocab_size=renderer.vocab_size, max_position_embeddings=4096)
    engine = TorchEngine(
        model,
        stop_ids=sorted(renderer.stop_ids),
        decode=renderer.decode,
        max_live_episodes=4,
        note_routes=True,
    )
    cfg = EnvConfig(dialect="plain", max_turns=6, max_tokens_per_turn=12, **settings)
    environment = Environment(WordEngine(lighthouse_documents()), cfg)
    runner = Runner(engine, renderer, environment, RewardConfig())
    group = asyncio.run(runner.group(QUESTION, 3, seed=1, name="q"))
    return model, group.trajectories


@pytest.mark.parametrize("packing", ["rows", "shared"])
@pytest.mark.parametrize("kind", ["qwen3", "lfm2", "qwen3_moe"])
def test_the_trainer_agrees_with_what_was_sampled_behind_a_window(kind, packing):
    model, trajectories = rolled(kind, window={"observations": 1, "dropped_at_once": 2})
    for trajectory in trajectories:
        assert len(trajectory.segments) == 3
        assert bool(trajectory.routes) == (kind == "qwen3_moe")
        samples = trajectory_samples(trajectory, trajectory.loss_mask, 1.0, weight=1.0)
        assert sum(sum(1 for w in s.weights if w) for s in samples) == sum(trajectory.loss_mask)
        batches = microbatches(samples, 10_000, torch.device("cpu"), packing)
        made = sample_predictions(model, batches, packing=packing)
        got = torch.cat([predictions.logprobs_T for predictions in made])
        sampled = [
            lp for lp, m in zip(trajectory.sampler_logprobs, trajectory.loss_mask, strict=True) if m
        ]
        assert torch.allclose(got, torch.tensor(sampled), atol=1e-4)


def test_experts_are_known_of_all_that_predictions_were_made_from():
    _, trajectories = rolled("qwen3_moe", window={"observations": 1, "dropped_at_once": 2})
    t = trajectories[0]
    for start, end in t.segment_bounds:
        last = max(turn.end for turn in t.turns if start < turn.end <= end)
        assert all(t.routes[start : last - 1])
        assert not any(t.routes[last - 1 : end])
    sampled = t.turns[2].start
    broken = (*t.routes[:sampled], b"", *t.routes[sampled + 1 :])
    with pytest.raises(TrainingError, match="the experts of some tokens"):
        check_ledger(replace(t, routes=broken))
    assert from_plain(Trajectory, json.loads(dump_line(t)), where="here") == t


def test_imitation_trains_each_sampled_token_once_and_repeats_nothing():
    renderer = ByteRenderer()
    cfg = EnvConfig(dialect="plain", max_turns=7, window={"observations": 1, "dropped_at_once": 2})
    environment = Environment(WordEngine(lighthouse_documents()), cfg)
    policy = ScriptedPolicy(renderer, lambda request: 'search("lighthouse")')
    runner = Runner(policy, renderer, environment, RewardConfig())
    trajectory = asyncio.run(runner.trajectory(QUESTION, seed=1, name="q/0"))
    assert len(trajectory.segments) == 3
    own = sum(turn.end - turn.start for turn in trajectory.turns)
    assert sum(1 for s in sft_samples([trajectory]) for w in s.weights if w) == own
    with_context = sft_samples([trajectory], observation_weight=0.5)
    bounds = trajectory.segment_bounds
    for sample, (start, end) in list(zip(with_context, bounds, strict=True))[1:]:
        first = trajectory.loss_mask[start:end].index(True)
        assert not any(sample.weights[:first])
        assert all(sample.weights[first:])
