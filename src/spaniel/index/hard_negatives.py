"""Labelled questions -> lessons in ranking: their targets, and an engine's hits that are none.

A negative that the engine itself ranks high teaches more than a random document: it shares
words or meaning with the question. A negative that is a target in disguise teaches the opposite
of what is wanted, so copies of a target are left out however they are called.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spaniel.corpus.normalise import text_key
from spaniel.errors import ConfigError, DataError
from spaniel.index.engine import SearchEngine
from spaniel.progress import Progress, say
from spaniel.types import Document, Hit, Question

_BATCH = 64
"""Questions searched together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One question, what answers it, and what only looks as if it did."""

    query: str
    targets: tuple[str, ...]
    """docids; those that the engine did not find are among them."""
    negatives: tuple[Hit, ...]
    """Best first; the texts differ from the targets' and from each other."""
    found: tuple[Hit, ...]
    """The targets among the engine's hits."""

    def draw(self, count: int, rng: random.Random) -> list[Hit]:
        """At most ``count`` different negatives."""
        return rng.sample(self.negatives, min(count, len(self.negatives)))


def query_of(question: Question) -> str:
    """The question as a query: a quoted title in it is words, not a constraint."""
    return question.text.replace('"', " ")


def mine(
    questions: Sequence[Question],
    engine: SearchEngine,
    *,
    held_out: Iterable[Question],
    candidates: int,
) -> list[Lesson]:
    """What the questions teach about an engine's best ``candidates`` hits.

    Hits that are a held-out question's targets stay among the negatives: leaving them out
    would tell the model by their absence which documents the test asks for.

    Args:
        questions: training questions; those without targets or without a hit that is none
            teach nothing and are left out. So are those with the text of a held-out one.
        held_out: the questions that nothing may be learned from.

    Raises:
        DataError: a training question is held out, or a target is not in the index.
        ConfigError: no question is left.
    """
    labelled = [q for q in not_held_out(questions, held_out) if q.targets]
    lessons = []
    with Progress("mining negatives", len(labelled), "questions") as progress:
        for begin in range(0, len(labelled), _BATCH):
            batch = labelled[begin : begin + _BATCH]
            found = engine.search_batch([query_of(q) for q in batch], candidates)
            for question, hits in zip(batch, found, strict=True):
                lessons.append(_lesson(question, hits, engine))
            progress.advance(len(batch))
    lessons = [lesson for lesson in lessons if lesson.negatives]
    if not lessons:
        raise ConfigError("no training question has a target and another document among its hits")
    return lessons


def not_held_out(questions: Sequence[Question], held_out: Iterable[Question]) -> list[Question]:
    """The questions whose text is not a held-out one's, too.

    Raises:
        DataError: a question is itself held out.
    """
    held = list(held_out)
    qids, texts = {q.qid for q in held}, {text_key(q.text) for q in held}
    seen = [q.qid for q in questions if q.qid in qids]
    if seen:
        raise DataError(
            f"{len(seen):,} questions to learn from are held out (first: {seen[0]!r}): run "
            "`spaniel questions split` again"
        )
    kept = [q for q in questions if text_key(q.text) not in texts]
    if len(kept) < len(questions):
        say(f"left out {len(questions) - len(kept):,} questions with the text of a held-out one")
    return kept


def _lesson(question: Question, hits: Sequence[Hit], engine: SearchEngine) -> Lesson:
    keys = {text_key(document.text) for document in _targets(question, engine)}
    negatives = []
    documents = engine.read_batch([hit.docid for hit in hits])
    for hit, document in zip(hits, documents, strict=True):
        key = text_key(document.text)
        # Texts without a visible character have the empty key, which says nothing.
        if hit.docid not in question.targets and (not key or key not in keys):
            keys.add(key)
            negatives.append(hit)
    return Lesson(
        query=query_of(question),
        targets=question.targets,
        negatives=tuple(negatives),
        found=tuple(hit for hit in hits if hit.docid in question.targets),
    )


def _targets(question: Question, engine: SearchEngine) -> list[Document]:
    try:
        return engine.read_batch(question.targets)
    except KeyError as error:
        raise DataError(
            f"target {error.args[0]!r} of question {question.qid!r} is not in the index: run "
            "`spaniel index build` again"
        ) from None
