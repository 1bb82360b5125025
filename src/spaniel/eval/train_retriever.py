"""Train a reranker or an encoder on the training questions, and say what the held-out ones gain.

<run>/index/reranker    what ``index.rerank`` takes
<run>/index/encoder     what ``index.encoder`` takes

Each is published whole with its manifest, after it was measured; what stood there before stays
until then. A training that is stopped starts anew: with the settings as they come it takes minutes.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spaniel import __version__
from spaniel.config import RetrieverTrainingConfig
from spaniel.corpus.encoder import Encoder, SentenceEncoder, quiet_transformers
from spaniel.errors import DataError
from spaniel.eval.metrics import score_list
from spaniel.eval.statistics import PairedTest, paired_test
from spaniel.index.cross_encoder import CrossEncoderReranker, save_cross_encoder
from spaniel.index.engine import SearchEngine
from spaniel.index.hard_negatives import Lesson, mine, query_of
from spaniel.index.rerank import RerankedEngine
from spaniel.index.trained_on import refuse_if_trained_on, write_trained_on
from spaniel.index.vectors import text_of
from spaniel.progress import Progress
from spaniel.run import commit
from spaniel.store import hash_records, publish_directory
from spaniel.types import Question
from spaniel.workbench import Workbench

Lists = Mapping[str, Sequence[str]]
"""qid -> docids, best first."""
DEPTH = 100
"""Documents that an encoder is measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One measure on the held-out questions, before and after."""

    measure: str
    before: float
    after: float
    test: PairedTest
    """After minus before."""

    def line(self) -> str:
        """For a person."""
        t = self.test
        verdict = "a real gain" if t.low > 0 else "a loss" if t.high < 0 else "no sure gain"
        return (
            f"{self.measure:<7} on {t.n} held-out questions: {self.before:.3f} -> "
            f"{self.after:.3f}, difference {t.difference:+.3f} [{t.low:+.3f}, {t.high:+.3f}], "
            f"p = {t.p:.3g}: {verdict}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training made."""

    directory: Path
    manifest: dict[str, Any]
    gains: tuple[Gain, ...]


def train_reranker(bench: Workbench) -> Trained:
    """Train the cross-encoder of ``index.train_reranker`` on the hits of ``index.engine``.

    Raises:
        ConfigError: no question teaches anything, or there is no such model.
        DataError: there are no held-out questions with targets.
        ArtifactError: the model it starts from learned from held-out questions.
        TrainingError: the loss is not finite.
    """
    from spaniel.index.train_cross_encoder import train_cross_encoder

    cfg = bench.recipe.index
    training, engine, depth = cfg.train_reranker, bench.first_stage, cfg.rerank_candidates
    held_out, questions, lessons = _lessons(bench, training, engine, depth, "train-reranker")
    started = time.monotonic()
    model, prior, steps = train_cross_encoder(lessons, engine, training)
    facts = {"steps": steps, "prior": prior, "seconds": round(time.monotonic() - started, 1)}

    def finish(partial: Path) -> tuple[Gain, ...]:
        save_cross_encoder(model, prior, partial)
        reranker = CrossEncoderReranker(str(partial), max_tokens=cfg.max_rerank_tokens)
        reranked = RerankedEngine(engine, reranker, depth)
        before, after = (_searched(e, held_out, depth) for e in (engine, reranked))
        return compare(held_out, before, after, ("nDCG@10", "R@10"))

    return _publish(bench, "reranker", training, questions, lessons, held_out, facts, finish)


def train_encoder(bench: Workbench) -> Trained:
    """Fine-tune the sentence encoder of ``index.train_encoder``.

    Raises:
        as ``train_reranker``.
    """
    from spaniel.index.train_encoder import train_encoder as train

    cfg = bench.recipe.index
    training, engine = cfg.train_encoder, bench.first_stage
    held_out, questions, lessons = _lessons(
        bench, training, engine, training.candidates, "train-encoder"
    )
    started = time.monotonic()
    model, steps = train(lessons, engine, training)
    facts = {"steps": steps, "seconds": round(time.monotonic() - started, 1)}

    def finish(partial: Path) -> tuple[Gain, ...]:
        with quiet_transformers():
            model.save_pretrained(str(partial), create_model_card=False)
        pool = _pool(bench, held_out, engine)
        facts["eval_documents"] = len(pool)
        encoders = [
            SentenceEncoder(path, max_tokens=cfg.max_encoder_tokens)
            for path in (training.model, str(partial))
        ]
        before, after = (encoded_lists(e, held_out, pool, engine) for e in encoders)
        return compare(held_out, before, after, ("nDCG@10", "R@10", f"R@{DEPTH}"))

    return _publish(bench, "encoder", training, questions, lessons, held_out, facts, finish)


