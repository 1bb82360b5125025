"""Training memory with logits at trained positions only, against logits at all positions.

    python bench/logits_memory.py [--runs 3] [--threads 2]

Forward and backward of one microbatch of 16 x 512 tokens of which every fifth is trained, by a
Llama of 2 layers and width 256 with a vocabulary of 49,152 (SmolLM2) and of 151,936 (Qwen3), in
float32. ``trained`` is ``microbatch.predict``; ``all`` takes ``model(...).logits``, its
log-softmax, and gathers the same log-probs from that. Both compute the same loss. Each measurement
is a process of its own: the peak of its resident memory less what was resident before the forward
pass, with model and batch loaded. The largest needs about 18 GiB. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from machine import about, peak_rss_mib, reset_peak_rss, rss_mib

ROWS, LENGTH, TRAINED_EVERY = 16, 512, 5
VOCABULARIES = (49_152, 151_936)
METHODS = ("trained", "all")


def measure(method: str, vocab_size: int) -> dict[str, float]:
    """One forward and backward pass in this process."""
    import torch

    from spaniel.microbatch import microbatches, predict

    model = small_model(vocab_size)
    samples = make_samples(vocab_size)
    (batch,) = microbatches(samples, ROWS * LENGTH, torch.device("cpu"))
    before = rss_mib()
    reset_peak_rss()
    if method == "trained":
        logprobs_T = predict(model, batch).logprobs_T
    else:
        logprobs_RLV = model(input_ids=batch.token_ids_RL, use_cache=False).logits.log_softmax(-1)
        # The prediction behind the last token of a row is nobody's; any target will do there.
        targets_RL = batch.token_ids_RL.roll(-1, dims=1)
        logprobs_RL = logprobs_RLV.gather(-1, targets_RL[..., None])[..., 0]
        del logprobs_RLV
        logprobs_T = logprobs_RL.flatten()[batch.predictors_T]
    loss = -(logprobs_T * batch.weights_T).sum()
    loss.backward()
    return {"peak_mib": peak_rss_mib() - before, "before_mib": before, "loss": loss.item()}


def small_model(vocab_size: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            pad_token_id=None,
        )
    ).eval()


def make_samples(vocab_size: int) -> list[Any]:
    import random

    from spaniel.types import TrainingSample

    rng = random.Random(0)
    num_trained = ROWS * len(range(0, LENGTH, TRAINED_EVERY)) - ROWS  # position 0 cannot train
    weights = tuple(float(i % TRAINED_EVERY == 0) / num_trained for i in range(LENGTH))
    return [
        TrainingSample(
            token_ids=tuple(rng.randrange(vocab_size) for _ in range(LENGTH)),
            weights=weights,
            sampler_logprobs=(0.0,) * LENGTH,
        )
        for _ in range(ROWS)
    ]


def in_fresh_process(method: str, vocab_size: int, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", method, str(vocab_size)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{method} at vocabulary {vocab_size}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, nargs="+", default=list(VOCABULARIES))
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "VOCAB"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    results = []
    for vocab_size in args.vocab:
        runs = {
            method: [in_fresh_process(method, vocab_size, args.threads) for _ in range(args.runs)]
            for method in METHODS
        }
        peaks = {m: statistics.median(r["peak_mib"] for r in runs[m]) for m in METHODS}
        results.append(
            {
                "vocab_size": vocab_size,
                "trained_mib": round(peaks["trained"]),
                "all_mib": round(peaks["all"]),
                "ratio": round(peaks["all"] / peaks["trained"], 2),
                "mib_of_each": {m: [round(r["peak_mib"]) for r in runs[m]] for m in METHODS},
                "loss": {m: round(runs[m][0]["loss"], 6) for m in METHODS},
            }
        )
    report = {
        "what": "peak resident memory of forward and backward, above model and batch",
        **about(["torch", "transformers", "spaniel"]),
        "threads": args.threads,
        "tokens": ROWS * LENGTH,
        "trained_frac": round(1 / TRAINED_EVERY, 2),
        "hidden_size": 256,
        "runs": args.runs,
        "vocabularies": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
