"""Speed and memory of the world generator by size, and how hard its questions are for BM25.

    python bench/world_scale.py [--runs 3] [--pages 200 2000 20000 200000]

For each size a fresh process makes the world and streams all its documents, keeping none: seconds
of both, and the peak of its resident memory above what the imports took. Then, on a world of 1,000
pages with 150 questions of each hop count from 1 to 5, BM25 over title and text (the document view
of the lexical index, the question as it is worded) returns 10 documents: nDCG@10 and F1@10 by
hops. Prints one JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import about, peak_rss_mib, reset_peak_rss, rss_mib

from spaniel.config import IndexConfig
from spaniel.eval.metrics import score_list
from spaniel.index.build import build_index, open_index
from spaniel.world.generate import generate_world

SIZES = (200, 2_000, 20_000, 200_000)
BM25_PAGES, QUESTIONS_PER_HOP, HOPS, K = 1_000, 150, range(1, 6), 10


def measure(pages: int) -> dict[str, float]:
    """Make one world in this process and stream its documents."""
    before = rss_mib()
    reset_peak_rss()
    started = time.perf_counter()
    world = generate_world(pages, seed=1)
    made = time.perf_counter()
    chars = sum(len(document.text) for document in world.documents())
    done = time.perf_counter()
    return {
        "world_s": made - started,
        "documents_s": done - made,
        "peak_mib": peak_rss_mib() - before,
        "chars_per_document": chars / pages,
    }


def in_fresh_process(pages: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(pages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{pages} pages: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def size_row(pages: int, num_runs: int) -> dict[str, float]:
    runs = [in_fresh_process(pages) for _ in range(num_runs)]
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {
        "pages": pages,
        "world_s": round(middle["world_s"], 3),
        "documents_s": round(middle["documents_s"], 3),
        "total_s": round(statistics.median(r["world_s"] + r["documents_s"] for r in runs), 3),
        "documents_per_s": round(pages / (middle["world_s"] + middle["documents_s"])),
        "peak_mib": round(middle["peak_mib"], 1),
        "chars_per_document": round(middle["chars_per_document"]),
    }


def bm25_by_hops() -> list[dict[str, float]]:
    world = generate_world(BM25_PAGES, seed=1)
    questions = world.questions(QUESTIONS_PER_HOP * len(HOPS), seed=1, min_hops=1)
    with tempfile.TemporaryDirectory() as directory:
        index = Path(directory) / "index"
        build_index(world.documents(), index, IndexConfig())
        engine = open_index(index, snippet_words=0)
        rows = []
        for hops in HOPS:
            scores = [
                score_list(
                    [hit.docid for hit in engine.search_view("document", question.text, K)],
                    question.targets,
                    K,
                )
                for question in questions
                if question.hops == hops
            ]
            rows.append(
                {
                    "hops": hops,
                    "questions": len(scores),
                    f"nDCG@{K}": round(statistics.mean(s.ndcg for s in scores), 4),
                    f"R@{K}": round(statistics.mean(s.recall for s in scores), 4),
                    f"F1@{K}": round(statistics.mean(s.f1 for s in scores), 4),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pages", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    report = {
        "what": "the world generator: seconds and memory by size; BM25 on its questions by hops",
        **about(["spaniel", "numpy", "tantivy"]),
        "runs": args.runs,
        "sizes": [size_row(pages, args.runs) for pages in args.pages],
        "bm25": {"pages": BM25_PAGES, "by_hops": bm25_by_hops()},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
