"""Ranking quality of every engine on labelled sets: nDCG@10 and R@100, and BM25 against Lucene's.

    python bench/search_quality.py --out bench/results/search_quality.json
        [--sets nfcorpus cranfield musique ...] [--systems document fused dense ...]
        [--max-questions N] [--data FOLDER] [--work FOLDER]

The question's words are the query, its quotation marks dropped. A document is title and text; none
are merged. Relevant is a grade of 1 or more, and measures are those of ``spaniel.eval.metrics``;
``graded nDCG@10`` is trec_eval's, which BEIR's published numbers are, and differs where grades
above 1 exist. Fused lists bring max(50, k) documents a view: nDCG@10 and R@100 come from two
searches. The reranker orders the first 30 of ``dense`` and adds none, so its R@100 is that of
``dense``. A document with the question's own id would be removed from its list, as BEIR does; no
set here has one.

``bm25s-*`` rank the very terms of the document view by bm25s (method lucene, exact document
lengths) with other k1 and b; ``-no-stop-words`` drops stop words from documents too, as Lucene's
analyzer does. On multi-hop sets the fusion is also fitted to 300 training questions and measured
on these (``tuned``). Published numbers of Lucene: Anserini's regression pages, see ``PUBLISHED``.

Needs ``pip install 'spaniel[dense]' bm25s pytrec-eval-terrier``. The results of each set and system
are written when they are there; a second run goes on where the first ended.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from machine import about
from search_data import DATA, MULTI_HOP_SETS, SETS, LabelledSet, load_set

from spaniel.config import IndexConfig
from spaniel.errors import ConfigError
from spaniel.eval.metrics import score_list
from spaniel.eval.statistics import bootstrap_interval, paired_test
from spaniel.eval.tune import tune_fusion
from spaniel.index.analysis import Analyzer
from spaniel.index.backend import VIEWS
from spaniel.index.build import build_index, open_index
from spaniel.progress import say
from spaniel.types import Document, Question

BM25S = {
    "bm25s-1.2-0.75": (1.2, 0.75, False),
    "bm25s-0.9-0.4": (0.9, 0.4, False),
    "bm25s-0.9-0.4-no-stop-words": (0.9, 0.4, True),
}
"""k1, b, whether stop words are dropped from documents."""
SYSTEMS = (*VIEWS, "fused", *BM25S, "dense", "hybrid", "reranked")
LEXICAL = (*VIEWS, "fused")
RERANKED = 30
TUNING = 300
"""Training questions that a fusion is fitted to."""
SETTINGS = (
    *("language", "passage_words", "passage_stride_words", "rank_constant"),
    *("weight_document", "weight_passage", "weight_title", "encoder", "max_encoder_tokens"),
)
"""Of the index, at their defaults."""

PUBLISHED = {
    "nfcorpus": {
        "flat": {"nDCG@10": 0.3218, "R@100": 0.2457},
        "multifield": {"nDCG@10": 0.3254, "R@100": 0.2500},
    },
    "scifact": {"flat": {"nDCG@10": 0.6789, "R@100": 0.9253}},
}
"""Lucene's BM25 with k1 0.9 and b 0.4: docs/regressions/regressions-beir-v1.0.0-<set>.flat.md and
.multifield.md of https://github.com/castorini/anserini."""

Search = Callable[[str, int], list[str]]
"""(query, k) -> docids, best first."""


