"""Pre-flight, and reinforcement learning on the questions that it keeps."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spaniel.checkpoints import MetricsLog
from spaniel.errors import DataError
from spaniel.policy.load import import_torch
from spaniel.progress import say
from spaniel.questions.preflight import preflight_report
from spaniel.rewards.ranking import is_solved
from spaniel.rollout import seed_of
from spaniel.run import Run
from spaniel.stages.common import open_checkpoints, open_learner, starting_stage, training_stage
from spaniel.store import read_json, write_json, write_records
from spaniel.types import Group
from spaniel.workbench import Workbench

KEPT_GROUPS = 4
"""Groups of each RL step whose best and worst trajectories are kept for reading."""


def make_preflight(run: Run) -> dict[str, Any]:
    """Roll a small group on each candidate question; keep those whose rewards vary."""
    bench = Workbench(run)
    cfg = run.recipe.preflight

    def make() -> dict[str, Any]:
        start = starting_stage(run)
        if start is not None:
            bench.load_stage_weights(start)
        questions = bench.sample(bench.train_questions, cfg.num_questions, "preflight")
        asyncio.run(bench.policy.load(0, bench.sampler_weights()))
        runner = bench.runner(bench.policy, bench.renderer, temperature=run.recipe.rl.temperature)
        groups = asyncio.run(
            runner.groups(
                questions,
                cfg.group_size,
                seed=seed_of(run.recipe.seed, "preflight"),
                what="pre-flight",
                concurrency=bench.concurrency,
            )
        )
        report = preflight_report(groups, cfg)
        write_json(run.path("preflight", "report.json"), asdict(report))
        for line in report.lines():
            say(line)
        if not report.kept:
            cause = next(iter(report.causes), "every reward is the same")
            raise DataError(
                f"pre-flight kept none of {report.num_candidates} questions: {cause}; example "
                f"traces are in {run.path('preflight', 'report.json')}"
            )
        return {"kept": report.num_kept, "candidates": report.num_candidates}

    needs = ("index", "split", "sft") if run.recipe.sft is not None else ("index", "split")
    settings = bench.settings("env", "reward", "policy", "preflight")
    settings["temperature"] = run.recipe.rl.temperature
    return run.stage("preflight", settings=settings, needs=needs, make=make)


def make_rl(run: Run, *, resume: bool = False) -> dict[str, Any]:
    """Train the policy by reinforcement learning on the kept questions."""
    bench = Workbench(run)
    cfg = run.recipe.rl
    settings = bench.settings("env", "reward", "policy", "rl")

    def make() -> dict[str, Any]:
        import_torch()
        from spaniel.learner import weights_fingerprint
        from spaniel.microbatch import hidden_width
        from spaniel.policy.export import save_policy
        from spaniel.rl.alarms import Alarms
        from spaniel.rl.reference import frozen_reference
        from spaniel.rl.scheduler import Dispatch, Scheduler
        from spaniel.rl.train import train
        from spaniel.rl.trainer import PolicyTrainer
        from spaniel.value_head import ValueHead

        start = starting_stage(run)
        if start is not None:
            bench.load_stage_weights(start)
        kept = set(read_json(run.path("preflight", "report.json"))["kept"])
        questions = [q for q in bench.train_questions if q.qid in kept]
        reference = frozen_reference(bench.model, cfg) if cfg.kl_beta > 0 else None
        critic: dict[str, Any] = {}
        if cfg.ppo is not None:
            head = ValueHead(hidden_width(bench.model))
            critic = {"value_head": head, "value_factor": cfg.ppo.value_factor}
        learner = open_learner(bench, cfg.optimizer, total_steps=max(1, cfg.steps), **critic)
        checkpoints = open_checkpoints(
            run, "rl", settings, resume=resume, keep=cfg.keep_checkpoints
        )
        state = checkpoints.restore(learner)
        log = MetricsLog(run.path("rl", "metrics.jsonl"), first_step=learner.num_steps)
        runner = bench.runner(bench.policy, bench.renderer, temperature=cfg.temperature)
        seed = seed_of(run.recipe.seed, "rl")

        async def sample(dispatch: Dispatch) -> Group:
            return await runner.group(
                dispatch.question,
                cfg.group_size,
                seed=seed_of(seed, "rollout", dispatch.number),
                name=f"{dispatch.number}/{dispatch.question.qid}",
            )

        scheduler = Scheduler(
            cfg,
            questions,
            sample,
            seed=seed,
            is_solved=is_solved,
            version=learner.num_steps,
            state=state.get("scheduler"),
        )
        trainer = PolicyTrainer(cfg, learner, bench.policy, bench.sampler_weights, reference)

        alarms = Alarms(cfg.stop_on, earlier=log.rows())

        def on_step(step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
            log.append(step, metrics)
            say(_rl_line(step, cfg.steps, metrics))
            for alarm in alarms.check(metrics):
                say(f"alarm {alarm.name}: {alarm.message}")
            keep_best_and_worst(run.path("rl", "trajectories", f"step-{step:05d}.jsonl"), groups)
            if step % cfg.checkpoint_every == 0 and step < cfg.steps:
                checkpoints.save(learner, step, scheduler=scheduler.state())

        async def run_training() -> None:
            await trainer.start()
            await train(cfg, scheduler, trainer, done=learner.num_steps, on_step=on_step)

        asyncio.run(run_training())
        log.close()
        save_policy(bench.model, bench.tokenizer, run.path("rl", "policy"), {"stage": "rl"})
        return {"steps": cfg.steps, "weights": weights_fingerprint(bench.model)}

    return training_stage(run, "rl", settings=settings, needs=("preflight",), make=make)


def _rl_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    seconds = metrics["time/rollout_s"] + metrics["time/update_s"]
    return (
        f"rl {step}/{steps}  reward {metrics.get('reward/mean', 0.0):.3f}  "
        f"nDCG {metrics.get('reward/ndcg', 0.0):.3f}  "
        f"tokens {metrics.get('completion_tokens/mean', 0.0):.0f}  "
        f"calls {metrics.get('calls/mean', 0.0):.1f}  "
        f"gap {metrics.get('gap/mean', 0.0):.1e}  {seconds:.1f} s"
    )


def keep_best_and_worst(path: Path, groups: Sequence[Group]) -> None:
    """The best and the worst trajectory of a few groups, for reading."""
    kept = []
    for group in groups[:KEPT_GROUPS]:
        scored = sorted(group.scored, key=lambda t: t.reward or 0.0)
        kept += [scored[-1], scored[0]] if len(scored) > 1 else scored
    write_records(path, kept)
