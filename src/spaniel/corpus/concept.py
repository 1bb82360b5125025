"""Concept duplicates: other words, the same facts.

Two documents are one concept when the cosine similarity of their embeddings reaches the
threshold, and they agree in numbers and names (``facts.same_facts``) and in what they are
about (``facts.same_subject``). The embedding finds texts about one thing; it cannot tell "born
in 1931" from "born in 1913", nor two brothers apart, which the other tests can.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.corpus.encoder import MINILM, Encode, SentenceEncoder
from spaniel.corpus.facts import Facts, facts, same_facts, same_subject
from spaniel.progress import Progress
from spaniel.types import Document

ENCODE_BATCH = 512
MAX_COMPARED = 1 << 24
"""Similarities held at once: 64 MB."""


def concept_pairs(
    documents: Sequence[Document], threshold: float, encode: Encode | None = None
) -> Iterator[tuple[int, int, float]]:
    """(earlier, later, cosine) of documents that state the same facts.

    Compares every pair of vectors, block by block: time grows with the square of the number
    of documents, memory with the number alone.

    Args:
        threshold: lowest cosine similarity of a candidate, in (0, 1].
        encode: title and text of each document to vectors; all-MiniLM-L6-v2 when None.

    Raises:
        ConfigError: sentence-transformers is not installed and ``encode`` is None.
    """
    if len(documents) < 2:
        return
    vectors = _encode_all(documents, encode or SentenceEncoder(MINILM).encode_documents)
    known: dict[int, Facts] = {}
    for i, j, cosine in _similar(vectors, threshold):
        for k in (i, j):
            if k not in known:
                known[k] = facts(documents[k].title, documents[k].text)
        if same_facts(known[i], known[j]) and same_subject(documents[i], documents[j]):
            yield i, j, cosine


def _encode_all(documents: Sequence[Document], encode: Encode) -> NDArray[np.float32]:
    """[num_documents, dim] unit vectors."""
    blocks = []
    with Progress("embed", len(documents), "documents") as progress:
        for start in range(0, len(documents), ENCODE_BATCH):
            batch = documents[start : start + ENCODE_BATCH]
            blocks.append(np.asarray(encode([f"{d.title}\n{d.text}" for d in batch]), np.float32))
            progress.advance(len(batch))
    vectors = np.concatenate(blocks)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(norms, np.float32(1e-12))
    return unit


def _similar(vectors: NDArray[Any], threshold: float) -> Iterator[tuple[int, int, float]]:
    """(i, j, cosine) with i < j and a cosine of at least the threshold, in order of i."""
    # Rounding must not keep two equal texts apart at threshold 1.
    lowest = threshold - 1e-5
    rows = max(MAX_COMPARED // len(vectors), 1)
    with Progress("compare", len(vectors), "documents") as progress:
        for start in range(0, len(vectors), rows):
            block = vectors[start : start + rows] @ vectors[start:].T
            for a, b in zip(*np.nonzero(block >= lowest), strict=True):
                if a < b:
                    yield start + int(a), start + int(b), min(float(block[a, b]), 1.0)
            progress.advance(len(block))
