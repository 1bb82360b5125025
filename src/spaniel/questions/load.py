"""The questions of a run, by side of the split."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from spaniel.corpus.prepare import load_questions
from spaniel.errors import ArtifactError
from spaniel.questions.split import load_split
from spaniel.types import Question


def load_sides(corpus: Path, split: Path) -> tuple[list[Question], list[Question]]:
    """(training, held-out) questions.

    Args:
        corpus: directory of a prepared corpus.
        split: ``split.json``.

    Raises:
        ArtifactError: one of them is missing, was edited, or the split was made for other
            questions.
    """
    sides = load_split(split)
    questions = {q.qid: q for q in load_questions(corpus)[0]}
    return (
        select(questions, sides.train, where=str(split)),
        select(questions, sides.test, where=str(split)),
    )


def select(questions: Mapping[str, Question], qids: Sequence[str], *, where: str) -> list[Question]:
    """The questions of these qids, in order. Raises ``ArtifactError`` naming an unknown one."""
    unknown = [qid for qid in qids if qid not in questions]
    if unknown:
        raise ArtifactError(
            f"{where}: {len(unknown):,} questions are not in the corpus (first: {unknown[0]!r}): "
            "it was made for another one. Run `spaniel questions split` again"
        )
    return [questions[qid] for qid in qids]
