"""The joint where search engines vary."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from spaniel.types import Document, Hit


@runtime_checkable
class SearchEngine(Protocol):
    """Anything that finds documents: lexical, dense, fused, reranked, remote.

    Implementations are safe to call from several threads. They raise on failure; an empty
    list means that nothing matched, never that something broke.
    """

    @property
    def waits(self) -> bool:
        """Whether calls wait for another machine: an event loop gives them a thread then."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of content and settings: two engines with one fingerprint return the same hits."""
        ...

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits, best first, ranks from 1, each docid once; ties by docid."""
        ...

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        ...

    def read(self, docid: str) -> Document:
        """The whole document. Raises ``KeyError`` when the index has no such docid."""
        ...

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        ...


@runtime_checkable
class ContextEngine(SearchEngine, Protocol):
    """An engine that ranks better when it knows what the searcher is after."""

    def search_for(self, query: str, k: int, context: str) -> list[Hit]:
        """``search`` for somebody whose task and earlier steps are ``context``."""
        ...


@runtime_checkable
class HeadingEngine(SearchEngine, Protocol):
    """An engine to which reading is dear, and which knows without it what a hit is called."""

    def headings(self, docids: Sequence[str]) -> list[Document]:
        """Each document without its text. Raises ``KeyError``."""
        ...


def headings(engine: SearchEngine, docids: Sequence[str]) -> list[Document]:
    """Title and URL of documents, for a list of results; the text may be missing."""
    if isinstance(engine, HeadingEngine):
        return engine.headings(docids)
    return engine.read_batch(docids)
