from spaniel.questions.titles import title_questions
from spaniel.types import Document


def documents():
    titles = ["Alpha", "Beta", "beta", "", "Gamma", "Delta"]
    return [Document(docid=f"d{i}", title=t, text="x") for i, t in enumerate(titles)]


def test_each_question_names_a_title_that_only_its_target_has():
    questions = title_questions(documents(), 10, seed=1, held_out={"d4"})
    assert {q.targets for q in questions} == {("d0",), ("d5",)}
    assert all(q.hops == 1 for q in questions)
    titles = {"d0": "Alpha", "d5": "Delta"}
    assert all(titles[q.targets[0]] in q.text for q in questions)


def test_the_draw_depends_on_the_seed_alone():
    first = title_questions(documents(), 2, seed=1, held_out=())
    assert first == title_questions(documents(), 2, seed=1, held_out=())
    assert len(first) == 2
