"""What is OpenSearch's own: loading, refusals and faults, against a double of its protocol."""

import base64
import json

import pytest
from pydantic import ValidationError
from tests.index.conftest import FRUIT
from tests.index.opensearch_double import OpenSearchDouble

from spaniel.config import IndexConfig, OpenSearchConfig, SphinxConfig
from spaniel.errors import ArtifactError, ConfigError, QueryError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.index.build import build_index, open_index
from spaniel.index.query import parse_query
from spaniel.index.remote import opensearch, opensearch_load, retry
from spaniel.index.remote.load import load_cluster
from spaniel.index.remote.opensearch import OpenSearchViews
from spaniel.index.remote.opensearch_load import index_names, load_opensearch
from spaniel.types import Document

ANALYZER = Analyzer("english")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("opensearch") / "index"
    build_index(FRUIT, directory, IndexConfig())
    return open_index(directory)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(opensearch_load, "LONGEST_PAUSE_S", 0.001)
    cluster = OpenSearchDouble()
    yield cluster
    cluster.stop()


def config(cluster, **changes):
    return OpenSearchConfig(**{"urls": (cluster.url,), "num_shards": 2, "max_retries": 1} | changes)


def load(embedded, cfg):
    return load_opensearch(
        embedded.texts, len(embedded.texts), cfg, IndexConfig(), embedded.content
    )


@pytest.fixture
def views(cluster, embedded):
    load(embedded, config(cluster))
    views = OpenSearchViews(config(cluster), ANALYZER, content=embedded.content)
    yield views
    views.close()


QUERY = parse_query("apple fruit")


# --- loading ------------------------------------------------------------------------------


def test_a_load_says_what_the_cluster_holds_and_is_not_repeated(cluster, embedded):
    assert load(embedded, config(cluster)) == (6, 6)
    sent = len(cluster.requests)
    assert load(embedded, config(cluster)) == (6, 6)
    assert {method for method, *_ in cluster.requests[sent:]} == {"GET"}


def test_copies_are_made_when_the_load_is_complete(cluster, embedded):
    load(embedded, config(cluster, num_replicas=2))
    for index in cluster.indexes.values():
        assert index.settings["number_of_replicas"] == 2
        assert index.settings["number_of_shards"] == 2
    created = [json.loads(data) for method, path, _, data in cluster.requests if method == "PUT"]
    assert created[0]["settings"]["index"]["number_of_replicas"] == 0


def test_other_settings_of_bm25_are_other_indexes(cluster, embedded, views):
    flat = config(cluster, b=0.0, k1=0.5)
    with pytest.raises(ArtifactError, match=r"k1=0\.5, b=0\.0.*run `spaniel index load`"):
        OpenSearchViews(flat, ANALYZER, content=embedded.content)
    load(embedded, flat)
    others = OpenSearchViews(flat, ANALYZER, content=embedded.content)
    query = parse_query("bank america")
    assert others.rank("document", query, 5) != views.rank("document", query, 5)
    assert others.fingerprint != views.fingerprint
    assert len(cluster.indexes) == 4
    others.close()


def test_rows_that_the_cluster_has_no_room_for_are_sent_again(cluster, embedded):
    busy = [False, True, False, True]

    def spoil(method, path, answer):
        if path.endswith("_bulk") and busy.pop():
            for item in answer["items"][::2]:
                row = item["create"]["_id"]
                del cluster.indexes[path.split("/")[1]].rows[row]
                item["create"] = {"_id": row, "status": 429, "error": {"reason": "queue full"}}
        return answer

    cluster.spoil = spoil
    assert load(embedded, config(cluster)) == (6, 6)
    assert not busy


def test_a_cluster_that_never_has_room_is_an_error(cluster, embedded, monkeypatch):
    monkeypatch.setattr(opensearch_load, "MAX_ATTEMPTS", 3)

    def spoil(method, path, answer):
        if path.endswith("_bulk"):
            answer["items"] = [{"create": {"status": 429}} for _ in answer["items"]]
        return answer

    cluster.spoil = spoil
    with pytest.raises(ToolError, match=r"no room for 6 rows of .* in 3 attempts"):
        load(embedded, config(cluster))


def test_an_answer_that_was_lost_does_not_write_rows_twice(cluster, embedded):
    lost = []

    def spoil(method, path, answer):
        if path.endswith("_bulk") and not lost:
            lost.append(path)
            return {"items": [{"create": {"status": 503}} for _ in answer["items"]]}
        return answer

    cluster.spoil = spoil
    assert load(embedded, config(cluster)) == (6, 6)
    bulks = [path for _, path, _, _ in cluster.requests if path == lost[0]]
    assert len(bulks) == 2


