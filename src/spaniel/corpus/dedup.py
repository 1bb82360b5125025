"""Corpus hygiene: find the documents that count as one.

Three kinds, each over what the one before left:

    exact     equal texts but for case, spacing, Unicode form and invisible characters
    near      5-word shingles with a Jaccard similarity of at least the threshold
    concept   similar embeddings and the same numbers and names: the same facts, other words

Near and concept also ask that the words by which two titles differ occur equally often in
both texts, since articles of one pattern about two things are alike in nearly everything else.

Exact merging only removes a hidden penalty (the twin of a target was marked wrong). Near and
concept merging also change the task: one fact stands in one place, so training is faster and
its ceiling higher, in a cleaner world than production.

Titles do not count for exact merging: a mirrored page often differs only there. Each merged
pair whose titles differ says so in the report.
"""

import hashlib
from collections.abc import Iterable, Sequence

from spaniel.config import DedupConfig
from spaniel.corpus.concept import concept_pairs
from spaniel.corpus.encoder import Encode
from spaniel.corpus.merges import DisjointSets, Kind, MergedPair, Merges
from spaniel.corpus.near import near_pairs
from spaniel.corpus.normalise import text_key
from spaniel.progress import track
from spaniel.types import Document

ScoredPair = tuple[int, int, float]
"""Positions of two documents, and their similarity."""


def find_merges(
    documents: Sequence[Document], cfg: DedupConfig, encode: Encode | None = None
) -> Merges:
    """Documents that count as one under these settings.

    Deterministic, and idempotent: what is left merges no further. Similarity chains: with
    a ~ b and b ~ c all three become a, even where a and c are not similar enough themselves.

    Args:
        documents: unique docids; their order decides which one stands for its class.
        encode: embeds texts for concept merging; all-MiniLM-L6-v2 when None.

    Raises:
        ConfigError: near or concept merging needs a library that is not installed.
    """
    merger = _Merger(documents)
    if cfg.exact:
        merger.take("exact", range(len(documents)), exact_pairs(documents))
    if cfg.near is not None:
        left = merger.left()
        merger.take("near", left, near_pairs([documents[i] for i in left], cfg.near))
    if cfg.concept is not None:
        left = merger.left()
        pairs = concept_pairs([documents[i] for i in left], cfg.concept, encode)
        merger.take("concept", left, pairs)
    return merger.merges()


def exact_pairs(documents: Sequence[Document]) -> list[ScoredPair]:
    """Each document whose text equals an earlier one's, with the earliest such."""
    first: dict[bytes, int] = {}
    pairs = []
    for i, document in enumerate(track(documents, "exact", len(documents), "documents")):
        key = text_key(document.text)
        if not key:
            continue
        # 128 bits of a hash stand for the text: a million texts need not be held twice.
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        earliest = first.setdefault(digest, i)
        if earliest != i:
            pairs.append((earliest, i, 1.0))
    return pairs


class _Merger:
    """Unions of all kinds so far, with the evidence for each."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.sets = DisjointSets(len(documents))
        self.pairs: list[MergedPair] = []

    def left(self) -> list[int]:
        """Positions of the documents that still stand for themselves."""
        return [i for i in range(len(self.documents)) if self.sets.root(i) == i]

    def take(self, kind: Kind, positions: Sequence[int], pairs: Iterable[ScoredPair]) -> None:
        """Unite pairs of places in ``positions``."""
        for a, b, similarity in pairs:
            i, j = sorted((positions[a], positions[b]))
            if self.sets.union(i, j):
                first, second = self.documents[i], self.documents[j]
                self.pairs.append(
                    MergedPair(
                        kind=kind,
                        first=first.docid,
                        second=second.docid,
                        similarity=round(similarity, 6),
                        title_differs=text_key(first.title) != text_key(second.title),
                    )
                )

    def merges(self) -> Merges:
        """Everything united so far."""
        roots = ((i, self.sets.root(i)) for i in range(len(self.documents)))
        docids = [d.docid for d in self.documents]
        return Merges(
            canonical={docids[i]: docids[root] for i, root in roots if i != root},
            pairs=tuple(self.pairs),
        )
