"""Which questions a model learned from: nobody may measure it on those.

``trained_on.json`` lies beside the weights, so that the check holds wherever the model is used:
in another run, under another split, or as the start of another training.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from spaniel.corpus.encoder import model_path
from spaniel.corpus.normalise import text_key
from spaniel.errors import ArtifactError
from spaniel.store import read_json, write_json
from spaniel.types import Question

TRAINED_ON = "trained_on.json"


def write_trained_on(
    directory: Path, questions: Iterable[Question], *, started_from: str | None = None
) -> None:
    """Note the questions in a model's directory, and those that the model it started from knew."""
    known = {_key(question) for question in questions}
    if started_from is not None:
        known |= _known(started_from)
    write_json(directory / TRAINED_ON, sorted(known))


def refuse_if_trained_on(model: str, questions: Iterable[Question]) -> None:
    """Raise ``ArtifactError`` when a model learned from one of the questions.

    Args:
        model: name or path; one without a note, such as one from the hub, passes.
    """
    known = _known(model)
    seen = [question.qid for question in questions if _key(question) in known]
    if seen:
        raise ArtifactError(
            f"{model} was trained on {len(seen):,} of the held-out questions (first: {seen[0]!r}): "
            "train it again with this split"
        )


def _known(model: str) -> set[str]:
    path = Path(model_path(model)) / TRAINED_ON
    return set(read_json(path)) if path.exists() else set()


def _key(question: Question) -> str:
    # Texts, not ids: two corpora may both have a question "q1".
    return hashlib.sha256(text_key(question.text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
