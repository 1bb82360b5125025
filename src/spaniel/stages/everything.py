"""Evaluation, and all stages of a recipe."""

from typing import Any

from spaniel.run import Run
from spaniel.stages.data import make_corpus, make_index, make_questions
from spaniel.stages.rl import make_preflight, make_rl
from spaniel.stages.sft import make_demonstrations, make_sft
from spaniel.workbench import Workbench


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
