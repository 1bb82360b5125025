"""What every back end of the three views promises, on every one that can be started here:
the same documents match as in the embedded index, which is compared with itself, too.

OpenSearch is a double of its protocol (``opensearch_double.py``).
"""

from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.index.opensearch_double import OpenSearchDouble
from tests.index.sphinx_cluster import SphinxCluster, needs_searchd

from spaniel.config import IndexConfig, OpenSearchConfig
from spaniel.index.backend import VIEWS
from spaniel.index.bm25s_build import build_bm25s
from spaniel.index.bm25s_views import open_bm25s
from spaniel.index.build import build_index, open_index
from spaniel.index.engine import SearchEngine
from spaniel.index.query import parse_query
from spaniel.index.remote.opensearch import OpenSearchViews
from spaniel.index.remote.opensearch_load import load_opensearch
from spaniel.index.remote.sphinx import SphinxViews, load_sphinx
from spaniel.types import Document
from spaniel.world import generate_world

SETTINGS = {"passage_words": 20, "passage_stride_words": 10}
ALL = 500

ODD = [
    Document(
        docid="odd1",
        title="Z\u00fcrich caf\u00e9",
        text=f"The bank of america, C++ and \u6771\u4eac \u30bf\u30ef\u30fc. {'x' * 50} end",
        url="https://www.shop.example.com/docs/a.html",
    ),
    Document(docid="odd2", title="bank of", text="america", url="https://example.com/b"),
    Document(docid="odd3", title="Empty", text=""),
    Document(docid="odd4", title="\u6771\u4eac", text="\u4eac\u6771 bank 15\u6771\u4eac", url="x"),
    Document(docid="odd5", title="\uff21\uff22\u30fb\uff23\uff24", text="ab cd zzz1 zzzx zzz0"),
    Document(docid="odd6", title="same", text="same words", url=f"https://e.org/{'p' * 600}"),
    Document(docid="odd7", title="same", text="same words " * 30, url="https://EXAMPLE.com/B"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An index over a small wiki and odd documents."""
    directory = tmp_path_factory.mktemp("backends") / "index"
    documents = [*generate_world(200, 6).documents(), *ODD]
    build_index(documents, directory, IndexConfig(**SETTINGS))
    return directory


@pytest.fixture(scope="module")
def embedded(directory):
    return open_index(directory)


@contextmanager
def by_tantivy(directory, embedded, folder):
    yield open_index(directory)


@contextmanager
def by_bm25s(directory, embedded, folder):
    cfg = IndexConfig(**SETTINGS, backend="bm25s")
    build_bm25s(directory, cfg)
    yield open_bm25s(directory, cfg)


@contextmanager
def by_opensearch(directory, embedded, folder):
    cluster = OpenSearchDouble()
    cfg = OpenSearchConfig(urls=(cluster.url,), num_shards=3)
    index = IndexConfig(**SETTINGS)
    load_opensearch(embedded.texts, len(embedded.texts), cfg, index, embedded.content)
    engine = open_index(
        directory, index, views=lambda a, content: OpenSearchViews(cfg, a, content=content)
    )
    yield engine
    engine.views.close()
    cluster.stop()


@contextmanager
def by_sphinx(directory, embedded, folder):
    cluster = SphinxCluster(folder)
    index = IndexConfig(**SETTINGS)
    load_sphinx(embedded.texts, len(embedded.texts), cluster.cfg, index, embedded.content)
    engine = open_index(
        directory, index, views=lambda a, content: SphinxViews(cluster.cfg, a, content=content)
    )
    yield engine
    engine.views.close()
    cluster.stop()


BACKENDS = {
    "tantivy": by_tantivy,
    "bm25s": by_bm25s,
    "opensearch": by_opensearch,
    "sphinx": by_sphinx,
}
ONE_STATISTICS = ("tantivy", "bm25s", "opensearch")
"""Back ends whose BM25 counts the whole index, and not each shard for itself."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=needs_searchd if n == "sphinx" else ()) for n in BACKENDS],
)
def backend(request, directory, embedded, tmp_path_factory):
    """(name, an engine over the same documents by that back end)."""
    folder = tmp_path_factory.mktemp(request.param)
    with BACKENDS[request.param](directory, embedded, folder) as engine:
        yield request.param, engine


def test_it_is_a_search_engine_over_the_same_documents(embedded, backend):
    name, engine = backend
    assert isinstance(engine, SearchEngine)
    assert engine.waits == (name in ("opensearch", "sphinx"))
    assert engine.views.num_documents == embedded.views.num_documents
    assert engine.views.num_passages == embedded.views.num_passages
    assert (engine.fingerprint == embedded.fingerprint) == (name == "tantivy")
    assert engine.read("odd1") == embedded.read("odd1")


QUERIES = [
    '"bank of america"',
    '"bank of" america',
    '"of the" river',
    '"the town" river "was founded"',
    "site:example.com",
    "site:shop.example.com/docs bank",
    "site:example.org bank",
    '"same words" site:example.com/B',
    f"site:e.org/{'p' * 600}",
    "zurich",
    "\u6771\u4eac",
    "\u4eac\u6771 15\u6771",
    '"\u30bf\u30ef\u30fc"',
    "\uff21\uff22\u30fb\uff23\uff24",
    f'"\u30bf\u30ef\u30fc {"x" * 50} end"',
    f'"\u30ef\u30fc {"x" * 41} end"',
    "C++",
    "-bank",
    "bank | america",
    "@title bank",
    "a (b",
    "x" * 60,
    "\x00",
    "the",
    '"the"',
    '"..."',
    "MAYBE NEAR/3 bank",
    "bank~2 ban* =bank ^bank$",
    "zzz1",
    "zzz2 _ zzz0",
    'title:bank AND body:[a TO b] {"query": 1}',
    "town " * 2000,
]


def check_same_documents(embedded, engine, query):
    parsed = parse_query(query)
    for view in VIEWS:
        rows = [row for row, _ in embedded.views.rank(view, parsed, ALL)]
        found = [row for row, _ in engine.views.rank(view, parsed, ALL)]
        assert sorted(found) == sorted(rows), view
    assert engine.views.allowed_rows(parsed) == embedded.views.allowed_rows(parsed)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: ascii(query)[:40])
