"""Rollouts per second of the sampling engine, against the same loop over transformers.generate.

    python bench/engine_speed.py [--runs 3] [--threads 2] [--episodes 96] [--model random-tiny]

96 episodes of 6 turns at once, in groups of 8 with the same first prompt; observations of 70-130
tokens, turns of 15-35 sampled tokens (100 and 25 on average), as an agent that searches. No
stop token and no tool time: only sampling is measured. The loop over ``generate`` is the one that
one writes with the library: each turn it pads all histories on the left, prefills them anew
and samples until the longest turn is done. Runs of both alternate. Prints one JSON object.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from spaniel.config import PolicyConfig
from spaniel.policy.base import Request, Sampling
from spaniel.policy.kv_cache import Chunk
from spaniel.policy.load import load_policy_model
from spaniel.policy.model_runner import ModelRunner
from spaniel.policy.torch_engine import TorchEngine

GROUP, TURNS = 8, 6
PROMPT, OBSERVATION, TURN = 150, (70, 130), (15, 35)


class Vocabulary:
    """Stands in for a tokenizer: only its size matters here."""

    def __len__(self) -> int:
        return 4096


def workload(
    num_episodes: int, vocab_size: int
) -> list[tuple[list[int], list[tuple[int, list[int]]]]]:
    """For each episode its prompt, and (tokens to sample, observation) of each turn."""
    episodes = []
    for number in range(num_episodes):
        group, own = random.Random(number // GROUP), random.Random(1000 + number)
        prompt = [group.randrange(vocab_size) for _ in range(PROMPT)]
        turns = [
            (
                own.randint(*TURN),
                [own.randrange(vocab_size) for _ in range(own.randint(*OBSERVATION))],
            )
            for _ in range(TURNS)
        ]
        episodes.append((prompt, turns))
    return episodes


def with_engine(model: Any, work: Any) -> dict[str, int]:
    engine = TorchEngine(model, stop_ids=[], decode=lambda ids: "", max_live_episodes=len(work))

    async def episode(number: int, prompt: list[int], turns: Any) -> None:
        ids = list(prompt)
        for turn, (count, observation) in enumerate(turns):
            sampling = Sampling(max_tokens=count, seed=number * TURNS + turn)
            name = str(number)
            done = await engine.complete(
                Request(episode_id=name, token_ids=tuple(ids), messages=(), sampling=sampling)
            )
            ids += [*done.token_ids, *observation]
        await engine.end_episode(name)

    async def all_episodes() -> None:
        await asyncio.gather(*(episode(i, *parts) for i, parts in enumerate(work)))

    asyncio.run(all_episodes())
    return engine.counts


@torch.no_grad()
def with_generate(model: Any, work: Any) -> None:
    histories = [list(prompt) for prompt, _ in work]
    device = next(model.parameters()).device
    for turn in range(TURNS):
        longest = max(map(len, histories))
        padded = torch.tensor([[0] * (longest - len(h)) + h for h in histories], device=device)
        mask = torch.tensor(
            [[0] * (longest - len(h)) + [1] * len(h) for h in histories], device=device
        )
        out = model.generate(
            padded,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(turns[turn][0] for _, turns in work),
            pad_token_id=0,
            eos_token_id=None,
        )
        for row, (history, (_, turns)) in enumerate(zip(histories, work, strict=True)):
            count, observation = turns[turn]
            history += [*out[row, longest : longest + count].tolist(), *observation]


def pass_speeds(model: Any, num_episodes: int, vocab_size: int) -> dict[str, float]:
    """Median milliseconds of a decode pass over all episodes, and prefill tokens per second."""
    runner = ModelRunner(model, max_slots=num_episodes)
    rng = random.Random(0)

    def chunk(slot: int, start: int, count: int) -> Chunk:
        ids = [rng.randrange(vocab_size) for _ in range(count)]
        return Chunk(slot=slot, start=start, token_ids=ids)

    def median(run: Callable[[], Any], times: int) -> float:
        run()
        return statistics.median(timed(run) for _ in range(times))

    for slot in range(num_episodes):
        runner.forward([chunk(slot, 0, 800)])
    speeds = {}
    for length in (200, 400, 700):
        seconds = median(
            lambda length=length: runner.forward(
                [chunk(slot, length - rng.randrange(60), 1) for slot in range(num_episodes)]
            ),
            15,
        )
        speeds[f"decode_ms_{num_episodes}_rows_at_{length}"] = round(1000 * seconds, 2)
    seconds = median(
        lambda: runner.forward([chunk(slot, 400, 100) for slot in range(min(20, num_episodes))]), 7
    )
    speeds["prefill_tokens_per_s_at_400"] = round(100 * min(20, num_episodes) / seconds)
    return speeds


def timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--model", default="random-tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    cfg = PolicyConfig(model=args.model, device=args.device, dtype=args.dtype, threads=args.threads)
    model, _ = load_policy_model(cfg, seed=0, tokenizer=Vocabulary())
    vocab_size = model.get_input_embeddings().num_embeddings
    work = workload(args.episodes, vocab_size)
    counts: dict[str, int] = {}
    engine_s, generate_s = [], []
    for _ in range(args.runs):
        engine_s.append(timed(lambda: counts.update(with_engine(model, work))))
        generate_s.append(timed(lambda: with_generate(model, work)))
    engine, generate = statistics.median(engine_s), statistics.median(generate_s)
    result = {
        "model": args.model,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": args.device,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "episodes": args.episodes,
        "turns": TURNS,
        "engine_s": [round(s, 2) for s in engine_s],
        "generate_s": [round(s, 2) for s in generate_s],
        "engine_rollouts_per_s": round(args.episodes / engine, 2),
        "generate_rollouts_per_s": round(args.episodes / generate, 2),
        "ratio": round(generate / engine, 2),
        "engine_counts": counts,
        **pass_speeds(model, args.episodes, vocab_size),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
