import math

import pytest
import torch
from tests.policy.tiny_models import tiny
from tests.training_samples import nll, samples

from spaniel.config import OptimizerConfig
from spaniel.errors import ArtifactError, TrainingError
from spaniel.learner import (
    Learner,
    learning_rate_at,
    load_weights,
    save_weights,
    weights_fingerprint,
)


def learner(model, **settings):
    cfg = OptimizerConfig(**{"learning_rate": 1e-2, "warmup_frac": 0.0, **settings})
    return Learner(model, cfg, total_steps=10)


def test_the_loss_falls_on_one_repeated_batch():
    trained = learner(tiny("lfm2"))
    losses = [trained.step(samples(), nll)["loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("packing", ["rows", "packed", "shared"])
@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_recomputed_activations_give_the_same_step(family, packing):
    plain = learner(tiny(family), packing=packing)
    saving = learner(tiny(family), packing=packing, recompute_activations=True)
    for one in (plain, saving):
        one.step(samples(), nll)
    for a, b in zip(plain.model.parameters(), saving.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert not saving.model.training


def test_a_loss_that_is_not_finite_stops_before_the_weights_change():
    trained = learner(tiny("llama"))
    before = weights_fingerprint(trained.model)

    def broken(predictions, batch):
        loss = (predictions.logprobs_T * math.nan).sum()
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


def test_the_schedule_warms_up_then_falls_to_a_tenth():
    cfg = OptimizerConfig(learning_rate=1.0, warmup_frac=0.1, schedule="cosine")
    rates = [learning_rate_at(step / 100, cfg, min_warmup=0.01) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[10] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
