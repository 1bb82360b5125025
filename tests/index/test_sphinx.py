"""What is SphinxQL's own, on a real cluster of two shards; the rest is in test_backends.py."""

import pytest
from tests.index.sphinx_cluster import SphinxCluster, needs_searchd

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.build import build_index, open_index
from spaniel.index.query import parse_query
from spaniel.index.remote.sphinx import SphinxViews, _phrase, load_sphinx, site_number
from spaniel.world import generate_world


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(index directory, config of the cluster, daemons: two shards and the one in front)."""
    folder = tmp_path_factory.mktemp("sphinx")
    index = IndexConfig()
    build_index(generate_world(200, 6).documents(), folder / "index", index)
    embedded = open_index(folder / "index", index)
    started = SphinxCluster(folder)
    load_sphinx(embedded.texts, len(embedded.texts), started.cfg, index, embedded.content)
    yield folder / "index", started.cfg, started.daemons
    started.stop()


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


def test_a_phrase_keeps_the_place_of_a_word_that_is_not_indexed():
    assert _phrase([(0, "bank"), (2, "america")]) == '"bank * america"'
    assert _phrase([(4, "bank")]) == "bank"


def test_site_numbers_are_positive_and_differ():
    numbers = {site_number(s) for s in ("a.com", "a.com/x", "b.com")}
    assert len(numbers) == 3
    assert all(0 <= n < 2**63 for n in numbers)
