"""Which documents count as one, and what that does to labels and links."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spaniel.corpus.links import clean_links
from spaniel.corpus.records import Labelled
from spaniel.types import Document, Question

Kind = Literal["exact", "near", "concept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPair:
    """Two documents found to be the same, and why."""

    kind: Kind
    first: str
    """docid of the earlier one in corpus order."""
    second: str
    similarity: float
    """1 for exact; Jaccard of 5-word shingles for near; cosine for concept."""
    title_differs: bool
    """The two bear different titles: worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merges:
    """The outcome of hygiene."""

    canonical: dict[str, str]
    """Merged-away docid -> the docid that stands for it: the earliest of its class in corpus
    order. Documents that stay are not in it, so no value is a key."""
    pairs: tuple[MergedPair, ...] = ()
    """The evidence, one pair per union that was made."""

    def summary(self) -> dict[str, int]:
        """Counts for the report: pairs by kind, documents merged away, differing titles."""
        kinds = Counter(p.kind for p in self.pairs)
        return {
            "documents_merged_away": len(self.canonical),
            **{f"{kind}_pairs": kinds[kind] for kind in ("exact", "near", "concept")},
            "pairs_with_different_titles": sum(p.title_differs for p in self.pairs),
        }


class DisjointSets:
    """Union-find over 0..n-1 in which the smallest member stands for its set."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, item: int) -> int:
        """The smallest member of the item's set."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def union(self, a: int, b: int) -> bool:
        """Join two sets; False when they were one already."""
        a, b = self.root(a), self.root(b)
        self._parent[max(a, b)] = min(a, b)
        return a != b


def remap(labelled: Labelled, canonical: Mapping[str, str]) -> Labelled:
    """The corpus without merged-away documents, every label and link on the canonical ones.

    Without this an agent that reports the copy it found is marked wrong. ``hops`` stays what
    the source says, also where two targets of a question became one.
    """
    documents = remap_documents(labelled.documents, canonical)
    questions = tuple(remap_question(q, canonical) for q in labelled.questions)
    return replace(labelled, documents=documents, questions=questions)


def remap_documents(
    documents: Sequence[Document], canonical: Mapping[str, str]
) -> tuple[Document, ...]:
    """The documents that stay; links to the others point at what stands for them."""
    kept = [d for d in documents if d.docid not in canonical]
    known = frozenset(d.docid for d in kept)
    return tuple(
        replace(d, links=clean_links(d.docid, d.links, known, canonical)) if d.links else d
        for d in kept
    )


def remap_question(question: Question, canonical: Mapping[str, str]) -> Question:
    """The question with canonical targets, each once."""
    targets = _once(canonical.get(d, d) for d in question.targets)
    return question if targets == question.targets else replace(question, targets=targets)


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
