"""Train the small default policy from random weights (``spaniel sft base``).

    worlds -> tokenizer -> demonstrations -> [copying] -> [drills] -> [all of it] -> [mostly walks]

The order is what makes so small a model learn at all: sequences that repeat teach it to copy,
drills to find on a page the name that a question asks for, chain drills and tight walks to take
the steps of a question in turn, whole walks to live with hits, ids and detours.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spaniel.config import BaseConfig, Recipe
from spaniel.env.episode import Environment
from spaniel.index.build import build_index, open_index
from spaniel.learner import Learner
from spaniel.progress import track
from spaniel.renderer import ChatRenderer, Renderer
from spaniel.rollout import Runner, seed_of
from spaniel.sft.demonstrate import LabelTeacher
from spaniel.sft.ledgers import CHAIN, DRILL, TIGHT, Demonstration
from spaniel.sft.reading import chain_drills, reading_drills, tight_walks
from spaniel.sft.tokenizer import train_tokenizer
from spaniel.sft.train import cross_entropy
from spaniel.store import iter_lines
from spaniel.types import Question, TrainingSample, Trajectory
from spaniel.world import World, generate_world

TOKENIZER_WORLDS = 12


def world_seeds(cfg: BaseConfig) -> range:
    """Seeds of the worlds that this base learns from."""
    return range(cfg.first_seed, cfg.first_seed + cfg.num_worlds)


def base_tokenizer(recipe: Recipe, cfg: BaseConfig) -> Any:
    """Of the policy to go on from; else trained on pages, questions and prompts of the first
    worlds, and on ``extra_texts``."""
    if cfg.start is not None:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(cfg.start)
    return train_tokenizer(_tokenizer_texts(recipe, cfg), cfg.vocab_size)


def _tokenizer_texts(recipe: Recipe, cfg: BaseConfig) -> Iterator[str]:
    for seed in world_seeds(cfg)[:TOKENIZER_WORLDS]:
        world = generate_world(cfg.pages, seed)
        for document in world.documents():
            yield f"{document.title}\n{document.text}"
        for question in world.questions(cfg.questions, seed=seed):
            yield question.text
            yield '<think></think>\nsearch("") read("") report(["", ""])'
    for path in cfg.extra_texts:
        for _, row in iter_lines(path):
            yield f"{row.get('title', '')}\n{row['text']}"


def base_demonstrations(recipe: Recipe, cfg: BaseConfig, renderer: Renderer) -> list[Demonstration]:
    """The label teacher's walks through every world."""
    out: list[Demonstration] = []
    for seed in track(world_seeds(cfg), "worlds", cfg.num_worlds, "worlds"):
        out += _world_demonstrations(recipe, cfg, renderer, seed)
    return out


def _world_demonstrations(
    recipe: Recipe, cfg: BaseConfig, renderer: Renderer, seed: int
) -> list[Demonstration]:
    world = generate_world(cfg.pages, seed)
    short = cfg.questions // 4
    questions = [
        *world.questions(short, seed=seed, min_hops=1, max_hops=1),
        *world.questions(cfg.questions - short, seed=seed, min_hops=2, max_hops=5),
    ]
    questions = [_renamed(q, i) for i, q in enumerate(questions)]
    with tempfile.TemporaryDirectory() as folder:
        build_index(world.documents(), Path(folder) / "index", recipe.index)
        engine = open_index(
            Path(folder) / "index", recipe.index, snippet_words=recipe.env.snippet_words
        )
        environment = Environment(engine, recipe.env)
        teacher = LabelTeacher(
            questions,
            environment,
            renderer,
            noise=cfg.noise,
            seed=seed,
            thoughts=cfg.thoughts,
        )
        runner = Runner(teacher, renderer, environment, recipe.reward)
        trajectories = asyncio.run(_walk(runner, questions, seed))
    by_qid = {q.qid: q for q in questions}
    walks = [
        Demonstration(
            np.array(t.token_ids[start:end], dtype=np.uint16),
            np.array(t.loss_mask[start:end]),
            by_qid[t.qid].hops,
        )
        for t in trajectories
        if t.reward_parts.get("ndcg", 0.0) >= cfg.min_reward
        for start, end in t.segment_bounds
        if any(t.loss_mask[start:end])
    ]
    return [*walks, *_lessons(world, cfg, environment, renderer, seed)]


def _lessons(
    world: World, cfg: BaseConfig, environment: Environment, renderer: Renderer, seed: int
) -> Iterator[Demonstration]:
    if cfg.drill_questions:
        yield from reading_drills(world, cfg.drill_questions, renderer, environment, seed=seed)
    if cfg.chain_questions:
        yield from chain_drills(world, cfg.chain_questions, renderer, environment, seed=seed + 2)
    if cfg.tight_questions:
        # Other questions than the walks': nothing is learnt twice.
        questions = world.questions(cfg.tight_questions, seed=seed + 1, min_hops=2, max_hops=5)
        yield from tight_walks(
            questions,
            world,
            renderer,
            environment,
            thoughts=cfg.thoughts,
        )


