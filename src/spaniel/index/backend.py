"""The joint where the ranking of the three views varies: the embedded index, or a cluster.

Fusion, query language, snippets and texts are the same for every backend (``lexical.py``); a
backend only ranks rows. A row is the place of a document in docid order.
"""

from typing import Literal, Protocol

from spaniel.index.query import Query

View = Literal["document", "passage", "title"]
VIEWS: tuple[View, ...] = ("document", "passage", "title")


class ViewBackend(Protocol):
    """Ranks the rows of a view by BM25. Safe to share between threads.

    A backend raises on failure: a part of the index that does not answer must never look like
    fewer hits.
    """

    @property
    def waits(self) -> bool:
        """Whether it asks another machine."""
        ...

    @property
    def fingerprint(self) -> str:
        """What the ranking depends on besides the documents and their analysis."""
        ...

    @property
    def num_documents(self) -> int:
        """Rows of the document and title views."""
        ...

    @property
    def num_passages(self) -> int:
        """Rows of the passage view."""
        ...

    def idf(self, term: str) -> float:
        """BM25's weight of a term of the document view."""
        ...

    def rank(self, view: View, query: Query, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (row, score) of a view, ties by row; every row once."""
        ...

    def allowed_rows(self, query: Query) -> list[int] | None:
        """Ascending rows of the documents that meet the query's phrases and site; None for all."""
        ...
