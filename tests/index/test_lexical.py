import math
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.index.conftest import FRUIT, document

from spaniel.errors import ConfigError, QueryError
from spaniel.index.engine import SearchEngine
from spaniel.index.fusion import rrf


@pytest.fixture
def engine(fruit_engine):
    return fruit_engine


def found(engine, query, k=10):
    return [hit.docid for hit in engine.search(query, k)]


def view(engine, name, query, k=10):
    return [hit.docid for hit in engine.search_view(name, query, k)]


def test_it_is_a_search_engine(engine):
    assert isinstance(engine, SearchEngine)


def bm25(corpus, terms, k1=1.2, b=0.75):
    """Lucene's BM25 with its constant factor k1 + 1, over lists of tokens."""
    mean = sum(map(len, corpus)) / len(corpus)
    scores = []
    for tokens in corpus:
        score = 0.0
        for term in terms:
            n, tf = sum(term in t for t in corpus), tokens.count(term)
            idf = math.log(1 + (len(corpus) - n + 0.5) / (n + 0.5))
            norm = k1 * (1 - b + b * len(tokens) / mean)
            score += idf * tf * (k1 + 1) / (tf + norm)
        scores.append(score)
    return scores


def test_the_document_view_scores_by_bm25_over_title_and_text(engine_of):
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(30)]
    # Lengths up to 40 tokens are stored exactly.
    corpus = {
        f"d{i:03}": [rng.choice(vocabulary) for _ in range(rng.randint(2, 38))] for i in range(80)
    }
    engine = engine_of(
        [document(d, " ".join(tokens[1:]), tokens[0]) for d, tokens in corpus.items()],
        language="none",
    )
    terms = ["w1", "w7", "w20"]
    expected = dict(zip(corpus, bm25(list(corpus.values()), terms), strict=True))
    hits = engine.search_view("document", " ".join(terms), 80)
    assert {h.docid for h in hits} == {d for d, score in expected.items() if score > 0}
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.docid], rel=1e-5)
    assert [h.rank for h in hits] == list(range(1, len(hits) + 1))


def test_passages_do_not_change_the_statistics_of_documents(engine_of):
    long = document("long", " ".join(f"w{i}" for i in range(300)))
    docs = [long, document("short", "w1 w2")]
    few = engine_of(docs, language="none", name="a")
    many = engine_of(docs, language="none", passage_words=8, passage_stride_words=2, name="b")
    assert few.search_view("document", "w1", 5) == many.search_view("document", "w1", 5)


def test_search_fuses_the_three_views_by_weighted_reciprocal_rank(engine):
    query = "apple fruit"
    rankings = [view(engine, name, query, 50) for name in ("document", "passage", "title")]
    expected = rrf(rankings, k=5, weights=[1.0, 0.75, 0.75])
    hits = engine.search(query, 10)
    assert [(h.docid, h.score) for h in hits] == expected
    # By hand: apple is first in all views; pear second in two, absent from the titles.
    assert hits[0].docid == "apple"
    assert hits[0].score == pytest.approx((1 + 0.75 + 0.75) / 6)


def test_a_view_of_weight_zero_takes_no_part(engine_of):
    engine = engine_of(FRUIT, weight_document=0, weight_passage=0)
    assert found(engine, "fruit") == []
    assert found(engine, "pear fruit") == ["pear"]


def test_a_parent_ranks_once_by_its_best_passage(engine_of):
    many = document("many", "kiwi " * 10 + "filler " * 20 + "kiwi " + "filler " * 9)
    one = document("one", "kiwi " * 4 + "filler " * 6)
    engine = engine_of([many, one], passage_words=10, passage_stride_words=10)
    hits = engine.search_view("passage", "kiwi", 2)
    assert [h.docid for h in hits] == ["many", "one"]
    # The parent's score is the one of its best passage, whatever comes behind.
    assert engine.search_view("passage", "kiwi", 1) == hits[:1]


def test_equal_scores_rank_by_docid_whatever_order_they_came_in(engine_of):
    docids = [f"{i:03}" for i in range(120)]
    random.Random(1).shuffle(docids)
    engine = engine_of([document(d, "same words") for d in docids])
    for name in ("document", "passage"):
        assert view(engine, name, "words", 7) == sorted(docids)[:7]
    assert found(engine, "words", 7) == sorted(docids)[:7]