def _renamed(question: Question, number: int) -> Question:
    from dataclasses import replace

    return replace(question, qid=f"b{number}")


async def _walk(runner: Runner, questions: Sequence[Question], seed: int) -> list[Trajectory]:
    return [
        await runner.trajectory(q, seed=seed_of(seed, q.qid), name=f"{q.qid}/0") for q in questions
    ]


def train_base(
    learner: Learner,
    demonstrations: Sequence[Demonstration],
    cfg: BaseConfig,
    *,
    vocab_size: int,
    seed: int,
    on_step: Callable[[int, dict[str, float], float], None],
    seconds: float = 0.0,
) -> None:
    """Train for ``cfg.minutes``; the learning rate and the curriculum follow the clock.

    What a step learns from is a function of ``seed`` and the step, so a resumed training goes
    on where the other stopped.

    Args:
        on_step: gets (step from 1, metrics, seconds of training so far).
        seconds: seconds that earlier, interrupted training took.
    """
    kinds = [[d for d in demonstrations if d.hops == kind] for kind in (DRILL, CHAIN, TIGHT)]
    walks = [d for d in demonstrations if d.hops > 0]
    phases = [
        (cfg.drill_frac, (1.0, 0.0, 0.0, 0.0)),
        (cfg.mixed_frac, cfg.mixed_shares),
        (1.0, cfg.final_shares),
    ]
    pools = [_Pool(d) for d in (*kinds, walks)]
    started = time.perf_counter() - seconds
    budget = cfg.minutes * 60
    while (spent := time.perf_counter() - started) < budget:
        done = spent / budget
        rng = random.Random(seed_of(seed, learner.num_steps))
        learner.set_progress(done)
        if learner.num_steps < cfg.copy_steps:
            samples = copy_samples(max(1, cfg.tokens_per_step // 512), vocab_size, rng)
        else:
            shares = next(shares for until, shares in phases if done < until)
            drawn = _draw(pools, shares, cfg.tokens_per_step, rng)
            # During the drills the prose teaches to copy, too; later it would only be paid for.
            weight = cfg.observation_loss_weight if done < cfg.drill_frac else 0.0
            samples = demonstration_samples(drawn, weight)
        metrics = learner.step(samples, cross_entropy)
        on_step(learner.num_steps, {**metrics, "progress": done}, time.perf_counter() - started)


class _Pool:
    """Demonstrations of one kind."""

    def __init__(self, demonstrations: Sequence[Demonstration]) -> None:
        self.demonstrations = demonstrations
        lengths = [len(d.token_ids) for d in demonstrations]
        self.mean_tokens = sum(lengths) / max(1, len(lengths))


def _draw(
    pools: Sequence[_Pool], shares: Sequence[float], num_tokens: int, rng: random.Random
) -> list[Demonstration]:
    """Demonstrations of ``num_tokens``, on average these shares of them from each pool that is
    not empty; whole walks when all that have a share are."""
    held = [(pool, share) for pool, share in zip(pools, shares, strict=True) if pool.mean_tokens]
    if not any(share for _, share in held):
        held = [(pools[-1], 1.0)]
    odds = [share / pool.mean_tokens for pool, share in held]
    chosen: list[Demonstration] = []
    while sum(len(d.token_ids) for d in chosen) < num_tokens:
        ((pool, _),) = rng.choices(held, odds)
        chosen.append(rng.choice(pool.demonstrations))
    return chosen


def copy_samples(count: int, vocab_size: int, rng: random.Random) -> list[TrainingSample]:
    """Pieces of random tokens that come again in any order: the second time is copied.

    No token stands in two pieces, so each inner token has one successor.
    """
    samples = []
    for _ in range(count):
        lengths = [rng.randint(3, 10) for _ in range(6)]
        tokens = iter(rng.sample(range(3, vocab_size), sum(lengths)))
        pieces = [[next(tokens) for _ in range(length)] for length in lengths]
        ids = [token for piece in pieces for token in piece]
        num_first = len(ids)
        for _ in range(12):
            ids += rng.choice(pieces)
        weight = 1.0 / (count * (len(ids) - num_first))
        weights = [0.0] * num_first + [weight] * (len(ids) - num_first)
        samples.append(
            TrainingSample(
                token_ids=tuple(ids), weights=tuple(weights), sampler_logprobs=(0.0,) * len(ids)
            )
        )
    return samples


def demonstration_samples(
    demonstrations: Sequence[Demonstration], observation_weight: float
) -> list[TrainingSample]:
    """Weight 1 / N on the teacher's tokens, a share of it on what it was shown."""
    own = 1.0 / sum(int(d.own.sum()) for d in demonstrations)
    return [
        TrainingSample(
            token_ids=tuple(d.token_ids.tolist()),
            weights=tuple(np.where(d.own, own, own * observation_weight).tolist()),
            sampler_logprobs=(0.0,) * len(d.token_ids),
        )
        for d in demonstrations
    ]


def make_renderer(tokenizer: Any) -> ChatRenderer:
    """The renderer of the base's own tokenizer."""
    return ChatRenderer(tokenizer)
