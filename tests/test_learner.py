import math

import pytest
import torch
from tests.policy.tiny_models import tiny

from spaniel.config import OptimizerConfig
from spaniel.errors import ArtifactError, ConfigError, TrainingError
from spaniel.learner import (
    Learner,
    decoder_and_head,
    learning_rate_at,
    load_weights,
    microbatches,
    save_weights,
    trained_logprobs,
    weights_fingerprint,
)
from spaniel.types import TrainingSample

CPU = torch.device("cpu")


def samples(lengths=(9, 5, 7, 12), vocab=64):
    rng = torch.Generator().manual_seed(0)
    made = []
    for length in lengths:
        ids = torch.randint(0, vocab, (length,), generator=rng).tolist()
        weights = [0.0, 0.0] + [0.02 * (1 + i % 3) for i in range(length - 2)]
        made.append(
            TrainingSample(
                token_ids=tuple(ids),
                weights=tuple(weights),
                sampler_logprobs=(0.0, 0.0) + (-4.0,) * (length - 2),
                advantage=1.0 if length % 2 else -1.0,
            )
        )
    return made


def nll(logprobs_T, batch):
    loss = -(logprobs_T * batch.weights_T).sum()
    return loss, {"loss": loss.detach()}


def learner(model, **settings):
    cfg = OptimizerConfig(**{"learning_rate": 1e-2, "warmup_frac": 0.0, **settings})
    return Learner(model, cfg, total_steps=10)


@pytest.mark.parametrize("family", ["llama", "qwen3", "lfm2"])
def test_trained_logprobs_equal_a_full_forward(family):
    model = tiny(family)
    batch = next(iter(microbatches(samples(), 10_000, CPU)))
    with torch.no_grad():
        got = trained_logprobs(model, batch, temperature=0.7)
        logits = model(input_ids=batch.token_ids_BL, use_cache=False).logits / 0.7
    logprobs = torch.log_softmax(logits, -1)
    expected = logprobs[batch.rows_T, batch.positions_T - 1].gather(-1, batch.targets_T[:, None])
    assert torch.allclose(got, expected[:, 0], atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "lfm2"])
@pytest.mark.parametrize("max_tokens", [12, 20, 36])
def test_how_rows_are_packed_changes_neither_loss_nor_gradient(family, max_tokens):
    def gradients(limit):
        model = tiny(family)
        total = 0.0
        for batch in microbatches(samples(), limit, CPU):
            loss, _ = nll(trained_logprobs(model, batch), batch)
            loss.backward()
            total += loss.item()
        return total, [p.grad for p in model.parameters() if p.grad is not None]

    whole, whole_grads = gradients(10_000)
    split, split_grads = gradients(max_tokens)
    assert split == pytest.approx(whole, rel=1e-5)
    for a, b in zip(whole_grads, split_grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_microbatches_keep_to_their_budget_and_lose_no_token():
    made = samples((5, 6, 7, 8, 9, 40))
    batches = list(microbatches(made, 24, CPU))
    assert all(b.token_ids_BL.numel() <= 24 or len(b.token_ids_BL) == 1 for b in batches)
    num_trained = sum(sum(1 for w in s.weights if w) for s in made)
    assert sum(len(b.rows_T) for b in batches) == num_trained


def test_chunked_logits_give_the_same_gradient(monkeypatch):
    def gradient():
        model = tiny("llama")
        batch = next(iter(microbatches(samples(), 10_000, CPU)))
        nll(trained_logprobs(model, batch), batch)[0].backward()
        return model.get_input_embeddings().weight.grad

    whole = gradient()
    monkeypatch.setattr("spaniel.learner.LOGITS_CHUNK", 5)
    assert torch.allclose(gradient(), whole, atol=1e-6)


def test_the_loss_falls_on_one_repeated_batch():
    trained = learner(tiny("lfm2"))
    losses = [trained.step(samples(), nll)["loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_recomputed_activations_give_the_same_step():
    plain, saving = learner(tiny("llama")), learner(tiny("llama"), recompute_activations=True)
    for one in (plain, saving):
        one.step(samples(), nll)
    for a, b in zip(plain.model.parameters(), saving.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert not saving.model.training


def test_a_loss_that_is_not_finite_stops_before_the_weights_change():
    trained = learner(tiny("llama"))
    before = weights_fingerprint(trained.model)

    def broken(logprobs_T, batch):
        loss = (logprobs_T * math.nan).sum()
        return loss, {"loss": loss.detach()}

    with pytest.raises(TrainingError, match="not finite"):
        trained.step(samples(), broken)
    assert weights_fingerprint(trained.model) == before


def test_a_restored_learner_continues_to_the_same_weights(tmp_path):
    whole = learner(tiny("lfm2"))
    for _ in range(6):
        whole.step(samples(), nll)

    first = learner(tiny("lfm2"))
    for _ in range(3):
        first.step(samples(), nll)
    first.save(tmp_path / "step-3", {})
    second = learner(tiny("lfm2", initializer_range=0.1))
    second.restore(tmp_path / "step-3")
    for _ in range(3):
        second.step(samples(), nll)
    assert second.num_steps == 6
    assert weights_fingerprint(second.model) == weights_fingerprint(whole.model)


def test_weights_of_another_model_are_refused(tmp_path):
    save_weights(tiny("llama"), tmp_path / "w.safetensors")
    with pytest.raises(ArtifactError, match="another model"):
        load_weights(tiny("lfm2"), tmp_path / "w.safetensors")


def test_a_checkpoint_of_another_length_of_run_is_refused(tmp_path):
    first = learner(tiny("llama"))
    first.save(tmp_path / "c", {})
    second = Learner(tiny("llama"), OptimizerConfig(), total_steps=99)
    with pytest.raises(ArtifactError, match="10 steps, this one has 99"):
        second.restore(tmp_path / "c")


def test_the_fingerprint_sees_one_changed_weight():
    model = tiny("llama")
    before = weights_fingerprint(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1e-3
    assert weights_fingerprint(model) != before


def test_models_that_change_their_logits_are_refused():
    model = tiny("llama")
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        decoder_and_head(model)


def test_the_schedule_warms_up_then_falls_to_a_tenth():
    cfg = OptimizerConfig(learning_rate=1.0, warmup_frac=0.1, schedule="cosine")
    rates = [learning_rate_at(step / 100, cfg, min_warmup=0.01) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[10] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
