"""Seconds and peak memory of one update, by how its samples are laid out.

    python bench/update_speed.py [--runs 3] [--threads 2] [--model spaniel-tiny] [--tokens 24000]
                                 [--prompt 0] [--device cpu] [--dtype float32]

The samples are real episodes: the label teacher's walks, with detours, through a generated world,
in groups of 4, 8 and 16 to a question, as many groups as make ``--tokens``. ``--prompt`` puts
that many tokens more in front of each, as a language model's tool descriptions do. Each layout
does forward and backward of the same GRPO loss over the same samples:

    padded    rows in the order they come, padded, and logits at every position
    packed    end to end, logits at every position
    shared    end to end, a group's common beginning once, logits at every position
    rows      padded rows of similar length, logits at trained positions alone
    ours      shared, logits at trained positions alone: what ``packing = "shared"`` does

Every measurement is a process of its own; the layouts take turns. Loss and gradient norm
of each are printed: they are the same. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import about, peak_rss_mib, reset_peak_rss, rss_mib

LAYOUTS = ("padded", "packed", "shared", "rows", "ours")
GROUP_SIZES = (4, 8, 16)
MICROBATCH = 8192


def make_samples(group_size: int, num_tokens: int, num_prompt: int, model: str) -> list[Any]:
    """Weighted samples of whole groups."""
    from spaniel.config import EnvConfig, IndexConfig, PolicyConfig, RewardConfig
    from spaniel.env.episode import Environment
    from spaniel.index.build import build_index, open_index
    from spaniel.policy.load import load_policy_model
    from spaniel.renderer import ChatRenderer
    from spaniel.rollout import Runner
    from spaniel.sft.demonstrate import LabelTeacher
    from spaniel.types import TrainingSample
    from spaniel.world.generate import generate_world

    _, tokenizer = load_policy_model(PolicyConfig(model=model), seed=0)
    world = generate_world(pages=400, seed=1)
    questions = world.questions(64, seed=1, min_hops=2, max_hops=3)
    index_cfg = IndexConfig()
    env_cfg = EnvConfig(
        dialect="plain",
        max_results=4,
        snippet_words=12,
        max_turns=14,
        max_observation_chars=900,
        remind=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        build_index(world.documents(), Path(folder) / "index", index_cfg)
        engine = open_index(Path(folder) / "index", index_cfg, snippet_words=12)
        environment = Environment(engine, env_cfg)
        renderer = ChatRenderer(tokenizer)
        teacher = LabelTeacher(questions, environment, renderer, noise=0.2, seed=0)
        runner = Runner(teacher, renderer, environment, RewardConfig())
        samples: list[Any] = []
        for question in questions:
            groups = asyncio.run(runner.groups([question], group_size, seed=0, what="bench"))
            for number, trajectory in enumerate(groups[0].scored):
                prompt = tuple(7 + i % 1000 for i in range(num_prompt))
                mask = (False,) * num_prompt + tuple(trajectory.loss_mask)
                samples.append(
                    TrainingSample(
                        token_ids=prompt + tuple(trajectory.token_ids),
                        weights=tuple(float(m) for m in mask),
                        sampler_logprobs=(0.0,) * len(mask),
                        advantage=1.0 if number % 2 else -0.5,
                    )
                )
            if sum(len(s.token_ids) for s in samples) >= num_tokens:
                break
    return samples


def measure(layout: str, args: argparse.Namespace) -> dict[str, float]:
    """One update's gradient in this process; the second of two passes is timed."""
    import torch

    from spaniel.config import PolicyConfig
    from spaniel.learner import disable_dropout
    from spaniel.microbatch import lent_for, microbatches
    from spaniel.policy.load import load_policy_model

    cfg = PolicyConfig(model=args.model, device=args.device, dtype=args.dtype, threads=args.threads)
    model, _ = load_policy_model(cfg, seed=0)
    disable_dropout(model)
    samples = make_samples(args.group_size, args.tokens, args.prompt, args.model)
    num_trained = sum(sum(s.weights) for s in samples)
    packing: Any = {"padded": "rows", "rows": "rows", "packed": "packed"}.get(layout, "shared")
    device = next(model.parameters()).device

    def batches() -> Any:
        if layout != "padded":
            yield from microbatches(samples, MICROBATCH, device, packing)
            return
        chosen: list[Any] = []
        for sample in samples:
            longest = max(len(s.token_ids) for s in [*chosen, sample])
            if chosen and (len(chosen) + 1) * longest > MICROBATCH:
                yield from microbatches(chosen, 10**9, device, "rows")
                chosen = []
            chosen.append(sample)
        yield from microbatches(chosen, 10**9, device, "rows")

    def update() -> tuple[float, float, int]:
        model.zero_grad()
        total, laid = 0.0, 0
        with lent_for(model, packing):
            for batch in batches():
                laid += batch.token_ids_RL.numel()
                logprobs_T = logprobs_of(model, batch, layout)
                ratio_T = (logprobs_T - logprobs_T.detach()).exp()
                loss = -(ratio_T * batch.advantages_T).sum() / num_trained
                loss.backward()
                total += float(loss.detach())
        norm = torch.nn.utils.get_total_norm(p.grad for p in model.parameters())
        return total, float(norm), laid

    update()
    before = rss_mib()
    if args.device == "cpu":
        reset_peak_rss()
    else:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    loss, norm, laid = update()
    if args.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = peak_rss_mib() if args.device == "cpu" else torch.cuda.max_memory_allocated() / 2**20
    return {
        "seconds": seconds,
        "peak_mib": peak,
        "before_mib": before,
        "loss": loss,
        "gradient_norm": norm,
        "tokens": sum(len(s.token_ids) for s in samples),
        "tokens_laid": laid,
        "trained_tokens": num_trained,
        "samples": len(samples),
    }


