"""The stages of a run, in order: each reads what earlier ones made and writes its own folder.

corpus -> index -> split -> [demonstrations -> sft] -> preflight -> rl -> eval
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spaniel.checkpoints import Checkpoints, MetricsLog
from spaniel.config import BaseConfig, IndexConfig, OptimizerConfig, Recipe, SFTConfig
from spaniel.corpus.encoder import hash_of_files
from spaniel.corpus.prepare import load_corpus, load_questions, prepare_corpus
from spaniel.errors import ArtifactError, DataError
from spaniel.index.build import build_index
from spaniel.index.update import Change, update_index
from spaniel.policy.load import import_torch
from spaniel.progress import say
from spaniel.questions.preflight import preflight_report
from spaniel.questions.split import make_split, write_split
from spaniel.questions.titles import title_questions
from spaniel.rewards.ranking import is_solved
from spaniel.rollout import seed_of
from spaniel.run import Run
from spaniel.store import (
    publish_directory,
    read_json,
    read_records,
    write_json,
    write_records,
)
from spaniel.types import Document, Group, Trajectory
from spaniel.workbench import Workbench

if TYPE_CHECKING:
    from spaniel.learner import Learner

KEPT_GROUPS = 4
"""Groups of each RL step whose best and worst trajectories are kept for reading."""


# --- corpus, index, split -----------------------------------------------------------------


def make_corpus(run: Run) -> dict[str, Any]:
    """Read and clean the documents and their labels."""
    cfg = run.recipe.corpus
    return run.stage(
        "corpus",
        settings={"corpus": cfg.model_dump(mode="json")},
        needs=(),
        make=lambda: prepare_corpus(cfg, run.path("corpus")),
    )


def make_index(run: Run) -> dict[str, Any]:
    """Build the three-view index; vectors are made when an engine first needs them."""
    cfg = run.recipe.index

    def make() -> dict[str, Any]:
        documents = load_corpus(run.path("corpus"))
        documents_id = run.outputs("corpus")["hash"]
        directory = run.path("index", "lexical")
        manifest = build_index(documents, directory, cfg, documents_id=documents_id)
        if cfg.backend == "bm25s":
            from spaniel.index.bm25s_build import build_bm25s

            build_bm25s(directory, cfg)
        return index_outputs(manifest)

    settings = {"index": cfg.search_settings(), **_models_of(cfg)}
    return run.stage("index", settings=settings, needs=("corpus",), make=make)


def _models_of(cfg: IndexConfig) -> dict[str, Any]:
    """Hashes of the encoder and the reranker that lie in directories: they can be trained anew."""
    named = {"encoder": cfg.encoder, "rerank": cfg.rerank}
    paths = {name: Path(path) for name, path in named.items() if path and Path(path).is_dir()}
    return {"models": {n: hash_of_files(p) for n, p in paths.items()}} if paths else {}


def index_outputs(manifest: dict[str, Any]) -> dict[str, Any]:
    """What depends on an index depends on its content: its files have other names each time."""
    return {name: value for name, value in manifest.items() if name != "files"}


def change_index(
    run: Run, *, add: Iterable[Document] = (), delete: Sequence[str] = (), replace: bool = False
) -> Change:
    """Add documents to the finished index, or take some out; what was made with it is out of
    date then."""
    run.outputs("index")
    change = update_index(
        run.path("index", "lexical"), run.recipe.index, add=add, delete=delete, replace=replace
    )
    run.amend("index", index_outputs(change.manifest))
    gone = set(delete)
    questions, _ = load_questions(run.path("corpus"))
    lost = sum(1 for question in questions if gone.intersection(question.targets))
    if lost:
        say(f"warning: {lost:,} questions ask for a document that was deleted")
    return change


def make_questions(run: Run) -> dict[str, Any]:
    """Split the questions so that no target document is on both sides."""
    cfg = run.recipe.questions

    def make() -> dict[str, Any]:
        questions, given = load_questions(run.path("corpus"))
        split = make_split(questions, given, cfg, seed_of(run.recipe.seed, "split"))
        write_split(run.path("questions", "split.json"), split)
        return {"hash": split.hash, "train": len(split.train), "test": len(split.test)}

    settings = {"questions": cfg.model_dump(mode="json"), "seed": run.recipe.seed}
    return run.stage("split", settings=settings, needs=("corpus",), make=make)


# --- a default policy of one's own ------------------------------------------------------------


def make_base_demonstrations(run: Run) -> dict[str, Any]:
    """Generate worlds, train a tokenizer on them, let the label teacher walk through them."""
    import_torch()
    from spaniel.sft.base import base_demonstrations, base_tokenizer, make_renderer
    from spaniel.sft.ledgers import save_demonstrations

    cfg = _base(run.recipe)

    def make() -> dict[str, Any]:
        tokenizer = base_tokenizer(run.recipe, cfg)
        demonstrations = base_demonstrations(run.recipe, cfg, make_renderer(tokenizer))
        outputs = {
            "demonstrations": len(demonstrations),
            "tokens": sum(len(d.token_ids) for d in demonstrations),
        }
        with publish_directory(run.path("base", "data"), outputs) as partial:
            tokenizer.save_pretrained(partial / "tokenizer")
            save_demonstrations(partial / "demonstrations.npz", demonstrations)
        say(f"{outputs['demonstrations']:,} demonstrations, {outputs['tokens']:,} tokens")
        return outputs

    made_from = {"num_worlds", "first_seed", "pages", "questions", "noise", "min_reward"}
    made_from |= {"vocab_size", "extra_texts", "drill_questions", "tight_questions"}
    settings = _base_settings(run.recipe, made_from)
    return run.stage("base-demonstrations", settings=settings, needs=(), make=make)


def make_base(run: Run, *, resume: bool = False) -> dict[str, Any]:
    """Train a small policy from random weights; the result is a model directory."""
    import_torch()
    from transformers import AutoTokenizer

    from spaniel.learner import Learner, weights_fingerprint
    from spaniel.policy.export import save_policy
    from spaniel.policy.load import random_tiny
    from spaniel.sft.base import train_base
    from spaniel.sft.ledgers import load_demonstrations

    cfg = _base(run.recipe)
    settings = _base_settings(run.recipe, set(type(cfg).model_fields))

    def make() -> dict[str, Any]:
        data = run.path("base", "data")
        tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
        model = random_tiny(len(tokenizer), seed=seed_of(run.recipe.seed, "model"))
        learner = Learner(model, cfg.optimizer, total_steps=None)
        checkpoints = Checkpoints(
            run.path("base", "checkpoints"), settings, keep=1, resume=resume, force=run.force
        )
        state = checkpoints.restore(learner)
        log = MetricsLog(run.path("base", "metrics.jsonl"), first_step=learner.num_steps)

        def on_step(step: int, metrics: dict[str, float], seconds: float) -> None:
            log.append(step, metrics)
            if step % 50 == 0:
                say(
                    f"base {step}  {metrics['progress']:.0%}  own-token loss "
                    f"{metrics['loss/own_tokens']:.4f}"
                )
            if step % 100 == 0:
                checkpoints.save(learner, step, seconds=seconds)

        train_base(
            learner,
            load_demonstrations(data / "demonstrations.npz"),
            cfg,
            vocab_size=len(tokenizer),
            seed=seed_of(run.recipe.seed, "base"),
            on_step=on_step,
            seconds=state.get("seconds", 0.0),
        )
        log.close()
        save_policy(model, tokenizer, run.path("base", "policy"), {"stage": "base"})
        checkpoints.clear()
        return {"steps": learner.num_steps, "weights": weights_fingerprint(model)}

    return run.stage("base", settings=settings, needs=("base-demonstrations",), make=make)


def _base(recipe: Recipe) -> BaseConfig:
    if recipe.base is None:
        raise ArtifactError("this recipe has no [base] section: there is no base to train")
    return recipe.base


def _base_settings(recipe: Recipe, names: set[str]) -> dict[str, Any]:
    dump = recipe.model_dump(mode="json")
    base = {name: value for name, value in dump["base"].items() if name in names}
    return {"base": base, **{name: dump[name] for name in ("seed", "env", "index", "reward")}}


# --- SFT ----------------------------------------------------------------------------------


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
        checkpoints = Checkpoints(
            run.path("sft", "checkpoints"), settings, keep=1, resume=resume, force=run.force
        )
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
        checkpoints.clear()
        return {"steps": total, "weights": weights_fingerprint(bench.model)}

    return run.stage("sft", settings=settings, needs=("demonstrations",), make=make)


def _sft(recipe: Recipe) -> SFTConfig:
    if recipe.sft is None:
        raise ArtifactError("this recipe has no [sft] section: it goes from the start to RL")
    return recipe.sft


# --- pre-flight ---------------------------------------------------------------------------


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


def open_learner(
    bench: Workbench, cfg: OptimizerConfig, *, total_steps: int, **critic: Any
) -> "Learner":
    """The learner of a stage: of this process alone, or of all ranks that torchrun started."""
    from spaniel.learner import Learner
    from spaniel.ranks import LeadLearner, started_by_torchrun

    if started_by_torchrun():
        return LeadLearner(
            bench.model, cfg, total_steps=total_steps, copy=bench.second_model, **critic
        )
    return Learner(bench.model, cfg, total_steps=total_steps, **critic)


def starting_stage(run: Run) -> str | None:
    """The stage whose weights RL starts from; None for the recipe's own model."""
    return "sft" if run.recipe.sft is not None else None


