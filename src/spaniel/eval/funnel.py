"""Where an agent loses its targets: between question and report, and from one hop to the next.

of all targets      shown by a search > read > reported
of single steps     the first search shows a target
                    a search showed one that is new: it is what is read next
                    a target was read: the search after it shows another
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from spaniel.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Counts over rollouts. Each pair is (cases, of them good)."""

    shown: tuple[int, int] = (0, 0)
    """Targets; among the hits of any search."""
    read: tuple[int, int] = (0, 0)
    """Targets; read."""
    reported: tuple[int, int] = (0, 0)
    """Targets; reported."""
    first_search: tuple[int, int] = (0, 0)
    """First searches; that showed a target."""
    choice: tuple[int, int] = (0, 0)
    """Reads after a search that showed a target not read before; of one of these."""
    later_search: tuple[int, int] = (0, 0)
    """Searches next after the reading of a target while others are unread; that showed one of
    those."""


STEPS = tuple(f.name for f in fields(Funnel))


def funnel(trajectory: Trajectory, targets: Sequence[str]) -> Funnel:
    """What became of a question's targets in one rollout."""
    unread = set(targets)
    shown: set[str] = set()
    first: tuple[int, int] = (0, 0)
    choice: tuple[int, int] = (0, 0)
    later: tuple[int, int] = (0, 0)
    new_hits: set[str] | None = None
    """Unread targets of the latest search, until something is read."""
    just_read = False
    for turn in trajectory.turns:
        if turn.call is not None and turn.call.name == "search":
            new_hits = {hit.docid for hit in turn.hits} & unread
            shown |= {hit.docid for hit in turn.hits} & set(targets)
            if first == (0, 0):
                first = (1, int(bool(new_hits)))
            elif just_read and unread:
                later = (later[0] + 1, later[1] + int(bool(new_hits)))
            just_read = False
        elif turn.docids:
            if new_hits:
                choice = (choice[0] + 1, choice[1] + int(bool(new_hits & set(turn.docids))))
            just_read = bool(unread & set(turn.docids))
            unread -= set(turn.docids)
            new_hits = None
    total = len(set(targets))
    return Funnel(
        shown=(total, len(shown)),
        read=(total, total - len(unread)),
        reported=(total, len(set(trajectory.report) & set(targets))),
        first_search=first,
        choice=choice,
        later_search=later,
    )


def funnel_rates(parts: Iterable[Funnel]) -> dict[str, dict[str, float | int | None]]:
    """{step: {"n": cases, "rate": share of good ones, None without cases}} over rollouts."""
    parts = list(parts)
    out: dict[str, dict[str, float | int | None]] = {}
    for step in STEPS:
        cases, good = (sum(getattr(part, step)[i] for part in parts) for i in (0, 1))
        out[step] = {"n": cases, "rate": good / cases if cases else None}
    return out if parts else {}
