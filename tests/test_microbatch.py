from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.tiny_models import tiny
from tests.training_samples import nll, samples

from spaniel.errors import ConfigError
from spaniel.microbatch import (
    decoder_and_head,
    lent_for,
    microbatches,
    predict,
    replayed,
    sample_predictions,
)
from spaniel.packing import MIN_SHARED

CPU = torch.device("cpu")
PACKINGS = ["rows", "packed", "shared"]
FAMILIES = ["llama", "qwen3", "lfm2"]


def predicted_of(model, made, packing, max_tokens=1000, temperature=1.0):
    batches = microbatches(made, max_tokens, CPU, packing)
    return sample_predictions(model, batches, packing=packing, temperature=temperature)


def loss_and_gradients(model, made, limit, packing):
    total = 0.0
    with lent_for(model, packing):
        for batch in microbatches(made, limit, CPU, packing):
            with replayed(model, batch):
                loss, _ = nll(predict(model, batch), batch)
                loss.backward()
            total += loss.item()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return total, gradients


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_trained_logprobs_are_those_of_each_sample_alone(family, packing):
    model = tiny(family)
    made = samples((40, 25, 61, 30, 24), shared=22)
    got = predicted_of(model, made, packing, max_tokens=150, temperature=0.7)
    for sample, predicted in zip(made, got, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([sample.token_ids]), use_cache=False).logits[0] / 0.7
        trained = [p for p, w in enumerate(sample.weights) if w]
        logprobs = torch.log_softmax(logits, -1)
        expected = [logprobs[p - 1, sample.token_ids[p]] for p in trained]
        assert torch.allclose(predicted.logprobs_T, torch.tensor(expected), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("max_tokens", [12, 45, 70, 10_000])
def test_no_layout_and_no_split_changes_loss_or_gradient(family, packing, max_tokens):
    made = samples((40, 25, 61, 30, 24), shared=22)
    model = tiny(family)
    whole, whole_grads = loss_and_gradients(model, made, 10_000, "rows")
    split, split_grads = loss_and_gradients(model, made, max_tokens, packing)
    assert split == pytest.approx(whole, rel=1e-5)
    for a, b in zip(whole_grads, split_grads, strict=True):
        assert torch.allclose(a, b, atol=2e-5)


def test_a_neighbour_in_the_row_changes_nothing():
    """The same samples among others: what is not shared is not seen, by no layer."""
    model = tiny("lfm2", num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2)
    made = samples((40, 25, 61, 30), shared=22)
    alone = predicted_of(model, made[:1], "shared")[0]
    among = predicted_of(model, made, "shared")[0]
    assert torch.allclose(alone.logprobs_T, among.logprobs_T, atol=1e-5)


@pytest.mark.parametrize("packing", PACKINGS)
@given(
    lengths=st.lists(st.integers(MIN_SHARED + 3, 60), min_size=1, max_size=8),
    shared=st.integers(0, MIN_SHARED + 2),
    max_tokens=st.integers(20, 300),
)
@settings(max_examples=30, deadline=None)
def test_microbatches_keep_to_their_budget_and_lose_no_token(packing, lengths, shared, max_tokens):
    made = samples(lengths, shared=shared)
    batches = list(microbatches(made, max_tokens, CPU, packing))
    for batch in batches:
        alone = len(batch.samples_T.unique()) == 1
        assert batch.token_ids_RL.numel() <= max_tokens or alone
    seen = sorted(
        (int(number), int(target), round(float(weight), 4))
        for batch in batches
        for number, target, weight in zip(
            batch.samples_T, batch.targets_T, batch.weights_T, strict=True
        )
    )
    expected = sorted(
        (number, token, round(weight, 4))
        for number, sample in enumerate(made)
        for token, weight in zip(sample.token_ids, sample.weights, strict=True)
        if weight
    )
    assert seen == expected


def test_shared_rows_hold_a_common_beginning_once():
    made = samples((40, 50, 60), shared=30)
    (batch,) = microbatches(made, 1000, CPU, "shared")
    assert batch.token_ids_RL.numel() == 150 - 2 * 30


def test_reference_logprobs_stand_beside_their_tokens():
    made = [
        replace(s, ref_logprobs=tuple(float(10 * i + j) for j, w in enumerate(s.weights) if w))
        for i, s in enumerate(samples((9, 5, 7)))
    ]
    for batch in microbatches(made, 14, CPU, "packed"):
        for number in batch.samples_T.unique():
            chosen = batch.ref_logprobs_T[batch.samples_T == number]
            assert chosen.tolist() == list(made[number].ref_logprobs)


@pytest.mark.parametrize("packing", PACKINGS)
def test_chunked_logits_give_the_same_gradient(monkeypatch, packing):
    model, made = tiny("llama"), samples()
    _, whole = loss_and_gradients(model, made, 10_000, packing)
    monkeypatch.setattr("spaniel.microbatch.LOGITS_CHUNK", 5)
    _, chunked = loss_and_gradients(model, made, 10_000, packing)
    for a, b in zip(whole, chunked, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_adapters_train_in_a_packed_row():
    from spaniel.config import LoraConfig
    from spaniel.policy.load import add_lora

    made = samples((40, 25, 61), shared=22)
    model = add_lora(tiny("llama"), LoraConfig(rank=2, target_modules=("q_proj",)), seed=0)
    _, rows = loss_and_gradients(model, made, 10_000, "rows")
    _, shared = loss_and_gradients(model, made, 10_000, "shared")
    assert rows
    assert any(g.abs().max() > 0 for g in rows)
    for a, b in zip(rows, shared, strict=True):
        assert torch.allclose(a, b, atol=2e-5)


def test_a_layer_that_would_mix_samples_is_refused():
    model = tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0)
    with pytest.raises(ConfigError, match=r"the packed update cannot run .* sliding.*packing"):
        lent_for(model, "packed")
    lent_for(model, "rows")


def test_the_model_is_given_back_as_it_was():
    model = tiny("lfm2")
    before = model.config._attn_implementation
    with lent_for(model, "shared"):
        assert model.config._attn_implementation != before
    assert model.config._attn_implementation == before
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_models_that_change_their_logits_are_refused():
    model = tiny("llama")
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        decoder_and_head(model)
