"""The classical systems of the table: one query, one ranked list, on the same questions."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spaniel.errors import ConfigError
from spaniel.index.engine import SearchEngine
from spaniel.index.hard_negatives import query_of
from spaniel.index.lexical import LexicalEngine
from spaniel.index.rerank import RerankedEngine
from spaniel.types import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """What one system returned."""

    lists: Mapping[str, Sequence[str]]
    """qid -> docids, best first; empty when nothing matched."""
    latency_s: Mapping[str, float]
    """qid -> seconds of its search."""
    made_by: dict[str, Any] = field(default_factory=dict)


def bm25_lists(engine: LexicalEngine, questions: Sequence[Question], k: int) -> Lists:
    """Plain BM25 over title and text, the question's words as the query."""
    found, seconds = {}, {}
    for question in questions:
        started = time.perf_counter()
        hits = engine.search_view("document", query_of(question), k)
        seconds[question.qid] = time.perf_counter() - started
        found[question.qid] = [hit.docid for hit in hits]
    return Lists(lists=found, latency_s=seconds, made_by={"engine": engine.fingerprint})


def searched_lists(engine: SearchEngine, questions: Sequence[Question], k: int) -> Lists:
    """Every question as one query to an engine, one at a time, as a user would wait for it."""
    found, seconds = {}, {}
    for question in questions:
        started = time.perf_counter()
        hits = engine.search(query_of(question), k)
        seconds[question.qid] = time.perf_counter() - started
        found[question.qid] = [hit.docid for hit in hits]
    return Lists(lists=found, latency_s=seconds, made_by={"engine": engine.fingerprint})


def tuned_reranker(
    engine: SearchEngine,
    questions: Sequence[Question],
    directory: Path,
    *,
    candidates: int,
    seed: int,
) -> RerankedEngine:
    """The engine's hits in the order of a reranker tuned on the training questions; with no
    questions, or none that could teach it, an untuned one.

    Late interaction on MiniLM, not a cross-encoder: with a few hundred questions a
    cross-encoder from these weights ranked worse than the vectors alone.
    """
    from spaniel.index.late_interaction import LateInteraction, train_reranker

    try:
        reranker = train_reranker(questions, engine, directory, candidates=candidates, seed=seed)
    except ConfigError:
        reranker = LateInteraction()
    return RerankedEngine(engine, reranker, candidates)