def logprobs_of(model: Any, batch: Any, layout: str) -> Any:
    """Of the trained tokens; with logits at all positions, or at those alone."""
    import torch

    from spaniel.microbatch import decoder_and_head, predict

    if layout in ("rows", "ours"):
        return predict(model, batch).logprobs_T
    decoder, head = decoder_and_head(model)
    packed: dict[str, Any] = {}
    if batch.packed_row is not None:
        packed = {"lent": batch.packed_row, "position_ids": batch.packed_row.positions_1N}
    hidden = decoder(input_ids=batch.token_ids_RL, use_cache=False, **packed).last_hidden_state
    logprobs = torch.log_softmax(head(hidden).float(), -1).flatten(0, 1)
    return logprobs[batch.predictors_T].gather(-1, batch.targets_T[:, None])[:, 0]


def in_fresh_process(layout: str, group_size: int, argv: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, __file__, *argv, "--one", layout, "--group-size", str(group_size)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{layout} in groups of {group_size}: {done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def table(group_size: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and ratios to ``padded``."""
    seconds = {name: statistics.median(r["seconds"] for r in runs[name]) for name in LAYOUTS}
    peaks = {name: statistics.median(r["peak_mib"] for r in runs[name]) for name in LAYOUTS}
    first = {name: runs[name][0] for name in LAYOUTS}
    tokens = first["padded"]["tokens"]
    return {
        "group_size": group_size,
        "samples": first["padded"]["samples"],
        "tokens": tokens,
        "trained_frac": round(first["padded"]["trained_tokens"] / tokens, 3),
        "layouts": {
            name: {
                "tokens_laid": first[name]["tokens_laid"],
                "seconds": [round(r["seconds"], 3) for r in runs[name]],
                "sample_tokens_per_s": round(tokens / seconds[name]),
                "times_padded": round(seconds["padded"] / seconds[name], 2),
                "peak_mib": round(peaks[name]),
                "peak_of_padded": round(peaks[name] / peaks["padded"], 2),
                "loss": round(first[name]["loss"], 6),
                "gradient_norm": round(first[name]["gradient_norm"], 5),
            }
            for name in LAYOUTS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="spaniel-tiny")
    parser.add_argument("--tokens", type=int, default=24_000)
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one", choices=LAYOUTS, help=argparse.SUPPRESS)
    parser.add_argument("--group-size", type=int, default=8, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args)))
        return
    tables = []
    for group_size in GROUP_SIZES:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in LAYOUTS}
        for _ in range(args.runs):
            for name in LAYOUTS:
                runs[name].append(in_fresh_process(name, group_size, sys.argv[1:]))
        tables.append(table(group_size, runs))
    report = {
        "what": "forward and backward of one update's samples, by layout",
        **about(["torch", "transformers", "spaniel"]),
        "model": args.model,
        "device": args.device,
        "dtype": args.dtype,
        "threads": args.threads,
        "runs": args.runs,
        "microbatch_tokens": MICROBATCH,
        "prompt_tokens_added": args.prompt,
        "group_sizes": tables,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
