"""MuSiQue, HotpotQA and 2WikiMultihopQA files."""

import json
from pathlib import Path
from typing import Any

import pytest

from spaniel.config import CorpusConfig, NativeSource
from spaniel.corpus.native import paragraph_docid
from spaniel.corpus.read import OUTSIDE, read_corpus
from spaniel.corpus.records import Labelled
from spaniel.errors import DataError

NATIVE = Path(__file__).parents[2].parent / "shared" / "data" / "native"


def musique(qid: str, *paragraphs: tuple[str, str, bool], **more: Any) -> dict[str, Any]:
    return {
        "id": qid,
        "question": f"{qid}?",
        "answer": "Stanley",
        "answer_aliases": ["Stanley, ND", "Stanley"],
        "question_decomposition": [{"question": "a"}, {"question": "b"}],
        "paragraphs": [
            {"idx": i, "title": title, "paragraph_text": text, "is_supporting": supporting}
            for i, (title, text, supporting) in enumerate(paragraphs)
        ],
        **more,
    }


def hotpot(qid: str, context: list[Any], *titles: str, **more: Any) -> dict[str, Any]:
    return {
        "_id": qid,
        "question": f"{qid}?",
        "answer": "yes",
        "type": "bridge",
        "context": context,
        "supporting_facts": [[title, 0] for title in titles],
        **more,
    }


def write(path: Path, rows: list[Any], *, array: bool = False) -> Path:
    text = json.dumps(rows) if array else "".join(json.dumps(r) + "\n" for r in rows)
    path.write_text(text)
    return path


def read(kind: str, *paths: Path, test: tuple[Path, ...] = (), on_bad: str = "stop") -> Labelled:
    source = NativeSource(type=kind, paths=paths, test_paths=test)
    return read_corpus(CorpusConfig(source=source, on_bad=on_bad))


def test_the_corpus_is_the_union_of_the_paragraphs(tmp_path: Path) -> None:
    shared = ("Sahara", "A desert.", False)
    rows = [
        musique("2hop__1_2", shared, ("Oslo", "A city.", True), ("Oslo", "Another text.", True)),
        musique("2hop__3_4", shared, ("Oslo", "A city.", True)),
    ]
    labelled = read("musique", write(tmp_path / "m.jsonl", rows))
    assert [(d.title, d.text) for d in labelled.documents] == [
        ("Sahara", "A desert."),
        ("Oslo", "A city."),
        ("Oslo", "Another text."),
    ]
    first, second = labelled.questions
    city, other = paragraph_docid("Oslo", "A city."), paragraph_docid("Oslo", "Another text.")
    assert first.targets == (city, other)
    assert second.targets == (city,)
    assert first.answers == ("Stanley", "Stanley, ND")
    assert (first.hops, first.kind) == (2, "2hop")


def test_docids_depend_on_content_alone(tmp_path: Path) -> None:
    a, b = ("A", "text a", True), ("B", "text b", True)
    one = read("musique", write(tmp_path / "1.jsonl", [musique("2hop__1", a, b)]))
    two = read("musique", write(tmp_path / "2.jsonl", [musique("2hop__2", b, a)]))
    assert {d.docid: d.title for d in one.documents} == {d.docid: d.title for d in two.documents}
    # SHA-256 of "A", NUL, "text a": the ids must not change between versions.
    assert paragraph_docid("A", "text a") == "26974cf015a2d757"
    assert paragraph_docid("Ab", "c") != paragraph_docid("A", "bc")


def test_unanswerable_twins_are_left_out_and_their_paragraphs_kept(tmp_path: Path) -> None:
    rows = [
        musique("2hop__1", ("A", "text a", True), answerable=True),
        musique("2hop__1", ("B", "text b", False), answerable=False),
    ]
    labelled = read("musique", write(tmp_path / "m.jsonl", rows))
    assert len(labelled.questions) == 1
    assert len(labelled.documents) == 2
    assert labelled.report.dropped == {"unanswerable questions": 1}


def test_files_of_held_out_questions_give_the_split(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [musique("2hop__1", ("A", "text a", True))])
    test = write(tmp_path / "dev.jsonl", [musique("2hop__2", ("B", "text b", True))])
    assert read("musique", train, test=(test,)).given_split == {
        "2hop__1": "train",
        "2hop__2": "test",
    }
    assert read("musique", train, test).given_split is None