def test_a_refused_row_ends_the_load_with_its_reason(cluster, embedded):
    def spoil(method, path, answer):
        if path.endswith("passages/_bulk"):
            answer["items"][1]["create"] = {"status": 400, "error": {"reason": "immense term"}}
        return answer

    cluster.spoil = spoil
    with pytest.raises(ToolError, match=r"row \d-0 of spaniel-.*-passages: immense term"):
        load(embedded, config(cluster))


def test_rows_that_got_lost_are_noticed(cluster, embedded):
    def spoil(method, path, answer):
        if path.endswith("passages/_count"):
            answer["count"] -= 1
        return answer

    cluster.spoil = spoil
    with pytest.raises(ArtifactError, match="passages holds 5 of 6 rows"):
        load(embedded, config(cluster))


def test_a_load_that_died_is_refused_and_made_again(cluster, embedded):
    def fault(method, path, params, data):
        if path.endswith("passages/_bulk"):
            return 400, {}, {"error": {"reason": "died"}}
        return None

    cluster.fault = fault
    with pytest.raises(ToolError, match="400 died"):
        load(embedded, config(cluster))
    assert len(cluster.indexes) == 2
    cluster.fault = None
    with pytest.raises(ArtifactError, match="was not loaded to the end"):
        OpenSearchViews(config(cluster), ANALYZER, content=embedded.content)
    assert load(embedded, config(cluster)) == (6, 6)
    OpenSearchViews(config(cluster), ANALYZER, content=embedded.content).close()


def test_other_documents_are_not_what_is_searched(cluster, embedded, views):
    with pytest.raises(ArtifactError, match="does not hold this index"):
        OpenSearchViews(config(cluster), ANALYZER, content="other")


def test_rows_that_are_gone_are_noticed_when_it_opens(cluster, embedded, views):
    documents, _ = index_names(config(cluster), embedded.content)
    cluster.indexes[documents].rows.popitem()
    cluster.indexes[documents].refresh()
    with pytest.raises(ArtifactError, match=r"must number \(6, 6\), got \(5, 6\)"):
        OpenSearchViews(config(cluster), ANALYZER, content=embedded.content)


# --- searching ----------------------------------------------------------------------------


def test_a_search_asks_for_all_shards_and_their_common_statistics(cluster, views):
    views.rank("passage", QUERY, 5)
    *_, params, data = cluster.requests[-1]
    assert params == {
        "search_type": "dfs_query_then_fetch",
        "allow_partial_search_results": "false",
    }
    body = json.loads(data)
    assert body["track_total_hits"] is False
    assert body["collapse"] == {"field": "row"}


def test_all_allowed_rows_come_however_many_there_are(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(opensearch, "_PAGE", 10)
    documents = [
        Document(docid=f"{n:03}", title="", text="same", url=f"http://{n % 2}.org")
        for n in range(61)
    ]
    build_index(documents, tmp_path / "index", IndexConfig())
    engine = open_index(tmp_path / "index")
    load(engine, config(cluster))
    views = OpenSearchViews(config(cluster), ANALYZER, content=engine.content)
    for query in ("site:org", "site:0.org", '"same" site:1.org', "site:none"):
        parsed = parse_query(query)
        assert views.allowed_rows(parsed) == engine.views.allowed_rows(parsed)
    assert len(views.rank("document", parse_query("same"), 10**6)) == 61
    views.close()


def test_more_words_in_phrases_than_a_cluster_takes_are_a_query_error(views):
    many = parse_query(" ".join(f'"{n} a"' for n in range(451)))
    with pytest.raises(QueryError, match="may hold 900 words, got 902"):
        views.rank("document", many, 5)
    with pytest.raises(QueryError):
        views.allowed_rows(many)
    assert views.rank("document", parse_query(f'"{"a " * 900}"'), 5) == []


def failed(method, path, answer):
    return answer | {"_shards": {"total": 2, "successful": 1, "skipped": 0, "failed": 1}}


def moving(method, path, answer):
    return answer | {"_shards": {"total": 2, "successful": 1, "skipped": 0, "failed": 0}}


def timed_out(method, path, answer):
    return answer | {"timed_out": True}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (failed, "a part of the index failed: 1 of 2 shards answered"),
        (moving, "a part of the index failed: 1 of 2 shards answered"),
        (timed_out, "did not answer in time"),
        (lambda *_: {"hits": {"hits": []}}, "does not say which shards"),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda views: views.rank("document", QUERY, 5),
        lambda views: views.rank("passage", QUERY, 5),
        lambda views: views.allowed_rows(parse_query("site:fruit.org")),
        lambda views: views.idf("pear"),
    ],
    ids=["rank", "passages", "allowed", "idf"],
)
def test_a_part_that_does_not_answer_is_a_failure_not_fewer_rows(
    cluster, views, spoil, message, ask
):
    cluster.spoil = spoil
    with pytest.raises(ToolError, match=message):
        ask(views)
    cluster.spoil = None
    assert ask(views)