class Engines:
    """The engines over one set, each made when it is first asked for."""

    def __init__(self, data: LabelledSet, work: Path) -> None:
        self.data, self.cfg = data, IndexConfig()
        self.directory = work / f"{data.name}-index"
        self.analyzer = Analyzer(self.cfg.language)

    def of(self, system: str) -> Search:
        """How a system searches."""
        if system in VIEWS:
            return lambda query, k: _ids(self.lexical.search_view(system, query, k))
        if system in BM25S:
            return self._bm25s(*BM25S[system])
        engine = getattr(self, system)
        return lambda query, k: _ids(engine.search(query, k))

    @cached_property
    def lexical(self) -> Any:
        """The three views, fused."""
        build_index(self.data.documents, self.directory, self.cfg)
        return open_index(self.directory, self.cfg, snippet_words=0)

    @property
    def fused(self) -> Any:
        """The same, by the name of its row."""
        return self.lexical

    @cached_property
    def dense(self) -> Any:
        """MiniLM's vectors."""
        from spaniel.index.dense import open_dense
        from spaniel.index.vectors import build_vectors

        lexical = self.lexical
        build_vectors(self.directory, self.cfg)
        return open_dense(self.directory, self.cfg, lexical=lexical)

    @cached_property
    def hybrid(self) -> Any:
        """Both, fused by reciprocal rank."""
        from spaniel.index.fusion import FusedEngine

        return FusedEngine([self.lexical, self.dense])

    @cached_property
    def reranked(self) -> Any:
        """The first vector hits in the order of untuned late interaction."""
        from spaniel.index.late_interaction import LateInteraction
        from spaniel.index.rerank import RerankedEngine

        return RerankedEngine(self.dense, LateInteraction(), RERANKED)

    def _bm25s(self, k1: float, b: float, no_stop_words: bool) -> Search:
        import bm25s

        documents = sorted(self.data.documents, key=lambda d: d.docid)
        engine = bm25s.BM25(method="lucene", k1=k1, b=b)
        engine.index([self._terms(d, no_stop_words) for d in documents], show_progress=False)

        def search(query: str, k: int) -> list[str]:
            terms = [term[0] for term in self.analyzer.keyword_terms(query) if len(term) == 1]
            known = [term for term in terms if term in engine.vocab_dict]
            if not known:
                return []
            scores = np.round(engine.get_scores(known), 6)
            order = np.argsort(-scores, kind="stable")[:k]
            return [documents[row].docid for row in order if scores[row] > 0]

        return search

    def _terms(self, document: Document, no_stop_words: bool) -> list[str]:
        parts = (document.title, document.text)
        terms = [term for part in parts for _, term in self.analyzer.positioned(part)]
        return [t for t in terms if t not in self.stop_terms] if no_stop_words else terms

    @cached_property
    def stop_terms(self) -> frozenset[str]:
        """Terms that a keyword query drops, among those of the documents."""
        documents = (self._terms(d, False) for d in self.data.documents)
        # Two words, because stop words that stand alone are searched for.
        kept = self.analyzer.keyword_terms
        return frozenset(
            term
            for term in {t for terms in documents for t in terms}
            if kept(f"{term} zyzzyva") == kept("zyzzyva")
        )


def _ids(hits: Sequence[Any]) -> list[str]:
    return [hit.docid for hit in hits]


# --- scoring ------------------------------------------------------------------------------------


