"""The whole pipeline on the packaged model and a small world, through the command line."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.e2e.accounting import (
    num_dropped,
    numbers_of,
    rows_of,
    trained_by_step,
    what_survives,
)
from tests.endpoint_server import Server, answer

from spaniel.config import load_recipe
from spaniel.learner import Learner
from spaniel.rl.trainer import PolicyTrainer
from spaniel.run import Run
from spaniel.store import iter_lines, read_json, read_records
from spaniel.types import Trajectory
from spaniel.workbench import Workbench

pytestmark = pytest.mark.slow

RECIPE = """
name = "e2e"
seed = 3

[corpus.source]
type = "world"
pages = 200
seed = 5
questions = 60
min_hops = 1
max_hops = 2

[questions]
num_train = 24
num_test = 12

[env]
dialect = "plain"
max_results = 4
snippet_words = 12
max_turns = 8
max_tokens_per_turn = 48
max_tokens = 1200
max_observation_chars = 900

[policy]
model = "spaniel-tiny"
threads = 1

[preflight]
group_size = 2
min_std = 0.0

[sft]
epochs = 1
trajectories_per_step = 8

[sft.optimizer]
learning_rate = 1e-4

[rl]
steps = 5
groups_per_step = 3
group_size = 4
checkpoint_every = 1

[rl.optimizer]
learning_rate = 1e-3

[eval]
num_fused = 2
rerank_train_questions = 8
rerank_candidates = 10
bootstrap_samples = 200
"""


def spaniel(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "spaniel", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CI": "true"},
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_rows(process: subprocess.Popen[bytes], log: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run up to pre-flight."""
    folder = tmp_path_factory.mktemp("e2e")
    (folder / "recipe.toml").write_text(RECIPE)
    for command in (
        ["index", "build"],
        ["questions", "split"],
        ["sft", "demonstrate"],
        ["sft", "train"],
        ["questions", "preflight"],
    ):
        spaniel(folder, *command, "recipe.toml")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """The same run, trained without interruption."""
    copy = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(folder, copy)
    spaniel(copy, "rl", "recipe.toml")
    return copy


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [row for _, row in iter_lines(folder / "runs/e2e/rl/metrics.jsonl")]
    of_the_machine = ("time/", "speed/", "memory/")
    return [{k: v for k, v in row.items() if not k.startswith(of_the_machine)} for row in rows]


def test_the_demonstrations_are_good_and_typed_from_visible_words(folder):
    demonstrations = list(read_records(folder / "runs/e2e/sft/demonstrations.jsonl", Trajectory))
    assert len(demonstrations) >= 12
    for t in demonstrations:
        visible = next(
            q["text"]
            for _, q in iter_lines(folder / "runs/e2e/corpus/questions.jsonl")
            if q["qid"] == t.qid
        )
        for turn in t.turns:
            if turn.call is not None and turn.call.name == "search":
                query = turn.call.arguments["query"]
                assert all(word in visible for word in query.split())
            visible += "\n" + turn.observation


def test_training_logs_every_step_and_keeps_trajectories(trained):
    rows = metrics(trained)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        assert row.get("gap/mean", 0.0) < 1e-3  # absent where no group had a signal
        assert row["rollouts/failed_frac"] == 0.0
        assert 0.0 <= row["reward/ndcg"] <= 1.0
    assert any("gap/mean" in row for row in rows), "no step changed the weights"
    kept = list(read_records(trained / "runs/e2e/rl/trajectories/step-00001.jsonl", Trajectory))
    assert kept
    assert all(t.policy_versions[-1] in (0, -1) for t in kept)


