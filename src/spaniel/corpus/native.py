"""MuSiQue, HotpotQA and 2WikiMultihopQA as their authors publish them.

The corpus is the union of the questions' paragraphs. Paragraphs with one title and two texts
are two documents, so a docid is a hash of title and text and is the same in every file.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spaniel.config import NativeSource
from spaniel.corpus.fields import checked_question, list_at, object_at, string_at, strings_at
from spaniel.corpus.lines import json_items
from spaniel.corpus.records import Found, Reading
from spaniel.errors import DataError
from spaniel.progress import track
from spaniel.types import Document, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One question with its own paragraphs."""

    question: Question
    paragraphs: tuple[Document, ...]
    num_empty: int
    """Paragraphs without text, left out."""


def read_native(source: NativeSource, reading: Reading) -> Found:
    """Questions of all files, and their paragraphs as the corpus.

    ``test_paths`` are held out. MuSiQue's unanswerable questions are left out (they share
    their qid with the answerable twin), their paragraphs are kept.

    Raises:
        ConfigError: a file is missing.
        DataError: an item is bad and bad lines are not skipped.
    """
    parse = _parse_musique if source.type == "musique" else _parse_hotpot
    found = Found(given_split={} if source.test_paths else None)
    documents: dict[str, Document] = {}
    rows: list[tuple[str, Question]] = []
    for split, paths in (("train", source.paths), ("test", source.test_paths)):
        for where, item in _items(paths, parse, reading):
            documents.update((d.docid, d) for d in item.paragraphs if d.docid not in documents)
            if item.num_empty:
                reading.dropped["empty paragraphs"] += item.num_empty
            if item.question.metadata.get("answerable") is False:
                reading.dropped["unanswerable questions"] += 1
                continue
            rows.append((where, item.question))
            if found.given_split is not None:
                found.given_split[item.question.qid] = split
    found.documents, found.questions = list(documents.values()), reading.unique_questions(rows)
    return found


def paragraph_docid(title: str, text: str) -> str:
    """Stable docid of a paragraph: 16 hex digits of SHA-256 over title and text."""
    return hashlib.sha256(f"{title}\x00{text}".encode()).hexdigest()[:16]


def _items(
    paths: tuple[Path, ...], parse: Callable[[Any, str], _Item], reading: Reading
) -> Iterator[tuple[str, _Item]]:
    for path in paths:
        rows = track(json_items(path, reading), f"read {path.name}", None, "questions")
        yield from reading.parse_each(rows, parse)


def _parse_musique(data: Any, where: str) -> _Item:
    data = object_at(data, where)
    paragraphs, targets = [], []
    for number, entry in enumerate(list_at(data, "paragraphs", where)):
        place = f"{where}: field paragraphs[{number}]"
        entry = object_at(entry, place)
        title = string_at(entry, "title", place, default="")
        document = _document(title, string_at(entry, "paragraph_text", place))
        paragraphs.append(document)
        if entry.get("is_supporting"):
            targets.append(document.docid)
    qid = string_at(data, "id", where)
    answers = (*strings_at(data, "answer", where), *strings_at(data, "answer_aliases", where))
    steps = data.get("question_decomposition") or []
    question = Question(
        qid=qid,
        text=string_at(data, "question", where),
        targets=_once(targets),
        answers=_once(answers),
        hops=len(steps) if isinstance(steps, list) else 0,
        kind=qid.partition("__")[0],
        metadata={k: data[k] for k in ("answerable", "question_decomposition") if k in data},
    )
    return _item(question, paragraphs, where, "id")


def _parse_hotpot(data: Any, where: str) -> _Item:
    """Also the layout of 2WikiMultihopQA."""
    data = object_at(data, where)
    paragraphs = [
        _hotpot_paragraph(entry, f"{where}: field context[{number}]")
        for number, entry in enumerate(list_at(data, "context", where))
    ]
    titles = _supporting_titles(data, where)
    question = Question(
        qid=string_at(data, "_id", where),
        text=string_at(data, "question", where),
        targets=_targets_by_title(titles, paragraphs),
        answers=strings_at(data, "answer", where),
        hops=len(titles),
        kind=string_at(data, "type", where, default=""),
        metadata={k: data[k] for k in ("level", "evidences") if k in data},
    )
    return _item(question, paragraphs, where, "_id")


def _hotpot_paragraph(entry: Any, place: str) -> Document:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        raise DataError(f"{place} must be [title, sentences]")
    title, sentences = entry
    if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
        raise DataError(f"{place}: sentences must be a list of strings")
    # HotpotQA's sentences bring their own leading space, 2WikiMultihopQA's do not.
    return _document(title, "".join(s if s[:1].isspace() else f" {s}" for s in sentences if s))


def _supporting_titles(data: dict[str, Any], where: str) -> tuple[str, ...]:
    """Titles of the supporting paragraphs, each once; none in a file without labels."""
    facts = list_at(data, "supporting_facts", where) if data.get("supporting_facts") else []
    if not all(isinstance(f, list) and f and isinstance(f[0], str) for f in facts):
        raise DataError(f"{where}: field supporting_facts must hold [title, sentence] pairs")
    return _once([f[0] for f in facts])


def _targets_by_title(titles: tuple[str, ...], paragraphs: list[Document]) -> tuple[str, ...]:
    """docids of the question's own paragraphs with these titles.

    Where the file does not give a supporting paragraph (HotpotQA's full-wiki setting), the
    target is ``title:<title>``, which is no docid: it counts as a label outside the corpus.
    """
    targets = []
    for title in titles:
        own = [d.docid for d in paragraphs if d.title == title and d.text]
        targets += own or [f"title:{title}"]
    return _once(targets)


def _document(title: str, text: str) -> Document:
    text = text.strip()
    return Document(docid=paragraph_docid(title, text), title=title, text=text)


def _item(question: Question, paragraphs: list[Document], where: str, id_field: str) -> _Item:
    full = tuple(d for d in paragraphs if d.text)
    return _Item(
        question=checked_question(question, where, id_field),
        paragraphs=full,
        num_empty=len(paragraphs) - len(full),
    )


def _once(values: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
