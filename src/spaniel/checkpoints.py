"""Files of a training: a line of metrics a step, and checkpoints to go on from."""

import shutil
from pathlib import Path
from typing import Any

from spaniel.errors import ArtifactError
from spaniel.progress import say
from spaniel.store import JsonlLog, hash_of, iter_lines, write_records


class MetricsLog:
    """``metrics.jsonl``: a line a step. Lines past the checkpoint that a run resumes from are
    cut, since those steps are made again."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        if path.exists():
            JsonlLog(path).close()  # cuts a torn last line
            kept = [row for _, row in iter_lines(path) if row["step"] <= first_step]
            write_records(path, kept)
        self._log = JsonlLog(path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    def rows(self) -> list[dict[str, float]]:
        """All lines so far."""
        return [row for _, row in iter_lines(self.path)]

    def append(self, step: int, metrics: dict[str, float]) -> None:
        """One step."""
        self._log.append({"step": step, **{k: float(f"{v:.6g}") for k, v in metrics.items()}})

    def close(self) -> None:
        """Close the file."""
        self._log.close()


class Checkpoints:
    """``step-000010`` folders, each complete or absent; the latest few are kept."""

    def __init__(
        self, directory: Path, settings: dict[str, Any], *, keep: int, resume: bool, force: bool
    ) -> None:
        self.directory, self.keep = directory, keep
        self.settings = hash_of(settings)
        if force and not resume:
            drop_checkpoints(directory)
        found = self._found()
        if found and not resume:
            raise ArtifactError(
                f"{directory} holds a run that was stopped after step {_step_of(found[-1])}: add "
                "--resume to go on, or --force to start again"
            )

    def restore(self, learner: Any) -> dict[str, Any]:
        """Load the latest checkpoint, if there is one; returns what was saved with it."""
        found = self._found()
        state: dict[str, Any] = {}
        if found:
            state = learner.restore(found[-1])
            if state["settings"] != self.settings:
                raise ArtifactError(
                    f"{found[-1]} was made with other settings: resume with those, or add --force "
                    "to start again"
                )
            say(f"resumed after step {learner.num_steps}")
        return state

    def save(self, learner: Any, step: int, **state: Any) -> None:
        """Publish a checkpoint and drop the oldest."""
        learner.save(self.directory / f"step-{step:06d}", {"settings": self.settings, **state})
        for old in self._found()[: -self.keep]:
            shutil.rmtree(old)

    def _found(self) -> list[Path]:
        complete = (p.parent for p in self.directory.glob("step-*/manifest.json"))
        return sorted(complete, key=_step_of)


def drop_checkpoints(directory: Path) -> None:
    """Drop all of a training that starts again, or is finished and recorded as that: before the
    record, a kill would make it start from nothing."""
    shutil.rmtree(directory, ignore_errors=True)


def _step_of(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))
