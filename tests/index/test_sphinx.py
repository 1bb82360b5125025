"""The three views on a real SphinxQL cluster of two shards, against the embedded index."""

import shutil
import socket
import subprocess
import time

import pytest

from spaniel.config import IndexConfig, ShardConfig, SphinxConfig
from spaniel.errors import ArtifactError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.build import build_index, open_index
from spaniel.index.engine import SearchEngine
from spaniel.index.query import parse_query
from spaniel.index.remote.sphinx import (
    SphinxViews,
    _phrase,
    load_sphinx,
    site_number,
    sphinx_tables,
    token_of,
)
from spaniel.types import Document
from spaniel.world import generate_world

needs_searchd = pytest.mark.skipif(
    shutil.which("searchd") is None, reason="needs searchd (Debian: sphinxsearch)"
)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Daemon:
    """One searchd; ``tables`` is the part of the configuration before the searchd section."""

    def __init__(self, folder, tables, sql_port, api_port):
        folder.mkdir(parents=True, exist_ok=True)
        conf = folder / "sphinx.conf"
        conf.write_text(
            f"{tables}searchd {{\n  listen = 127.0.0.1:{sql_port}:mysql41\n"
            f"  listen = 127.0.0.1:{api_port}\n  pid_file = {folder}/pid\n"
            f"  log = {folder}/log\n  binlog_path =\n  workers = threads\n"
            "  max_packet_size = 64M\n}\n"
        )
        self.process = subprocess.Popen(
            ["searchd", "--nodetach", "-c", conf], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", sql_port)) == 0:
                    return
            assert self.process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


def odd_documents():
    return [
        Document(
            docid="odd1",
            title="Z\u00fcrich caf\u00e9",
            text=f"The bank of america, C++ and \u6771\u4eac \u30bf\u30ef\u30fc. {'x' * 50} end",
            url="https://www.shop.example.com/docs/a.html",
        ),
        Document(docid="odd2", title="bank of", text="america", url="https://example.com/b"),
        Document(docid="odd3", title="Empty", text=""),
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(index directory, config of the cluster, daemons: two shards and the one in front)."""
    folder = tmp_path_factory.mktemp("sphinx")
    documents = [*generate_world(200, 6).documents(), *odd_documents()]
    index = IndexConfig()
    build_index(documents, folder / "index", index)
    sql0, api0, sql1, api1, sql, api = free_ports(6)
    shards = [
        Daemon(folder / name, sphinx_tables("documents", "passages", str(folder / name)), *ports)
        for name, ports in (("shard0", (sql0, api0)), ("shard1", (sql1, api1)))
    ]
    tables = "".join(
        f"index {table} {{\n  type = distributed\n"
        f"  agent = 127.0.0.1:{api0}:{table}\n  agent = 127.0.0.1:{api1}:{table}\n}}\n"
        for table in ("documents", "passages")
    )
    front = Daemon(folder / "front", tables, sql, api)
    cfg = SphinxConfig(
        port=sql, shards=(ShardConfig(port=sql0), ShardConfig(port=sql1)), timeout_s=5
    )
    embedded = open_index(folder / "index", index)
    load_sphinx(embedded.texts, len(embedded.texts), cfg, index, embedded.content)
    yield folder / "index", cfg, [*shards, front]
    for daemon in (*shards, front):
        daemon.stop()


def opened(cluster, **changes):
    directory, cfg, _ = cluster
    cfg = cfg.model_copy(update=changes)
    return open_index(
        directory, IndexConfig(), views=lambda a, content: SphinxViews(cfg, a, content=content)
    )


@pytest.fixture(scope="module")
def engines(cluster):
    remote = opened(cluster)
    yield open_index(cluster[0], IndexConfig()), remote
    remote.views.close()


@needs_searchd
def test_it_is_a_search_engine_over_the_same_documents(engines):
    embedded, remote = engines
    assert isinstance(remote, SearchEngine)
    assert remote.waits
    assert remote.views.num_documents == embedded.views.num_documents
    assert remote.views.num_passages == embedded.views.num_passages
    assert remote.fingerprint != embedded.fingerprint  # its statistics are its own
    assert remote.read("odd1") == embedded.read("odd1")


QUERIES = [
    '"bank of america"',
    '"bank of" america',
    "site:example.com",
    "site:shop.example.com/docs bank",
    "site:example.org bank",
    "zurich",
    "\u6771\u4eac",
    '"\u30bf\u30ef\u30fc"',
    "C++",
    "-bank",
    "bank | america",
    "@title bank",
    "a (b",
    "x" * 60,
    "\x00",
    "the",
    '"the"',
    "MAYBE NEAR/3 bank",
    "bank~2 ban* =bank ^bank$",
    "zzz1",
]


@needs_searchd
@pytest.mark.parametrize("query", QUERIES)
def test_the_same_documents_match(engines, query):
    embedded, remote = engines
    found = [sorted(h.docid for h in e.search(query, 500)) for e in engines]
    assert found[0] == found[1]
    parsed = parse_query(query)
    assert embedded.views.allowed_rows(parsed) == remote.views.allowed_rows(parsed)


@needs_searchd
def test_questions_find_nearly_the_same_first_ten(engines):
    embedded, remote = engines
    shared = total = 0
    for question in generate_world(200, 6).questions(40, seed=1):
        first = [h.docid for h in embedded.search(question.text.replace('"', ""), 10)]
        second = [h.docid for h in remote.search(question.text.replace('"', ""), 10)]
        shared += len(set(first) & set(second))
        total += len(first)
    # Each shard of a hundred documents has statistics of its own.
    assert shared > 0.65 * total


@needs_searchd
@pytest.mark.parametrize("view", ["document", "title", "passage"])
def test_each_row_comes_once_and_in_order(engines, view):
    ranked = engines[1].views.rank(view, parse_query("the town river founded"), 50)
    rows = [row for row, _ in ranked]
    assert len(rows) == len(set(rows))
    assert ranked == sorted(ranked, key=lambda item: (-item[1], item[0]))
    assert view == "title" or len(rows) > 5


@needs_searchd
def test_bm25_settings_are_honoured(cluster):
    flat, long_text = opened(cluster, b=0.0), opened(cluster, b=1.0)
    query = parse_query("town river")
    scores = [dict(e.views.rank("document", query, 50)) for e in (flat, long_text)]
    assert scores[0] != scores[1]
    assert flat.fingerprint != long_text.fingerprint
    for engine in (flat, long_text):
        engine.views.close()


@needs_searchd
def test_a_load_that_died_and_other_documents_are_noticed(cluster):
    _, cfg, _ = cluster
    with pytest.raises(ArtifactError, match="0 of 2 shards of documents hold this index"):
        SphinxViews(cfg, Analyzer("english"), content="other")


@needs_searchd
def test_a_dead_shard_is_a_failure_not_fewer_rows(cluster, engines):
    _, remote = engines
    shard = cluster[2][1]
    assert remote.search("town", 5)
    shard.stop()
    with pytest.raises(ToolError, match="a part of the index failed"):
        remote.search("town", 5)
    with pytest.raises(ToolError):
        opened(cluster)


@needs_searchd
def test_a_dead_cluster_is_a_failure(cluster, engines):
    cluster[2][2].stop()
    with pytest.raises(ToolError, match=r"SphinxQL at 127\.0\.0\.1"):
        engines[1].search("town", 5)


def test_tokens_are_plain_and_different():
    terms = ["town", "caf\u00e9", "\u6771", "zzz1", "c++", "x" * 40, "1820", "a_b"]
    tokens = [token_of(term) for term in terms]
    assert all(token.isascii() and token.isalnum() and len(token) <= 40 for token in tokens)
    assert len(set(tokens)) == len(terms)
    assert token_of("town") == "town"


def test_a_phrase_keeps_the_place_of_a_word_that_is_not_indexed():
    assert _phrase([(0, "bank"), (2, "america")]) == '"bank * america"'
    assert _phrase([(4, "bank")]) == "bank"


def test_site_numbers_are_positive_and_differ():
    numbers = {site_number(s) for s in ("a.com", "a.com/x", "b.com")}
    assert len(numbers) == 3
    assert all(0 <= n < 2**63 for n in numbers)
