import asyncio

import pytest

from spaniel.errors import PolicyError
from spaniel.policy.base import Request, Sampling
from spaniel.policy.scripted import ScriptedPolicy
from spaniel.renderer import ByteRenderer
from spaniel.types import FinishReason

RENDERER = ByteRenderer()


def ask(policy, episode="a", max_tokens=100):
    request = Request(
        episode_id=episode,
        token_ids=(1, 2),
        messages=(),
        sampling=Sampling(max_tokens=max_tokens),
    )
    return asyncio.run(policy.complete(request))


def test_an_episode_says_its_script_in_order_and_starts_again_after_its_end():
    policy = ScriptedPolicy(RENDERER, {"a": ["one", "two"], "b": ["other"]})
    assert [ask(policy).text, ask(policy, "b").text, ask(policy).text] == ["one", "other", "two"]
    with pytest.raises(PolicyError, match="2 texts, asked for number 3"):
        ask(policy)
    asyncio.run(policy.end_episode("a"))
    assert ask(policy).text == "one"
    assert policy.ended == ["a"]


def test_an_episode_without_script_is_an_error():
    with pytest.raises(PolicyError, match="no script"):
        ask(ScriptedPolicy(RENDERER, {}))


def test_a_completion_has_the_renderers_ids_and_a_logprob_each():
    policy = ScriptedPolicy(RENDERER, lambda request: f"to {request.episode_id}")
    asyncio.run(policy.load(3, None))
    done = ask(policy)
    assert done.token_ids == (*b"to a", RENDERER.END)
    assert done.logprobs == (-1.0,) * 5
    assert (done.finish_reason, done.policy_version) == (FinishReason.STOP, 3)
    assert [request.episode_id for request in policy.requests] == ["a"]


@pytest.mark.parametrize(
    ("limit", "reason", "count"), [(6, FinishReason.STOP, 6), (5, FinishReason.LENGTH, 5)]
)
def test_a_text_is_cut_at_max_tokens(limit, reason, count):
    done = ask(ScriptedPolicy(RENDERER, {"a": ["hello"]}), max_tokens=limit)
    assert (done.finish_reason, len(done.token_ids), done.text) == (reason, count, "hello")
