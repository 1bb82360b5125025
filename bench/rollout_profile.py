"""Rollouts per second of the whole agent loop, and where its time goes.

    python bench/rollout_profile.py [--runs 3] [--threads 2] [--live 8 32 128] [--rollouts 128]

The quick start's environment and policy over a generated world of 800 pages: real searches, reads
and reports, sampled at temperature 1. For each number of live episodes: rollouts a second, the
shares of the wall time in the model's forward passes, in the search engine, and in everything else
(sampling, rendering, parsing, the event loop), and how many tokens were fed to the model for each
token that a loop without caches between turns would feed. Prints one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from machine import about

from spaniel.config import EnvConfig, IndexConfig, PolicyConfig, RewardConfig, load_recipe
from spaniel.env.episode import Environment
from spaniel.index.build import build_index, open_index
from spaniel.policy.load import end_ids, load_policy_model
from spaniel.policy.model_runner import ModelRunner
from spaniel.policy.torch_engine import TorchEngine
from spaniel.renderer import ChatRenderer
from spaniel.rollout import Runner
from spaniel.types import Question, Trajectory
from spaniel.world.generate import generate_world

QUICKSTART = Path(__file__).parents[1] / "src" / "spaniel" / "quickstart.toml"


@contextmanager
def timed_forward() -> Iterator[list[float]]:
    """Seconds of each forward pass of the sampling engine."""
    seconds: list[float] = []
    forward = ModelRunner.forward

    def measured(self: ModelRunner, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return forward(self, *args, **kwargs)
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)

    ModelRunner.forward = measured  # type: ignore[method-assign]  # put back below
    try:
        yield seconds
    finally:
        ModelRunner.forward = forward  # type: ignore[method-assign]


class Bench:
    """World, index, model and environment, made once."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        cfg = PolicyConfig(device=args.device, dtype=args.dtype, threads=args.threads)
        self.model, tokenizer = load_policy_model(cfg, seed=0)
        self.renderer = ChatRenderer(tokenizer, stop_ids=end_ids(self.model))
        world = generate_world(pages=800, seed=7)
        build_index(world.documents(), folder / "index", IndexConfig())
        env: EnvConfig = load_recipe(QUICKSTART, {}).env
        engine = open_index(folder / "index", IndexConfig(), snippet_words=env.snippet_words)
        self.environment = Environment(engine, env)
        self.questions: list[Question] = world.questions(args.rollouts, seed=7, max_hops=4)

    def run(self, num_live: int) -> dict[str, float]:
        """Roll every question out once with so many episodes at once."""
        engine = TorchEngine(
            self.model,
            stop_ids=sorted(self.renderer.stop_ids),
            decode=self.renderer.decode,
            max_live_episodes=num_live,
        )
        runner = Runner(engine, self.renderer, self.environment, RewardConfig())
        with timed_forward() as passes:
            started = time.perf_counter()
            groups = asyncio.run(
                runner.groups(self.questions, 1, seed=1, what="rollouts", concurrency=num_live)
            )
            wall = time.perf_counter() - started
        trajectories = [t for g in groups for t in g.trajectories]
        tool = sum(t.tool_s for t in trajectories)
        return {
            "rollouts_per_s": len(trajectories) / wall,
            "sampled_tokens_per_s": engine.counts["sampled_tokens"] / wall,
            "model_frac": sum(passes) / wall,
            "search_frac": tool / wall,
            "other_frac": 1 - (sum(passes) + tool) / wall,
            "passes": engine.counts["passes"],
            "fed_of_uncached": engine.counts["fed_tokens"] / sum(map(uncached, trajectories)),
        }


def uncached(trajectory: Trajectory) -> int:
    """Tokens that a loop feeds which prefills the whole history each turn."""
    return sum(turn.end for turn in trajectory.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--live", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        bench.run(max(args.live))  # warms up
        runs: dict[int, list[dict[str, float]]] = {live: [] for live in args.live}
        for _ in range(args.runs):
            for live in args.live:
                runs[live].append(bench.run(live))
    table = []
    for live, made in runs.items():
        medians = {key: statistics.median(r[key] for r in made) for key in made[0]}
        table.append({"live_episodes": live, **{k: round(v, 3) for k, v in medians.items()}})
    report = {
        "what": "the agent loop of the quick start: speed and shares of time",
        **about(["torch", "transformers", "tantivy", "spaniel"]),
        "device": args.device,
        "threads": args.threads,
        "rollouts": args.rollouts,
        "runs": args.runs,
        "live": table,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
