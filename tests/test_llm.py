"""The endpoint client: cache, budget, replay. Faults of the endpoint are in policy/test_openai."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.endpoint_server import Server, answer

from spaniel.config import EndpointConfig
from spaniel.errors import ConfigError, EndpointError
from spaniel.llm import AnswerCache, LlmClient, Prompt, Reply
from spaniel.types import Message

WHO = (Message(role="user", content="Who?"),)


def who(max_tokens, **changes):
    return Prompt(messages=WHO, max_tokens=max_tokens, **changes)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def client(server, tmp_path):
    made = []

    def make(**settings):
        cfg = {"api_key_env": "SPANIEL_TEST_KEY", "cache": tmp_path / "answers.db"} | settings
        made.append(LlmClient(EndpointConfig(model="m", base_url=server.url, **cfg)))
        return made[-1]

    yield make
    for one in made:
        one.close_blocking()


def test_the_same_request_is_paid_once_also_by_another_process(client, server):
    first = client(usd_per_million_input=1.0)
    assert first.ask_blocking(who(5)).text == "found it"
    again = client(usd_per_million_input=1.0)
    assert again.ask_blocking(who(5)) == first.ask_blocking(who(5))
    assert len(server.bodies) == 1
    assert (again.usage.num_requests, again.usage.num_cached, again.usage.usd) == (0, 1, 0.0)
    assert first.usage.usd == pytest.approx(100e-6)


@pytest.mark.parametrize(
    "other",
    [{"max_tokens": 6}, {"temperature": 0.5}, {"top_p": 0.5}, {"seed": 1}, {"sample": 1}],
)
def test_another_request_is_asked_anew(client, server, other):
    one = client()
    one.ask_blocking(who(5))
    one.ask_blocking(who(**({"max_tokens": 5} | other)))
    assert len(server.bodies) == 2


def test_async_and_blocking_callers_share_the_cache(client, server):
    one = client()

    async def ask():
        try:
            return await one.ask(who(5))
        finally:
            await one.close()

    assert asyncio.run(ask()) == one.ask_blocking(who(5))
    assert len(server.bodies) == 1


def test_replay_needs_neither_key_nor_network(client, server, monkeypatch):
    client().ask_blocking(who(5))
    monkeypatch.delenv("SPANIEL_TEST_KEY")
    replayed = client(replay=True)
    assert replayed.ask_blocking(who(5)).text == "found it"
    with pytest.raises(EndpointError, match="has no answer of m to this request"):
        replayed.ask_blocking(who(6))
    assert len(server.bodies) == 1


def test_a_spent_budget_stops_asking_but_not_the_cache(client, server):
    one = client(budget_usd=0.00019, usd_per_million_input=1.0)
    one.ask_blocking(who(1))
    one.ask_blocking(who(2))
    with pytest.raises(EndpointError, match=r"budget of 0.00019 USD for m is spent"):
        one.ask_blocking(who(3))
    assert one.ask_blocking(who(2)).text == "found it"
    assert len(server.bodies) == 2


def test_no_more_are_under_way_than_allowed(client, server):
    one = client(max_concurrency=2, cache=None)
    server.release.clear()
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(one.ask_blocking, who(n + 1)) for n in range(5)]
        pool.submit(server.release.wait, 0.3).result()
        server.release.set()
        assert [f.result().text for f in asked] == ["found it"] * 5
    assert server.most_open == 2


def test_an_answer_without_text_is_not_kept(client, server):
    server.answers = [answer(content=None), answer()]
    one = client()
    with pytest.raises(EndpointError, match="no text"):
        one.ask_blocking(who(5))
    assert one.ask_blocking(who(5)).text == "found it"


def test_settings_that_cannot_work_are_refused(client, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="replay of m needs its cache"):
        client(replay=True, cache=None)
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ConfigError, match="is no cache of answers"):
        client(cache=tmp_path / "text")
    monkeypatch.delenv("SPANIEL_TEST_KEY")
    with pytest.raises(ConfigError, match="environment variable SPANIEL_TEST_KEY"):
        client()


def test_an_answer_survives_the_file(tmp_path):
    cache = AnswerCache(tmp_path / "answers.db")
    reply = Reply(text="a\n\u2028b", cut=True, prompt_tokens=3, completion_tokens=2)
    assert cache.get("k") is None
    cache.put("k", reply)
    assert cache.get("k") == reply
    cache.close()
