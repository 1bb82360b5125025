"""A run directory: which stages are done, with which settings, and whether they are current.

    runs/<name>/recipe.json            the resolved recipe of the last command
    runs/<name>/stages/<stage>.json    inputs, outputs, seconds; written last: it means "done"
    runs/<name>/<stage>/...            what the stage made

A stage that is done with the same settings and the same upstream outputs is not made again.
One that is done with others is an error, never overwritten silently.
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spaniel import __version__
from spaniel.config import Recipe, recipe_json
from spaniel.errors import ArtifactError
from spaniel.progress import say
from spaniel.store import hash_of, read_json, to_plain, write_json, write_text


class Run:
    """One run directory and the recipe it is made by."""

    def __init__(self, recipe: Recipe, *, force: bool = False) -> None:
        self.recipe, self.force = recipe, force
        self.directory = recipe.directory

    def path(self, *parts: str) -> Path:
        """A place inside the run directory."""
        return self.directory.joinpath(*parts)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run directory: two commands on one run would overwrite each other.

        Raises:
            ArtifactError: another process holds it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.path(".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArtifactError(
                    f"{self.directory} is in use by another spaniel command; wait for it, or set "
                    "another run_dir"
                ) from None
            write_text(self.path("recipe.json"), recipe_json(self.recipe) + "\n")
            yield

    def stage(
        self,
        name: str,
        *,
        settings: dict[str, Any],
        needs: Sequence[str],
        make: Callable[[], dict[str, Any]],
        when_done: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Make a stage unless it is done and current; returns its outputs.

        Args:
            settings: everything in the recipe that its outputs depend on.
            needs: stages whose outputs it reads.
            make: does the work and returns plain outputs, the same for the same inputs.
            when_done: called after a stage that was made is recorded as done; drops what only an
                interrupted one needs.

        Raises:
            ArtifactError: it was made with other inputs (and ``force`` is off), or a stage it
                needs is not done.
        """
        inputs = to_plain(
            {"settings": settings, "needs": {n: self.outputs(n)["hash"] for n in needs}}
        )
        record = self._record(name)
        if record.exists() and not self.force:
            old = read_json(record)
            if old["inputs"] == inputs:
                say(f"{name}: up to date")
                outputs: dict[str, Any] = old["outputs"]
                return outputs
            raise ArtifactError(
                f"{self.directory}: {name} was made with other settings "
                f"({_difference(old['inputs'], inputs)}); add --force to make it again, or set "
                "another run_dir"
            )
        say(f"{name} ...")
        started = time.perf_counter()
        outputs = to_plain(make())
        outputs.setdefault("hash", hash_of([inputs, outputs]))
        seconds = time.perf_counter() - started
        write_json(
            record,
            {
                "inputs": inputs,
                "outputs": outputs,
                "seconds": round(seconds, 2),
                "version": __version__,
                "commit": commit(),
            },
        )
        when_done()
        return outputs

    def amend(self, name: str, outputs: dict[str, Any]) -> None:
        """A finished stage's outputs were changed in place: stages that read them are out of date
        until they are made again."""
        record = read_json(self._record(name))
        outputs = {k: v for k, v in to_plain(outputs).items() if k != "hash"}
        outputs["hash"] = hash_of([record["inputs"], outputs])
        write_json(self._record(name), {**record, "outputs": outputs, "commit": commit()})

    def forget(self, name: str) -> None:
        """Call a finished stage not done: its files are about to be made anew."""
        self._record(name).unlink(missing_ok=True)

    def is_done(self, name: str) -> bool:
        """Whether a stage has been made, current or not."""
        return self._record(name).exists()

    def outputs(self, name: str) -> dict[str, Any]:
        """What a finished stage returned. Raises ``ArtifactError`` naming the command to run."""
        if not self.is_done(name):
            raise ArtifactError(
                f"{self.directory}: {name} is not done yet: run `spaniel {COMMANDS[name]}` first"
            )
        outputs: dict[str, Any] = read_json(self._record(name))["outputs"]
        return outputs

    def seconds(self, name: str) -> float:
        """Wall seconds a stage took."""
        return float(read_json(self._record(name))["seconds"])

    def _record(self, name: str) -> Path:
        return self.path("stages", f"{name}.json")


COMMANDS = {
    "corpus": "corpus",
    "index": "index build",
    "split": "questions split",
    "demonstrations": "sft demonstrate",
    "sft": "sft train",
    "preflight": "questions preflight",
    "rl": "rl",
    "eval": "eval",
    "base-demonstrations": "sft base",
    "base": "sft base",
}
"""Stage -> the command that makes it."""


def commit() -> str:
    """The commit of the code that runs, with ``+`` when it was changed; empty outside git."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=where,
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout.strip()


def _difference(old: Any, new: Any, path: str = "") -> str:
    """The first setting that differs, for a person: ``rl.steps was 5, is 6``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                inner = f"{path}.{key}" if path and path != "settings" else key
                return _difference(old.get(key), new.get(key), inner)
    if path.startswith("needs."):
        return f"{path.removeprefix('needs.')} has changed since"
    return f"{path} was {old!r}, is {new!r}"
