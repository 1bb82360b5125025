"""Data sets of the hub's library, from local copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from spaniel.config import CorpusConfig, HuggingFaceSource
from spaniel.corpus.read import read_corpus
from spaniel.corpus.records import Labelled
from spaniel.errors import ConfigError, DataError

datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")

DOCUMENTS = [
    {"_id": 1, "title": "One", "text": "text one"},
    {"_id": 2, "title": None, "text": "text two"},
]
QUESTIONS = [
    {"_id": "q1", "text": "one?", "targets": [1], "answers": ["1"]},
    {"_id": "q2", "text": "two?", "targets": [2, 1], "answers": []},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def read(corpus: Path | str, questions: Path | str | None = None, **more: Any) -> Labelled:
    asked = None if questions is None else str(questions)
    source = HuggingFaceSource(corpus=str(corpus), questions=asked, **more)
    return read_corpus(CorpusConfig(source=source))


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    datasets.Dataset.from_list(DOCUMENTS).save_to_disk(tmp_path / "c")
    both = {"train": QUESTIONS[:1], "validation": QUESTIONS[1:]}
    saved = {name: datasets.Dataset.from_list(rows) for name, rows in both.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "q")
    labelled = read(tmp_path / "c", tmp_path / "q", questions_test_split="validation")
    assert [(d.docid, d.title) for d in labelled.documents] == [("1", "One"), ("2", "")]
    assert {q.qid: q.targets for q in labelled.questions} == {"q1": ("1",), "q2": ("2", "1")}
    assert labelled.questions[0].answers == ("1",)
    assert labelled.given_split == {"q1": "train", "q2": "test"}


def test_folders_and_files_of_parquet_and_json_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    datasets.Dataset.from_list(DOCUMENTS).to_parquet(tmp_path / "c" / "train.parquet")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    labelled = read(tmp_path / "c", questions)
    assert labelled == read(tmp_path / "c" / "train.parquet", questions)
    assert [q.targets for q in labelled.questions] == [("1",), ("2", "1")]
    assert labelled.given_split is None


def test_a_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    datasets.Dataset.from_list(DOCUMENTS).save_to_disk(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"no column 'body'; columns are _id, title, text"):
        read(tmp_path / "c", text_field="body")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": 3, "title": "", "text": ""}, "row 2: field text must not be empty"),
        ({"_id": None, "title": "", "text": "t"}, "row 2: field _id must be a string or a whole"),
    ],
)
def test_a_bad_row_is_reported(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    datasets.Dataset.from_list([*DOCUMENTS, row]).save_to_disk(tmp_path / "c")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "c")


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    datasets.DatasetDict(train=datasets.Dataset.from_list(DOCUMENTS)).save_to_disk(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"cannot load data set .*split 'dev'"):
        read(tmp_path / "c", corpus_split="dev")
    (tmp_path / "c.xml").write_text("<a/>")
    with pytest.raises(ConfigError, match=r"must be one of \.parquet"):
        read(tmp_path / "c.xml")
