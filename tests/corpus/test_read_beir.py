"""BEIR folders and label files."""

import json
from pathlib import Path

import pytest

from spaniel.config import BeirSource, CorpusConfig
from spaniel.corpus.read import read_corpus
from spaniel.corpus.records import Labelled
from spaniel.errors import ConfigError, DataError

HEADER = "query-id\tcorpus-id\tscore\n"
DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents d1 to d4 and questions q1 to q3 without labels."""
    documents = [{"_id": f"d{i}", "text": f"text {i}"} for i in range(1, 5)]
    questions = [{"_id": f"q{i}", "text": f"question {i}?"} for i in range(1, 4)]
    for name, rows in (("corpus", documents), ("queries", questions)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "qrels").mkdir()
    return tmp_path


def labels(folder: Path, train: str, dev: str = "q3\td4\t1\n") -> None:
    (folder / "qrels" / "train.tsv").write_text(train)
    (folder / "qrels" / "dev.tsv").write_text(dev)


def read(folder: Path, **more: str) -> Labelled:
    return read_corpus(CorpusConfig(source=BeirSource(path=folder, **more)))


@pytest.mark.parametrize(
    "rows",
    [
        HEADER + "q1\td1\t1\nq2\td2\t1\n",
        "q1\td1\t1\nq2\td2\t1\n",
        "q1 0 d1 1\nq2 0 d2 1\n",
        "q1\t0\td1\t1\r\nq2\t0\td2\t1\r\n",
        "q1  d1   1.0\nq2 d2 2",
    ],
)
def test_label_files_are_read_in_each_usual_form(folder: Path, rows: str) -> None:
    labels(folder, rows)
    labelled = read(folder)
    assert {q.qid: q.targets for q in labelled.questions} == {
        "q1": ("d1",),
        "q2": ("d2",),
        "q3": ("d4",),
    }
    assert labelled.given_split == {"q1": "train", "q2": "train", "q3": "test"}


def test_grade_zero_is_no_target(folder: Path) -> None:
    labels(folder, "q1\td1\t0\nq1\td2\t2\nq1\td3\t-1\n")
    assert read(folder).questions[0].targets == ("d2",)


def test_identical_labels_are_dropped_and_counted(folder: Path) -> None:
    labels(folder, HEADER + "q1\td1\t1\nq1\td1\t1\nq1\td1\t1\n")
    labelled = read(folder)
    assert labelled.questions[0].targets == ("d1",)
    assert labelled.report.dropped == {"repeats of a label": 2}


@pytest.mark.parametrize("on_bad", ["stop", "skip"])
def test_conflicting_grades_name_both_lines(folder: Path, on_bad: str) -> None:
    labels(folder, HEADER + "q1\td1\t1\nq2\td2\t1\nq1\td1\t0\n")
    with pytest.raises(DataError) as error:
        read_corpus(CorpusConfig(source=BeirSource(path=folder), on_bad=on_bad))
    path = folder / "qrels" / "train.tsv"
    assert str(error.value).startswith(f"{path}:4: ")
    assert f"grade 1 at {path}:2" in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("q1\td1", "got 2"),
        ("q1\t0\td1\t1\t5", "got 5"),
        ("q1\td1\thigh", "field grade must be a whole number, got 'high'"),
        ("q1\td1\t0.5", "field grade must be a whole number"),
        ("\td1\t1", "field qid must not be empty"),
    ],
)
def test_a_malformed_label_is_reported_with_its_line(folder: Path, row: str, message: str) -> None:
    labels(folder, f"{HEADER}q1\td2\t1\n{row}\n")
    with pytest.raises(DataError, match=r"train\.tsv:3: ") as error:
        read(folder)
    assert message in str(error.value)


def test_labels_of_unknown_questions_are_counted(folder: Path) -> None:
    labels(folder, "q1\td1\t1\nq8\td1\t1\nq8\td2\t1\nq9\td1\t1\n")
    labelled = read(folder)
    assert [q.qid for q in labelled.questions] == ["q1", "q3"]
    assert labelled.report.dropped == {"labels of unknown questions": 3}


def test_labels_of_unknown_questions_only_are_of_another_version(folder: Path) -> None:
    labels(folder, "x1\td1\t1\n", "x2\td1\t1\n")
    with pytest.raises(DataError, match="no label belongs to a question"):
        read(folder)


def test_a_question_labelled_on_both_sides_is_held_out(folder: Path) -> None:
    labels(folder, "q1\td1\t1\nq3\td3\t1\n", "q3\td4\t1\n")
    labelled = read(folder)
    assert labelled.given_split == {"q1": "train", "q3": "test"}
    assert labelled.questions[1].targets == ("d3", "d4")


def test_one_label_file_for_both_sides_gives_no_split(folder: Path) -> None:
    labels(folder, "q1\td1\t1\n")
    labelled = read(folder, train_split="train", test_split="train")
    assert labelled.given_split is None
    assert [q.qid for q in labelled.questions] == ["q1"]


def test_a_missing_label_file_lists_those_there_are(folder: Path) -> None:
    labels(folder, "q1\td1\t1\n")
    with pytest.raises(ConfigError, match=r"test.tsv: no such file; label files there: dev, train"):
        read(folder, test_split="test")


def test_question_metadata_fills_the_fields_and_keeps_the_rest(folder: Path) -> None:
    metadata = {"answers": ["one", None], "hops": 3, "type": "bridge", "url": "u"}
    row = {"_id": "q1", "text": "who?", "metadata": metadata}
    (folder / "queries.jsonl").write_text(json.dumps(row) + "\n")
    labels(folder, "q1\td1\t1\n", "q1\td2\t1\n")
    question = read(folder).questions[0]
    assert (question.answers, question.hops, question.kind) == (("one",), 3, "bridge")
    assert question.metadata == {"url": "u"}


@pytest.mark.parametrize(
    ("name", "num_documents", "num_train", "num_test"),
    [("2wiki", 11_999, 1_214, 500), ("hotpot", 34_789, 2_317, 300), ("musique", 14_783, 962, 201)],
)
def test_real_folders_are_read_whole(
    name: str, num_documents: int, num_train: int, num_test: int
) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not there")
    labelled = read(DATA / name)
    assert labelled.given_split is not None
    sides = list(labelled.given_split.values())
    assert len(labelled.documents) == num_documents
    assert (sides.count("train"), sides.count("test")) == (num_train, num_test)
    assert labelled.report.max_recall == 1.0
    assert labelled.report.dropped == {}
    assert (
        all(q.targets and q.hops == len(q.targets) for q in labelled.questions) or name != "musique"
    )
