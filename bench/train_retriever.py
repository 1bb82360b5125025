"""What training the encoder and a cross-encoder gains on held-out questions.

    python bench/train_retriever.py [--out bench/results/train_retriever.json] [--set musique]
        [--documents 3000] [--questions 450] [--reranker-questions 300] [--data ../shared/data]

From all-MiniLM-L6-v2, over the targets of all questions and as many other documents as are wanted.
``encoder``: `spaniel index train-encoder`; the nearest documents by either encoder alone.
``reranker``: `spaniel index train-reranker` on the best 20 vector hits; beside it, on the same
hits, the cross-encoder before training and the late interaction of the evaluation's table.
One thread; ``cpu_s`` is processor time, whatever else the machine does. JSON is written after each
part and printed at the end.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from machine import about

from spaniel.config import Recipe, parse_recipe
from spaniel.corpus.encoder import model_path
from spaniel.eval.train_retriever import Trained, compare, train_encoder, train_reranker
from spaniel.index.cross_encoder import (
    CrossEncoderReranker,
    save_cross_encoder,
    start_cross_encoder,
)
from spaniel.index.engine import SearchEngine
from spaniel.index.hard_negatives import query_of
from spaniel.index.late_interaction import LateInteraction
from spaniel.index.rerank import RerankedEngine, Reranker
from spaniel.run import Run
from spaniel.stages import make_corpus, make_index, make_questions
from spaniel.workbench import Workbench

ROOT = Path(__file__).parent.parent
CANDIDATES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", default="musique")
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data")
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--questions", type=int, default=450)
    parser.add_argument("--reranker-questions", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        subset(args.data / args.set, Path(folder) / "data", args.documents)
        recipe = recipe_of(Path(folder), args.questions, args.reranker_questions)
        result = {**about(["torch", "transformers", "sentence-transformers"]), "set": args.set}
        for name, part in parts(recipe):
            result[name] = part()
            if args.out is not None:
                args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def parts(recipe: Recipe) -> list[tuple[str, Callable[[], Any]]]:
    run = Run(recipe)
    make_corpus(run)
    make_index(run)
    make_questions(run)
    bench = Workbench(run)
    return [
        ("sizes", lambda: sizes(bench)),
        ("encoder", lambda: timed(lambda: summary(train_encoder(bench)))),
        ("reranker", lambda: timed(lambda: summary(train_reranker(bench)))),
        ("untrained cross-encoder", lambda: timed(lambda: reranked(bench, untrained(bench)))),
        ("late interaction", lambda: timed(lambda: reranked(bench, LateInteraction()))),
    ]


def recipe_of(folder: Path, questions: int, reranker_questions: int) -> Recipe:
    common = {"model": "minilm", "max_tokens": 96, "num_questions": questions}
    index = {
        "engine": "dense",
        "max_encoder_tokens": 128,
        "max_rerank_tokens": 160,
        "rerank_candidates": CANDIDATES,
        "train_encoder": {**common, "num_negatives": 1},
        "train_reranker": {
            **common,
            "num_questions": reranker_questions,
            "learning_rate": 3e-5,
            "batch_size": 8,
        },
    }
    source = {"type": "beir", "path": str(folder / "data")}
    data = {"name": "bench", "run_dir": str(folder / "run"), "index": index}
    return parse_recipe({**data, "corpus": {"source": source}}, where="bench")


def subset(source: Path, folder: Path, num_documents: int) -> None:
    """The set with all its questions and their targets, and other documents up to a number."""
    targets = set()
    (folder / "qrels").mkdir(parents=True)
    for path in (source / "qrels").glob("*.tsv"):
        text = path.read_text(encoding="utf-8")
        (folder / "qrels" / path.name).write_text(text, encoding="utf-8")
        targets |= {line.split("\t")[1] for line in text.splitlines()[1:]}
    (folder / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
    lines = (source / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    needed = [line for line in lines if json.loads(line)["_id"] in targets]
    others = sorted(set(lines) - set(needed))
    others = random.Random(0).sample(others, max(0, num_documents - len(needed)))
    (folder / "corpus.jsonl").write_text("\n".join(needed + others) + "\n", encoding="utf-8")


def sizes(bench: Workbench) -> dict[str, int]:
    return {
        "documents": len(bench.lexical.texts),
        "train_questions": len(bench.train_questions),
        "held_out_questions": len(bench.test_questions),
    }


def summary(trained: Trained) -> dict[str, Any]:
    names = ("settings", "num_questions", "num_lessons", "steps", "prior")
    manifest = {name: trained.manifest[name] for name in names if name in trained.manifest}
    return {**manifest, "gains": [asdict(gain) for gain in trained.gains]}


def untrained(bench: Workbench) -> Reranker:
    path = bench.run.path("untrained")
    path.mkdir()
    model, prior = start_cross_encoder(model_path("minilm"))
    save_cross_encoder(model, prior, path)
    return CrossEncoderReranker(str(path), max_tokens=bench.recipe.index.max_rerank_tokens)


def reranked(bench: Workbench, reranker: Reranker) -> dict[str, Any]:
    """What a reranker gains over the vectors' own order."""
    engines: list[SearchEngine] = [
        bench.dense,
        RerankedEngine(bench.dense, reranker, CANDIDATES),
    ]
    before, after = (
        {q.qid: [h.docid for h in e.search(query_of(q), CANDIDATES)] for q in bench.test_questions}
        for e in engines
    )
    gains = compare(bench.test_questions, before, after, ("nDCG@10", "R@10"))
    return {"gains": [asdict(gain) for gain in gains]}


def timed(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started = time.process_time()
    found = part()
    return {**found, "cpu_s": round(time.process_time() - started, 1)}


if __name__ == "__main__":
    main()
