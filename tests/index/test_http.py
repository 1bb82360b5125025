"""The search server and the engine that asks it: same hits, and every fault has one outcome."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.doubles import BrokenEngine, WordEngine, lighthouse_documents
from tests.endpoint_server import Server

from spaniel.config import EnvConfig, HttpConfig
from spaniel.env.episode import Environment
from spaniel.errors import ArtifactError, ConfigError, QueryError, ToolError
from spaniel.index.engine import SearchEngine, headings
from spaniel.index.remote import retry
from spaniel.index.remote.http import HttpEngine
from spaniel.index.remote.retry import Breaker
from spaniel.index.server import MAX_BODY_BYTES, SearchServer, serve
from spaniel.types import Document, FinishReason, Question


class Running:
    """A server on a thread of its own; stopped as SIGTERM stops it."""

    def __init__(self, engine, **settings):
        self.server = SearchServer(engine, **settings)
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(10)

    def _run(self):
        serve(self.server, host="127.0.0.1", port=0, on_ready=self._announce)

    def _announce(self, address, stop):
        self.url, self.ask_to_stop = address, stop
        self.ready.set()

    def stop(self):
        self.ask_to_stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def running():
    started = []

    def start(engine, **settings):
        started.append(Running(engine, **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)


CLIENTS = []


def client(url, **settings):
    engine = HttpEngine(HttpConfig(url=url, **{"max_retries": 2, "timeout_s": 5.0} | settings))
    CLIENTS.append(engine)
    return engine


@pytest.fixture(autouse=True)
def closed_clients():
    yield
    while CLIENTS:
        CLIENTS.pop().close()


DOCUMENTS = [
    *lighthouse_documents(),
    Document(docid="odd", title="Zoë “q”", text="über\n\u2028 the café", url="http://a.b/c"),
]


def test_results_over_http_are_those_in_process(running):
    inside = WordEngine(DOCUMENTS)
    outside = client(running(inside).url)
    assert isinstance(outside, SearchEngine)
    assert outside.fingerprint == inside.fingerprint
    queries = ["the company", "Marrow", "nothing at all here", "", "the café \ud800", 'a "b" c']
    assert outside.search_batch(queries, 3) == inside.search_batch(queries, 3)
    for query in queries:
        assert outside.search(query, 2) == inside.search(query, 2)
    docids = ["d3", "odd", "d1", "d3"]
    assert outside.read_batch(docids) == inside.read_batch(docids)


def test_an_unknown_document_is_a_key_error(running):
    outside = client(running(WordEngine(DOCUMENTS)).url)
    with pytest.raises(KeyError, match="nope"):
        outside.read("nope")


def test_documents_at_hand_are_not_fetched_again(running):
    server = running(WordEngine(DOCUMENTS))
    outside = client(server.url)
    outside.read_batch(["d1", "d2"])
    outside.read_batch(["d2", "d1", "d1"])
    outside.read("d1")
    assert server.server.num_reads == 2


def test_headings_come_without_their_texts_and_once(running):
    server = running(WordEngine(DOCUMENTS))
    outside = client(server.url)
    found = headings(outside, ["odd", "d1", "odd"])
    assert [d.title for d in found] == ["Zoë “q”", outside.read("d1").title, "Zoë “q”"]
    assert [d.text for d in found] == [""] * 3
    assert outside.read("odd").text
    headings(outside, ["d1"])
    assert server.server.num_reads == 4
    with pytest.raises(KeyError, match="nope"):
        headings(outside, ["nope"])


class Fussy(WordEngine):
    def search(self, query, k):
        if query.count("site:") > 1:
            raise QueryError("a query can hold one site: filter")
        return super().search(query, k)


def test_a_query_error_stays_one(running):
    outside = client(running(Fussy(DOCUMENTS)).url)
    with pytest.raises(QueryError, match="one site: filter"):
        outside.search("site:a site:b", 3)


def test_a_broken_engine_is_a_failure_never_an_empty_list(running):
    server = running(BrokenEngine(DOCUMENTS))
    outside = client(server.url)
    with pytest.raises(ToolError, match=r"ConnectionError: the retriever is down.*3 attempts"):
        outside.search("x", 3)
    assert server.server.answers["/search", 500] == 3


class Slow(WordEngine):
    def __init__(self, documents):
        super().__init__(documents)
        self.release = threading.Event()
        self.at_work = self.most = 0
        self.lock = threading.Lock()

    def search(self, query, k):
        with self.lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        self.release.wait(10)
        with self.lock:
            self.at_work -= 1
        return super().search(query, k)


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_full_line_answers_429_and_when_to_come_back(running):
    engine = Slow(DOCUMENTS)
    server = running(engine, num_threads=2, max_waiting=3)
    body = json.dumps({"queries": ["the"], "k": 1})
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(httpx.post, f"{server.url}/search", content=body) for _ in range(5)]
        wait_until(lambda: server.server.desk.inside == 5)
        refused = httpx.post(f"{server.url}/search", content=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/health").status_code == 200  # not behind the line
        engine.release.set()
        assert [f.result().status_code for f in asked] == [200] * 5
    assert engine.most == 2
    text = httpx.get(f"{server.url}/metrics").text
    assert 'spaniel_answers_total{path="/search",status="429"} 1' in text
    assert "spaniel_queries_total 5" in text


def test_what_is_at_work_is_finished_when_the_server_stops():
    engine = Slow(DOCUMENTS)
    server = Running(engine)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client(server.url).search, "the company", 2)
        wait_until(lambda: engine.at_work == 1)
        server.ask_to_stop()
        time.sleep(0.2)
        engine.release.set()
        assert len(asked.result()) == 2
    server.stop()
    with pytest.raises(ToolError, match="ConnectError"):
        client(server.url, max_retries=0)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/search", "{", 400, "must be JSON"),
        ("/search", "[]", 400, "valid dictionary"),
        ("/search", '{"queries": "x"}', 400, "queries"),
        ("/search", '{"queries": ["x"], "k": 0}', 400, "k"),
        ("/search", '{"queries": ["x"], "k": 1e9}', 400, "k"),
        ("/search", '{"queries": ["x"], "top": 3}', 400, "top"),
        ("/read", '{"docids": [3]}', 400, "docids"),
        ("/read", '{"docids": ["nope"]}', 404, "nope"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(running, path, body, status, words):
    answer = httpx.post(running(WordEngine(DOCUMENTS)).url + path, content=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_huge_body_is_refused(running):
    url = running(WordEngine(DOCUMENTS)).url
    answer = httpx.post(f"{url}/search", content=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413


def test_another_host_is_refused_unless_it_is_allowed(running):
    url = running(WordEngine(DOCUMENTS)).url
    assert httpx.get(f"{url}/health", headers={"host": "evil.example"}).status_code == 403
    open_url = running(WordEngine(DOCUMENTS), allow_remote=True).url
    assert httpx.get(f"{open_url}/health", headers={"host": "evil.example"}).status_code == 200
    with pytest.raises(ConfigError, match="--allow-remote"):
        serve(SearchServer(WordEngine([])), host="0.0.0.0", port=0, on_ready=print)


def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(SearchServer(WordEngine([])), host="127.0.0.1", port=port, on_ready=print)


def test_the_shape_of_search_r1(running):
    url = running(WordEngine(DOCUMENTS)).url
    ask = {"queries": ["Marrow company", "zzz"], "topk": 1, "return_scores": True}
    answer = httpx.post(f"{url}/retrieve", json=ask).json()
    contents = '"Ardent Lighthouse"\nThe lighthouse is kept by the Marrow company'
    assert answer == {
        "result": [[{"document": {"id": "d1", "contents": contents}, "score": 2}], []]
    }
    plain = httpx.post(f"{url}/retrieve", json=ask | {"return_scores": False}).json()
    assert plain["result"][0] == [{"id": "d1", "contents": contents}]


# --- the client against a server that misbehaves ----------------------------------------------


@pytest.fixture
def faulty():
    server = Server()
    health = json.dumps({"fingerprint": "f"})
    server.answers = [(200, health)]
    yield server
    server.close()


def connected(faulty, *answers, **settings):
    engine = client(faulty.url, **settings)
    faulty.answers = list(answers)
    return engine


RESULT = json.dumps({"fingerprint": "f", "results": [[]]})


def test_the_client_tries_again_until_it_works(faulty):
    engine = connected(faulty, (503, "{}"), (429, '{"error": "busy"}'), (200, RESULT))
    assert engine.search("x", 1) == []


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (200, "not json", "not a JSON object"),
        (200, '{"fingerprint": "f", "results": []}', "1 queries, 0 results"),
        (400, '{"error": "k: too big", "kind": "body"}', "status 400: k: too big"),
        (503, "oh no", "status 503: oh no"),
    ],
)
def test_a_bad_answer_is_a_tool_error(faulty, status, text, words):
    with pytest.raises(ToolError, match=words):
        connected(faulty, (status, text)).search("x", 1)


def test_another_index_behind_the_same_address_is_noticed(faulty):
    engine = connected(faulty, (200, json.dumps({"fingerprint": "g", "results": [[]]})))
    with pytest.raises(ArtifactError, match="another index"):
        engine.search("x", 1)


def test_a_server_that_does_not_answer_in_time_is_a_tool_error(faulty):
    engine = connected(faulty, (200, RESULT), timeout_s=0.1, max_retries=0)
    faulty.release.clear()
    with pytest.raises(ToolError, match="ReadTimeout"):
        engine.search("x", 1)


def test_after_many_failures_calls_fail_at_once_until_one_works(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
    breaker = Breaker(2, 5.0)
    breaker.failed("a")
    breaker.check("u")
    breaker.failed("b")
    with pytest.raises(ToolError, match=r"failed 2 times in a row.*with b; next try in 5 s"):
        breaker.check("u")
    now[0] += 5.1
    breaker.check("u")  # one may try
    with pytest.raises(ToolError):
        breaker.check("u")  # the others wait for its outcome
    breaker.worked()
    breaker.check("u")


def test_episodes_go_on_while_one_waits_for_the_server(running):
    engine = Slow(DOCUMENTS)
    outside = client(running(engine, num_threads=8).url)
    environment = Environment(outside, EnvConfig(dialect="plain"))
    question = Question(qid="q", text="?", targets=("d1",), hops=1)

    async def both():
        episodes = [environment.episode(question, seed=i) for i in range(4)]
        steps = [
            asyncio.ensure_future(environment.step(e, 'search("company")', FinishReason.STOP))
            for e in episodes
        ]
        while engine.at_work < 4:  # all four are under way at once
            await asyncio.sleep(0.005)
        engine.release.set()
        return await asyncio.gather(*steps)

    steps = asyncio.run(asyncio.wait_for(both(), 10))
    assert all(step.hits for step in steps)
