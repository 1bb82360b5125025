"""Training the small default policy: data, curriculum, resume."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from spaniel.config import BaseConfig, OptimizerConfig, load_recipe
from spaniel.learner import Learner, weights_fingerprint
from spaniel.policy.load import random_tiny
from spaniel.run import Run
from spaniel.sft import base
from spaniel.sft.base import copy_samples, demonstration_samples, train_base
from spaniel.sft.ledgers import (
    CHAIN,
    DRILL,
    TIGHT,
    Demonstration,
    load_demonstrations,
    save_demonstrations,
)
from spaniel.stages import make_base, make_base_demonstrations

RECIPE = """
name = "base"

[env]
dialect = "plain"
max_results = 4
snippet_words = 12
max_turns = 8
max_tokens_per_turn = 48
max_observation_chars = 900

[base]
num_worlds = 1
pages = 200
questions = 12
vocab_size = 1024
copy_steps = 2
minutes = 0.02
tokens_per_step = 600
drill_questions = 40
chain_questions = 60
tight_questions = 20
"""


def demonstration(hops: int, length: int = 6) -> Demonstration:
    ids = np.arange(3, 3 + length, dtype=np.uint16)
    return Demonstration(ids, np.arange(length) % 2 == 1, hops)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(2, 9)), min_size=1, max_size=8))
def test_saved_demonstrations_come_back(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("demos") / "demonstrations.npz"
    made = [demonstration(hops, length) for hops, length in shapes]
    save_demonstrations(path, made)
    for old, new in zip(made, load_demonstrations(path), strict=True):
        assert old.token_ids.tolist() == new.token_ids.tolist()
        assert old.own.tolist() == new.own.tolist()
        assert old.hops == new.hops


def test_copied_tokens_inside_a_piece_follow_from_the_first_time():
    for sample in copy_samples(4, 512, random.Random(0)):
        ids, weights = sample.token_ids, sample.weights
        first = weights.count(0.0)
        assert weights[:first] == (0.0,) * first  # the first time there is nothing to copy
        assert len(set(ids[:first])) == first
        assert set(ids[first:]) <= set(ids[:first])
        successors = dict(itertools.pairwise(ids[:first]))
        follows = [successors.get(a) == b for a, b in itertools.pairwise(ids[first:])]
        assert sum(follows) > 0.6 * len(follows)


def test_weights_of_a_step_sum_to_one_on_own_tokens():
    samples = demonstration_samples([demonstration(1, 8), demonstration(2, 4)], 0.5)
    own = [w for s in samples for w, i in zip(s.weights, s.token_ids, strict=True) if i % 2 == 0]
    other = [w for s in samples for w, i in zip(s.weights, s.token_ids, strict=True) if i % 2]
    assert sum(own) == pytest.approx(1.0)
    assert sum(other) == pytest.approx(0.5)


class Recorder:
    """Stands in for the learner: notes what each step was given."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.steps: list[tuple[float, list[int], float]] = []

    def set_progress(self, done: float) -> None:
        self.done = done

    def step(self, samples, objective):
        self.num_steps += 1
        lengths = [len(s.token_ids) for s in samples]
        self.steps.append((self.done, lengths, min(samples[0].weights)))
        return {}


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock is a second later."""
    seconds = itertools.count()
    fake = SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    monkeypatch.setattr(base, "time", fake)


def test_copying_then_drills_then_all_then_mostly_whole_walks(clock):
    cfg = BaseConfig(
        copy_steps=3,
        drill_frac=0.2,
        mixed_frac=0.7,
        mixed_shares=(0.2, 0.1, 0.4, 0.3),
        final_shares=(0.0, 0.0, 0.2, 0.8),
        minutes=3,
        tokens_per_step=64,
    )
    learner = Recorder()
    kinds = ((DRILL, 7), (CHAIN, 8), (TIGHT, 6), (5, 9))
    made = [demonstration(*kind) for kind in kinds]
    train_base(learner, made, cfg, vocab_size=512, seed=0, on_step=lambda *a: None)
    seen = learner.steps[3:]
    assert all(min(lengths) > 9 for _, lengths, _ in learner.steps[:3])
    ends = {"drills": (0, 0.2), "mixed": (0.2, 0.7), "final": (0.7, 1)}
    lengths = {
        name: {n for done, ls, _ in seen if low <= done < high for n in ls}
        for name, (low, high) in ends.items()
    }
    assert lengths == {"drills": {7}, "mixed": {6, 7, 8, 9}, "final": {6, 9}}
    mixed = [n for done, ls, _ in seen if 0.2 <= done < 0.7 for n in ls]
    for length, share in ((7, 0.2), (8, 0.1), (6, 0.4), (9, 0.3)):
        of_tokens = length * mixed.count(length) / sum(mixed)
        assert of_tokens == pytest.approx(share, abs=0.05)
    assert all(sum(ls) >= 64 for _, ls, _ in seen)
    assert all((weight > 0) == (done < 0.2) for done, _, weight in seen)  # context of drills


def test_an_interrupted_training_goes_on_to_the_same_weights(clock, tmp_path):
    cfg = BaseConfig(
        copy_steps=2,
        minutes=0.3,
        tokens_per_step=64,
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    demonstrations = [demonstration(1, 6), demonstration(5, 9)]

    def train(learner, seconds=0.0, stop_after=None):
        def on_step(step, metrics, spent):
            if step == stop_after:
                learner.save(tmp_path / "checkpoint", {"seconds": spent})
                raise KeyboardInterrupt

        train_base(
            learner,
            demonstrations,
            cfg,
            vocab_size=512,
            seed=7,
            on_step=on_step,
            seconds=seconds,
        )

    def learner():
        return Learner(random_tiny(512, seed=0), cfg.optimizer, total_steps=None)

    whole, stopped, resumed = learner(), learner(), learner()
    train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, stop_after=4)
    assert weights_fingerprint(stopped.model) != weights_fingerprint(whole.model)
    state = resumed.restore(tmp_path / "checkpoint")
    train(resumed, seconds=state["seconds"])
    assert resumed.num_steps == whole.num_steps
    assert weights_fingerprint(resumed.model) == weights_fingerprint(whole.model)


def test_the_stages_make_a_policy_that_transformers_loads(tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    run = Run(load_recipe(tmp_path / "recipe.toml"))
    made = make_base_demonstrations(run)
    assert made["demonstrations"] >= 8
    walks = load_demonstrations(run.path("base", "data", "demonstrations.npz"))
    assert {d.hops for d in walks} > {DRILL, CHAIN, TIGHT, 1}
    trained = make_base(run)
    assert trained["steps"] >= 1
    tokenizer = AutoTokenizer.from_pretrained(run.path("base", "policy"))
    model = AutoModelForCausalLM.from_pretrained(run.path("base", "policy"))
    assert len(tokenizer) == model.config.vocab_size <= 1024
    own = walks[0].token_ids[walks[0].own].tolist()
    assert tokenizer.decode(own).startswith('search("')


def test_a_base_can_go_on_from_another(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    first = Run(load_recipe(tmp_path / "recipe.toml"))
    make_base_demonstrations(first)
    make_base(first)
    start = first.path("base", "policy")
    settings = {"run_dir": "more", "base.start": str(start), "base.first_seed": "200000"}
    settings |= {"base.copy_steps": "0", "base.minutes": "0.0000001", "base.vocab_size": "512"}
    more = Run(load_recipe(tmp_path / "recipe.toml", settings))
    make_base_demonstrations(more)
    assert make_base(more)["steps"] <= 1
    old, new = (AutoTokenizer.from_pretrained(p) for p in (start, more.path("base", "policy")))
    assert old.get_vocab() == new.get_vocab()
    weights = [load_file(r.path("base", "policy", "model.safetensors")) for r in (first, more)]
    moved = max(float((weights[0][k] - weights[1][k]).abs().max()) for k in weights[0])
    assert moved < 2 * 1e-3 * 3  # a step at the most, of AdamW at its learning rate
