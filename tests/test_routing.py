import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.policy.tiny_models import MIXTURES, some_ids, tiny
from tests.test_microbatch import PACKINGS, loss_and_gradients, predicted_of
from tests.training_samples import nll, samples

from spaniel.config import OptimizerConfig
from spaniel.errors import ConfigError
from spaniel.learner import Learner
from spaniel.microbatch import microbatches, predict, replayed
from spaniel.policy.base import Request, Sampling
from spaniel.policy.torch_engine import TorchEngine
from spaniel.routing import Routers, freeze_routers, packed_choices, routes_of

CPU = torch.device("cpu")
MODELS = {kind: tiny(kind) for kind in MIXTURES}


@torch.no_grad()
def chosen_experts(model, ids):
    """[L, M * k] bytes of a plain pass, each router's sorted: the oracle of transformers."""
    logits = model(torch.tensor([ids]), use_cache=False, output_router_logits=True).router_logits
    chosen = [layer.topk(2, dim=-1).indices.sort(-1).values for layer in logits]
    return torch.cat(chosen, -1).tolist()


def in_order(routes):
    """The same of noted routes: top-k does not promise an order."""
    return [[e for pair in zip(r[::2], r[1::2], strict=True) for e in sorted(pair)] for r in routes]


def play(engine, name, turns=3, seed=0):
    """(ids, routes) of an episode of several turns, gathered as the ledger does."""

    async def main():
        ids, routes = list(some_ids(9, seed=seed)), []
        for turn in range(turns):
            done = await engine.complete(
                Request(
                    episode_id=name,
                    token_ids=tuple(ids),
                    messages=(),
                    sampling=Sampling(max_tokens=5, seed=turn),
                    num_routed=len(routes),
                )
            )
            ids += done.token_ids
            routes += done.routes
            assert len(routes) == len(ids) - 1
            ids += some_ids(4, seed=turn)
            for _ in range(20):  # a slow tool: others may take the slot
                await asyncio.sleep(0)
        await engine.end_episode(name)
        return tuple(ids[:-4]), tuple(routes)

    return main()


def engine_of(model, **changes):
    settings = {"stop_ids": [], "decode": str, "note_routes": True, **changes}
    return TorchEngine(model, **settings)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_sampler_notes_the_experts_that_a_plain_pass_goes_through(kind):
    model = MODELS[kind]
    engine = engine_of(model, max_pass_tokens=7)
    ids, routes = asyncio.run(play(engine, "a"))
    assert in_order(routes) == chosen_experts(model, ids)[:-1]


