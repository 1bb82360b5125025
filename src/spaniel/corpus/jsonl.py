"""JSON lines in Spaniel's own field names."""

from pathlib import Path
from typing import Any

from spaniel.config import JsonlSource
from spaniel.corpus.fields import checked_document, checked_question, object_at
from spaniel.corpus.lines import json_lines
from spaniel.corpus.records import Found, GivenSplit, Reading
from spaniel.errors import DataError
from spaniel.progress import track
from spaniel.store import from_plain
from spaniel.types import Document, Question

SPLITS = ("train", "test")


def read_jsonl(source: JsonlSource, reading: Reading) -> Found:
    """Documents, and questions where a file of them is named.

    Raises:
        ConfigError: a file is missing.
        DataError: a line is bad and bad lines are not skipped.
    """
    rows = track(json_lines(source.corpus, reading), "read corpus", None, "documents")
    found = Found(documents=reading.unique_documents(reading.parse_each(rows, _parse_document)))
    if source.questions is not None:
        found.questions, found.given_split = read_question_file(source.questions, reading)
    return found


def read_question_file(path: Path, reading: Reading) -> tuple[list[Question], GivenSplit | None]:
    """Questions of a JSON-lines file, and their split where the lines carry a ``split`` field.

    Raises:
        DataError: some lines have a ``split`` and others do not; or a line is bad and bad
            lines are not skipped.
    """
    splits: GivenSplit = {}

    def parse(data: Any, where: str) -> Question:
        data = dict(object_at(data, where))
        split = data.pop("split", None)
        question = checked_question(from_plain(Question, data, where=where), where)
        if split is not None:
            if split not in SPLITS:
                raise DataError(f"{where}: field split must be 'train' or 'test', got {split!r}")
            if splits.setdefault(question.qid, split) != split:
                raise DataError(f"{where}: field split: {question.qid!r} is in train and in test")
        return question

    rows = json_lines(path, reading)
    questions = reading.unique_questions(reading.parse_each(rows, parse))
    without = [q.qid for q in questions if q.qid not in splits]
    if splits and without:
        raise DataError(
            f"{path}: {len(without):,} questions have no split field and {len(splits):,} have one "
            f"(first without: {without[0]!r}): give it to all or to none"
        )
    return questions, splits or None


def _parse_document(data: Any, where: str) -> Document:
    return checked_document(from_plain(Document, data, where=where), where)
