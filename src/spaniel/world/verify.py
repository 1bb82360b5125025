"""Checks a question against the facts of its world."""

from spaniel.errors import DataError
from spaniel.types import Question
from spaniel.world.generate import World
from spaniel.world.queries import from_json, only
from spaniel.world.questions import anchors_of, answers_of, contains, describe, leaks


def verify_question(world: World, question: Question) -> None:
    """Derive answer, targets and decomposition again by set algebra and compare.

    Raises:
        DataError: the question's query has no single result, a label differs from what the
            facts give, an anchor is not named or not told from its namesake, or the text
            names an entity on the path or the answer.
    """
    entities, where = world.entities, f"question {question.qid}"
    query = from_json(entities, world.entity_of, question.metadata["query"])
    result, trail = only(world.facts, query)
    targets = tuple(dict.fromkeys(entities.docids[fact.page] for fact in trail))
    _same(where, "targets", targets, question.targets)
    _same(where, "hops", len(targets), question.hops)
    _same(where, "answers", answers_of(entities, query, result), question.answers)
    steps = [describe(entities, fact) for fact in trail]
    _same(where, "decomposition", steps, question.metadata["decomposition"])
    for anchor in anchors_of(query):
        name = entities.names[anchor]
        if entities.is_shared(anchor):
            name = f"{entities.label(anchor)} {name}"
        if not contains(question.text, name):
            raise DataError(f"{where}: the text must name {name!r}: {question.text!r}")
    if leaks(entities, query, trail, question.answers, question.text):
        raise DataError(f"{where}: the text names a hidden entity: {question.text!r}")


def _same(where: str, what: str, want: object, got: object) -> None:
    if want != got:
        raise DataError(f"{where}: {what} must be {want!r} by the facts, got {got!r}")
