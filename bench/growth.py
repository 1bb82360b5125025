"""How the time of an update grows with trajectory length, group size and model size.

    python bench/growth.py [--runs 3] [--threads 2] [--device cpu]

Forward and backward of one group's samples (packed, common prompt shared) on Llama-shaped models
with random weights; a tenth of the tokens trains. One thing varies at a time:

    length   256 to 4,096 tokens a trajectory, 4 trajectories, 2.5 M parameters
    group    2 to 32 trajectories of 512 tokens with a prompt of 256
    model    0.6 to 40 M parameters (without embeddings), 4 trajectories of 512 tokens

The exponent is the slope of log seconds over log size, by least squares: 1 is linear. Prints one
JSON object.
"""

import argparse
import json
import math
import random
import statistics
import time
from typing import Any

import numpy as np
import torch
from machine import about
from transformers import LlamaConfig, LlamaForCausalLM

from spaniel.microbatch import lent_for, microbatches, predict
from spaniel.types import TrainingSample

VOCAB = 4096
LENGTHS = (256, 512, 1024, 2048, 4096)
GROUPS = (2, 4, 8, 16, 32)
SHAPES = ((128, 3), (256, 3), (384, 4), (512, 6), (768, 6))
"""(width, layers)."""


def make_model(width: int, layers: int, device: str) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval().to(device)


def group(size: int, length: int, prompt: int) -> list[TrainingSample]:
    rng = random.Random(0)
    shared = [rng.randrange(VOCAB) for _ in range(prompt)]
    weights = tuple(float(i >= prompt and i % 10 == 0) for i in range(length))
    return [
        TrainingSample(
            token_ids=tuple(shared + [rng.randrange(VOCAB) for _ in range(length - prompt)]),
            weights=weights,
            sampler_logprobs=(0.0,) * length,
        )
        for _ in range(size)
    ]


def seconds(model: Any, samples: list[TrainingSample], runs: int) -> float:
    """Median of forward and backward over all samples, one to warm up."""
    device = next(model.parameters()).device
    times = []
    for _ in range(runs + 1):
        model.zero_grad()
        started = time.perf_counter()
        with lent_for(model, "shared"):
            for batch in microbatches(samples, 8192, device, "shared"):
                loss = -(predict(model, batch).logprobs_T * batch.weights_T).sum()
                loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def series(sizes: list[float], times: list[float]) -> dict[str, Any]:
    slope = np.polyfit([math.log(s) for s in sizes], [math.log(t) for t in times], 1)[0]
    upper = math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2])
    return {
        "sizes": sizes,
        "seconds": [round(t, 4) for t in times],
        "exponent": round(float(slope), 2),
        "exponent_of_the_last_two": round(upper, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    middle = make_model(256, 3, args.device)
    lengths = [seconds(middle, group(4, length, 64), args.runs) for length in LENGTHS]
    groups = [seconds(middle, group(size, 512, 256), args.runs) for size in GROUPS]
    parameters, models = [], []
    for width, layers in SHAPES:
        model = make_model(width, layers, args.device)
        parameters.append(sum(p.numel() for p in model.model.layers.parameters()))
        models.append(seconds(model, group(4, 512, 64), args.runs))
    report = {
        "what": "seconds of forward and backward of one group, and how they grow",
        **about(["torch", "transformers", "spaniel"]),
        "device": args.device,
        "threads": args.threads,
        "runs": args.runs,
        "trajectory_tokens": series(list(map(float, LENGTHS)), lengths),
        "group_size": series(list(map(float, GROUPS)), groups),
        "parameters": series(list(map(float, parameters)), models),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
