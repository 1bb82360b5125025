"""The live engine: each API's shape, every fault of an API, cache, replay, budget."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doubles import WordEngine
from tests.web_server import Reply, Web, answer, page, redirect

from spaniel.config import EnvConfig, LiveConfig
from spaniel.env.episode import Environment
from spaniel.errors import ConfigError, QueryError, ToolError
from spaniel.index.engine import HeadingEngine, SearchEngine, headings
from spaniel.index.live.engine import LiveEngine
from spaniel.index.live.providers import MAX_CHARS, MAX_WORDS, PROVIDERS, query_text
from spaniel.index.query import parse_query
from spaniel.index.remote import retry
from spaniel.index.rerank import RerankedEngine
from spaniel.types import FinishReason, Question

KEY = "k-12345-secret"
CONTEXT = httpx.create_ssl_context()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    # Reading the certificates of the system takes longer than a test.
    monkeypatch.setattr("httpx._transports.default.create_ssl_context", lambda **_: CONTEXT)
    monkeypatch.setenv("SPANIEL_TEST_KEY", KEY)
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.fixture
def engine(web):
    made = []

    def make(provider="serper", **settings):
        plain = {
            "base_url": web.url,
            "api_key_env": "SPANIEL_TEST_KEY",
            "timeout_s": 5.0,
            "max_retries": 2,
            "min_delay_s": 0.0,
            "allow_hosts": ("127.0.0.1",),
        }
        made.append(LiveEngine(LiveConfig(provider=provider, **(plain | settings))))
        return made[-1]

    yield make
    for one in made:
        one.close()


ROWS = [
    ("https://a.org/x?utm_source=s", "Title  A", "About\na wells"),
    ("https://A.org/x#top", "Again", "the same page"),
    ("https://b.org/docs/1", "", ""),
    ("ftp://c.org/", "No page", "of the web"),
]


def serper(rows=ROWS):
    return answer({"organic": [{"link": u, "title": t, "snippet": s} for u, t, s in rows]})


def tavily(rows=ROWS):
    found = [{"url": u, "title": t, "content": s, "score": 0.5} for u, t, s in rows]
    return answer({"query": "q", "results": found, "response_time": 0.1})


def brave(rows=ROWS):
    found = [{"url": u, "title": t, "description": s} for u, t, s in rows]
    return answer({"type": "search", "web": {"type": "search", "results": found}})


def searxng(rows=ROWS):
    found = [{"url": u, "title": t, "content": s} for u, t, s in rows]
    return answer({"query": "q", "results": found, "unresponsive_engines": []})


SHAPES = {"serper": serper, "tavily": tavily, "brave": brave, "searxng": searxng}
PATHS = {"serper": "/search", "tavily": "/search", "searxng": "/search"} | {
    "brave": "/res/v1/web/search"
}
each_provider = pytest.mark.parametrize("provider", sorted(PROVIDERS))


@each_provider
def test_results_of_each_api_become_hits(engine, web, provider):
    web.routes[PATHS[provider]] = SHAPES[provider]()
    live = engine(provider)
    assert isinstance(live, SearchEngine)
    assert isinstance(live, HeadingEngine)
    hits = live.search("deep wells", 5)
    assert [(h.docid, h.rank, h.score, h.snippet) for h in hits] == [
        ("https://a.org/x", 1, 1.0, "About a wells"),
        ("https://b.org/docs/1", 2, 0.5, ""),
    ]
    assert [d.title for d in headings(live, [h.docid for h in hits])] == [
        "Title A",
        "https://b.org/docs/1",
    ]
    assert len(web.requests) == 1  # no page was fetched for a title


@each_provider
def test_an_api_that_finds_nothing_gives_an_empty_list(engine, web, provider):
    web.routes[PATHS[provider]] = SHAPES[provider]([])
    assert engine(provider).search("wells", 5) == []


def test_brave_leaves_out_what_it_did_not_find_and_escapes_what_it_did(engine, web):
    path = PATHS["brave"]
    web.routes[path] = answer({"type": "search", "query": {"original": "wells"}})
    assert engine("brave").search("wells", 5) == []
    web.routes[path] = brave([("https://a.org/", "Q&amp;A", "x &lt; y")])
    hit = engine("brave").search("wells", 5)[0]
    assert hit.snippet == "x < y"


def test_each_api_is_asked_in_its_own_way(engine, web):
    for provider, path in PATHS.items():
        web.routes[path] = SHAPES[provider]()
        engine(provider).search('wells "dug by hand" site:a.org', 7)
    by_key, by_bearer, by_token, free = (r for r in web.requests)
    text = 'wells "dug by hand" site:a.org'
    assert by_key[3] == {"q": text, "num": 10}
    assert by_key[1]["x-api-key"] == KEY
    assert by_bearer[3] == {
        "query": 'wells "dug by hand"',
        "max_results": 10,
        "include_domains": ["a.org"],
    }
    assert by_bearer[1]["authorization"] == f"Bearer {KEY}"
    assert by_token[2] == {"q": text, "format": "json"}
    assert free[2] == {"q": text, "count": "10", "text_decorations": "false"}
    assert free[1]["x-subscription-token"] == KEY
    assert not any(KEY in json.dumps([r[0], r[2], r[3]]) for r in web.requests)


def test_searxng_needs_no_key(engine, web):
    web.routes["/search"] = searxng()
    live = engine("searxng", api_key_env=None)
    assert len(live.search("wells", 5)) == 2
    assert "authorization" not in web.requests[0][1]


# --- the query language -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("moon landing", "moon landing"),
        ('"moon landing" 1969', '1969 "moon landing"'),
        ("“curly” x", 'x "curly"'),
        ('odd " quote', "odd quote"),
        ("-not +plus !g !!g ~x | * ( OR AND or", "not plus g g x or and or"),
        ("intitle:wells filetype:pdf 12:30 C++ a/b", "intitle wells filetype pdf 12:30 C++ a/b"),
        ("site:Nasa.gov/history apollo", "apollo site:nasa.gov/history"),
        ("x\0y\n\ud800z", "x y z"),
        ("-- !! * ", ""),
        ("", ""),
    ],
)
def test_the_query_language_is_ours_in_their_syntax(query, text):
    assert query_text(parse_query(query)) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_a_query_keeps_the_limits_of_the_apis(text):
    if text.lower().count("site:") > 1:
        return
    sent = query_text(parse_query(text))
    assert len(sent) <= MAX_CHARS
    assert len(sent.split()) <= MAX_WORDS
    assert sent.count('"') % 2 == 0


def test_constraints_stay_when_a_query_is_cut():
    words = " ".join(f"word{n}" for n in range(500))
    sent = query_text(parse_query(f'{words} "a phrase" site:a.org'))
    assert sent.endswith('"a phrase" site:a.org')
    assert sent.startswith("word0 word1 ")
    long = query_text(parse_query(f'"{words}"'))
    assert long.startswith('"word0 word1 ')
    assert long.endswith('"')


def test_results_outside_the_site_are_dropped(engine, web):
    web.routes["/search"] = serper()
    assert [h.docid for h in engine().search("wells site:b.org/docs", 5)] == [
        "https://b.org/docs/1"
    ]
    assert engine().search("wells site:org.b", 5) == []


def test_a_query_without_words_asks_nobody(engine, web):
    assert engine().search(" -- ", 5) == []
    assert web.requests == []


def test_two_sites_are_the_writers_mistake(engine):
    with pytest.raises(QueryError, match="one site: filter"):
        engine().search("site:a.org site:b.org", 5)


# --- faults of the API ------------------------------------------------------------------------


def test_busy_and_broken_answers_are_asked_again(engine, web):
    busy = Reply("{}", 429, {"retry-after": "0"})
    web.routes["/search"] = [busy, Reply("oops", 500), serper()]
    live = engine()
    assert len(live.search("wells", 5)) == 2
    assert live.num_requests == 3


def test_retry_after_is_waited_for(engine, web, monkeypatch):
    pauses = []
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    web.routes["/search"] = [Reply("{}", 429, {"retry-after": "2"}), serper()]
    engine().search("wells", 5)
    assert any(2 < pause <= 2.01 for pause in pauses)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply('{"message": "slow down"}', 429), r"status 429: slow down \(after 3 attempts\)"),
        (Reply("<h1>Bad gateway</h1>", 502), r"status 502: <h1>Bad gateway.*3 attempts"),
        (Reply('{"message": "Not enough credits"}', 400), "status 400: Not enough credits"),
        (Reply('{"detail": {"error": "over the limit"}}', 432), "status 432: over the limit"),
        (page("<html>Log in</html>"), "the answer is not JSON: '<html>Log in"),
        (Reply('{"organic": [{"link": "ht'), "the answer is not JSON"),
        (Reply('{"organic": [', length=10_000), "RemoteProtocolError"),
        (Reply("[1, 2]"), "is none of serper's"),
        (answer({"results": []}), "is none of serper's"),
        (answer({"organic": {"0": 1}}), "is none of serper's"),
        (answer({"organic": [{"title": "x"}]}), "is none of serper's"),
        (answer({"organic": [{"link": None}]}), "is none of serper's"),
        (answer({"organic": ["x"]}), "is none of serper's"),
        (redirect("https://elsewhere.example/"), "status 302"),
        (Reply(status=204), "status 204"),
    ],
)
def test_a_failure_is_a_tool_error_never_an_empty_list(engine, web, reply, words):
    web.routes["/search"] = reply
    with pytest.raises(ToolError, match=words) as caught:
        engine().search("wells", 5)
    assert "\n" not in str(caught.value)


def test_searxng_whose_engines_are_silent_has_failed(engine, web):
    silent = {"results": [], "unresponsive_engines": [["google", "timeout"]]}
    web.routes["/search"] = answer(silent)
    with pytest.raises(ToolError, match=r"no engine behind SearXNG answered: .*google"):
        engine("searxng").search("wells", 5)


def test_a_failure_is_not_kept(engine, web):
    live = engine(max_retries=0)
    web.routes["/search"] = [Reply(status=500), serper()]
    with pytest.raises(ToolError):
        live.search("wells", 5)
    assert len(live.search("wells", 5)) == 2


def test_an_api_that_does_not_answer_in_time_is_a_tool_error(engine, web):
    web.routes["/search"] = Reply(wait_s=0.5)
    with pytest.raises(ToolError, match=r"serper at .*ReadTimeout"):
        engine(timeout_s=0.1, max_retries=0).search("wells", 5)


def test_a_dead_network_is_a_tool_error_and_at_once_after_some(engine, web):
    web.close()
    live = engine(max_retries=7)
    with pytest.raises(ToolError, match="ConnectError"):
        live.search("wells", 5)
    with pytest.raises(ToolError, match="failed 8 times in a row"):
        live.search("wells", 5)
    web.__init__()  # for the fixture to close


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_variable_and_never_shown(engine, web, status):
    web.routes["/search"] = answer({"message": f"bad key {KEY}"}, status)
    with pytest.raises(ConfigError, match=r"refuses the key in SPANIEL_TEST_KEY") as caught:
        engine().search("wells", 5)
    assert "bad key (key)" in str(caught.value)
    assert len(web.requests) == 1


def test_no_error_shows_the_key(engine, web):
    for reply in (Reply(KEY, 500), Reply(f'{{"error": "{KEY}"}}', 400), Reply(KEY)):
        web.routes["/search"] = reply
        live = engine(max_retries=0)
        for _ in range(10):  # until the breaker tells of the last failure
            with pytest.raises(ToolError) as caught:
                live.search("wells", 5)
            assert KEY not in str(caught.value)


def test_a_searxng_that_refuses_json_is_told_apart(engine, web):
    web.routes["/search"] = page("<h1>Forbidden</h1>", status=403)
    with pytest.raises(ConfigError, match=r"settings.yml must list json under search.formats"):
        engine("searxng", api_key_env=None).search("wells", 5)


def test_a_missing_key_is_one_line(monkeypatch):
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"the key of brave must be in .* BRAVE_API_KEY"):
        LiveEngine(LiveConfig(provider="brave"))
    monkeypatch.setenv("BRAVE_API_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="holds characters that no key has") as caught:
        LiveEngine(LiveConfig(provider="brave"))
    assert "two" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost:8888", "ftp://a.org"])
def test_an_address_that_is_none_is_refused(engine, url):
    with pytest.raises(ConfigError, match=r"index.live.base_url must be"):
        engine("searxng", base_url=url)


# --- budget, cache, replay --------------------------------------------------------------------


def test_the_budget_stops_with_a_clear_line(engine, web):
    web.routes["/search"] = serper()
    live = engine(max_requests=2)
    live.search("one", 5)
    live.search("two", 5)
    with pytest.raises(ToolError, match=r"budget of 2 requests to serper is spent: raise"):
        live.search("three", 5)
    assert len(live.search("one", 3)) == 2  # known, so it costs nothing
    assert len(web.requests) == 2


def test_repeated_requests_count_against_the_budget(engine, web):
    web.routes["/search"] = Reply(status=503)
    with pytest.raises(ToolError, match="budget of 2 requests"):
        engine(max_requests=2, max_retries=5).search("one", 5)


def test_the_same_search_is_paid_once_for_any_k_that_its_results_cover(engine, web, tmp_path):
    rows = [(f"https://a.org/{n}", f"T{n}", "s") for n in range(20)]
    web.routes["/search"] = lambda request: serper(rows[: request[3]["num"]])
    live = engine(cache=tmp_path / "web.db")
    assert len(live.search("wells", 15)) == 15
    assert [h.docid for h in live.search("wells", 3)] == [f"https://a.org/{n}" for n in range(3)]
    assert len(live.search("wells", 100)) == 20
    again = engine(cache=tmp_path / "web.db")
    assert again.search("wells", 4) == live.search("wells", 4)
    assert len(web.requests) == 1
    other = engine("tavily", cache=tmp_path / "web.db")
    web.routes["/search"] = tavily()
    other.search("wells", 4)
    assert len(web.requests) == 2


def test_rollouts_that_begin_alike_pay_once(engine, web):
    web.routes["/search"] = Reply(
        serper().body, headers={"content-type": "application/json"}, wait_s=0.1
    )
    live = engine()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: live.search("wells", 5), range(8)))
    assert len(web.requests) == 1
    assert all(hits == found[0] for hits in found)


HTML = f"<title>A page</title><article>{'<p>Wells are dug by hand and go deep.</p>' * 9}</article>"


def test_pages_and_searches_are_replayed_without_key_and_network(
    engine, web, tmp_path, monkeypatch
):
    base, cache = web.url, tmp_path / "web.db"
    good, gone = f"{base}/good", f"{base}/gone"
    web.routes |= {
        "/search": serper([(good, "Good", "s"), (gone, "Gone", "s")]),
        "/good": page(HTML),
    }
    live = engine(cache=cache)
    hits = live.search("wells", 5)
    documents = live.read_batch([h.docid for h in hits])
    assert documents[0].title == "A page"
    assert "dug by hand" in documents[0].text
    web.close()
    monkeypatch.delenv("SPANIEL_TEST_KEY")
    replay = engine(cache=cache, replay=True)
    assert replay.search("wells", 5) == hits
    assert replay.read_batch([h.docid for h in hits]) == documents
    with pytest.raises(ToolError, match=r"replay: .*web.db has no search for 'others'"):
        replay.search("others", 5)
    with pytest.raises(KeyError):
        replay.read(f"{base}/never")
    web.__init__()  # for the fixture to close


def test_a_page_that_was_not_read_cannot_be_replayed(engine, web, tmp_path):
    web.routes["/search"] = serper()
    engine(cache=tmp_path / "web.db").search("wells", 5)
    with pytest.raises(ToolError, match=r"has no page https://a.org/x"):
        engine(cache=tmp_path / "web.db", replay=True).read("https://a.org/x")


def test_replay_needs_a_cache_and_searxng_an_address():
    with pytest.raises(ValueError, match="replay needs its cache"):
        LiveConfig(provider="serper", replay=True)
    with pytest.raises(ValueError, match="set base_url"):
        LiveConfig(provider="searxng")


def test_a_file_that_is_no_cache_is_refused(engine, tmp_path):
    path = tmp_path / "web.db"
    path.write_text("not a database at all, but long enough to have a header" * 20)
    with pytest.raises(ConfigError, match="is no cache"):
        engine(cache=path)


def test_the_key_is_not_stored(engine, web, tmp_path):
    web.routes["/search"] = serper()
    engine(cache=tmp_path / "web.db").search("wells", 5)
    assert not any(KEY.encode() in p.read_bytes() for p in tmp_path.iterdir())


# --- pages ------------------------------------------------------------------------------------


def test_only_what_a_search_has_found_can_be_read(engine, web):
    web.routes |= {"/secret": page(HTML)}
    with pytest.raises(KeyError):
        engine().read(f"{web.url}/secret")
    assert web.requests == []


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=404), "its server says 404"),
        (Reply(status=503), "its server is busy or broken"),
        (Reply(status=429), "its server is busy or broken"),
        (page(b"%PDF-", kind="application/pdf"), "it is a PDF file"),
        (redirect("http://192.168.1.1/"), "its address is not on the public internet"),
    ],
)
def test_an_unreadable_page_is_a_document_that_says_so(engine, web, reply, reason):
    url = f"{web.url}/a"
    web.routes |= {"/search": serper([(url, "Title", "s")]), "/a": reply}
    live = engine()
    live.search("wells", 5)
    document = live.read(url)
    assert (document.title, document.url) == ("Title", url)
    assert document.text == f"This page could not be read: {reason}."
    assert document.metadata == {"unreadable": reason}


def dead_port():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_dead_link_does_not_fail_an_episode_and_a_dead_network_does(engine, web):
    url = f"http://127.0.0.1:{dead_port()}/a"
    web.routes["/search"] = serper([(url, "Title", "s"), (f"{url}b", "Other", "s")])
    live = engine()
    live.search("wells", 5)
    assert live.read(url).text == "This page could not be read: its server does not answer."
    web.close()
    with pytest.raises(ToolError, match=r"page .*ConnectError.*cannot be reached, either"):
        live.read(f"{url}b")
    web.__init__()  # for the fixture to close


def test_a_page_that_failed_for_a_moment_is_tried_again_later(engine, web, monkeypatch):
    from spaniel.index.live import engine as module

    url = f"{web.url}/a"
    web.routes |= {"/search": serper([(url, "T", "s")]), "/a": Reply(status=503)}
    live = engine()
    live.search("wells", 5)
    assert "busy" in live.read(url).text
    web.routes["/a"] = page(HTML)
    assert "busy" in live.read(url).text  # not at once
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.TRY_AGAIN_S + 1)
    assert "dug by hand" in live.read(url).text


def test_an_episode_over_the_web_fetches_only_what_it_reads(engine, web):
    urls = [f"{web.url}/{n}" for n in range(5)]
    web.routes["/search"] = serper([(url, f"Page {n}", "s") for n, url in enumerate(urls)])
    web.routes["/0"] = page(HTML)
    environment = Environment(engine(), EnvConfig(dialect="plain"))
    episode = environment.episode(Question(qid="q", text="?"), seed=1)
    found = episode.step('search("wells")', FinishReason.STOP)
    assert "Page 4" in found.shown
    alias = episode.aliases.show(urls[0])
    read = episode.step(f'read("{alias}")', FinishReason.STOP)
    assert "dug by hand" in read.shown
    dead = episode.step(f'read("{episode.aliases.show(urls[1])}")', FinishReason.STOP)
    assert "could not be read: its server says 404" in dead.shown
    assert {r[0] for r in web.requests} == {"/search", "/robots.txt", "/0", "/1"}


class ByTitle:
    waits = False
    fingerprint = "f"
    reads_texts = False

    def score(self, query, hits, documents, context=""):
        return [float(d.title == "Page 1") for d in documents]


def test_a_reranker_that_reads_no_texts_fetches_no_pages(engine, web):
    rows = [(f"{web.url}/{n}", f"Page {n}", "s") for n in range(3)]
    web.routes["/search"] = serper(rows)
    ranked = RerankedEngine(engine(), ByTitle(), candidates=10)
    assert ranked.search("wells", 1)[0].docid == f"{web.url}/1"
    assert ranked.headings([f"{web.url}/1"])[0].title == "Page 1"
    assert len(web.requests) == 1


def test_headings_of_a_local_engine_are_its_documents(engine):
    from tests.doubles import lighthouse_documents

    documents = lighthouse_documents()
    assert headings(WordEngine(documents), ["d1"]) == documents[:1]


def test_the_fingerprint_is_the_apis(engine, tmp_path):
    one, same = engine(), engine(cache=tmp_path / "x.db", max_requests=3)
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != engine("tavily").fingerprint
    assert one.waits


def test_many_threads_read_one_page_once(engine, web):
    url = f"{web.url}/a"
    slow = page(HTML, wait_s=0.05)
    web.routes |= {"/search": serper([(url, "T", "s")]), "/a": slow}
    live = engine()
    live.search("wells", 5)
    gate = threading.Barrier(6)

    def read(_):
        gate.wait()
        return live.read(url).title

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(read, range(6))) == {"A page"}
    assert len(web.asked("/a")) == 1
