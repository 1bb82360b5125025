"""Wall time of RL ahead of its updates against synchronous RL, with a slow search tool.

    python bench/async_rl.py [--updates 10] [--windows 0 1 2] [--runs 3] [--median 1.0] [--p99 8.0]

The small default policy on a generated world. Every search waits for a log-normal time, as an API
or a loaded cluster would let it; the same searches wait equally long in every run. Runs of all
windows alternate, from the same weights, with the same questions and the same number of updates.
Rewards are the mean over the second half of a run's groups, with a bootstrap interval over groups.
Prints one JSON object.
"""

import argparse
import asyncio
import hashlib
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from machine import about

from spaniel.config import parse_recipe
from spaniel.env.episode import Environment
from spaniel.eval.statistics import bootstrap_interval
from spaniel.index.engine import SearchEngine
from spaniel.learner import Learner
from spaniel.rl.scheduler import Dispatch, Scheduler
from spaniel.rl.train import train
from spaniel.rl.trainer import PolicyTrainer
from spaniel.rollout import Runner, seed_of
from spaniel.run import Run
from spaniel.stages import make_corpus, make_index, make_questions
from spaniel.types import Document, Group, Hit
from spaniel.workbench import Workbench

_Z99 = 2.3263478740408408


class SlowEngine:
    """A search engine whose answers take their time; how long is a function of the query."""

    waits = True

    def __init__(self, engine: SearchEngine, median: float, p99: float) -> None:
        self.engine, self.median = engine, median
        self.sigma = math.log(p99 / median) / _Z99

    @property
    def fingerprint(self) -> str:
        return self.engine.fingerprint

    def search(self, query: str, k: int) -> list[Hit]:
        seed = hashlib.sha256(query.encode(errors="surrogatepass")).digest()
        time.sleep(self.median * math.exp(self.sigma * random.Random(seed).gauss(0, 1)))
        return self.engine.search(query, k)

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self.search(query, k) for query in queries]

    def read(self, docid: str) -> Document:
        return self.engine.read(docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        return self.engine.read_batch(docids)


def prepared(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The recipe of a run directory with corpus, index and split."""
    from spaniel.config import load_recipe

    quickstart = Path(__file__).parent.parent / "src" / "spaniel" / "quickstart.toml"
    data = load_recipe(quickstart).model_dump(mode="json")
    data |= {"name": "async", "run_dir": str(folder / "run"), "sft": False}
    data["corpus"]["source"] |= {"pages": 400, "questions": 300}
    data["policy"]["threads"] = args.threads
    data["rl"] |= {
        "steps": args.updates,
        "groups_per_step": args.groups,
        "group_size": args.group_size,
        "max_logprob_gap": 0.05,
    }
    run = Run(parse_recipe(data, where="bench"))
    for make in (make_corpus, make_index, make_questions):
        make(run)
    return data


def one_run(
    data: dict[str, Any], args: argparse.Namespace, window: int, seed: int
) -> dict[str, Any]:
    """Seconds, rewards and ages of one training."""
    start = max(1, args.groups // 4) if window else None
    data = {**data, "rl": {**data["rl"], "window": window, "start_groups": start}}
    bench = Workbench(Run(parse_recipe(data, where="bench")))
    cfg = bench.recipe.rl
    environment = Environment(SlowEngine(bench.engine, args.median, args.p99), bench.recipe.env)
    runner = Runner(
        bench.policy, bench.renderer, environment, bench.recipe.reward, max_failed_frac=0.0
    )

    async def sample(dispatch: Dispatch) -> Group:
        return await runner.group(
            dispatch.question,
            cfg.group_size,
            seed=seed_of(seed, dispatch.number),
            name=f"{dispatch.number}",
        )

    rewards: list[float] = []
    oldest: list[float] = []

    def on_step(step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        oldest.append(metrics["tokens/oldest"])
        if step > cfg.steps // 2:
            rewards.extend(statistics.fmean(t.reward or 0.0 for t in g.scored) for g in groups)

    learner = Learner(bench.model, cfg.optimizer, total_steps=cfg.steps)
    trainer = PolicyTrainer(cfg, learner, bench.policy, bench.sampler_weights)
    scheduler = Scheduler(cfg, bench.train_questions, sample, seed=seed)

    async def main() -> None:
        await trainer.start()
        await train(cfg, scheduler, trainer, done=0, on_step=on_step)

    started = time.perf_counter()
    asyncio.run(main())
    return {"seconds": time.perf_counter() - started, "rewards": rewards, "oldest": max(oldest)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--median", type=float, default=1.0, help="seconds of a search")
    parser.add_argument("--p99", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found: dict[int, list[dict[str, Any]]] = {window: [] for window in args.windows}
    with tempfile.TemporaryDirectory() as folder:
        data = prepared(args, Path(folder))
        for seed in range(args.runs):
            for window in args.windows:
                found[window].append(one_run(data, args, window, seed))
    rows = []
    for window, runs in found.items():
        rewards = [reward for run in runs for reward in run["rewards"]]
        interval = bootstrap_interval(rewards)
        rows.append(
            {
                "window": window,
                "seconds": round(statistics.median(run["seconds"] for run in runs), 1),
                "seconds_of_each": [round(run["seconds"], 1) for run in runs],
                "reward": round(interval.mean, 4),
                "reward_95": [round(interval.low, 4), round(interval.high, 4)],
                "oldest_token": max(run["oldest"] for run in runs),
            }
        )
    for row in rows:
        row["ratio"] = round(rows[0]["seconds"] / row["seconds"], 2)
    settings = {k: v for k, v in vars(args).items() if k != "windows"}
    print(
        json.dumps(
            {
                "what": "asynchronous against synchronous RL",
                **about(["torch"]),
                **settings,
                "windows": rows,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
