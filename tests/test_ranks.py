"""Two ranks over gloo against one process: the same weights, checkpoints that fit both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training_samples import samples

from spaniel.ranks import deal

ROOT = Path(__file__).parents[1]


def run(out, ranks, family="llama", optimizer="adamw", packing="shared", extra="no", resume="no"):
    out.mkdir()
    script = [str(ROOT / "tests" / "ranks_script.py"), str(out)]
    script += [family, optimizer, packing, extra, str(resume)]
    command = [sys.executable, *script]
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *torchrun, *script]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "result.json").read_text())


def assert_same(one, two):
    for a, b in zip(one["metrics"], two["metrics"], strict=True):
        assert a.keys() == b.keys()
        assert all(a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-5) for key in a)
    for a, b in zip(one["logprobs"], two["logprobs"], strict=True):
        assert a == pytest.approx(b, abs=2e-4)
    assert one["weights"].keys() == two["weights"].keys()
    for name, value in one["weights"].items():
        assert torch.allclose(torch.tensor(value), torch.tensor(two["weights"][name]), atol=2e-5)


CASES = [
    ("llama", "adamw", "shared", "no"),
    pytest.param("lfm2", "muon", "shared", "critic", marks=pytest.mark.slow),
    pytest.param("qwen3", "adamw", "rows", "lora", marks=pytest.mark.slow),
    pytest.param("qwen3_moe", "adamw", "shared", "experts", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("family", "optimizer", "packing", "extra"), CASES)
def test_two_ranks_make_the_weights_of_one(tmp_path, family, optimizer, packing, extra):
    case = {"family": family, "optimizer": optimizer, "packing": packing, "extra": extra}
    one = run(tmp_path / "one", 1, **case)
    two = run(tmp_path / "two", 2, **case)
    assert_same(one, two)


@pytest.mark.slow
def test_each_goes_on_from_the_others_checkpoint(tmp_path):
    one = run(tmp_path / "one", 1, extra="critic")
    two = run(tmp_path / "two", 2, extra="critic")
    on_two = run(tmp_path / "a", 2, extra="critic", resume=tmp_path / "one" / "step-2")
    on_one = run(tmp_path / "b", 1, extra="critic", resume=tmp_path / "two" / "step-2")
    one["metrics"], two["metrics"] = one["metrics"][2:], two["metrics"][2:]
    assert_same(one, on_two)
    assert_same(two, on_one)


@pytest.mark.slow
def test_a_rank_without_samples_takes_part(tmp_path):
    """Three ranks, and halves of two and three samples: one rank always has none."""
    assert_same(run(tmp_path / "one", 1), run(tmp_path / "three", 3))


@given(st.lists(st.integers(3, 60), min_size=1, max_size=12), st.integers(1, 5))
def test_dealing_loses_no_sample_and_balances_tokens(lengths, ranks):
    made = samples(lengths)
    shares, numbers = deal(made, ranks)
    assert sorted(i for own in numbers for i in own) == list(range(len(made)))
    assert [[made[i] for i in own] for own in numbers] == shares
    sizes = [sum(len(s.token_ids) for s in share) for share in shares]
    assert max(sizes) <= sum(lengths) / ranks + max(lengths)
