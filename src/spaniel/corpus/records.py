"""What a reader hands on: documents, questions, and what was wrong with the files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from spaniel.errors import DataError
from spaniel.types import Document, Question

R = TypeVar("R")
MAX_BAD_LINES_KEPT = 20

GivenSplit = dict[str, str]
"""qid -> ``"train"`` or ``"test"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What reading found and what it left out."""

    source: str
    """``type`` of the source."""
    num_documents: int
    num_questions: int
    num_unlabelled_questions: int = 0
    """Questions without a target inside the corpus."""
    num_bad: int = 0
    """Bad lines, items or files that were skipped."""
    bad: tuple[str, ...] = ()
    """The first of them, as ``file:line: field ...``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Counts of what was left out for another reason, by reason in words."""
    max_recall: float | None = None
    """Highest recall a perfect agent can reach against the labels as published: macro mean
    over labelled questions of the share of their targets inside the corpus. None without labels."""

    def lines(self) -> list[str]:
        """The report for a person, most important first."""
        lines = [
            f"read {self.num_documents:,} documents and {self.num_questions:,} questions "
            f"({self.num_unlabelled_questions:,} without targets)"
        ]
        if self.num_bad:
            lines.append(f"skipped {self.num_bad:,} bad lines; the first: {self.bad[0]}")
        if self.dropped:
            parts = (f"{count:,} {reason}" for reason, count in self.dropped.items())
            lines.append("left out: " + ", ".join(parts))
        if self.max_recall is not None and self.max_recall < 1:
            lines.append(f"labels point outside the corpus: recall cannot exceed {self.max_recall}")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A corpus with its questions. docids are unique, and so are qids."""

    documents: tuple[Document, ...]
    """In source order, which decides what is canonical when documents merge."""
    questions: tuple[Question, ...]
    """Every target is a document. A label outside the corpus is kept, out of the way, under
    ``metadata["targets_outside_corpus"]``."""
    given_split: GivenSplit | None
    """The source's own split of all questions, if it brings one."""
    report: ReadReport


@dataclass(slots=True, kw_only=True)
class Found:
    """What one reader found, before labels are checked against the corpus."""

    documents: list[Document] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    given_split: GivenSplit | None = None


class Reading:
    """The running account of one read: what a bad line does, and what was left out."""

    def __init__(self, on_bad: Literal["stop", "skip"]) -> None:
        self.on_bad = on_bad
        self.num_bad = 0
        self.bad_lines: list[str] = []
        self.dropped: Counter[str] = Counter()

    def bad(self, error: DataError) -> None:
        """Report a bad line: raised under ``stop``, counted under ``skip``."""
        if self.on_bad == "stop":
            raise DataError(f'{error}. Mend it, or set corpus.on_bad = "skip"') from error
        self.num_bad += 1
        if len(self.bad_lines) < MAX_BAD_LINES_KEPT:
            self.bad_lines.append(str(error))

    def parse_each(
        self, rows: Iterable[tuple[str, Any]], parse: Callable[[Any, str], R]
    ) -> Iterator[tuple[str, R]]:
        """(where, ``parse(row, where)``) of each row that parses; the others are reported."""
        for where, row in rows:
            try:
                record = parse(row, where)
            except DataError as error:
                self.bad(error)
            else:
                yield where, record

    def unique_documents(self, rows: Iterable[tuple[str, Document]]) -> list[Document]:
        """Each docid once. An identical repeat is dropped; another text under it is bad."""
        return self._unique(rows, "docid", lambda d: d.docid, lambda d: (d.title, d.text))

    def unique_questions(self, rows: Iterable[tuple[str, Question]]) -> list[Question]:
        """Each qid once. An identical repeat is dropped; another question under it is bad."""
        return self._unique(rows, "qid", lambda q: q.qid, lambda q: (q.text, set(q.targets)))

    def _unique(
        self,
        rows: Iterable[tuple[str, R]],
        name: str,
        key: Callable[[R], str],
        content: Callable[[R], Any],
    ) -> list[R]:
        first: dict[str, tuple[str, R]] = {}
        for where, record in rows:
            known = first.setdefault(key(record), (where, record))
            if known[1] is record:
                continue
            if content(known[1]) == content(record):
                self.dropped[f"repeats of a {name}"] += 1
            else:
                self.bad(
                    DataError(
                        f"{where}: field {name}: {key(record)!r} already stands at {known[0]} "
                        f"with other content"
                    )
                )
        return [record for _, record in first.values()]