@pytest.mark.parametrize("array", [True, False])
def test_sentences_become_one_text_in_both_styles(tmp_path: Path, array: bool) -> None:
    context = [["A", ["One.", " Two."]], ["B", ["One.", "Two."]]]
    path = write(tmp_path / "h.json", [hotpot("q1", context, "A", "B", "A")], array=array)
    labelled = read("hotpot", path)
    assert [d.text for d in labelled.documents] == ["One. Two.", "One. Two."]
    assert labelled.questions[0].targets == tuple(d.docid for d in labelled.documents)
    assert labelled.questions[0].hops == 2


def test_a_supporting_paragraph_that_is_not_given_is_a_label_outside(tmp_path: Path) -> None:
    # Another question's paragraph of that title is not taken for it: it may have another text.
    rows = [
        hotpot("q1", [["A", ["a"]], ["B", ["b"]]], "A", "C"),
        hotpot("q2", [["C", ["c"]]], "C"),
    ]
    labelled = read("2wiki", write(tmp_path / "h.jsonl", rows))
    assert labelled.questions[0].targets == (paragraph_docid("A", "a"),)
    assert labelled.questions[0].metadata[OUTSIDE] == ["title:C"]
    assert labelled.report.max_recall == pytest.approx(0.75)


def test_empty_paragraphs_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [hotpot("q1", [["A", ["a"]], ["B", []], ["C", [""]]], "A")]
    labelled = read("hotpot", write(tmp_path / "h.json", rows, array=True))
    assert [d.title for d in labelled.documents] == ["A"]
    assert labelled.report.dropped == {"empty paragraphs": 2}


def test_a_file_without_labels_gives_unlabelled_questions(tmp_path: Path) -> None:
    row = hotpot("q1", [["A", ["a"]]])
    del row["supporting_facts"], row["answer"]
    question = read("hotpot", write(tmp_path / "h.json", [row], array=True)).questions[0]
    assert (question.targets, question.answers, question.hops) == ((), (), 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (hotpot("q2", [["A", "a"]], "A"), "context[0]: sentences must be a list of strings"),
        (hotpot("q2", [["A"]], "A"), "context[0] must be [title, sentences]"),
        (hotpot("", [["A", ["a"]]], "A"), "field _id must not be empty"),
        (hotpot("q2", {}, "A"), "field context must be a list"),  # type: ignore[arg-type]
        (hotpot("q2", [], supporting_facts=[["A"], 3]), "supporting_facts must hold"),
        ("text", "must hold a JSON object"),
    ],
)
def test_a_bad_item_is_reported_with_its_place(tmp_path: Path, row: Any, message: str) -> None:
    good = hotpot("q1", [["A", ["a"]]], "A")
    path = write(tmp_path / "h.json", [good, row], array=True)
    with pytest.raises(DataError) as error:
        read("hotpot", path)
    assert str(error.value).startswith(f"{path}: item 2: ")
    assert message in str(error.value)
    skipped = read("hotpot", path, on_bad="skip")
    assert [q.qid for q in skipped.questions] == ["q1"]
    assert skipped.report.num_bad == 1


def test_a_broken_array_is_refused_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text('[{"_id": "q1"')
    with pytest.raises(DataError, match=r"h.json: not JSON"):
        read("hotpot", path, on_bad="skip")


@pytest.mark.parametrize(
    ("kind", "name", "questions", "documents", "outside"),
    [
        ("musique", "musique_dev200.jsonl", 60, 986, 0),
        ("2wiki", "2wiki_dev200.jsonl", 60, 496, 0),
        # The full-wiki setting: paragraphs as retrieved, so some supporting ones are missing.
        ("hotpot", "hotpot_dev40.json", 40, 390, 27),
    ],
)
def test_real_files_are_read_whole(
    kind: str, name: str, questions: int, documents: int, outside: int
) -> None:
    if not (NATIVE / name).exists():
        pytest.skip(f"{NATIVE / name} is not there")
    labelled = read(kind, NATIVE / name)
    assert (len(labelled.questions), len(labelled.documents)) == (questions, documents)
    assert labelled.report.dropped.get("labels outside the corpus", 0) == outside
    assert all(q.answers and q.hops >= 2 for q in labelled.questions)
    if not outside:
        assert all(len(q.targets) == q.hops for q in labelled.questions)
