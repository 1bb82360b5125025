"""Microseconds of an excerpt by the length of the document.

    python bench/snippet_speed.py [--words 75 300 1000 5000] [--documents 300] [--data FOLDER]

Documents are Wikipedia paragraphs joined until they have so many words; idf is that of an index of
20,000 paragraphs. Queries hold words of the document: four of them, or two neighbours as a phrase
and two more. Times are of the calling thread's processor: ``cut_us`` is one document's excerpt of
at most 48 words, ``query_us`` what is done once a query. Prints one JSON object.
"""

import argparse
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import about
from search_data import DATA, passages, real_passages

from spaniel.config import IndexConfig
from spaniel.index.build import build_index, open_index
from spaniel.index.query import parse_query
from spaniel.index.snippet import Snippets
from spaniel.types import Document

WORDS = (75, 300, 1000, 5000)
INDEXED = 20_000


def texts_of(real: Sequence[Document], num_words: int, count: int) -> Iterator[str]:
    """Paragraphs joined to texts of exactly ``num_words`` words."""
    rng = random.Random(num_words)
    for _ in range(count):
        words: list[str] = []
        while len(words) < num_words:
            words += rng.choice(real).text.split(" ")
        yield " ".join(words[:num_words])


def queries_of(text: str, rng: random.Random) -> dict[str, str]:
    """A query of each kind, from the document's own words."""
    words = re.findall(r"[^\W_]+", text)
    start = rng.randrange(len(words) - 1)
    return {
        "keywords": " ".join(rng.sample(words, 4)),
        "phrase": f'"{words[start]} {words[start + 1]}" {" ".join(rng.sample(words, 2))}',
    }


def measure(snippets: Snippets, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    rng = random.Random(5)
    times: dict[str, dict[str, list[float]]] = {}
    for text in texts:
        for kind, query in queries_of(text, rng).items():
            kept = times.setdefault(kind, {"query_us": [], "cut_us": []})
            started = time.thread_time_ns()
            cut = snippets.of_query(parse_query(query))
            compiled = time.thread_time_ns()
            cut(text)
            kept["cut_us"].append((time.thread_time_ns() - compiled) / 1e3)
            kept["query_us"].append((compiled - started) / 1e3)
    return {
        kind: {
            "query_us": round(statistics.median(kept["query_us"]), 1),
            "cut_us": round(statistics.median(kept["cut_us"]), 1),
            "cut_p99_us": round(sorted(kept["cut_us"])[int(0.99 * (len(texts) - 1))], 1),
        }
        for kind, kept in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, nargs="+", default=list(WORDS))
    parser.add_argument("--documents", type=int, default=300, help="of each length")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    real = real_passages(args.data)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        build_index(passages(INDEXED, real), Path(directory) / "index", IndexConfig())
        snippets = open_index(Path(directory) / "index").snippets
        for num_words in args.words:
            texts = list(texts_of(real, num_words, args.documents))
            # Once unmeasured: a long-running engine has met most words before.
            measure(snippets, texts)
            rows.append({"words": num_words, **measure(snippets, texts)})
    report = {
        "what": "microseconds of an excerpt by document length, processor time",
        **about(["spaniel", "tantivy"]),
        "documents_per_length": args.documents,
        "max_words": snippets.max_words,
        "lengths": rows,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