def compare(
    questions: Sequence[Question], before: Lists, after: Lists, measures: Sequence[str]
) -> tuple[Gain, ...]:
    """What other lists gain on questions with targets.

    Args:
        measures: such as ``nDCG@10`` and ``R@100``.
    """
    found = []
    for measure in measures:
        old, new = (
            [_score(measure, lists[q.qid], q) for q in questions] for lists in (before, after)
        )
        test = paired_test(new, old)
        means = {"before": sum(old) / len(old), "after": sum(new) / len(new)}
        found.append(Gain(measure=measure, test=test, **means))
    return tuple(found)


def encoded_lists(
    encoder: Encoder, questions: Sequence[Question], docids: Sequence[str], engine: SearchEngine
) -> dict[str, list[str]]:
    """The documents nearest to each question, best first, by an encoder alone; ties by docid.

    Args:
        docids: the documents to search among, ascending.
        engine: gives their texts.
    """
    vectors = []
    with Progress("encoding", len(docids), "docs") as progress:
        for begin in range(0, len(docids), 512):
            chunk = docids[begin : begin + 512]
            texts = [text_of(document) for document in engine.read_batch(chunk)]
            vectors.append(encoder.encode_documents(texts))
            progress.advance(len(chunk))
    queries = encoder.encode_queries([query_of(question) for question in questions])
    scores = (queries @ np.concatenate(vectors).T).round(6)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    return {
        question.qid: [docids[i] for i in row]
        for question, row in zip(questions, order, strict=True)
    }


def _lessons(
    bench: Workbench,
    training: RetrieverTrainingConfig,
    engine: SearchEngine,
    candidates: int,
    what: str,
) -> tuple[list[Question], list[Question], list[Lesson]]:
    """(held-out questions, training questions, what these teach)."""
    held_out = [question for question in bench.test_questions if question.targets]
    if not held_out:
        raise DataError("there are no held-out questions with targets: nothing to measure on")
    refuse_if_trained_on(training.model, held_out)
    questions = bench.sample(bench.train_questions, training.num_questions, what)
    lessons = mine(questions, engine, held_out=bench.test_questions, candidates=candidates)
    return held_out, questions, lessons


def _publish(
    bench: Workbench,
    kind: str,
    training: RetrieverTrainingConfig,
    questions: Sequence[Question],
    lessons: Sequence[Lesson],
    held_out: Sequence[Question],
    facts: dict[str, Any],
    finish: Callable[[Path], tuple[Gain, ...]],
) -> Trained:
    directory = bench.run.path("index", kind)
    manifest: dict[str, Any] = {}
    with publish_directory(directory, manifest) as partial:
        found = finish(partial)
        write_trained_on(partial, questions, started_from=training.model)
        manifest |= {
            "kind": kind,
            "settings": training.model_dump(mode="json"),
            "questions": hash_records(questions),
            "num_questions": len(questions),
            "num_lessons": len(lessons),
            "held_out": hash_records(held_out),
            "index": bench.first_stage.fingerprint,
            **facts,
            "gains": [asdict(gain) for gain in found],
            "version": __version__,
            "commit": commit(),
        }
    return Trained(directory=directory, manifest=manifest, gains=found)


def _searched(engine: SearchEngine, questions: Sequence[Question], k: int) -> dict[str, list[str]]:
    lists = {}
    with Progress("measuring", len(questions), "questions") as progress:
        for question in questions:
            lists[question.qid] = [hit.docid for hit in engine.search(query_of(question), k)]
            progress.advance()
    return lists


def _pool(bench: Workbench, held_out: Sequence[Question], engine: SearchEngine) -> list[str]:
    """The documents that encoders are compared on: all, or as many as the settings allow."""
    cfg = bench.recipe.index.train_encoder
    texts = bench.lexical.texts
    docids = [texts.docid(row) for row in range(len(texts))]
    if cfg.eval_documents is None or len(docids) <= cfg.eval_documents:
        return docids
    found = engine.search_batch([query_of(q) for q in held_out], cfg.candidates)
    kept = {docid for question in held_out for docid in question.targets}
    kept |= {hit.docid for hits in found for hit in hits}
    others = [docid for docid in docids if docid not in kept]
    more = random.Random(cfg.seed).sample(others, max(0, cfg.eval_documents - len(kept)))
    return sorted([*kept, *more])


def _score(measure: str, docids: Sequence[str], question: Question) -> float:
    name, _, k = measure.partition("@")
    scores = score_list(docids, question.targets, int(k))
    return scores.ndcg if name == "nDCG" else scores.recall
