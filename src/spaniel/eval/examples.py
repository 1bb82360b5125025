"""Example trajectories as HTML: what the policy wrote, what it saw, which hits were targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spaniel.env.aliases import UNKNOWN
from spaniel.eval.formats import fixed
from spaniel.eval.markup import Markup, el, join, shortened
from spaniel.types import Question, StopReason, Trajectory, Turn

MAX_CHARS = 4000
"""Of one text in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One trajectory to show."""

    question: Question
    trajectory: Trajectory
    label: str
    """``good``, ``bad`` or any other word."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """docid -> title, as far as known."""


def choose_examples(
    pairs: Sequence[tuple[Question, Trajectory]],
    titles: Mapping[str, str],
    *,
    num_good: int = 3,
    num_bad: int = 3,
) -> tuple[Example, ...]:
    """The best and the worst scored trajectories, no question twice, ties by trajectory id.

    The good ones have the highest nDCG with the fewest tokens; a list too short for both
    gives the good ones first.
    """
    scored = [(q, t) for q, t in pairs if t.reward is not None]
    scored.sort(
        key=lambda p: (-p[1].reward_parts.get("ndcg", 0.0), p[1].num_sampled_tokens, _id(p))
    )
    seen: set[str] = set()
    good = _first(scored, num_good, seen)
    bad = _first(scored[::-1], num_bad, seen)
    return tuple(
        Example(question=q, trajectory=t, label=label, titles=titles)
        for label, chosen in (("good", good), ("bad", bad))
        for q, t in chosen
    )


def example_section(example: Example) -> Markup:
    """A closed ``details`` element with the whole trajectory."""
    question, t = example.question, example.trajectory
    tone = example.label if example.label in ("good", "bad") else "other"
    figures = [f"nDCG {fixed(t.reward_parts.get('ndcg'))}", f"reward {fixed(t.reward)}"]
    figures += [
        f"{len(t.turns)} turns",
        f"{t.num_sampled_tokens} tokens",
        f"ended: {t.stop_reason}",
    ]
    summary = el(
        "summary",
        el("span", example.label, cls=f"badge {tone}"),
        shortened(question.text, MAX_CHARS),
        el("span", ", ".join([t.trajectory_id, *figures]), cls="figures"),
    )
    parts = [el("h3", "Targets"), _documents(question.targets, example)]
    parts += [_turn(number, turn, example) for number, turn in enumerate(t.turns, start=1)]
    parts.append(el("h3", "Report"))
    if t.stop_reason is StopReason.INFRASTRUCTURE:
        parts.append(el("p", f"failed by the infrastructure: {t.error}", cls="error"))
    elif t.report:
        parts.append(_documents(t.report, example))
    else:
        parts.append(el("p", "none", cls="soft"))
    return el("details", summary, el("div", *parts, cls="inside"))


def _turn(number: int, turn: Turn, example: Example) -> Markup:
    called = shortened(turn.call.name, 100) if turn.call is not None else "no call"
    parts = [el("h3", f"Turn {number}: {called}"), el("pre", shortened(turn.text, MAX_CHARS))]
    if turn.errors:
        parts.append(el("p", "errors: " + shortened(", ".join(turn.errors), 300), cls="error"))
    if turn.hits:
        parts.append(_documents([hit.docid for hit in turn.hits], example))
    if turn.docids:
        parts.append(_documents(list(turn.docids), example))
    if turn.observation:
        seen = el("pre", shortened(turn.observation, MAX_CHARS))
        parts.append(el("details", el("summary", "what the policy saw", cls="soft"), seen))
    return el("div", *parts, cls="turn")


def _documents(docids: Sequence[str], example: Example) -> Markup:
    items = []
    for docid in docids:
        title = example.titles.get(docid)
        parts: list[str] = [shortened(title or docid, 300)]
        if title:
            parts.append(el("span", shortened(docid, 100), cls="docid"))
        is_target = docid in example.question.targets
        if is_target:
            parts.append(el("span", "target", cls="tag"))
        elif docid.startswith(UNKNOWN):
            parts.append(el("span", "never shown", cls="tag error"))
        items.append(el("li", join(parts), cls="hit" if is_target else "miss"))
    return el("ol", *items, cls="docs") if items else el("p", "none", cls="soft")


def _first(
    pairs: Sequence[tuple[Question, Trajectory]], count: int, seen: set[str]
) -> list[tuple[Question, Trajectory]]:
    chosen: list[tuple[Question, Trajectory]] = []
    for question, trajectory in pairs:
        if len(chosen) < count and question.qid not in seen:
            seen.add(question.qid)
            chosen.append((question, trajectory))
    return chosen


def _id(pair: tuple[Question, Trajectory]) -> str:
    return pair[1].trajectory_id
