import pytest

from spaniel.errors import ConfigError, DataError
from spaniel.index.engine import SearchEngine
from spaniel.index.rerank import RerankedEngine


class Longest:
    """Scores a document by the length of its text."""

    waits = False
    fingerprint = "longest"

    def score(self, query, hits, documents, context=""):
        assert [hit.docid for hit in hits] == [document.docid for document in documents]
        return [float(len(document.text)) for document in documents]


def test_it_is_a_search_engine(fruit_engine):
    assert isinstance(RerankedEngine(fruit_engine, Longest()), SearchEngine)


def test_candidates_come_in_the_rerankers_order_with_ranks_and_snippets(fruit_engine):
    found = fruit_engine.search("apple fruit", 10)
    hits = RerankedEngine(fruit_engine, Longest()).search("apple fruit", 2)
    expected = sorted(found, key=lambda hit: -len(fruit_engine.read(hit.docid).text))[:2]
    assert [h.docid for h in hits] == [h.docid for h in expected]
    assert [h.snippet for h in hits] == [h.snippet for h in expected]
    assert [h.rank for h in hits] == [1, 2]
    assert hits[0].score == len(fruit_engine.read(hits[0].docid).text)


def test_only_the_candidates_are_looked_at(fruit_engine):
    first = fruit_engine.search("apple fruit bank", 1)
    assert RerankedEngine(fruit_engine, Longest(), 1).search("apple fruit bank", 1)[0].docid == (
        first[0].docid
    )


def test_equal_scores_go_by_docid_and_nothing_found_stays_nothing(fruit_engine):
    class Equal(Longest):
        def score(self, query, hits, documents, context=""):
            return [0.0] * len(hits)

    engine = RerankedEngine(fruit_engine, Equal())
    docids = [hit.docid for hit in engine.search("apple fruit bank", 9)]
    assert docids == sorted(docids)
    assert engine.search_batch(["xyzzy", "apple"], 1)[0] == []


@pytest.mark.parametrize("scores", [[], [float("nan")] * 2, [1.0] * 3])
def test_a_reranker_that_breaks_its_promise_is_an_error(fruit_engine, scores):
    class Broken(Longest):
        def score(self, query, hits, documents, context=""):
            return scores

    with pytest.raises(DataError, match="must give 2 finite scores"):
        RerankedEngine(fruit_engine, Broken(), 2).search("apple", 2)


def test_the_fingerprint_follows_engine_reranker_and_depth(fruit_engine):
    class Other(Longest):
        fingerprint = "other"

    prints = {
        RerankedEngine(fruit_engine, Longest()).fingerprint,
        RerankedEngine(fruit_engine, Other()).fingerprint,
        RerankedEngine(fruit_engine, Longest(), 5).fingerprint,
        fruit_engine.fingerprint,
    }
    assert len(prints) == 4


def test_no_candidates_are_refused(fruit_engine):
    with pytest.raises(ConfigError, match="candidates must be >= 1"):
        RerankedEngine(fruit_engine, Longest(), 0)