def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(folder, trained, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    process = start(copy, "-m", "spaniel", "rl", "recipe.toml")
    wait_for_rows(process, copy / "runs/e2e/rl/metrics.jsonl", 3)
    process.send_signal(signal.SIGKILL)
    process.wait()

    refused = spaniel(copy, "rl", "recipe.toml", check=False)
    assert refused.returncode == 2
    assert "add --resume to go on" in refused.stderr

    spaniel(copy, "rl", "recipe.toml", "--resume")
    assert metrics(copy) == metrics(trained)
    whole = read_json(trained / "runs/e2e/stages/rl.json")["outputs"]
    assert read_json(copy / "runs/e2e/stages/rl.json")["outputs"] == whole


@pytest.mark.slow
def test_the_same_run_can_sample_ahead_of_its_updates(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    spaniel(copy, "rl", "recipe.toml", "--rl.window", "2", "--rl.start_groups", "1")
    rows = metrics(copy)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["tokens/oldest"] <= 2 for row in rows)
    assert any(row["tokens/oldest"] > 0 for row in rows)
    assert all(row["groups/ready"] + row["groups/under_way"] <= 9 for row in rows)


AHEAD = (
    *("rl", "recipe.toml", "--rl.steps", "9", "--rl.checkpoint_every", "2"),
    *("--rl.window", "2", "--rl.start_groups", "1", "--rl.dynamic_sampling", "true"),
    *("--rl.group_size", "3", "--rl.optimizer.learning_rate", "1e-4"),
)
DIES_BEFORE_ITS_RECORD = """
import os, signal
import spaniel.learner
from spaniel.cli import main
spaniel.learner.weights_fingerprint = lambda model: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def kill_at_a_random_moment(folder: Path, *arguments: str, after_rows: int) -> None:
    """Let a process log some steps of its own, and within the time of a step kill it."""
    log = folder / "runs/e2e/rl/metrics.jsonl"
    count = after_rows + (log.read_bytes().count(b"\n") if log.exists() else 0)
    process = start(folder, "-m", "spaniel", *AHEAD, *arguments)
    wait_for_rows(process, log, count)
    last = rows_of(log.parent)[-1]
    time.sleep(random.random() * (last["time/rollout_s"] + last["time/update_s"]))
    assert process.poll() is None, "the training ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_run_that_samples_ahead_and_is_killed_three_times_loses_and_repeats_no_group(
    folder, tmp_path
):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    rl = copy / "runs/e2e/rl"
    kill_at_a_random_moment(copy, after_rows=3)
    cuts = [what_survives(rl)]
    kill_at_a_random_moment(copy, "--resume", after_rows=2)
    cuts.append(what_survives(rl))
    with_its_policy_published = start(copy, "-c", DIES_BEFORE_ITS_RECORD, *AHEAD, "--resume")
    assert with_its_policy_published.wait() == -signal.SIGKILL
    cuts.append(what_survives(rl))
    done = spaniel(copy, *AHEAD, "--resume")
    assert "resumed after step 8" in done.stderr
    assert not (rl / "checkpoints").exists()

    rows, trained = rows_of(rl), trained_by_step(rl, 9)
    numbers = numbers_of(trained)
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert len(numbers) == len(set(numbers))
    for cut in cuts:
        assert rows[: cut.step] == cut.rows
        assert {step: trained[step] for step in cut.trained} == cut.trained
        assert cut.dropped.isdisjoint(numbers)
    # What was under way at a checkpoint is sent off, and counted, by the next process again.
    again = sum(rows[step - 1]["groups/under_way"] for step in {cut.step for cut in cuts})
    held = rows[-1]["groups/ready"] + rows[-1]["groups/under_way"]
    sent_off = sum(row["groups/sent_off"] for row in rows) - again
    assert sent_off == len(numbers) + num_dropped(rows) + held

    assert all(row["tokens/oldest"] <= 2 for row in rows)
    assert any(row["tokens/oldest"] > 0 for row in rows)
    # A token from a later version would be one of a history that is no more.
    versions = {
        step: {v for t in kept for v in t.policy_versions} for step, kept in trained.items()
    }
    assert all(max(seen) < step for step, seen in versions.items())


def test_a_mixture_of_experts_trains_on_the_experts_of_sampling(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    mixture(tmp_path / "mixture")
    bench = Workbench(
        Run(load_recipe(Path("recipe.toml"), {"policy.model": str(tmp_path / "mixture")}))
    )
    runner = bench.runner(bench.policy, bench.renderer, temperature=1.0)
    learner = Learner(bench.model, bench.recipe.rl.optimizer, total_steps=1)
    trainer = PolicyTrainer(bench.recipe.rl, learner, bench.policy, bench.sampler_weights)
    before = {name: p.clone() for name, p in bench.model.named_parameters()}

    async def update():
        await trainer.start()
        group = await runner.group(bench.train_questions[0], 4, seed=1, name="q")
        # Random weights earn nothing: what each trajectory gets is made up.
        rewarded = [replace(t, reward=float(n)) for n, t in enumerate(group.trajectories)]
        groups = [replace(group, trajectories=tuple(rewarded))]
        await trainer.accumulate(groups)
        return groups, await trainer.update(1, groups)

    groups, measured = asyncio.run(update())
    assert all(any(t.routes) for t in groups[0].trajectories)
    assert measured["gap/mean"] < 1e-4
    unchanged = [n for n, p in bench.model.named_parameters() if torch.equal(p, before[n])]
    assert unchanged == [f"model.layers.{n}.mlp.gate.weight" for n in (0, 1)]


def mixture(where):
    """A small random mixture of experts with the packaged policy's tokenizer."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from spaniel.config import PolicyConfig
    from spaniel.policy.load import load_policy_model

    _, tokenizer = load_policy_model(PolicyConfig(model="random-tiny"), seed=0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=4096,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(where)
    tokenizer.save_pretrained(where)


def test_other_settings_on_a_finished_stage_are_refused_with_the_difference(trained):
    done = spaniel(trained, "rl", "recipe.toml", "--rl.steps", "9", check=False)
    assert done.returncode == 2
    assert "rl.steps was 5, is 9" in done.stderr


def test_evaluation_writes_the_table_the_runs_and_the_report(trained):
    done = spaniel(trained, "eval", "recipe.toml")
    results = json.loads((trained / "runs/e2e/eval/results.json").read_text())
    systems = [row["system"] for row in results["rows"]]
    for system in ("bm25", "policy-start", "policy-sft", "policy-rl", "policy-rl-rrf2"):
        assert system in systems
        assert system in done.stdout
        assert (trained / f"runs/e2e/eval/runs/{system}.trec").exists()
    assert {row["n"] for row in results["rows"]} == {12}
    assert results["protocol"]["index_fingerprint"]
    assert [row["system"] for row in results["not_run"]][-1].startswith("api:")
    page = (trained / "runs/e2e/eval/report.html").read_text()
    assert "<script" not in page
    assert "policy-rl" in page


def searches_then_reports(body):
    """A model that searches with the question's names and reports the first hit."""
    turn = body["messages"][-1]["content"]
    shown = re.search(r"\[(\w{3})\]", turn)
    if shown:
        return answer(f'report(["{shown.group(1)}"])')
    names = re.findall(r"[A-Z]\w+", turn.removeprefix("Question: "))
    return answer(f'search("{" ".join(names[1:])}")')


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    server = Server()
    server.reply = searches_then_reports
    yield f'{{model = "m", base_url = "{server.url}", api_key_env = "SPANIEL_TEST_KEY"}}'
    server.close()


def test_an_api_model_gets_a_row_with_the_tokens_its_endpoint_counted(trained, tmp_path, endpoint):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    spaniel(copy, "eval", "recipe.toml", "--force", "--eval.endpoint", endpoint)
    results = json.loads((copy / "runs/e2e/eval/results.json").read_text())
    (row,) = [row for row in results["rows"] if row["system"] == "api:m"]
    assert row["n"] == 12
    assert row["ndcg"] > 0.0
    assert row["searches"] == 1.0
    assert row["completion_tokens"] == 2 * 20  # two requests, as the endpoint counts
    assert row["prompt_tokens"] == 2 * 100


def test_demonstrations_come_from_a_stronger_model_too(folder, tmp_path, endpoint):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    spaniel(
        copy,
        *("sft", "demonstrate", "recipe.toml", "--force"),
        *("--sft.demonstrations.teacher", "endpoint"),
        *("--sft.demonstrations.endpoint", endpoint),
    )
    kept = list(read_records(copy / "runs/e2e/sft/demonstrations.jsonl", Trajectory))
    assert kept
    for t in kept:
        assert t.reward_parts["ndcg"] >= 0.7
        assert [turn.call.name for turn in t.turns if turn.call] == ["search", "report"]


def test_the_trained_policy_loads_without_spaniel(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = trained / "runs/e2e/rl/policy"
    model = AutoModelForCausalLM.from_pretrained(where)
    tokenizer = AutoTokenizer.from_pretrained(where)
    assert len(tokenizer) == model.config.vocab_size
