"""Where each group of an RL run went, from what lies in its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spaniel.store import iter_lines, read_json, read_records
from spaniel.types import Trajectory

DROPS = ("groups/without_signal", "groups/failed", "groups/too_old")


@dataclass(frozen=True, kw_only=True)
class Survives:
    """What the latest checkpoint of a killed run counts on."""

    step: int
    rows: list[dict[str, Any]]
    trained: dict[int, list[Trajectory]]
    dropped: set[int]
    """Numbers of groups."""


def what_survives(rl: Path) -> Survives:
    """Each number that was ever sent off is one of trained, held, dropped, and no two of them."""
    found = sorted((rl / "checkpoints").glob("step-*/manifest.json"))
    manifest = read_json(found[-1])
    step, state = manifest["num_steps"], manifest["scheduler"]
    rows, trained = rows_of(rl)[:step], trained_by_step(rl, step)
    assert [row["step"] for row in rows] == list(range(1, step + 1))
    numbers = numbers_of(trained)
    held = [n for n, _ in state["ready"]] + [n for n, _ in state["under_way"]]
    assert held, "nothing was sampled ahead"
    assert len({*numbers, *held}) == len(numbers) + len(held)
    sent_off = set(range(state["next_number"]))
    assert sent_off.issuperset([*numbers, *held])
    dropped = sent_off.difference(numbers, held)
    assert len(dropped) == num_dropped(rows), "lost without a reason"
    return Survives(step=step, rows=rows, trained=trained, dropped=dropped)


def rows_of(rl: Path) -> list[dict[str, Any]]:
    """Lines of the metrics."""
    return [row for _, row in iter_lines(rl / "metrics.jsonl")]


def num_dropped(rows: list[dict[str, Any]]) -> int:
    """Groups that were dropped in these steps."""
    return sum(row[why] for row in rows for why in DROPS)


def trained_by_step(rl: Path, steps: int) -> dict[int, list[Trajectory]]:
    """The kept trajectories: of every group, where a step has at most four."""
    return {
        step: list(read_records(rl / f"trajectories/step-{step:05d}.jsonl", Trajectory))
        for step in range(1, steps + 1)
    }


def numbers_of(trained: dict[int, list[Trajectory]]) -> list[int]:
    """Numbers of the groups, once for each step that trained them."""
    return [
        number
        for kept in trained.values()
        for number in sorted({int(t.trajectory_id.split("/")[0]) for t in kept})
    ]
