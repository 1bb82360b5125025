"""Demonstrations, and fine-tuning on them."""

import asyncio
from typing import Any

from spaniel.checkpoints import MetricsLog
from spaniel.config import Recipe, SFTConfig
from spaniel.corpus.prepare import load_corpus
from spaniel.errors import ArtifactError
from spaniel.policy.load import import_torch
from spaniel.progress import say
from spaniel.questions.titles import title_questions
from spaniel.rollout import seed_of
from spaniel.run import Run
from spaniel.stages.common import open_checkpoints, open_learner, training_stage
from spaniel.store import read_records, write_records
from spaniel.types import Trajectory
from spaniel.workbench import Workbench


def make_demonstrations(run: Run) -> dict[str, Any]:
    """Let the teacher walk through the training questions and keep what is good enough."""
    from spaniel.sft.demonstrate import demonstrate, make_teacher

    bench = Workbench(run)
    cfg = _sft(run.recipe).demonstrations

    def make() -> dict[str, Any]:
        seed = seed_of(run.recipe.seed, "teacher")
        held_out = {d for q in bench.test_questions for d in q.targets}
        documents = list(load_corpus(run.path("corpus"))) if cfg.title_questions else []
        questions = [
            *bench.train_questions,
            *title_questions(documents, cfg.title_questions, seed=seed, held_out=held_out),
        ]
        teacher = make_teacher(questions, cfg, bench.environment, bench.renderer, seed=seed)
        runner = bench.runner(teacher, bench.renderer, temperature=1.0)
        kept, counts = asyncio.run(demonstrate(questions, cfg, runner, seed=seed))
        write_records(run.path("sft", "demonstrations.jsonl"), kept)
        say(f"kept {counts['kept']} of {counts['made']} demonstrations, nDCG {counts['ndcg']:.3f}")
        return dict(counts)

    settings = {**bench.settings("env", "reward"), "demonstrations": cfg.model_dump(mode="json")}
    settings["renderer"] = run.recipe.policy.model
    return run.stage("demonstrations", settings=settings, needs=("index", "split"), make=make)


def make_sft(run: Run, *, resume: bool = False) -> dict[str, Any]:
    """Fine-tune the policy on the demonstrations."""
    bench = Workbench(run)
    cfg = _sft(run.recipe)
    settings = bench.settings("policy", "sft")

    def make() -> dict[str, Any]:
        import_torch()
        from spaniel.learner import weights_fingerprint
        from spaniel.policy.export import save_policy
        from spaniel.sft.train import num_sft_steps, train_sft

        demonstrations = list(read_records(run.path("sft", "demonstrations.jsonl"), Trajectory))
        total = num_sft_steps(len(demonstrations), cfg)
        learner = open_learner(bench, cfg.optimizer, total_steps=total)
        checkpoints = open_checkpoints(run, "sft", settings, resume=resume)
        checkpoints.restore(learner)
        log = MetricsLog(run.path("sft", "metrics.jsonl"), first_step=learner.num_steps)

        def on_step(step: int, metrics: dict[str, float]) -> None:
            log.append(step, metrics)
            every = max(1, total // 20)
            if step % every == 0 or step == total:
                say(f"sft {step}/{total}  loss {metrics['loss/own_tokens']:.4f}")
            if step % 50 == 0:
                checkpoints.save(learner, step)

        train_sft(
            learner, demonstrations, cfg, seed=seed_of(run.recipe.seed, "sft"), on_step=on_step
        )
        log.close()
        save_policy(bench.model, bench.tokenizer, run.path("sft", "policy"), {"stage": "sft"})
        return {"steps": total, "weights": weights_fingerprint(bench.model)}

    return training_stage(run, "sft", settings=settings, needs=("demonstrations",), make=make)


def _sft(recipe: Recipe) -> SFTConfig:
    if recipe.sft is None:
        raise ArtifactError("this recipe has no [sft] section: it goes from the start to RL")
    return recipe.sft
