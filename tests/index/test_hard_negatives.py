import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.index.conftest import document

from spaniel.errors import ConfigError, DataError
from spaniel.index.hard_negatives import mine, query_of
from spaniel.types import Hit, Question


class Listed:
    """Finds what it was told to, in that order."""

    def __init__(self, documents, found):
        self.documents = {d.docid: d for d in documents}
        self.found = found

    def search_batch(self, queries, k):
        ranked = [Hit(docid=d, score=1 / r, rank=r) for r, d in enumerate(self.found, start=1)]
        return [ranked[:k] for _ in queries]

    def read_batch(self, docids):
        return [self.documents[docid] for docid in docids]


DOCIDS = [f"d{i}" for i in range(12)]
DOCUMENTS = [document(docid, f"text {docid}") for docid in DOCIDS]


def question(*targets, qid="q", text="which"):
    return Question(qid=qid, text=text, targets=targets)


@given(
    found=st.lists(st.sampled_from(DOCIDS), unique=True),
    targets=st.lists(st.sampled_from(DOCIDS), unique=True, min_size=1),
    candidates=st.integers(1, 12),
)
def test_negatives_are_the_engines_hits_in_order_without_a_target(found, targets, candidates):
    expected = [docid for docid in found[:candidates] if docid not in targets]
    mining = {"held_out": [], "candidates": candidates}
    engine = Listed(DOCUMENTS, found)
    if not expected:
        with pytest.raises(ConfigError, match="no training question"):
            mine([question(*targets)], engine, **mining)
        return
    (lesson,) = mine([question(*targets)], engine, **mining)
    assert [hit.docid for hit in lesson.negatives] == expected
    assert [hit.docid for hit in lesson.found] == [d for d in found[:candidates] if d in targets]
    assert all(found[hit.rank - 1] == hit.docid for hit in lesson.negatives + lesson.found)
    assert lesson.targets == tuple(targets)


def test_a_copy_of_a_target_or_of_another_negative_is_no_negative():
    documents = [
        document("target", "The Same  text"),
        document("copy", "the same text", title="Another title"),
        document("other", "something else"),
        document("twin", "Something else"),
        document("empty", ""),
        document("blank", " "),
    ]
    engine = Listed(documents, ["copy", "other", "twin", "empty", "blank"])
    (lesson,) = mine([question("target")], engine, held_out=[], candidates=9)
    assert [hit.docid for hit in lesson.negatives] == ["other", "empty", "blank"]
    (lesson,) = mine([question("empty")], engine, held_out=[], candidates=9)
    assert [hit.docid for hit in lesson.negatives] == ["copy", "other", "blank"]


def test_a_held_out_question_is_refused():
    engine = Listed(DOCUMENTS, DOCIDS)
    with pytest.raises(DataError, match="are held out \\(first: 'q'\\)"):
        mine([question("d1")], engine, held_out=[question("d2", text="other")], candidates=5)


def test_a_question_with_the_text_of_a_held_out_one_is_left_out(capsys):
    engine = Listed(DOCUMENTS, DOCIDS)
    same = question("d1", qid="a", text="Who  is it?")
    other = question("d2", qid="b", text="Where?")
    held = question("d3", qid="c", text="who is it?")
    (lesson,) = mine([same, other], engine, held_out=[held], candidates=5)
    assert lesson.query == "Where?"
    assert "left out 1 questions" in capsys.readouterr().err


def test_questions_without_targets_teach_nothing():
    engine = Listed(DOCUMENTS, DOCIDS)
    lessons = mine([question(), question("d3", qid="b")], engine, held_out=[], candidates=5)
    assert [lesson.targets for lesson in lessons] == [("d3",)]


def test_a_target_outside_the_index_is_named():
    with pytest.raises(DataError, match="target 'gone' of question 'q' is not in the index"):
        mine([question("gone")], Listed(DOCUMENTS, DOCIDS), held_out=[], candidates=5)


def test_draws_follow_the_generator_and_never_repeat():
    (lesson,) = mine([question("d3")], Listed(DOCUMENTS, DOCIDS), held_out=[], candidates=12)
    drawn = lesson.draw(5, random.Random(1))
    assert drawn == lesson.draw(5, random.Random(1)) != lesson.draw(5, random.Random(2))
    assert len({hit.docid for hit in drawn}) == 5
    assert sorted(h.docid for h in lesson.draw(99, random.Random(1))) == sorted(
        set(DOCIDS) - {"d3"}
    )


def test_a_quoted_title_is_words():
    assert query_of(question(text='who wrote "Emma"?')) == "who wrote  Emma ?"
