"""Speed, size and memory of search, beside bm25s, SQLite FTS5 and bare tantivy, by corpus size.

    python bench/search_speed.py [--sizes 10000 100000 1000000] [--runs 3] [--seconds 20]
        [--callers 2000] [--systems fused fused-snippets ...] [--data FOLDER] [--work FOLDER]
        [--out FILE]

The corpus of a size is so many Wikipedia paragraphs (``search_data.py``: those of the multi-hop
sets; above the 61,493 distinct ones THE REST IS RESAMPLED from their sentences, which the output
says). Queries are questions, spans of text and title words; 10 results each.

    fused            the three views, best 50 of each, fused: ids only
    fused-snippets   the same with 10 excerpts: what an episode asks for
    single           the document view alone, ids only
    tantivy          the three searches of ``fused`` as one writes them by hand: a query of terms,
                     the best 50, and their rows, which stand for ids
    tantivy-floor    their ``search`` calls alone: queries built ahead (its ``open_s`` is that), no
                     rows looked up
    bm25s            the terms of the document view (k1 1.2, b 0.75; numba if there): ids only
    fts5             SQLite FTS5 (porter, contentless), words joined by OR: ids only

Every build and every search is a process of its own with one thread; the systems' searches
alternate over ``--runs`` rounds and medians are reported. ``cpu_us`` is the processor time of the
searching thread for one query, ``process_cpu_us`` of the whole process. Open and first query are
those of a new process behind its imports, with the files in the page cache. A search ends after
``--seconds``. ``read`` is one document by its docid; ``callers`` are 2,000 coroutines with one
search each (fused-snippets) against a loop over the same queries: called in place, as the
environment calls a local engine, and on the threads that it gives an engine on another machine.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import about, peak_rss_mib, rss_mib
from search_data import DATA, all_questions, passages, queries, real_passages

from spaniel.config import IndexConfig
from spaniel.env.episode import TOOL_THREADS
from spaniel.index.analysis import Analyzer, normalize
from spaniel.index.build import build_index, open_index
from spaniel.index.passages import passages_of
from spaniel.progress import say
from spaniel.types import Document

HAS_NUMBA = importlib.util.find_spec("numba") is not None

SIZES = (10_000, 100_000, 1_000_000)
K, DEPTH = 10, 50
QUERIES, WARM_UP, READS = 4_000, 200, 20_000

Answer = Callable[[str], Sequence[Any]]


# --- the systems: how each builds, opens and answers --------------------------------------------


def build_spaniel(documents: Iterable[Document], directory: Path) -> None:
    build_index(documents, directory / "index", IndexConfig())


def open_fused(directory: Path) -> Answer:
    engine = open_index(directory / "index", snippet_words=0)
    return lambda query: [hit.docid for hit in engine.search(query, K)]


def open_fused_snippets(directory: Path) -> Answer:
    engine = open_index(directory / "index")
    return lambda query: [hit.docid for hit in engine.search(query, K)]


def open_single(directory: Path) -> Answer:
    engine = open_index(directory / "index")
    return lambda query: [hit.docid for hit in engine.search_view("document", query, K)]


TANTIVY_FIELDS = {"documents": ("body", "title"), "passages": ("text",)}


def build_tantivy(documents: Iterable[Document], directory: Path) -> None:
    import tantivy

    cfg, analyzer = IndexConfig(), Analyzer("english")
    writers = {}
    for name, fields in TANTIVY_FIELDS.items():
        (directory / name).mkdir()
        schema = tantivy.SchemaBuilder().add_unsigned_field("row", fast=True)
        for field in fields:
            schema.add_text_field(field, tokenizer_name="ours", index_option="position")
        index = tantivy.Index(schema.build(), path=str(directory / name))
        index.register_tokenizer("ours", analyzer.engine_analyzer)
        writers[name] = index.writer(3_000_000_000, num_threads=1)

    def add(name: str, row: int, **texts: Any) -> None:
        entry = tantivy.Document(**texts)
        entry.add_unsigned("row", row)
        writers[name].add_document(entry)

    for row, document in enumerate(documents):
        title, text = normalize(document.title), normalize(document.text)
        add("documents", row, body=[title, text], title=title)
        for part in passages_of(document, words=cfg.passage_words, stride=cfg.passage_stride_words):
            add("passages", row, text=normalize(document.text[part.start : part.end]))
    for writer in writers.values():
        writer.commit()
        writer.wait_merging_threads()


class BareTantivy:
    """The three views by hand."""

    def __init__(self, directory: Path) -> None:
        import tantivy

        self.tantivy, self.analyzer = tantivy, Analyzer("english")
        self.views = []
        for name, fields in TANTIVY_FIELDS.items():
            index = tantivy.Index.open(str(directory / name))
            index.register_tokenizer("ours", self.analyzer.engine_analyzer)
            self.views += [(index.schema, index.searcher(), field) for field in fields]

    def built(self, query: str) -> list[tuple[Any, Any]]:
        """(searcher, query) of each view."""
        terms = [term[0] for term in self.analyzer.keyword_terms(query)]
        should, q = self.tantivy.Occur.Should, self.tantivy.Query
        return [
            (searcher, q.boolean_query([(should, q.term_query(schema, field, t)) for t in terms]))
            for schema, searcher, field in self.views
        ]


def open_tantivy(directory: Path) -> Answer:
    bare = BareTantivy(directory)

    def answer(query: str) -> Sequence[Any]:
        found = []
        for searcher, built in bare.built(query):
            hits = searcher.search(built, DEPTH, count=False).hits
            found += searcher.fast_field_values("row", [address for _, address in hits])
        return found

    return answer


def open_tantivy_floor(directory: Path) -> Answer:
    bare = BareTantivy(directory)
    ahead = {query: bare.built(query) for query in _queries(directory.parent)}

    def answer(query: str) -> Sequence[Any]:
        return [searcher.search(built, DEPTH, count=False) for searcher, built in ahead[query]]

    return answer


def build_bm25s(documents: Iterable[Document], directory: Path) -> None:
    import bm25s
    from bm25s.tokenization import Tokenized

    analyzer = Analyzer("english")
    docids, rows, vocabulary = [], [], {}
    for document in documents:
        terms = [
            t for part in (document.title, document.text) for _, t in analyzer.positioned(part)
        ]
        # The dictionary's own numbers: millions of rows share them.
        rows.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms])
        docids.append(document.docid)
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    engine.index(Tokenized(ids=rows, vocab=vocabulary), show_progress=False)
    engine.save(str(directory / "bm25s"))
    (directory / "docids.json").write_text(json.dumps(docids))


def open_bm25s(directory: Path) -> Answer:
    import bm25s

    analyzer = Analyzer("english")
    engine = bm25s.BM25.load(str(directory / "bm25s"), show_progress=False)
    engine.backend = "numba" if HAS_NUMBA else "numpy"
    docids = json.loads((directory / "docids.json").read_text())

    def answer(query: str) -> Sequence[Any]:
        terms = [term[0] for term in analyzer.keyword_terms(query)]
        found, _ = engine.retrieve([terms], k=K, show_progress=False)
        return [docids[row] for row in found[0].tolist()]

    return answer


def build_fts5(documents: Iterable[Document], directory: Path) -> None:
    with sqlite3.connect(directory / "fts5.db") as db:
        db.execute("create virtual table rows using fts5(body, content='', tokenize='porter')")
        db.execute("create table docids (docid text)")
        for document in documents:
            db.execute("insert into docids values (?)", (document.docid,))
            body = f"{document.title}\n{document.text}"
            db.execute("insert into rows(rowid, body) select last_insert_rowid(), ?", (body,))
        db.execute("insert into rows(rows) values ('optimize')")
    db.close()


def open_fts5(directory: Path) -> Answer:
    db = sqlite3.connect(f"file:{directory / 'fts5.db'}?mode=ro", uri=True)
    analyzer = Analyzer("english")

    def answer(query: str) -> Sequence[Any]:
        words = dict.fromkeys(w.lower() for w in re.findall(r"[^\W_]+", query))
        # The same stop words are dropped; FTS5 stems for itself.
        kept = [w for w in words if analyzer.keyword_terms(f"{w} zyzzyva") != [("zyzzyva",)]]
        sought = " OR ".join(f'"{word}"' for word in kept or words)
        return [
            docid
            for (docid,) in db.execute(
                "select docid from rows join docids on docids.rowid = rows.rowid "
                "where rows match ? order by rank limit ?",
                (sought, K),
            )
        ]

    return answer


BUILDERS = {
    "spaniel": build_spaniel,
    "tantivy": build_tantivy,
    "bm25s": build_bm25s,
    "fts5": build_fts5,
}
SYSTEMS: dict[str, tuple[str, Callable[[Path], Answer]]] = {
    "fused": ("spaniel", open_fused),
    "fused-snippets": ("spaniel", open_fused_snippets),
    "single": ("spaniel", open_single),
    "tantivy": ("tantivy", open_tantivy),
    "tantivy-floor": ("tantivy", open_tantivy_floor),
    "bm25s": ("bm25s", open_bm25s),
    "fts5": ("fts5", open_fts5),
}
"""Which build it searches, and how it is opened."""


# --- one measurement, in a process of its own ---------------------------------------------------


def measure_build(builder: str, work: Path) -> dict[str, float]:
    directory = work / builder
    directory.mkdir()
    before = rss_mib()
    started, cpu = time.perf_counter(), time.process_time()
    BUILDERS[builder](_documents(work), directory)
    took = time.perf_counter() - started
    files = [f for f in directory.rglob("*") if f.is_file()]
    num_texts = sum(f.stat().st_size for f in files if "texts" in f.parts)
    return {
        "build_s": took,
        "build_cpu_s": time.process_time() - cpu,
        "build_peak_mib": peak_rss_mib() - before,
        "index_bytes": sum(f.stat().st_size for f in files),
        "stored_text_bytes": num_texts,
    }


def measure_search(system: str, work: Path, seconds: float) -> dict[str, float]:
    builder, opener = SYSTEMS[system]
    asked = _queries(work)
    before = rss_mib()
    started = time.perf_counter()
    answer = opener(work / builder)
    opened = time.perf_counter()
    answer(asked[0])
    first = time.perf_counter()
    _keep_top(system, work, answer, asked)
    until = time.perf_counter() + seconds / 5
    for query in asked[:WARM_UP]:
        answer(query)
        if time.perf_counter() > until:
            break
    times: list[float] = []
    thread, process, begun = time.thread_time(), time.process_time(), time.perf_counter()
    for query in asked[WARM_UP:]:
        start = time.perf_counter()
        answer(query)
        now = time.perf_counter()
        times.append(now - start)
        if now - begun > seconds:
            break
    took = time.perf_counter() - begun
    thread, process = time.thread_time() - thread, time.process_time() - process
    return {
        "open_s": opened - started,
        "first_query_s": first - opened,
        "queries": len(times),
        "queries_per_s": len(times) / took,
        "p50_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * sorted(times)[int(0.99 * (len(times) - 1))],
        "cpu_us": 1e6 * thread / len(times),
        "process_cpu_us": 1e6 * process / len(times),
        "rss_mib": rss_mib() - before,
    }


def measure_read(work: Path) -> dict[str, float]:
    engine = open_index(work / "spaniel" / "index")
    docids = [d.docid for d in _documents(work)]
    chosen = random.Random(3).choices(docids, k=READS)
    for docid in chosen[:1000]:
        engine.read(docid)
    times = []
    cpu = time.thread_time()
    for docid in chosen:
        start = time.perf_counter()
        engine.read(docid)
        times.append(time.perf_counter() - start)
    cpu = time.thread_time() - cpu
    return {
        "p50_us": 1e6 * statistics.median(times),
        "p99_us": 1e6 * sorted(times)[int(0.99 * len(times))],
        "cpu_us": 1e6 * cpu / READS,
    }


def measure_callers(work: Path, num_callers: int) -> dict[str, float]:
    engine = open_index(work / "spaniel" / "index")
    asked = (_queries(work) * num_callers)[:num_callers]

    def loop() -> None:
        for query in asked:
            engine.search(query, K)

    async def in_place(query: str) -> None:
        engine.search(query, K)

    async def all_in_place() -> None:
        await asyncio.gather(*map(in_place, asked))

    async def all_on_threads() -> None:
        running = asyncio.get_running_loop()
        with ThreadPoolExecutor(TOOL_THREADS) as threads:
            await asyncio.gather(
                *(running.run_in_executor(threads, engine.search, query, K) for query in asked)
            )

    loop()
    ways: dict[str, Callable[[], Any]] = {
        "loop": loop,
        "in_place": lambda: asyncio.run(all_in_place()),
        "on_threads": lambda: asyncio.run(all_on_threads()),
    }
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            rounds[name].append(time.perf_counter() - started)
    middle = {name: statistics.median(times) for name, times in rounds.items()}
    return {
        "callers": num_callers,
        "loop_queries_per_s": num_callers / middle["loop"],
        "in_place_to_loop": middle["loop"] / middle["in_place"],
        "on_threads_to_loop": middle["loop"] / middle["on_threads"],
    }


def _documents(work: Path) -> Iterator[Document]:
    with (work / "documents.jsonl").open(encoding="utf-8") as file:
        for line in file:
            docid, title, text = json.loads(line)
            yield Document(docid=docid, title=title, text=text)


def _queries(work: Path) -> list[str]:
    asked: list[str] = json.loads((work / "queries.json").read_text(encoding="utf-8"))
    return asked


def _keep_top(system: str, work: Path, answer: Answer, asked: Sequence[str]) -> None:
    """Answers of the first queries, to be compared between systems: do they do the same work?"""
    path = work / f"{system}-top.json"
    if not system.startswith("tantivy") and not path.exists():
        path.write_text(json.dumps([answer(query) for query in asked[:50]]))


# --- the run ------------------------------------------------------------------------------------


def in_fresh_process(*arguments: str) -> dict[str, float]:
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    done = subprocess.run(
        [sys.executable, __file__, "--one", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **threads},
    )
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure_size(size: int, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    row = prepare(size, args.data, work)
    say(f"{size:,} documents, {row['text_bytes']:,} bytes")
    row |= {"builds": {}, "systems": {}}
    for builder in dict.fromkeys(SYSTEMS[s][0] for s in args.systems):
        row["builds"][builder] = _build_row(in_fresh_process("build", builder, str(work)), row)
        say(f"built {builder}: {row['builds'][builder]}")
    rounds: dict[str, list[dict[str, float]]] = {system: [] for system in args.systems}
    for _ in range(args.runs):
        for system in args.systems:
            found = in_fresh_process("search", system, str(work), str(args.seconds))
            rounds[system].append(found)
    for system, runs in rounds.items():
        row["systems"][system] = {
            key: _rounded(statistics.median(run[key] for run in runs)) for key in runs[0]
        }
        say(f"{system}: {row['systems'][system]}")
    if "spaniel" in row["builds"]:
        row["read"] = _all_rounded(in_fresh_process("read", "spaniel", str(work)))
        row["callers"] = _all_rounded(
            in_fresh_process("callers", "spaniel", str(work), str(args.callers))
        )
    return row | {"ratios": ratios(row["systems"]), "overlap@10_with_single": overlaps(work)}


def prepare(size: int, data: Path, work: Path) -> dict[str, Any]:
    """Write the documents and queries of a size."""
    real = real_passages(data)
    num_bytes = 0
    with (work / "documents.jsonl").open("w", encoding="utf-8") as file:
        for d in passages(size, real):
            num_bytes += len(d.title.encode()) + len(d.text.encode())
            file.write(json.dumps([d.docid, d.title, d.text], ensure_ascii=False) + "\n")
    sample = random.Random(4).sample(real, min(size, len(real), 20_000))
    asked = queries(QUERIES, sample, all_questions(data))
    (work / "queries.json").write_text(json.dumps(asked), encoding="utf-8")
    return {
        "documents": size,
        "of_them_resampled": max(0, size - len(real)),
        "text_bytes": num_bytes,
        "words_per_query": round(statistics.mean(len(q.split()) for q in asked), 1),
    }


def _build_row(found: dict[str, float], row: dict[str, Any]) -> dict[str, float]:
    return {
        "documents_per_s": round(row["documents"] / found["build_s"]),
        "documents_per_cpu_s": round(row["documents"] / found["build_cpu_s"]),
        "peak_mib": round(found["build_peak_mib"]),
        "index_bytes_per_text_byte": _rounded(found["index_bytes"] / row["text_bytes"]),
        "of_it_stored_text": _rounded(found["stored_text_bytes"] / row["text_bytes"]),
    }


def ratios(systems: dict[str, dict[str, float]]) -> dict[str, float]:
    """Costs of the same or more work, as shares."""
    wanted = {
        "fused cpu / tantivy": ("fused", "tantivy", "cpu_us"),
        "fused cpu / tantivy-floor": ("fused", "tantivy-floor", "cpu_us"),
        "fused-snippets queries_per_s / bm25s": ("fused-snippets", "bm25s", "queries_per_s"),
        "single queries_per_s / bm25s": ("single", "bm25s", "queries_per_s"),
        "single queries_per_s / fts5": ("single", "fts5", "queries_per_s"),
    }
    return {
        name: _rounded(systems[a][key] / systems[b][key])
        for name, (a, b, key) in wanted.items()
        if a in systems and b in systems
    }


def overlaps(work: Path) -> dict[str, float]:
    """Share of the document view's best 10 that another single view returns, too."""
    tops = {p.stem.removesuffix("-top"): json.loads(p.read_text()) for p in work.glob("*-top.json")}
    ours = tops.get("single", [])
    return {
        system: _rounded(
            statistics.mean(
                len(set(a) & set(b)) / max(1, len(a)) for a, b in zip(ours, theirs, strict=True)
            )
        )
        for system, theirs in tops.items()
        if ours and system in ("bm25s", "fts5")
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _all_rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: _rounded(value) for key, value in values.items()}


def one(what: str, name: str, work: Path, amount: str) -> dict[str, float]:
    if what == "build":
        return measure_build(name, work)
    if what == "search":
        return measure_search(name, work, float(amount))
    return measure_read(work) if what == "read" else measure_callers(work, int(amount))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one search, at most")
    parser.add_argument("--callers", type=int, default=2_000)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, help="folder for the indexes, on the disk to measure")
    parser.add_argument("--out", type=Path, help="written after each size; else only printed")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        what, name, work, amount = (*args.one, "0")[:4]
        print(json.dumps(one(what, name, Path(work), amount)))
        return
    report: dict[str, Any] = {
        "what": "search by corpus size: speed, memory, bytes; Wikipedia passages, then resampled",
        **about(["spaniel", "tantivy", "bm25s", *(["numba"] if HAS_NUMBA else []), "numpy"]),
        "sqlite": sqlite3.sqlite_version,
        "runs": args.runs,
        "seconds": args.seconds,
        "k": K,
        "sizes": [],
    }
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.work) as directory:
            report["sizes"].append(measure_size(size, args, Path(directory)))
        if args.out:
            args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
