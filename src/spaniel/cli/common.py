"""What the commands share: their arguments, a recipe with its overrides, stages of one run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spaniel.config import Recipe, load_recipe
from spaniel.errors import ConfigError
from spaniel.progress import say

RecipePath = Annotated[Path, typer.Argument(help="A recipe (TOML).", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Make the stage again.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved plan and stop.")]
WITH_OVERRIDES: Any = {"allow_extra_args": True, "ignore_unknown_options": True}


def run_stages(
    path: Path, arguments: Sequence[str], force: bool, *makers: str, resume: bool | None = None
) -> None:
    """Run stages of one recipe; ``force`` and ``resume`` are for the last."""
    recipe = load(path, arguments)
    with ranks_of(recipe) as following:
        if following:
            return
        _make_stages(recipe, force, makers, resume)


def _make_stages(recipe: Recipe, force: bool, makers: Sequence[str], resume: bool | None) -> None:
    from spaniel import stages
    from spaniel.run import Run

    with Run(recipe).locked():
        for name in makers:
            last = name == makers[-1]
            make: Callable[..., Any] = getattr(stages, name)
            extra = {"resume": resume} if last and resume is not None else {}
            make(Run(recipe, force=force and last), **extra)


@contextmanager
def ranks_of(recipe: Recipe) -> Iterator[bool]:
    """The ranks that torchrun started, if it did; yields whether this one has followed rank 0
    through its whole command, which is then all that it does."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield False
        return
    from spaniel.ranks import follow, opened
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    with opened(recipe.policy.device) as following:
        if following:
            follow(Workbench(Run(recipe)).second_model)
        yield following


def load(path: Path, arguments: Sequence[str]) -> Recipe:
    """A recipe with its overrides, each of which is said."""
    overrides = parse_overrides(arguments)
    recipe = load_recipe(path, overrides)
    plain = load_recipe(path) if overrides else recipe
    for dotted in overrides:
        old, new = _value_at(plain, dotted), _value_at(recipe, dotted)
        say(f"--{dotted}: {old} -> {new}")
    return recipe


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """``["--rl.steps", "5", "--seed=1"]`` -> ``{"rl.steps": "5", "seed": "1"}``.

    Raises:
        ConfigError: an argument is no ``--setting value`` pair.
    """
    overrides: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"expected --setting value after the recipe, got {argument!r}")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{name} needs a value")
            value = rest.pop(0)
        overrides[name.replace("-", "_")] = value
    return overrides


def _value_at(recipe: Recipe, dotted: str) -> Any:
    value: Any = recipe
    for name in dotted.split("."):
        value = getattr(value, name, None)
    return value
