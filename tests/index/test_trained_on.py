import pytest

from spaniel.errors import ArtifactError
from spaniel.index.trained_on import refuse_if_trained_on, write_trained_on
from spaniel.types import Question


def question(qid, text):
    return Question(qid=qid, text=text)


def test_a_model_is_refused_for_questions_it_learned_from(tmp_path):
    write_trained_on(tmp_path, [question("a", "Who is it?"), question("b", "Where?")])
    refuse_if_trained_on(str(tmp_path), [question("a", "Another")])
    with pytest.raises(ArtifactError, match="trained on 1 of the held-out questions"):
        refuse_if_trained_on(str(tmp_path), [question("y", "When?"), question("x", "who IS it?")])


def test_what_it_started_from_counts(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
    write_trained_on(first, [question("a", "Who?")])
    write_trained_on(second, [question("b", "Where?")], started_from=str(first))
    for text in ("Who?", "Where?"):
        with pytest.raises(ArtifactError):
            refuse_if_trained_on(str(second), [question("q", text)])


def test_a_model_without_a_note_passes(tmp_path):
    refuse_if_trained_on(str(tmp_path), [question("a", "Who?")])
    refuse_if_trained_on("some/model-of-the-hub", [question("a", "Who?")])
