"""The BEIR folder layout (https://arxiv.org/abs/2104.08663)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spaniel.config import BeirSource
from spaniel.corpus.fields import (
    checked_document,
    checked_question,
    object_at,
    string_at,
    strings_at,
    whole_at,
)
from spaniel.corpus.lines import json_lines
from spaniel.corpus.qrels import Qrels, read_qrels
from spaniel.corpus.records import Found, GivenSplit, Reading
from spaniel.errors import ConfigError, DataError
from spaniel.progress import track
from spaniel.types import Document, Question


def read_beir(source: BeirSource, reading: Reading) -> Found:
    """Documents of ``corpus.jsonl`` and the questions that ``qrels/<split>.tsv`` label.

    One file named for both splits gives no split: the questions are divided later. A question
    that both files label is held out.

    Raises:
        ConfigError: the folder or a file is missing.
        DataError: labels contradict each other, or none belongs to a question.
    """
    splits = list(dict.fromkeys((source.train_split, source.test_split)))
    qrels = read_qrels([_qrels_path(source.path, split) for split in splits], reading)
    rows = track(
        json_lines(source.path / "corpus.jsonl", reading), "read corpus", None, "documents"
    )
    documents = reading.unique_documents(reading.parse_each(rows, _parse_document))
    queries = json_lines(source.path / "queries.jsonl", reading)
    questions = reading.unique_questions(reading.parse_each(queries, _parse_question))
    labelled = [
        replace(q, targets=qrels.targets(q.qid)) for q in questions if q.qid in qrels.grades
    ]
    _count_unknown(questions, labelled, qrels, reading, source)
    return Found(documents=documents, questions=labelled, given_split=_split(labelled, qrels))


def _qrels_path(folder: Path, split: str) -> Path:
    path = folder / "qrels" / f"{split}.tsv"
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.tsv"))
        raise ConfigError(
            f"{path}: no such file; label files there: {', '.join(there) or 'none'}. Set "
            f"corpus.source.train_split and corpus.source.test_split to two of them, or both to one"
        )
    return path


def _parse_document(data: Any, where: str) -> Document:
    data = object_at(data, where)
    metadata = object_at(data.get("metadata") or {}, f"{where}: field metadata")
    document = Document(
        docid=string_at(data, "_id", where),
        title=string_at(data, "title", where, default=""),
        text=string_at(data, "text", where),
        url=string_at(metadata, "url", f"{where}: field metadata", default=""),
        metadata={k: v for k, v in metadata.items() if k != "url"},
    )
    return checked_document(document, where, "_id")


def _parse_question(data: Any, where: str) -> Question:
    data = object_at(data, where)
    inner = f"{where}: field metadata"
    metadata = object_at(data.get("metadata") or {}, inner)
    question = Question(
        qid=string_at(data, "_id", where),
        text=string_at(data, "text", where),
        answers=strings_at(metadata, "answers", inner),
        hops=whole_at(metadata, "hops", inner),
        kind=string_at(metadata, "type", inner, default=""),
        metadata={k: v for k, v in metadata.items() if k not in {"answers", "hops", "type"}},
    )
    return checked_question(question, where, "_id")


def _count_unknown(
    questions: list[Question],
    labelled: list[Question],
    qrels: Qrels,
    reading: Reading,
    source: BeirSource,
) -> None:
    known = {q.qid for q in questions}
    unknown = sum(len(rows) for qid, rows in qrels.grades.items() if qid not in known)
    if unknown:
        reading.dropped["labels of unknown questions"] += unknown
    if not labelled:
        raise DataError(
            f"{source.path / 'qrels'}: no label belongs to a question of queries.jsonl "
            f"({unknown:,} rows): the files are of different versions"
        )


def _split(labelled: list[Question], qrels: Qrels) -> GivenSplit | None:
    if len(qrels.qids_by_file) == 1:
        return None
    held_out = qrels.qids_by_file[1]
    return {q.qid: "test" if q.qid in held_out else "train" for q in labelled}
