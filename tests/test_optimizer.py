import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training_samples import nll, samples

from spaniel.config import OptimizerConfig
from spaniel.learner import Learner
from spaniel.optimizer import Muon, make_optimizer, orthogonalized
from spaniel.policy.load import random_tiny


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_singular_values_come_near_1_and_vectors_stay(rows, columns, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    matrix = scale * torch.randn(rows, columns, generator=generator)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    made = u.T @ orthogonalized(matrix) @ v.T
    kept = s > 0.05 * s.max()
    diagonal = made.diagonal()[kept]
    assert ((diagonal > 0.4) & (diagonal < 1.3)).all()
    assert (made - torch.diag(made.diagonal())).abs().max() < 1e-2


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_steps_equal_those_of_torch(shape, nesterov):
    start = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    values = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    own = Muon([ours], **values)
    oracle = torch.optim.Muon([theirs], **values, adjust_lr_fn="match_rms_adamw")
    for seed in range(5):
        grad = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 1))
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        own.step()
        oracle.step()
    moved = (theirs - start).norm()
    # The oracle iterates in bfloat16.
    assert (ours - theirs).norm() < 0.02 * moved


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="Muon updates matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=1, momentum=0, weight_decay=0, nesterov=True)


def test_embeddings_norms_and_convolutions_stay_with_adamw():
    model = random_tiny(512, seed=0)
    tables = [model.get_input_embeddings().weight]
    made = make_optimizer(model, tables, OptimizerConfig(name="muon", weight_decay=0.1))
    by_kind = {
        type(o).__name__: {id(p) for group in o.param_groups for p in group["params"]}
        for o in made.optimizers
    }
    muon = {name for name, p in model.named_parameters() if id(p) in by_kind["Muon"]}
    assert any("feed_forward" in name for name in muon)
    assert any("self_attn.q_proj" in name for name in muon)
    assert not any("embed" in name or "norm" in name or "conv.conv" in name for name in muon)
    assert len(by_kind["Muon"] | by_kind["AdamW"]) == len(list(model.parameters()))


def test_a_restored_learner_goes_on_to_the_same_weights(tmp_path):
    cfg = OptimizerConfig(name="muon", learning_rate=1e-2, schedule="cosine", final_frac=0.02)

    def learner():
        return Learner(random_tiny(512, seed=0), cfg, total_steps=6)

    def steps(made, count):
        for _ in range(count):
            made.step(samples(), nll)

    whole, first, second = learner(), learner(), learner()
    steps(whole, 4)
    steps(first, 2)
    first.save(tmp_path / "c", {})
    second.restore(tmp_path / "c")
    steps(second, 2)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
