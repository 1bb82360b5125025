"""The search benches run, at a size that says nothing about speed."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from spaniel.world import generate_world

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[2] / "bench"
LEXICAL = ["document", "passage", "title", "fused"]


def run(script, *arguments):
    # Compiling bm25s' search takes longer than everything else.
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three multi-hop sets and one of BEIR's, each a little world."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("musique", "2wiki", "hotpot", "beir/nfcorpus"), start=1):
        write_beir(folder / name, generate_world(200, seed), "test" if seed == 4 else "dev")
    return folder


def write_beir(folder, world, split):
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": d.docid, "title": d.title, "text": d.text} for d in world.documents()]
    questions = world.questions(40, seed=1, min_hops=1, max_hops=3)
    asked = [{"_id": q.qid, "text": q.text} for q in questions]
    for name, rows in (("corpus", documents), ("queries", asked)):
        lines = (json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    for part, chosen in (("train", questions[:20]), (split, questions[20:])):
        rows = ([q.qid, d, str(1 + i % 2)] for q in chosen for i, d in enumerate(q.targets))
        lines = ("\t".join(row) + "\n" for row in chain([["qid", "docid", "score"]], rows))
        (folder / "qrels" / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")


def test_quality_is_measured_and_a_second_run_goes_on(data, tmp_path):
    pytest.importorskip("bm25s")
    pytest.importorskip("pytrec_eval")
    out = tmp_path / "quality.json"
    common = ["--data", data, "--work", tmp_path / "work", "--out", out]
    run("search_quality.py", *common, "--sets", "musique", "--systems", *LEXICAL)
    both = ["--sets", "musique", "nfcorpus", "--systems", *LEXICAL, "bm25s-1.2-0.75"]
    said = run("search_quality.py", *common, *both).stderr
    assert "musique fused:" not in said
    assert "musique bm25s-1.2-0.75:" in said
    sets = json.loads(out.read_text())["sets"]
    for row in sets.values():
        scores = {name: system["nDCG@10"] for name, system in row["systems"].items()}
        assert list(scores) == [*LEXICAL, "bm25s-1.2-0.75"]
        assert all(0.1 < score < 1 for score in scores.values())
        assert scores["document"] == pytest.approx(scores["bm25s-1.2-0.75"], abs=0.05)
        compared = row["fused_against_best_view"]
        best = scores[compared["best_view"]]
        assert compared["difference"] == pytest.approx(scores["fused"] - best, abs=2e-4)
    # Grades above 1 count only in trec_eval's measure.
    graded = sets["nfcorpus"]["systems"]["document"]
    assert graded["graded nDCG@10"] != graded["nDCG@10"]
    assert sets["musique"]["tuned"]["fitted_on"] == 20
    assert "published" in sets["nfcorpus"]["against_lucene"]


def test_speed_is_measured_for_every_system(data, tmp_path):
    pytest.importorskip("bm25s")
    out = tmp_path / "speed.json"
    tiny = ["--sizes", 700, "--runs", 1, "--seconds", 0.5, "--callers", 50]
    run("search_speed.py", "--data", data, "--out", out, *tiny)
    [size] = json.loads(out.read_text())["sizes"]
    assert size["of_them_resampled"] == 100
    assert set(size["builds"]) == {"spaniel", "tantivy", "bm25s", "fts5"}
    assert set(size["systems"]) == {
        *("fused", "fused-snippets", "single", "tantivy", "tantivy-floor", "bm25s", "fts5")
    }
    assert all(row["queries_per_s"] > 0 for row in size["systems"].values())
    assert size["overlap@10_with_single"]["bm25s"] > 0.8
    assert size["read"]["p50_us"] > 0
    assert size["callers"]["on_threads_to_loop"] > 0


def test_a_served_index_is_put_under_load(data):
    pytest.importorskip("httpx")
    arguments = ["--data", data, "--documents", 300, "--clients", 4, "--seconds", 1]
    [found] = json.loads(run("server_load.py", *arguments).stdout)["runs"]
    assert found["errors"] == 0
    assert found["answers"]["200"] > 4
    assert found["search_p50_ms"] <= found["search_p99_ms"]
    assert min(found["server_rss_mib"]) > 10


def test_excerpts_are_timed_by_length(data):
    arguments = ["--data", data, "--words", 60, 400, "--documents", 10]
    rows = json.loads(run("snippet_speed.py", *arguments).stdout)["lengths"]
    assert [row["words"] for row in rows] == [60, 400]
    assert rows[0]["phrase"]["cut_us"] < rows[1]["phrase"]["cut_us"]
