"""Training and held-out questions that share no target document.

Questions are tied where they share a target document or have the same text; a component is
all that hangs together so. A component goes to one side as a whole:

    q1 - d1 - q2 - d2 - q3     q4 - d3     q5 - d4        train: q1 q2 q3 q4   test: q5
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spaniel.config import QuestionsConfig
from spaniel.corpus.merges import DisjointSets
from spaniel.corpus.normalise import text_key
from spaniel.errors import ArtifactError, DataError
from spaniel.progress import say
from spaniel.store import from_plain, hash_of, read_json, to_plain, write_json
from spaniel.types import Question

GIANT_FRAC = 0.5
"""A component above this share of the questions is worth a warning."""

Component = list[Question]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which questions train and which are held out. No target document is on both sides."""

    train: tuple[str, ...]
    """qids, in source order."""
    test: tuple[str, ...]
    seed: int
    components: int
    """Groups of questions tied by shared target documents, over all labelled questions."""
    largest_component: int
    """Questions in the largest of them."""
    unlabelled: int = 0
    """Questions left out because they have no target."""
    leaking: int = 0
    """Training questions of a given split left out because they share a target document or
    their text with a test question."""
    over_limit: int = 0
    """Questions left out by ``num_train`` and ``num_test``."""

    @property
    def hash(self) -> str:
        """16 hex digits over the two lists and the seed."""
        return hash_of({"train": self.train, "test": self.test, "seed": self.seed})


def make_split(
    questions: Sequence[Question],
    given: Mapping[str, str] | None,
    cfg: QuestionsConfig,
    seed: int,
) -> Split:
    """Divide the labelled questions; counts and warnings go to stderr.

    A given split is kept, but for training questions that would leak (``cfg.on_leak``).
    Otherwise, or with ``cfg.resplit``, whole components are dealt out at random so that the
    test side gets ``test_frac`` of the questions of each hop count, as near as components
    allow, or ``num_test`` in all if that is fewer. ``num_train`` and ``num_test`` then cut
    each side: components in random order, the last one in part.

    Args:
        questions: unique qids, targets after hygiene (merging documents can tie questions).
        given: qid -> ``"train"`` or ``"test"`` for every question, or None.

    Raises:
        DataError: no labelled question is left on a side; a given split leaks and ``on_leak``
            is ``"error"``; or all questions hang together, so that none can be held out.
    """
    labelled = [q for q in questions if q.targets]
    if not labelled:
        raise DataError(
            f"none of {len(questions):,} questions has a target document in the corpus: nothing "
            "to train on or to score"
        )
    parts = components(labelled)
    leaking: set[str] = set()
    if given is not None and not cfg.resplit:
        train, test, leaking = _keep_given(labelled, given, cfg)
    else:
        train, test = _deal(parts, cfg, seed)
    _need_both(train, test)
    order = {q.qid: (_rank(seed, part[0].qid), i) for part in parts for i, q in enumerate(part)}
    kept_train = _first(train, cfg.num_train, order)
    kept_test = _first(test, cfg.num_test, order)
    split = Split(
        train=tuple(q.qid for q in labelled if q.qid in kept_train),
        test=tuple(q.qid for q in labelled if q.qid in kept_test),
        seed=seed,
        components=len(parts),
        largest_component=max(len(part) for part in parts),
        unlabelled=len(questions) - len(labelled),
        leaking=len(leaking),
        over_limit=len(train) + len(test) - len(kept_train) - len(kept_test),
    )
    for line in _lines(split, len(labelled), redealt=given is None or cfg.resplit):
        say(line)
    return split


def components(questions: Sequence[Question]) -> list[Component]:
    """Questions tied by a shared target document or the same text, in source order."""
    sets = DisjointSets(len(questions))
    first: dict[tuple[str, str], int] = {}
    for i, question in enumerate(questions):
        for tie in _ties(question):
            sets.union(first.setdefault(tie, i), i)
    parts: dict[int, Component] = defaultdict(list)
    for i, question in enumerate(questions):
        parts[sets.root(i)].append(question)
    return list(parts.values())


def write_split(path: Path, split: Split) -> None:
    """Write ``split.json``, whole or not at all."""
    write_json(path, {**to_plain(split), "hash": split.hash})


def load_split(path: Path) -> Split:
    """Read ``split.json``.

    Raises:
        ArtifactError: it is missing, or its questions do not match its hash.
        DataError: it is not a split file.
    """
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `spaniel questions` first")
    data: Any = read_json(path)
    expected = data.pop("hash", None) if isinstance(data, dict) else None
    split = from_plain(Split, data, where=str(path))
    if split.hash != expected:
        raise ArtifactError(
            f"{path}: the questions do not match the hash {expected!r}, so the file was edited: "
            "run `spaniel questions` again"
        )
    return split


