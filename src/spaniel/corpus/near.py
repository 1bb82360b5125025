"""Near-duplicates: MinHash finds candidates, exact Jaccard similarity decides.

Short articles of one pattern are near-duplicates by their words and still speak of different
things, so a pair must also be about one subject as far as its titles tell.

MinHash with banding: Broder 1997, "On the resemblance and containment of documents"; Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from spaniel.corpus.extras import import_extra
from spaniel.corpus.facts import same_subject
from spaniel.corpus.merges import DisjointSets
from spaniel.corpus.normalise import text_key
from spaniel.progress import track
from spaniel.types import Document

SHINGLE_WORDS = 5
NUM_PERMUTATIONS = 128
MAX_MISS = 1e-3
"""Highest chance to overlook a pair that lies exactly at the threshold."""
_WORD = re.compile(r"\w+")


def near_pairs(documents: Sequence[Document], threshold: float) -> Iterator[tuple[int, int, float]]:
    """(earlier, later, Jaccard) of documents at least ``threshold`` similar, in (0, 1].

    Both must also be about one subject (``facts.same_subject``).
    A text of fewer than five words is one shingle; a text without words is never similar.
    Pairs that follow from pairs already given are left out.

    Raises:
        ConfigError: datasketch is not installed.
    """
    datasketch = import_extra("datasketch", "corpus")
    lsh = datasketch.MinHashLSH(num_perm=NUM_PERMUTATIONS, params=bands(threshold))
    seed = datasketch.MinHash(NUM_PERMUTATIONS, hashfunc=zlib.crc32)
    united = DisjointSets(len(documents))

    # Texts are compared when both are at hand, so recent ones are worth keeping.
    @lru_cache(maxsize=1024)
    def shingles_of(i: int) -> frozenset[str]:
        return shingles(documents[i].text)

    for i in track(range(len(documents)), "near", len(documents), "documents"):
        own = shingles_of(i)
        if not own:
            continue
        sketch = _sketch(seed, own)
        for j in sorted(lsh.query(sketch)):
            # A page repeated a thousand times is compared with its class, not with each copy.
            if united.root(i) == united.root(j):
                continue
            similarity = jaccard(own, shingles_of(j))
            if similarity >= threshold and same_subject(documents[j], documents[i]):
                united.union(i, j)
                yield j, i, similarity
        lsh.insert(i, sketch, check_duplication=False)


def shingles(text: str) -> frozenset[str]:
    """Runs of five words of the normalised text."""
    words = _WORD.findall(text_key(text))
    last = max(len(words) - SHINGLE_WORDS, 0)
    if not words:
        return frozenset()
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in range(last + 1))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Shared over all; both must not be empty."""
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def bands(threshold: float) -> tuple[int, int]:
    """(bands, rows per band): the longest rows that overlook a pair at the threshold with a
    chance of at most ``MAX_MISS``, which is ``(1 - threshold ** rows) ** bands``."""
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        count = NUM_PERMUTATIONS // rows
        if (1 - threshold**rows) ** count <= MAX_MISS:
            return count, rows
    return NUM_PERMUTATIONS, 1


def _sketch(seed: Any, own: frozenset[str]) -> Any:
    sketch = seed.copy()
    sketch.update_batch([s.encode() for s in own])
    return sketch