def test_missing_shards_fail_after_retries_with_the_clusters_reason(cluster, views):
    sent = len(cluster.requests)
    error = {"root_cause": [], "type": "x", "reason": "Search rejected due to missing shards"}
    cluster.fault = lambda *_: (503, {}, {"error": error, "status": 503})
    with pytest.raises(ToolError, match=r"503: Search rejected due to missing shards \(after 2 at"):
        views.rank("document", QUERY, 5)
    assert len(cluster.requests) == sent + 2


def test_a_busy_cluster_is_asked_again(cluster, views):
    answers = [(429, {"retry-after": "0"}, {"error": {"reason": "busy"}})]
    cluster.fault = lambda *_: answers.pop() if answers else None
    assert views.rank("document", QUERY, 5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, {}, "<html>"), "200 <html>"),
        ((200, {}, "[]"), r"200 \[\]"),
        ((400, {}, {"error": {"reason": "no such field"}, "status": 400}), "400 no such field"),
        ((404, {}, {"error": {"reason": "no such index"}, "status": 404}), "404 no such index"),
        ((200, {}, {"_shards": {"total": 1, "successful": 1, "failed": 0}}), "no search result"),
    ],
)
def test_what_is_no_answer_is_a_failure(cluster, views, answer, message):
    cluster.fault = lambda *_: answer
    with pytest.raises(ToolError, match=message):
        views.rank("document", QUERY, 5)


def test_another_node_is_asked_when_one_is_down(cluster, embedded):
    dead = OpenSearchDouble()
    dead.stop()
    cfg = config(cluster, urls=(dead.url, cluster.url))
    load(embedded, cfg)
    views = OpenSearchViews(cfg, ANALYZER, content=embedded.content)
    assert views.rank("document", QUERY, 5)
    views.close()


def test_a_dead_cluster_is_a_failure(cluster, embedded, views):
    cluster.stop()
    views._cluster._client.close()
    with pytest.raises(ToolError, match=r"cluster at http://127\.0\.0\.1:\d+: ConnectError"):
        OpenSearchViews(config(cluster), ANALYZER, content=embedded.content)


# --- credentials --------------------------------------------------------------------------


def test_user_and_password_come_from_the_environment(cluster, embedded, monkeypatch):
    cfg = config(cluster, user_env="CLUSTER_USER", password_env="CLUSTER_PASSWORD")
    with pytest.raises(ConfigError, match="CLUSTER_USER is not set"):
        load(embedded, cfg)
    monkeypatch.setenv("CLUSTER_USER", "ada")
    monkeypatch.setenv("CLUSTER_PASSWORD", "secret")
    cluster.authorization = "Basic " + base64.b64encode(b"ada:secret").decode()
    assert load(embedded, cfg) == (6, 6)
    monkeypatch.setenv("CLUSTER_PASSWORD", "wrong")
    with pytest.raises(ConfigError, match=r"does not let us in \(401\)") as refused:
        load(embedded, cfg)
    assert "wrong" not in str(refused.value)


def test_an_api_key_comes_from_the_environment(cluster, embedded, monkeypatch):
    monkeypatch.setenv("CLUSTER_KEY", "abc==")
    cluster.authorization = "ApiKey abc=="
    assert load(embedded, config(cluster, api_key_env="CLUSTER_KEY")) == (6, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"user_env": "A"}, "go together"),
        ({"user_env": "A", "password_env": "B", "api_key_env": "C"}, "not both"),
        ({"index": "Upper"}, "pattern"),
        ({"urls": ()}, "at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        OpenSearchConfig(**settings)


def test_a_certificate_authority_that_is_not_there_is_one_line(tmp_path, cluster, embedded):
    with pytest.raises(ConfigError, match=r"ca_file .*none\.pem"):
        load(embedded, config(cluster, ca_file=tmp_path / "none.pem"))


# --- which cluster ------------------------------------------------------------------------


def test_the_cluster_that_the_recipe_names_is_loaded(cluster, embedded):
    cfg = IndexConfig(opensearch=config(cluster))
    assert load_cluster(embedded.texts, 6, cfg, embedded.content) == (6, 6)
    both = IndexConfig(opensearch=config(cluster), sphinx=SphinxConfig(), engine="opensearch")
    assert load_cluster(embedded.texts, 6, both, embedded.content) == (6, 6)
    for cfg, message in (
        (IndexConfig(), "set index.sphinx or index.opensearch"),
        (both.model_copy(update={"engine": "lexical"}), "say with index.engine which"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_cluster(embedded.texts, 6, cfg, embedded.content)
