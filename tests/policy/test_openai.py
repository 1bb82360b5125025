"""The endpoint policy against a server that lies on the loopback device and misbehaves."""

import asyncio
import json

import pytest
from tests.endpoint_server import Server, answer

from spaniel.config import EndpointConfig
from spaniel.errors import ConfigError, PolicyError
from spaniel.policy.base import Request, Sampling
from spaniel.policy.openai import EndpointPolicy
from spaniel.renderer import ByteRenderer
from spaniel.types import FinishReason, Message

RENDERER = ByteRenderer()


RATE_LIMITED = 429, json.dumps({"error": {"message": "slow down"}})
BROKEN = 500, json.dumps({"error": {"message": "oh no"}})


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.close()


def ask(server, *, requests=1, sampling=None, **settings):
    """Completions (or errors) of some requests at once, and the policy."""
    settings = {"api_key_env": "SPANIEL_TEST_KEY", "max_retries": 2, "timeout_s": 5.0} | settings
    cfg = EndpointConfig(model="m", base_url=server.url, **settings)

    async def main():
        policy = EndpointPolicy(cfg, RENDERER)
        asked = [
            Request(
                episode_id=str(number),
                token_ids=(1,),
                messages=(
                    Message(role="system", content="Search."),
                    Message(role="user", content="Who?"),
                ),
                sampling=sampling or Sampling(max_tokens=50, seed=2**40 + 5),
            )
            for number in range(requests)
        ]
        calls = asyncio.gather(*map(policy.complete, asked), return_exceptions=True)
        if requests > 1:
            await asyncio.sleep(0.2)
            server.release.set()
        results = await calls
        await policy.close()
        return results, policy

    results, policy = asyncio.run(main())
    return results[0] if requests == 1 else results, policy


def test_messages_go_out_and_text_comes_back_with_usage_and_cost(server):
    done, policy = ask(server, usd_per_million_input=2.0, usd_per_million_output=10.0)
    assert done.text == "found it"
    assert done.token_ids == (*b"found it", RENDERER.END)
    assert done.logprobs == (0.0,) * 9
    assert done.finish_reason is FinishReason.STOP
    (body,) = server.bodies
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Search."},
            {"role": "user", "content": "Who?"},
        ],
        "max_tokens": 50,
        "seed": 5,
    }
    usage = policy.usage
    assert (usage.num_requests, usage.input_tokens, usage.output_tokens) == (1, 100, 20)
    assert usage.usd == pytest.approx(100 * 2e-6 + 20 * 10e-6)


def test_sampling_that_is_not_the_default_is_sent(server):
    ask(server, sampling=Sampling(temperature=0.0, top_p=0.9, max_tokens=7))
    assert (server.bodies[0]["temperature"], server.bodies[0]["top_p"]) == (0.0, 0.9)


def test_a_rate_limit_is_retried(server):
    server.answers = [RATE_LIMITED, RATE_LIMITED, answer()]
    done, policy = ask(server)
    assert done.text == "found it"
    assert len(server.bodies) == 3
    assert policy.usage.num_requests == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (BROKEN, "oh no"),
        ((400, json.dumps({"error": {"message": "no such model"}})), "no such model"),
        ((200, '{"choices": [{"mess'), "endpoint m"),
        ((200, json.dumps({"choices": []})), "no choices"),
        (answer(content=None), "no text"),
        (answer(content="x", finish="content_filter"), "content filter"),
    ],
)
def test_a_failure_is_a_policy_error_never_a_completion(server, bad, words):
    server.answers = [bad]
    failure, _ = ask(server, max_retries=1)
    assert isinstance(failure, PolicyError)
    assert words in str(failure)


def test_a_server_that_does_not_answer_in_time_is_a_policy_error(server):
    server.release.clear()
    failure, policy = ask(server, timeout_s=0.1, max_retries=0)
    assert isinstance(failure, PolicyError)
    assert "APITimeoutError" in str(failure)
    assert policy.usage.num_requests == 0


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_budget_spent_on_reasoning_is_an_empty_text_cut_short(server, name):
    server.answers = [answer(content=None, finish="length", **{name: "Let me think"})]
    done, _ = ask(server)
    assert (done.text, done.finish_reason) == ("", FinishReason.LENGTH)


def test_reasoning_beside_a_text_is_left_out_of_it(server):
    server.answers = [answer(content="the answer", reasoning="Let me think")]
    assert ask(server)[0].text == "the answer"


def test_no_more_requests_are_open_than_allowed(server):
    server.release.clear()
    results, _ = ask(server, requests=6, max_concurrency=2)
    assert [done.text for done in results] == ["found it"] * 6
    assert server.most_open == 2


def test_a_missing_key_is_one_line_that_names_the_variable(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable NO_SUCH_KEY") as caught:
        EndpointPolicy(EndpointConfig(model="m", api_key_env="NO_SUCH_KEY"), RENDERER)
    assert "\n" not in str(caught.value)


def test_an_endpoint_cannot_be_trained(monkeypatch):
    monkeypatch.setenv("SPANIEL_TEST_KEY", "secret")
    policy = EndpointPolicy(EndpointConfig(model="m", api_key_env="SPANIEL_TEST_KEY"), RENDERER)
    with pytest.raises(ConfigError, match="cannot be trained"):
        asyncio.run(policy.load(1, None))
