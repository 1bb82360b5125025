"""Small stand-ins shared by the tests: a search engine over a handful of documents."""

from collections.abc import Iterable, Sequence

from spaniel.store import hash_records
from spaniel.types import Document, Hit


class WordEngine:
    """Ranks by shared lower-case words, ties by docid. Exact, slow, and obvious."""

    waits = False

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = {d.docid: d for d in documents}

    @property
    def fingerprint(self) -> str:
        return hash_records(self.documents.values())

    def search(self, query: str, k: int) -> list[Hit]:
        wanted = set(query.lower().split())
        scored = [
            (len(wanted & set(f"{d.title} {d.text}".lower().split())), d)
            for d in self.documents.values()
        ]
        best = sorted((-s, d.docid) for s, d in scored if s)[:k]
        return [
            Hit(docid=docid, score=-s, rank=rank, snippet=self.documents[docid].text[:60])
            for rank, (s, docid) in enumerate(best, start=1)
        ]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self.search(query, k) for query in queries]

    def read(self, docid: str) -> Document:
        return self.documents[docid]

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        return [self.read(docid) for docid in docids]


class BrokenEngine(WordEngine):
    """Breaks at every search, as a retriever that died does."""

    def search(self, query: str, k: int) -> list[Hit]:
        raise ConnectionError("the retriever is down")


def lighthouse_documents() -> list[Document]:
    rows = [
        ("d1", "Ardent Lighthouse", "The lighthouse is kept by the Marrow company"),
        ("d2", "Marrow", "The company was founded by Tavin Orrel"),
        ("d3", "Tavin Orrel", "The founder learnt the trade from Ilse Brandt"),
        ("d4", "Ilse Brandt", "A teacher who was born in Harrowby"),
        ("d5", "Harrowby", "A town on the river Sill"),
    ]
    return [Document(docid=i, title=t, text=x) for i, t, x in rows]