# --- a given split ------------------------------------------------------------------------


def _keep_given(
    questions: Sequence[Question], given: Mapping[str, str], cfg: QuestionsConfig
) -> tuple[list[Question], list[Question], set[str]]:
    """Both sides as given, and the qids of training questions left out because they leak."""
    unknown = [q.qid for q in questions if given.get(q.qid) not in ("train", "test")]
    if unknown:
        raise DataError(f"the given split has no side for {len(unknown):,} questions: {unknown[0]}")
    test = [q for q in questions if given[q.qid] == "test"]
    train = [q for q in questions if given[q.qid] == "train"]
    held_out = {tie for q in test for tie in _ties(q)}
    leaking = {q.qid for q in train if any(tie in held_out for tie in _ties(q))}
    if leaking and cfg.on_leak == "error":
        shared = {d for q in train for d in q.targets} & {d for q in test for d in q.targets}
        raise DataError(
            f"the given split leaks: {len(leaking):,} training questions share {len(shared):,} "
            f'target documents or their text with test questions. Set questions.on_leak = "drop" '
            "to leave them out, or questions.resplit = true to divide all questions anew"
        )
    return [q for q in train if q.qid not in leaking], test, leaking


# --- dealing out --------------------------------------------------------------------------


def _deal(
    parts: Sequence[Component], cfg: QuestionsConfig, seed: int
) -> tuple[list[Question], list[Question]]:
    """Components at random to the test side while they bring its hop counts nearer to the aim."""
    if len(parts) == 1:
        raise DataError(
            f"all {len(parts[0]):,} questions hang together by shared target documents (one "
            "component), so no question can be held out without a leak: add questions about "
            "other documents, or loosen corpus.dedup"
        )
    shuffled = sorted(parts, key=lambda part: _rank(seed, part[0].qid))
    missing = _aim(parts, cfg)
    train, test = [], []
    for part in shuffled:
        hops = Counter(q.hops for q in part)
        # Falls when adding the part lowers the squared distance to the aim.
        change = sum(n * (n - 2 * missing[h]) for h, n in hops.items())
        (test if change < 0 else train).append(part)
        if change < 0:
            for h, n in hops.items():
                missing[h] -= n
    if not test:
        smallest = min(train, key=len)
        train, test = [part for part in train if part is not smallest], [smallest]
    if not train:
        smallest = min(test, key=len)
        train, test = [smallest], [part for part in test if part is not smallest]
    return [q for part in train for q in part], [q for part in test for q in part]


def _aim(parts: Sequence[Component], cfg: QuestionsConfig) -> dict[int, float]:
    """Questions wanted on the test side, by hop count."""
    hops = Counter(q.hops for part in parts for q in part)
    total = sum(hops.values())
    wanted = cfg.test_frac * total
    if cfg.num_test is not None:
        wanted = min(wanted, cfg.num_test)
    return {h: n * wanted / total for h, n in hops.items()}


def _first(questions: Iterable[Question], limit: int | None, order: Mapping[str, Any]) -> set[str]:
    """qids of the first ``limit`` questions in a random order of components."""
    return {q.qid for q in sorted(questions, key=lambda q: order[q.qid])[:limit]}


def _rank(seed: int, qid: str) -> str:
    """A random place that depends on nothing but the seed and the question."""
    return hash_of([seed, qid])


def _ties(question: Question) -> list[tuple[str, str]]:
    """What another question must not have in common across the split."""
    return [("text", text_key(question.text)), *(("document", d) for d in question.targets)]


# --- checks and news ----------------------------------------------------------------------


def _need_both(train: Sequence[Question], test: Sequence[Question]) -> None:
    for name, side in (("training", train), ("test", test)):
        if not side:
            raise DataError(
                f"no {name} question with a target document is left: set questions.resplit = true "
                "to divide all questions anew, or mend the given split"
            )


def _lines(split: Split, num_labelled: int, *, redealt: bool) -> list[str]:
    lines = [
        f"split: {len(split.train):,} training and {len(split.test):,} held-out questions; "
        f"{split.components:,} components, the largest has {split.largest_component:,} questions"
    ]
    if split.unlabelled:
        lines.append(f"left out {split.unlabelled:,} questions without a target document")
    if split.leaking:
        lines.append(
            f"left out {split.leaking:,} training questions that share a target document or their "
            "text with a test question"
        )
    if redealt and split.largest_component > GIANT_FRAC * num_labelled:
        lines.append(
            f"warning: one component holds {split.largest_component:,} of {num_labelled:,} "
            "questions (they share target documents), so the sides cannot have the sizes and hop "
            "counts asked for"
        )
    return lines