def test_fewer_results_are_the_first_of_more(engine):
    assert found(engine, "apple bank fruit", 2) == found(engine, "apple bank fruit", 6)[:2]


def test_phrases_are_constraints_and_exact_across_stop_words(engine):
    assert found(engine, '"bank of america"') == ["bank"]
    assert found(engine, '"the who" london') == ["who"]
    assert found(engine, '"fruit apple"') == []
    assert found(engine, '"is a fruit" phones') == ["apple", "pear"]


def test_a_phrase_does_not_reach_from_the_title_into_the_text(engine):
    assert found(engine, '"pear a"') == []


def test_a_phrase_in_the_title_is_found(engine):
    assert found(engine, '"apple inc"') == ["inc"]


def test_a_phrase_of_one_word_is_that_word_required(engine):
    assert found(engine, '"london"') == found(engine, "london") == ["who"]
    assert found(engine, 'apple "phones"') == ["inc"]


def test_all_phrases_must_hold(engine):
    assert found(engine, '"is a" "like the apple"') == ["pear"]


def test_a_site_keeps_a_domain_and_its_subdomains(engine):
    assert found(engine, "apple site:fruit.org") == ["apple", "pear"]
    assert found(engine, "apple site:shop.com") == ["inc"]
    assert found(engine, "apple site:eu.shop.com") == ["inc"]
    assert found(engine, "apple site:op.com") == []


def test_a_site_alone_lists_its_documents_by_docid(engine):
    assert found(engine, "site:fruit.org") == ["apple", "pear"]


def test_a_site_adds_no_documents_that_the_keywords_do_not_touch(engine):
    assert found(engine, "phones site:fruit.org") == []


@pytest.mark.parametrize(
    "query",
    ["", "?!", "\x00", '""', "xyzzy", '"..."', "a" * 10_000, "\ud800", "site:nowhere.example x"],
)
def test_what_matches_nothing_is_an_empty_list(engine, query):
    assert engine.search(query, 5) == []
    assert engine.search_view("passage", query, 5) == []


def test_a_very_long_query_is_answered(engine):
    assert "apple" in found(engine, "apple " + " ".join(f"x{i}" for i in range(2000)))


def test_engine_syntax_in_a_query_is_text(engine):
    for query in ("what's AND (apple", "apple +[", "body:apple", "apple* ~2", "apple^3 ||"):
        assert "apple" in found(engine, query)


@settings(max_examples=150, deadline=None)
@given(query=st.text(st.characters(), max_size=40))
def test_no_query_breaks_the_engine(fruit_engine, query):
    engine = fruit_engine
    try:
        hits = engine.search(query, 3)
    except QueryError:
        assert query.lower().count("site:") > 1
        return
    assert len({h.docid for h in hits}) == len(hits) <= 3
    assert all(h.snippet in engine.read(h.docid).text for h in hits)


def test_a_second_site_is_a_query_error(engine):
    with pytest.raises(QueryError):
        engine.search("site:a.com site:b.com", 5)


def test_k_below_one_and_unknown_views_are_refused(engine):
    with pytest.raises(ConfigError, match="k must be >= 1, got 0"):
        engine.search("apple", 0)
    with pytest.raises(ConfigError, match="view must be one of document, passage, title"):
        engine.search_view("body", "apple", 3)


def test_reading_gives_the_document_and_a_key_error_for_others(engine):
    assert engine.read_batch(["who", "bank"]) == [FRUIT[3], FRUIT[4]]
    with pytest.raises(KeyError):
        engine.read("nope")


def test_hits_carry_snippets_unless_they_are_switched_off(engine_of):
    assert engine_of(FRUIT, name="a").search("phones", 1)[0].snippet == FRUIT[2].text
    assert engine_of(FRUIT, name="b", snippet_words=0).search("phones", 1)[0].snippet == ""


def test_unspaced_scripts_match_by_neighbouring_characters(engine_of):
    engine = engine_of([document("tokyo", "東京都は日本の首都"), document("kyoto", "京都は東の都")])
    assert found(engine, "東京") == ["tokyo"]
    assert found(engine, '"京都"') == ["kyoto", "tokyo"]


def test_many_threads_get_the_answers_of_one(engine):
    queries = ["apple fruit", '"bank of america"', "river", "who london", "site:fruit.org"] * 10
    expected = engine.search_batch(queries, 5)
    results = {}

    def work(number):
        results[number] = [engine.search(query, 5) for query in queries]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[i] == expected for i in range(4))