def measure(
    data: LabelledSet, system: str, search: Search
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The means of a system on a set, and its lists of 10 and nDCG@10 by question."""
    started = time.perf_counter()
    tops, scores, recalls = {}, {}, []
    for qid, text in data.questions.items():
        query = text.replace('"', " ")
        targets = [d for d, grade in data.qrels[qid].items() if grade >= 1]
        tops[qid] = [d for d in search(query, 11) if d != qid][:10]
        scores[qid] = score_list(tops[qid], targets, 10).ndcg
        if system != "reranked":
            found = [d for d in search(query, 101) if d != qid][:100]
            recalls.append(score_list(found, targets, 100).recall)
    interval = bootstrap_interval(list(scores.values()))
    means = {
        "nDCG@10": round(interval.mean, 4),
        "interval": [round(interval.low, 4), round(interval.high, 4)],
        "graded nDCG@10": round(graded_ndcg(tops, data.qrels), 4),
        "R@100": round(statistics.mean(recalls), 4) if recalls else None,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return means, {"top": tops, "nDCG@10": scores}


def graded_ndcg(tops: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]) -> float:
    """trec_eval's ndcg_cut.10, with its -c: a question without hits counts 0."""
    import pytrec_eval

    judged = {qid: dict(qrels[qid]) for qid in tops}
    run = {
        qid: {docid: float(len(top) - i) for i, docid in enumerate(top)}
        for qid, top in tops.items()
    }
    values = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(run)
    return statistics.mean(values.get(qid, {}).get("ndcg_cut_10", 0.0) for qid in tops)


def compare(data: LabelledSet, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Fused against the best single view, question by question."""
    if not all(system in kept for system in LEXICAL):
        return {}
    values = {system: kept[system]["nDCG@10"] for system in LEXICAL}
    best = max(VIEWS, key=lambda view: statistics.mean(values[view].values()))
    fused, alone = values["fused"], values[best]
    test = paired_test(list(fused.values()), list(alone.values()))
    order = sorted(fused, key=lambda qid: fused[qid] - alone[qid])

    def shown(qids: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "question": data.questions[qid],
                **{system: round(values[system][qid], 3) for system in ("fused", best)},
            }
            for qid in qids
        ]

    return {
        "best_view": best,
        "difference": round(test.difference, 4),
        "interval": [round(test.low, 4), round(test.high, 4)],
        "p": round(test.p, 4),
        "fused_better": sum(fused[q] > alone[q] for q in fused),
        "fused_worse": sum(fused[q] < alone[q] for q in fused),
        "equal": sum(fused[q] == alone[q] for q in fused),
        "by_targets_named": by_targets_named(data, values),
        "largest_losses": shown(order[:5]),
        "largest_gains": shown(order[-5:][::-1]),
    }


def by_targets_named(
    data: LabelledSet, values: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """nDCG@10 by how many of a question's targets it names by their titles: all, some, none."""
    titles = {d.docid: d.title.split(" (")[0].lower() for d in data.documents}
    groups: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    for qid, text in data.questions.items():
        targets = [titles.get(d) for d, grade in data.qrels[qid].items() if grade >= 1]
        named = [bool(title) and title in text.lower() for title in targets]
        groups["all" if all(named) else "some" if any(named) else "none"].append(qid)
    return {
        group: {
            "questions": len(qids),
            **{s: round(statistics.mean(v[q] for q in qids), 4) for s, v in values.items()},
        }
        for group, qids in groups.items()
        if qids
    }


def tuned(data: LabelledSet, engine: Any) -> dict[str, Any]:
    """What ``spaniel index tune`` gains: fitted on training questions, measured on the others."""
    random.Random(0).shuffle(data.train)
    check = [
        Question(qid=qid, text=text, targets=tuple(d for d, g in data.qrels[qid].items() if g >= 1))
        for qid, text in data.questions.items()
    ]
    found = tune_fusion(engine, data.train[:TUNING], check, IndexConfig())
    return {
        "fitted_on": found.num_fitted,
        "nDCG@10 before": round(found.checked_before, 4),
        "nDCG@10 after": round(found.checked_after, 4),
        "difference": round(found.test.difference, 4),
        "interval": [round(found.test.low, 4), round(found.test.high, 4)],
        "p": round(found.test.p, 4),
        "settings": asdict(found.after),
    }


def against_lucene(
    name: str, systems: Mapping[str, Any], kept: Mapping[str, Any]
) -> dict[str, Any]:
    """The document view beside bm25s over the same terms, and beside Lucene's published numbers."""
    facts: dict[str, Any] = {}
    if {"document", "bm25s-1.2-0.75"} <= kept.keys():
        ours, theirs = kept["document"]["top"], kept["bm25s-1.2-0.75"]["top"]
        overlap = statistics.mean(
            len(set(ours[q]) & set(theirs[q])) / max(1, len(theirs[q])) for q in ours
        )
        facts["overlap@10 of document and bm25s-1.2-0.75"] = round(overlap, 4)
    if name in PUBLISHED:
        facts["published"] = PUBLISHED[name]
        facts["graded nDCG@10 minus published flat"] = {
            system: round(row["graded nDCG@10"] - PUBLISHED[name]["flat"]["nDCG@10"], 4)
            for system, row in systems.items()
            if system in ("document", *BM25S)
        }
    return facts


# --- the run ------------------------------------------------------------------------------------


def run_set(name: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure what is missing of one set, writing after each system."""
    row = results["sets"].get(name, {"systems": {}})
    missing = [s for s in args.systems if s not in row["systems"]]
    if not missing:
        say(f"{name}: all there")
        return
    data = load_set(name, args.data, args.work)
    if args.max_questions and args.max_questions < len(data.questions):
        qids = random.Random(0).sample(sorted(data.questions), args.max_questions)
        questions = {qid: data.questions[qid] for qid in sorted(qids)}
        data = replace(data, questions=questions)
    results["sets"][name] = row
    row |= {
        "date": results["date"],
        "commit": results["commit"],
        "documents": len(data.documents),
        "questions": len(data.questions),
        "labels_outside_the_corpus": data.num_labels_outside,
    }
    details = args.work / f"{name}-{args.max_questions or 'all'}-lists.json"
    kept = json.loads(details.read_text()) if details.exists() else {}
    engines = Engines(data, args.work)
    for system in missing:
        row["systems"][system], kept[system] = measure(data, system, engines.of(system))
        say(f"{name} {system}: {row['systems'][system]}")
        details.write_text(json.dumps(kept))
        row["fused_against_best_view"] = compare(data, kept)
        if system == "fused" and data.train:
            row["tuned"] = tuned(data, engines.lexical)
        row["against_lucene"] = against_lucene(name, row["systems"], kept)
        args.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--max-questions", type=int, help="drawn at random, the same each time")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path(gettempdir()) / "spaniel-search-quality")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "what": "nDCG@10 and R@100 of every engine on labelled sets; BM25 against Lucene's",
        **about(["spaniel", "numpy", "tantivy"]),
        "max_questions": args.max_questions,
        "multi_hop": list(MULTI_HOP_SETS),
        "settings": {name: getattr(IndexConfig(), name) for name in SETTINGS},
        "sets": {},
    }
    if args.out.exists():
        before = json.loads(args.out.read_text(encoding="utf-8"))
        if (
            before["max_questions"] != args.max_questions
            or before["settings"] != results["settings"]
        ):
            raise ConfigError(f"{args.out} was measured with other settings: name another --out")
        results["sets"] = before["sets"]
    for name in args.sets:
        try:
            run_set(name, args, results)
        except ConfigError as error:
            say(f"{name} is left out: {error}")


if __name__ == "__main__":
    main()
