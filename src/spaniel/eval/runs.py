"""TREC files, so that any other tool can check the numbers.

    run    qid Q0 docid rank score tag      ranks from 1, scores strictly falling
    qrels  qid 0 docid grade

Tools break ties of the score in different ways, and some ignore the rank: strictly falling
scores make them agree.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from spaniel.env.aliases import UNKNOWN
from spaniel.errors import ArtifactError, DataError
from spaniel.progress import say
from spaniel.store import write_text


def write_run(path: Path, lists: Mapping[str, Sequence[str]], *, tag: str) -> int:
    """Write ranked lists as a run file; returns how many lines.

    A question with an empty list has no line. Ids that hold whitespace (file names do), and
    what follows ``unknown:``, which is text of the policy, are percent-escaped.

    Raises:
        DataError: an id is empty, the tag is empty or holds whitespace, or a docid occurs
            twice in a list.
    """
    _check_column(tag, "the tag of a run")
    lines = []
    for qid, docids in lists.items():
        qid = _id_column(qid)
        columns = [_id_column(docid) for docid in docids]
        if len(set(columns)) < len(columns):
            raise DataError(f"run {tag}: question {qid} must list each docid once")
        for rank, docid in enumerate(columns, start=1):
            lines.append(f"{qid} Q0 {docid} {rank} {len(columns) - rank + 1} {tag}\n")
    write_text(path, "".join(lines))
    return len(lines)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """``{qid: {docid: score}}`` of a run file; see ``metrics.ranked`` for the order.

    Raises:
        ArtifactError: the file is missing.
        DataError: a line has not six columns, a score is not a finite number, or a docid
            occurs twice for a question; the message names the line.
    """
    run: dict[str, dict[str, float]] = {}
    for number, (qid, _, docid, _, text, _) in _rows(path, 6):
        scores = run.setdefault(qid, {})
        if docid in scores:
            raise DataError(f"{path}:{number}: {docid} occurs twice for question {qid}")
        scores[docid] = _score(text, f"{path}:{number}")
    return run


def write_qrels(path: Path, targets: Mapping[str, Collection[str]]) -> int:
    """Write each question's targets with grade 1; returns how many lines.

    Raises:
        DataError: a qid or docid is empty.
    """
    lines = []
    for qid, docids in targets.items():
        qid = _id_column(qid)
        for docid in dict.fromkeys(docids):
            docid = _id_column(docid)
            lines.append(f"{qid} 0 {docid} 1\n")
    write_text(path, "".join(lines))
    return len(lines)


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """``{qid: {docid: grade}}`` of a qrels file. Repeated equal lines are dropped and counted.

    Raises:
        ArtifactError: the file is missing.
        DataError: a line has not four columns, a grade is not an integer, or a document
            has two grades; the message names the lines.
    """
    qrels: dict[str, dict[str, int]] = {}
    seen_at: dict[tuple[str, str], int] = {}
    num_repeated = 0
    for number, (qid, _, docid, text) in _rows(path, 4):
        try:
            grade = int(text)
        except ValueError:
            raise DataError(f"{path}:{number}: grade must be an integer, got {text!r}") from None
        first = seen_at.setdefault((qid, docid), number)
        if first != number:
            num_repeated += 1
        if qrels.setdefault(qid, {}).setdefault(docid, grade) != grade:
            raise DataError(f"{path}:{number}: {qid} {docid} has another grade on line {first}")
    if num_repeated:
        say(f"{path}: {num_repeated} repeated judgements dropped")
    return qrels


def _rows(path: Path, num_columns: int) -> Iterator[tuple[int, list[str]]]:
    if not path.exists():
        raise ArtifactError(f"{path} is missing")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # Bytes split at ASCII whitespace only, as trec_eval does: tabs and spaces alike.
            columns = line.split()
            if columns and len(columns) != num_columns:
                raise DataError(
                    f"{path}:{number}: must have {num_columns} columns, got {len(columns)}"
                )
            if columns:
                try:
                    yield number, [column.decode() for column in columns]
                except UnicodeDecodeError:
                    raise DataError(f"{path}:{number}: must be UTF-8") from None


def _score(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: score must be a finite number, got {text!r}")
    return value


def _id_column(identifier: str) -> str:
    """An id without whitespace as it is; others, such as file names, percent-escaped."""
    if not identifier:
        raise DataError("an id in a run or qrels file must not be empty")
    if identifier.startswith(UNKNOWN):
        return UNKNOWN + quote(identifier.removeprefix(UNKNOWN), safe="", errors="surrogatepass")
    return identifier if identifier.split() == [identifier] else quote(identifier, safe="/")


def _check_column(text: str, what: str) -> None:
    if text.split() != [text]:
        raise DataError(f"{what} must be non-empty and hold no whitespace, got {text!r}")
