"""Relevance labels in BEIR's three columns or TREC's four."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spaniel.corpus.lines import text_lines
from spaniel.corpus.records import Reading
from spaniel.errors import DataError


@dataclass(slots=True)
class Qrels:
    """Grades by question, in file order."""

    grades: dict[str, dict[str, int]] = field(default_factory=dict)
    """qid -> docid -> grade. Grades above 0 are targets; 0 and below say "judged, not relevant"."""
    qids_by_file: list[set[str]] = field(default_factory=list)
    """Questions named in each file read."""

    def targets(self, qid: str) -> tuple[str, ...]:
        """docids with a grade above 0."""
        return tuple(d for d, grade in self.grades.get(qid, {}).items() if grade > 0)


def read_qrels(paths: Iterable[Path], reading: Reading) -> Qrels:
    """Labels of all files together.

    Rows are ``qid docid grade`` (a header line is skipped) or ``qid iteration docid grade``,
    separated by tabs, or by spaces in a line without tabs. Identical repeats are counted.

    Raises:
        ConfigError: a file is missing.
        DataError: two rows grade one pair differently, whatever ``on_bad`` says; or a row is
            malformed and bad lines are not skipped.
    """
    qrels = Qrels()
    seen: dict[tuple[str, str], str] = {}
    for path in paths:
        named: set[str] = set()
        for where, (qid, docid, grade) in reading.parse_each(_rows(path, reading), _parse_row):
            named.add(qid)
            known = qrels.grades.setdefault(qid, {}).setdefault(docid, grade)
            first = seen.setdefault((qid, docid), where)
            if known != grade:
                raise DataError(
                    f"{where}: question {qid!r} and document {docid!r} have grade {grade}, "
                    f"but grade {known} at {first}: keep one of the two lines"
                )
            if first is not where:
                reading.dropped["repeats of a label"] += 1
        qrels.qids_by_file.append(named)
    return qrels


def _rows(path: Path, reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """Columns of each row, without the header."""
    for number, (where, line) in enumerate(text_lines(path, reading)):
        columns = line.split("\t") if "\t" in line else line.split()
        columns = [c.strip() for c in columns]
        if number == 0 and _grade(columns[-1]) is None:
            continue
        yield where, columns


def _parse_row(columns: list[str], where: str) -> tuple[str, str, int]:
    if len(columns) not in (3, 4):
        raise DataError(
            f"{where}: a label has 3 columns (qid, docid, grade) or TREC's 4, got {len(columns)}"
        )
    qid, docid, grade = columns[0], columns[-2], _grade(columns[-1])
    if not qid or not docid:
        raise DataError(f"{where}: field {'qid' if not qid else 'docid'} must not be empty")
    if grade is None:
        raise DataError(f"{where}: field grade must be a whole number, got {columns[-1]!r}")
    return qid, docid, grade


def _grade(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None
