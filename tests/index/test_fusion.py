import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ConfigError
from spaniel.index.fusion import FusedEngine, rrf
from spaniel.types import Document, Hit

rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=5)


def test_scores_are_sums_of_reciprocal_ranks():
    fused = dict(rrf([["a", "b"], ["b", "c"]]))
    assert fused == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61, "c": 1 / 62})


def test_weights_and_constant_are_those_of_the_three_views():
    fused = rrf([["a", "b"], ["b"], ["c", "a"]], k=5, weights=[1.0, 0.75, 0.75])
    # a 1/6 + .75/7 = .274, b 1/7 + .75/6 = .268, c .75/6 = .125
    assert [docid for docid, _ in fused] == ["a", "b", "c"]
    assert [score for _, score in fused] == pytest.approx([0.273810, 0.267857, 0.125], abs=1e-6)


def test_ties_go_by_docid():
    assert [docid for docid, _ in rrf([["b", "a"], ["a", "b"]])] == ["a", "b"]


def test_a_repeated_id_takes_no_rank_after_its_first():
    assert rrf([["a", "a", "b"]]) == rrf([["a", "b"]])


def test_weights_must_be_as_many_as_rankings():
    with pytest.raises(ConfigError, match="1 weights for 2 rankings"):
        rrf([["a"], ["b"]], weights=[1.0])


@given(rankings, st.randoms(use_true_random=False))
def test_the_order_of_the_rankings_does_not_matter(lists, rng: random.Random):
    shuffled = list(lists)
    rng.shuffle(shuffled)
    assert rrf(lists) == rrf(shuffled)


@given(rankings)
def test_every_id_appears_once_and_scores_fall(lists):
    fused = rrf(lists)
    assert sorted(docid for docid, _ in fused) == sorted({d for ranking in lists for d in ranking})
    assert fused == sorted(fused, key=lambda item: (-item[1], item[0]))


class Fixed:
    """An engine that returns one ranking, with snippets if it is given any."""

    def __init__(self, docids: str, snippet: str = ""):
        self.docids, self.snippet = docids, snippet

    @property
    def fingerprint(self):
        return self.docids

    def search(self, query, k):
        return [
            Hit(docid=d, score=1 / r, rank=r, snippet=self.snippet and self.snippet + d)
            for r, d in enumerate(self.docids[:k], start=1)
        ]

    def search_batch(self, queries, k):
        return [self.search(query, k) for query in queries]

    def read(self, docid):
        return Document(docid=docid, title="", text=self.docids)

    def read_batch(self, docids):
        return [self.read(docid) for docid in docids]


def test_engines_are_fused_with_ranks_from_one_and_the_first_snippet_there_is():
    engine = FusedEngine([Fixed("ab"), Fixed("bc", "about ")])
    hits = engine.search("q", 2)
    assert [(h.docid, h.rank, h.snippet) for h in hits] == [("b", 1, "about b"), ("a", 2, "")]
    assert engine.search_batch(["q", "q"], 2) == [hits, hits]
    assert engine.read_batch(["b"]) == [Document(docid="b", title="", text="ab")]


def test_engines_are_asked_deeper_than_the_result():
    # z is second in both: it beats a and b, which each engine alone puts first.
    assert FusedEngine([Fixed("az"), Fixed("bz")]).search("q", 1)[0].docid == "z"


def test_the_fingerprint_follows_engines_and_weights():
    a, b = Fixed("ab"), Fixed("bc")
    prints = {
        FusedEngine([a, b]).fingerprint,
        FusedEngine([b, a]).fingerprint,
        FusedEngine([a, b], k=5).fingerprint,
        FusedEngine([a, b], weights=[1, 2]).fingerprint,
    }
    assert len(prints) == 4


def test_no_engine_or_wrong_weights_are_refused():
    with pytest.raises(ConfigError, match="at least one engine"):
        FusedEngine([])
    with pytest.raises(ConfigError, match="2 weights for 1 engines"):
        FusedEngine([Fixed("a")], weights=[1, 1])