# --- RL -----------------------------------------------------------------------------------


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
        checkpoints = Checkpoints(
            run.path("rl", "checkpoints"),
            settings,
            keep=cfg.keep_checkpoints,
            resume=resume,
            force=run.force,
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
        checkpoints.clear()
        return {"steps": cfg.steps, "weights": weights_fingerprint(bench.model)}

    return run.stage("rl", settings=settings, needs=("preflight",), make=make)


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


# --- evaluation, everything -----------------------------------------------------------------


def make_eval(run: Run) -> dict[str, Any]:
    """Every system on the held-out questions: results.json, TREC runs, report.html, the table."""
    from spaniel.eval.evaluate import evaluate

    bench = Workbench(run)
    trained = [stage for stage in ("sft", "rl") if run.is_done(stage)]
    settings = bench.settings("env", "reward", "policy", "eval", "index")
    return run.stage(
        "eval", settings=settings, needs=("index", "split", *trained), make=lambda: evaluate(bench)
    )


def make_everything(run: Run) -> None:
    """All stages of a recipe, in order. A stopped training goes on from its last checkpoint."""
    make_corpus(run)
    make_index(run)
    make_questions(run)
    if run.recipe.sft is not None:
        make_demonstrations(run)
        make_sft(run, resume=not run.force)
    make_preflight(run)
    make_rl(run, resume=not run.force)
    make_eval(run)
