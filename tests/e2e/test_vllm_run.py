"""Pre-flight and RL over a vLLM server, through the command line: part of ``make test-vllm``."""

import os
import subprocess
import sys

import pytest

from spaniel.store import iter_lines

ENVIRONMENT = os.environ.get("SPANIEL_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not ENVIRONMENT, reason="needs vLLM in its own environment: run make test-vllm"
    ),
]

RECIPE = """
name = "run"
seed = 1
sft = false

[corpus.source]
type = "world"
pages = 400
seed = 7
questions = 200
min_hops = 1
max_hops = 2

[questions]
num_train = 100
num_test = 30

[env]
dialect = "plain"
max_results = 4
snippet_words = 12
max_turns = 14
max_tokens_per_turn = 48
max_tokens = 2560
max_observation_chars = 900
remind = true

[policy]
model = "spaniel-tiny"
max_live_episodes = 16

[policy.vllm]
environment = "ENVIRONMENT"
cpu_cache_gb = 1

[preflight]
num_questions = 20
group_size = 4
min_std = 0.0

[rl]
steps = 4
groups_per_step = 4
group_size = 4

[rl.optimizer]
learning_rate = 3e-4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run up to pre-flight."""
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "recipe.toml").write_text(RECIPE.replace("ENVIRONMENT", os.path.abspath(ENVIRONMENT)))
    for command in (["index", "build"], ["questions", "split"], ["questions", "preflight"]):
        spaniel(folder, *command, "recipe.toml")
    return folder


def spaniel(folder, *arguments):
    command = [sys.executable, "-m", "spaniel", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def rows(folder):
    return [row for _, row in iter_lines(folder / "runs/run/rl/metrics.jsonl")]


def test_the_servers_logprobs_follow_the_trainer_through_all_updates(folder):
    spaniel(folder, "rl", "recipe.toml")
    made = rows(folder)
    assert [row["step"] for row in made] == [1, 2, 3, 4]
    assert all(row["gap/mean"] < 1e-5 for row in made)
    assert any("grad_norm" in row for row in made)


def test_the_same_run_can_sample_ahead_of_its_updates(folder):
    spaniel(folder, "rl", "recipe.toml", "--force", "--rl.window", "2", "--rl.start_groups", "1")
    made = rows(folder)
    assert [row["step"] for row in made] == [1, 2, 3, 4]
    assert any(row["tokens/oldest"] > 0 for row in made)