def test_the_same_documents_match(embedded, backend, query):
    check_same_documents(embedded, backend[1], query)


PLAIN = ["bank", "of", "america", "the", "town", "river", "same", "words", "ab", "cd", "15", "zzz0"]
UNSPACED = ["\u6771\u4eac", "\u4eac\u6771", "15\u6771", "\uff21\uff22\u30fb\uff23", "\u30bf\u30ef"]
SYNTAX = [
    "site:example.com",
    "site:com",
    "C++",
    "|",
    "-the",
    "@title",
    "~",
    "^",
    "*",
    "(",
    ")",
    ":",
]
WORDS = st.sampled_from([*PLAIN, *UNSPACED, *SYNTAX])


@settings(max_examples=25)
@given(
    st.lists(WORDS, max_size=4).map(" ".join),
    st.lists(st.lists(WORDS, min_size=1, max_size=3).map(" ".join), max_size=2),
)
def test_the_same_documents_match_whatever_is_asked(embedded, backend, keywords, phrases):
    site, words = "", []
    for word in keywords.split():
        if word.startswith("site:"):
            site = word  # a second one is an error of the query
        else:
            words.append(word)
    quoted = [f'"{phrase}"' for phrase in phrases if "site:" not in phrase]
    check_same_documents(embedded, backend[1], " ".join([*words, *quoted, site]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("query", ["the town river founded", "site:example.com", '"of the" town'])
def test_each_row_comes_once_and_in_order(backend, view, query):
    views, parsed = backend[1].views, parse_query(query)
    ranked = views.rank(view, parsed, ALL)
    rows = [row for row, _ in ranked]
    assert len(rows) == len(set(rows))
    assert ranked == sorted(ranked, key=lambda item: (-item[1], item[0]))
    assert len(rows) > 1 or view == "title"
    assert views.rank(view, parsed, 3) == ranked[:3]


@pytest.mark.parametrize("view", VIEWS)
def test_the_order_is_that_of_bm25_over_the_whole_index(embedded, backend, view):
    name, engine = backend
    if name not in ONE_STATISTICS:
        pytest.skip("each shard has statistics of its own")
    for question in generate_world(200, 6).questions(10, seed=1):
        query = parse_query(question.text.replace('"', ""))
        rows, scores = zip(*embedded.views.rank(view, query, ALL), strict=True)
        theirs = dict(engine.views.rank(view, query, ALL))
        # Lucene leaves out the factor k1 + 1. bm25s does not round lengths as tantivy does.
        scaled = [theirs[row] * (1 if name == "tantivy" else 2.2) for row in rows]
        assert scaled == pytest.approx(scores, rel=0.04 if name == "bm25s" else 1e-5)


def test_the_first_ten_are_nearly_those_of_the_embedded_index(embedded, backend):
    name, engine = backend
    shared = total = 0
    for question in generate_world(200, 6).questions(10, seed=1):
        query = question.text.replace('"', "")
        first, second = ([h.docid for h in e.search(query, 10)] for e in (embedded, engine))
        shared += len(set(first) & set(second))
        total += len(first)
    # A shard of a hundred documents has very other statistics.
    assert shared > {"sphinx": 0.65, "bm25s": 0.95}.get(name, 0.99) * total


def test_idf_is_that_of_all_documents(embedded, backend):
    for term in ("town", "\u6771", "zzz1", "nowhere"):
        assert backend[1].views.idf(term) == pytest.approx(embedded.views.idf(term), rel=1e-6)