def test_twins_and_evicted_episodes_are_noted_too():
    model = MODELS["qwen3_moe"]
    engine = engine_of(model, max_live_episodes=2)

    async def main():
        return await asyncio.gather(*(play(engine, f"e{n}", seed=n // 2) for n in range(5)))

    for ids, routes in asyncio.run(main()):
        assert in_order(routes) == chosen_experts(model, ids)[:-1]
    assert engine.counts["copied_tokens"] > 0
    assert engine.counts["evicted_episodes"] > 0


def test_dense_models_and_engines_that_need_not_note_nothing():
    for model, note in ((tiny("qwen3"), True), (MODELS["mixtral"], False)):
        engine = engine_of(model, note_routes=note)

        async def main(engine=engine):
            request = Request(
                episode_id="a", token_ids=(1, 2, 3), messages=(), sampling=Sampling(max_tokens=2)
            )
            return await engine.complete(request)

        assert asyncio.run(main()).routes == ()


def single_expert(seed):
    """One expert a token, always with weight 1: what comes out hangs on the choice alone."""
    model = tiny("mixtral", num_experts_per_tok=1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for router in Routers(model).modules:
            router.weight.normal_()
    return model


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_trainer_whose_routers_would_choose_otherwise_follows_the_sampler(packing):
    sampler, trainer = single_expert(1), single_expert(2)
    made = samples((40, 25, 61, 30), shared=22, vocab=97)
    with_routes = [
        replace(s, routes=(*(bytes(r) for r in single_choices(sampler, s.token_ids)[:-1]), b""))
        for s in made
    ]
    expected = predicted_of(sampler, made, packing)
    followed = predicted_of(trainer, with_routes, packing, max_tokens=90)
    own = predicted_of(trainer, made, packing)
    for a, b, c in zip(expected, followed, own, strict=True):
        assert torch.allclose(a.logprobs_T, b.logprobs_T, atol=1e-5)
        assert not torch.allclose(a.logprobs_T, c.logprobs_T, atol=1e-1)


@torch.no_grad()
def single_choices(model, ids):
    logits = model(torch.tensor([ids]), use_cache=False, output_router_logits=True).router_logits
    return torch.stack([layer.argmax(-1) for layer in logits], -1).tolist()


def routed(made, model):
    """The samples with the experts that another model of their kind would send them to."""
    return [
        replace(s, routes=(*(bytes(r) for r in chosen_experts(model, s.token_ids)[:-1]), b""))
        for s in made
    ]


def strange(kind):
    """A model that differs in its routers alone."""
    model = copy.deepcopy(MODELS[kind])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for router in Routers(model).modules:
            router.weight.normal_()
    return model


@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("packing", ["packed", "shared"])
@pytest.mark.parametrize("max_tokens", [45, 10_000])
def test_no_layout_and_no_split_changes_a_replayed_gradient(kind, packing, max_tokens):
    model = MODELS[kind]
    free = samples((40, 25, 61, 30, 24), shared=22, vocab=97)
    made = routed(free, strange(kind))
    plain = loss_and_gradients(model, made, 10_000, "rows")
    other = loss_and_gradients(model, made, max_tokens, packing)
    assert other[0] == pytest.approx(plain[0], rel=1e-4)
    for a, b in zip(plain[1], other[1], strict=True):
        assert torch.allclose(a, b, atol=2e-4, rtol=1e-3)
    assert loss_and_gradients(model, free, 10_000, "rows")[0] != pytest.approx(plain[0], rel=1e-3)


def test_recomputed_activations_go_through_the_same_experts():
    made = routed(samples((30, 22), vocab=97), strange("qwen3_moe"))
    gradients = []
    for recompute in (False, True):
        cfg = OptimizerConfig(learning_rate=1e-3, recompute_activations=recompute)
        learner = Learner(copy.deepcopy(MODELS["qwen3_moe"]), cfg, total_steps=1)
        learner.accumulate(made, nll)
        gradients.append([p.grad for p in learner.parameters if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_replayed_choice_still_trains_the_router_through_its_scores():
    model = MODELS["mixtral"]
    made = routed(samples((30, 22), vocab=97), strange("mixtral"))
    (batch,) = microbatches(made, 1000, CPU, "rows")
    with replayed(model, batch):
        nll(predict(model, batch), batch)[0].backward()
    assert all(router.weight.grad.abs().sum() > 0 for router in Routers(model).modules)
    model.zero_grad()


def test_sequences_share_a_token_only_with_its_experts():
    a, b = samples((30, 30), shared=24, vocab=97)
    route = [bytes([1, 2, 3, 4])] * 30
    same = [replace(s, routes=tuple(route)) for s in (a, b)]
    other = [same[0], replace(b, routes=(*route[:18], bytes([1, 2, 3, 5]), *route[19:]))]
    sizes = [
        next(iter(microbatches(made, 1000, CPU, "shared"))).token_ids_RL.numel()
        for made in (same, other)
    ]
    assert sizes == [24 + 6 + 6, 18 + 12 + 12]


def test_frozen_routers_stay_while_the_rest_learns():
    model = copy.deepcopy(MODELS["olmoe"])
    freeze_routers(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    learner = Learner(model, OptimizerConfig(learning_rate=1e-2), total_steps=2)
    learner.step(samples((30, 22), vocab=97), nll)
    routers = {id(router.weight) for router in Routers(model).modules}
    assert routers
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (id(parameter) in routers), name


def test_the_model_is_given_back_as_it_was():
    model = MODELS["qwen3_moe"]
    routers = Routers(model)
    with routers.noted() as made:
        model(torch.tensor([[1, 2, 3]]))
    assert made[0].shape == (3, 4)
    with pytest.raises(RuntimeError), routers.replayed(routes_of([b"\1\2\3\4"] * 3, CPU)):
        raise RuntimeError
    assert all("forward" not in module.__dict__ for module in routers.modules)


def test_more_than_256_experts_take_two_bytes_each():
    model = tiny("qwen3_moe", num_experts=300, hidden_size=32)
    ids = some_ids(20, seed=1)
    with Routers(model).noted() as made, torch.no_grad():
        expected = model(torch.tensor([ids])).logits
    assert made[0].shape == (20, 2 * 2 * 2)
    tokens = [bytes(row.tolist()) for row in made[0]]
    as_sent = np.frombuffer(b"".join(tokens), "<u2").reshape(20, 2, 2)
    assert as_sent.max() > 255
    assert packed_choices(as_sent.astype(np.int32)) == tokens
    with Routers(model).replayed(routes_of(tokens, CPU)), torch.no_grad():
        assert torch.allclose(model(torch.tensor([ids])).logits, expected)


def test_what_does_not_fit_is_refused_by_name():
    routes = routes_of([bytes([1, 2])] * 3, CPU)
    with (
        pytest.raises(ConfigError, match=r"2 bytes a token, where 2 routers choose 4 experts"),
        Routers(MODELS["mixtral"]).replayed(routes),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="the model has no routers"),
        Routers(tiny("llama")).replayed(routes),
    ):
        pass

    class Odd(torch.nn.Module):
        config = MODELS["mixtral"].config

    with pytest.raises(ConfigError, match="routers of Odd cannot be replayed"):
        Routers(Odd())


def test_a_router_that_chooses_twice_is_refused():
    class TwiceTopKRouter(torch.nn.Module):
        top_k = 1

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 3))

        def forward(self, hidden):
            scores = hidden @ self.weight.T
            return scores.topk(1), scores.topk(1)

    model = torch.nn.Sequential(TwiceTopKRouter())
    with pytest.raises(ConfigError, match="chooses its experts 2 times"), Routers(model).noted():
        model(torch.ones(2, 3))
