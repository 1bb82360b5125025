"""Training and held-out questions that share no target document.

Questions are tied where they share a target document or have the same text; a component is
all that hangs together so. A component goes to one side as a whole:

    q1 - d1 - q2 - d2 - q3     q4 - d3     q5 - d4        train: q1 q2 q3 q4   test: q5

Where one component holds so much that the test side cannot be filled, it is cut (``cut.py``).
"""

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
from spaniel.questions.cut import Tie, cut
from spaniel.store import from_plain, hash_of, read_json, to_plain, write_json
from spaniel.types import Question

GIANT_FRAC = 0.5
"""A component above this share of the questions is worth a warning."""
ENOUGH_FRAC = 0.9
"""Share of the wanted test questions that whole components must bring."""

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
    """Questions left out of training because they share a target document or their text with
    a test question."""
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
    allow, or ``num_test`` in all if that is fewer. If they do not allow nine tenths of it, and
    ``cfg.on_leak`` is ``"drop"``, the questions are cut apart and those between left out.
    ``num_train`` and ``num_test`` cut a side that is larger, component after component in
    random order, keeping its hop shares.

    Args:
        questions: unique qids, targets after hygiene (merging documents can tie questions).
        given: qid -> ``"train"`` or ``"test"`` for every question, or None.

    Raises:
        DataError: no labelled question is left on a side; a given split leaks and ``on_leak``
            is ``"error"``; or all questions hang together and cannot be parted.
    """
    assert len({q.qid for q in questions}) == len(questions), "qids must be unique"
    labelled = [q for q in questions if q.targets]
    if not labelled:
        raise DataError(
            f"none of {len(questions):,} questions has a target document in the corpus: nothing "
            "to train on or to score"
        )
    parts = components(labelled)
    if given is not None and not cfg.resplit:
        train, test = _keep_given(labelled, given, cfg)
    else:
        train, test = _deal(labelled, parts, cfg, seed)
    _need_both(train, test)
    kept_train = _limited(train, cfg.num_train, seed)
    kept_test = _limited(test, cfg.num_test, seed)
    split = Split(
        train=tuple(q.qid for q in labelled if q.qid in kept_train),
        test=tuple(q.qid for q in labelled if q.qid in kept_test),
        seed=seed,
        components=len(parts),
        largest_component=max(len(part) for part in parts),
        unlabelled=len(questions) - len(labelled),
        leaking=len(labelled) - len(train) - len(test),
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
        raise ArtifactError(f"{path} is missing: run `spaniel questions split` first")
    data: Any = read_json(path)
    expected = data.pop("hash", None) if isinstance(data, dict) else None
    split = from_plain(Split, data, where=str(path))
    if split.hash != expected:
        raise ArtifactError(
            f"{path}: the questions do not match the hash {expected!r}, so the file was edited: "
            "run `spaniel questions split` again"
        )
    return split


# --- a given split ------------------------------------------------------------------------


def _keep_given(
    questions: Sequence[Question], given: Mapping[str, str], cfg: QuestionsConfig
) -> tuple[list[Question], list[Question]]:
    """Both sides as given, without training questions that leak."""
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
    return [q for q in train if q.qid not in leaking], test


# --- dealing out --------------------------------------------------------------------------


def _deal(
    questions: Sequence[Question], parts: Sequence[Component], cfg: QuestionsConfig, seed: int
) -> tuple[list[Question], list[Question]]:
    """Both sides: of whole components, or cut apart where these cannot fill the test side."""
    wanted = max(round(cfg.test_frac * len(questions)), 1)
    wanted = min(wanted, cfg.num_test or wanted)
    test, train = _draw(parts, wanted, seed)
    if cfg.on_leak == "drop" and sum(len(part) for part in test) < ENOUGH_FRAC * wanted:
        hops = Counter(q.hops for q in questions)
        kept, held_out = cut(questions, _shares(hops, wanted), _ties, seed)
        if len(held_out) > sum(len(part) for part in test):
            return kept, held_out
    if len(parts) == 1:
        raise DataError(
            f"all {len(questions):,} questions hang together by shared target documents (one "
            "component), so no question can be held out without a leak: add questions about "
            "other documents, merge fewer documents (corpus.dedup), or set questions.on_leak = "
            '"drop" if it is "error"'
        )
    if not test:
        test = [min(train, key=len)]
        train = [part for part in train if part is not test[0]]
    elif not train:
        train = [min(test, key=len)]
        test = [part for part in test if part is not train[0]]
    return _flat(train), _flat(test)


def _limited(side: Sequence[Question], limit: int | None, seed: int) -> set[str]:
    """qids of ``limit`` questions of one side, with its shares of hop counts.

    Leaving a question out cannot make a leak, so the last component need not stay whole.
    """
    if limit is None or limit >= len(side):
        return {q.qid for q in side}
    missing = _shares(Counter(q.hops for q in side), limit)
    kept = set()
    for question in _flat(_shuffled(components(side), seed)):
        if missing[question.hops] > 0:
            missing[question.hops] -= 1
            kept.add(question.qid)
    return kept


def _draw(
    parts: Sequence[Component], wanted: int, seed: int
) -> tuple[list[Component], list[Component]]:
    """About ``wanted`` questions of each hop count's share, as whole components, and the rest.

    Components come in random order; one is taken if that lowers the squared distance between
    the hop counts wanted and taken. Very large components are therefore passed over.
    """
    missing = _shares(Counter(q.hops for part in parts for q in part), wanted)
    taken: list[Component] = []
    rest: list[Component] = []
    for part in _shuffled(parts, seed):
        hops = Counter(q.hops for q in part)
        change = sum(n * (n - 2 * missing[h]) for h, n in hops.items())
        if change < 0:
            taken.append(part)
            missing.subtract(hops)
        else:
            rest.append(part)
    return taken, rest


def _shares(counts: Counter[int], wanted: int) -> Counter[int]:
    """``wanted`` divided in proportion to the counts, in whole numbers (largest remainders)."""
    total = sum(counts.values())
    shares = Counter({h: n * wanted // total for h, n in counts.items()})
    by_remainder = sorted(counts, key=lambda h: (-(counts[h] * wanted % total), h))
    shares.update(by_remainder[: wanted - sum(shares.values())])
    return shares


def _shuffled(parts: Iterable[Component], seed: int) -> list[Component]:
    """In an order that depends on nothing but the seed and the components."""
    return sorted(parts, key=lambda part: hash_of([seed, min(q.qid for q in part)]))


def _flat(parts: Iterable[Component]) -> list[Question]:
    return [q for part in parts for q in part]


def _ties(question: Question) -> list[Tie]:
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
            f"left out {split.leaking:,} questions from training that share a target document or "
            "their text with a test question"
        )
    giant = split.largest_component > GIANT_FRAC * num_labelled
    if giant and (redealt or split.leaking):
        advice = "a smaller questions.num_test" if redealt else "questions.resplit = true"
        lines.append(
            f"warning: one component holds {split.largest_component:,} of {num_labelled:,} "
            f"questions (they share target documents); {advice}, or questions about more "
            "documents, would leave more to train on"
        )
    return lines
