"""Documents and questions in, from whatever source a recipe names."""

from collections.abc import Callable
from dataclasses import replace

from spaniel.config import (
    BeirSource,
    CorpusConfig,
    FolderSource,
    HuggingFaceSource,
    JsonlSource,
    NativeSource,
    Source,
    WorldSource,
)
from spaniel.corpus.beir import read_beir
from spaniel.corpus.folder import read_folder
from spaniel.corpus.huggingface import read_huggingface
from spaniel.corpus.jsonl import read_jsonl
from spaniel.corpus.links import clean_links
from spaniel.corpus.native import read_native
from spaniel.corpus.records import Found, Labelled, Reading, ReadReport
from spaniel.errors import DataError
from spaniel.types import Document, Question

OUTSIDE = "targets_outside_corpus"
"""Key of a question's metadata: its labels that no document answers to."""


def read_corpus(cfg: CorpusConfig) -> Labelled:
    """Read the source of a recipe and check its labels against its documents.

    A label outside the corpus cannot be found by any agent: it is taken out of the targets,
    kept in the question's metadata and counted, and ``report.max_recall`` says how much recall
    against the published labels is left.

    Raises:
        ConfigError: a file, folder, data set or library is missing.
        DataError: a line is bad (``on_bad="stop"``), labels contradict each other, the corpus
            is empty, or more than half of the labels point outside it.
    """
    reading = Reading(cfg.on_bad)
    found = _read(cfg.source, reading)
    if not found.documents:
        raise DataError(f"the {cfg.source.type} source holds no usable document")
    known = frozenset(d.docid for d in found.documents)
    documents = tuple(_with_links_inside(d, known, reading) for d in found.documents)
    questions, max_recall = _with_targets_inside(found.questions, known, reading)
    report = ReadReport(
        source=cfg.source.type,
        num_documents=len(documents),
        num_questions=len(questions),
        num_unlabelled_questions=sum(1 for q in questions if not q.targets),
        num_bad=reading.num_bad,
        bad=tuple(reading.bad_lines),
        dropped=dict(reading.dropped),
        max_recall=max_recall,
    )
    given = found.given_split
    return Labelled(
        documents=documents,
        questions=questions,
        given_split=None if given is None else {q.qid: given[q.qid] for q in questions},
        report=report,
    )


def _read(source: Source, reading: Reading) -> Found:
    readers: dict[type, Callable[..., Found]] = {
        WorldSource: _read_world,
        BeirSource: read_beir,
        JsonlSource: read_jsonl,
        NativeSource: read_native,
        FolderSource: read_folder,
        HuggingFaceSource: read_huggingface,
    }
    return readers[type(source)](source, reading)


def _read_world(source: WorldSource, reading: Reading) -> Found:
    # Imported late: a run over one's own documents needs no generator.
    from spaniel.world import generate_world, sided_questions

    world = generate_world(source.pages, source.seed)
    questions, sides = sided_questions(
        world,
        source.questions,
        seed=source.seed,
        min_hops=source.min_hops,
        max_hops=source.max_hops,
        test_frac=source.test_frac,
        kinds=source.kinds,
    )
    return Found(documents=list(world.documents()), questions=questions, given_split=sides)


def _with_links_inside(document: Document, known: frozenset[str], reading: Reading) -> Document:
    links = clean_links(document.docid, document.links, known)
    if links == document.links:
        return document
    outside = sum(1 for link in document.links if link not in known)
    if outside:
        reading.dropped["links outside the corpus"] += outside
    return replace(document, links=links)


def _with_targets_inside(
    questions: list[Question], known: frozenset[str], reading: Reading
) -> tuple[tuple[Question, ...], float | None]:
    """Questions with attainable targets only, and the highest macro recall attainable."""
    num_labels = num_outside = 0
    attainable: list[float] = []
    checked = []
    for question in questions:
        wanted = tuple(dict.fromkeys(question.targets))
        inside = tuple(d for d in wanted if d in known)
        if wanted:
            attainable.append(len(inside) / len(wanted))
        num_labels += len(wanted)
        num_outside += len(wanted) - len(inside)
        if len(inside) < len(wanted):
            outside = [d for d in wanted if d not in known]
            question = replace(question, metadata={**question.metadata, OUTSIDE: outside})
        checked.append(replace(question, targets=inside))
    if 2 * num_outside > num_labels:
        first = next(q.metadata[OUTSIDE][0] for q in checked if OUTSIDE in q.metadata)
        raise DataError(
            f"{num_outside:,} of {num_labels:,} labels point outside the corpus (the first: "
            f"{first!r}): labels and corpus are of different versions"
        )
    if num_outside:
        reading.dropped["labels outside the corpus"] += num_outside
    return tuple(checked), sum(attainable) / len(attainable) if attainable else None
