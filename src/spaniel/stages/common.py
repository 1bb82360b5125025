"""What the stages that train have in common."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spaniel.checkpoints import Checkpoints, drop_checkpoints
from spaniel.config import OptimizerConfig
from spaniel.run import Run
from spaniel.workbench import Workbench

if TYPE_CHECKING:
    from spaniel.learner import Learner


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


def open_checkpoints(
    run: Run, stage: str, settings: dict[str, Any], *, resume: bool, keep: int = 1
) -> Checkpoints:
    """Where a stage's training goes on from, or starts anew.

    Raises:
        ArtifactError: an interrupted training lies there, and neither ``resume`` nor ``run.force``
            says what shall become of it.
    """
    if run.force and not resume:
        run.forget(stage)
    directory = run.path(stage, "checkpoints")
    return Checkpoints(directory, settings, keep=keep, resume=resume, force=run.force)


def training_stage(
    run: Run,
    name: str,
    *,
    settings: dict[str, Any],
    needs: Sequence[str],
    make: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """``Run.stage`` for a stage with checkpoints, which go once it is recorded as done."""
    return run.stage(
        name,
        settings=settings,
        needs=needs,
        make=make,
        when_done=lambda: drop_checkpoints(run.path(name, "checkpoints")),
    )


def starting_stage(run: Run) -> str | None:
    """The stage whose weights RL starts from; None for the recipe's own model."""
    return "sft" if run.recipe.sft is not None else None
