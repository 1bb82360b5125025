"""Golden values by hand, and what must not change a loss."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spaniel.rl.loss import policy_loss


def loss_of(logprobs, sampler, advantages, weights, **settings):
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (sampler, advantages, weights)]
    lp = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(
        lp,
        sampler_logprobs_T=tensors[0],
        advantages_T=tensors[1],
        weights_T=tensors[2],
        **settings,
    )
    loss.backward()
    return loss.item(), lp.grad, metrics


def test_loss_by_hand():
    # ratios 1.5 (A > 0: clipped to 1.28), 0.5 (A < 0: min(-0.5, -0.8) = -0.8), 1.0
    # loss = (-1.28 * 1 + 0.8 * 1 - 1.0 * 2) / 4
    value, grad, metrics = loss_of(
        [math.log(1.5), math.log(0.5), -1.0], [0.0, 0.0, -1.0], [1.0, -1.0, 2.0], [0.25] * 3
    )
    assert value == pytest.approx((-1.28 + 0.8 - 2.0) / 4)
    assert grad.tolist() == pytest.approx([0.0, 0.0, -0.5])
    assert metrics["ratio/clipped_frac"].item() == pytest.approx(0.5)


def test_the_clip_never_holds_back_a_correction():
    # A token already too likely under a negative advantage keeps its gradient.
    _, grad, _ = loss_of([math.log(2.0)], [0.0], [-1.0], [1.0])
    assert grad.tolist() == pytest.approx([2.0])


def test_kl_by_hand():
    # k3 of log-ratio d = ref - current = -0.5: exp(-0.5) - 1 + 0.5
    value, _, metrics = loss_of(
        [-1.0], [-1.0], [0.0], [1.0], ref_logprobs_T=torch.tensor([-1.5]).double(), kl_beta=0.1
    )
    k3 = math.exp(-0.5) - 1 + 0.5
    assert value == pytest.approx(0.1 * k3)
    assert metrics["kl/reference_k3"].item() == pytest.approx(k3)


tokens = st.lists(st.tuples(st.floats(-3, 0), st.floats(-2, 2)), min_size=1, max_size=20)


@given(tokens)
def test_the_on_policy_gradient_is_reinforce(rows):
    logprobs, advantages = zip(*rows, strict=True)
    weights = [1 / len(rows)] * len(rows)
    _, grad, _ = loss_of(logprobs, logprobs, advantages, weights)
    assert grad.tolist() == pytest.approx([-a / len(rows) for a in advantages], abs=1e-12)


@given(tokens, st.integers(0, 20))
def test_splitting_into_microbatches_changes_nothing(rows, cut):
    logprobs, advantages = zip(*rows, strict=True)
    sampler = [lp - 0.1 for lp in logprobs]
    weights = [1 / len(rows)] * len(rows)
    whole, _, _ = loss_of(logprobs, sampler, advantages, weights)
    parts = [
        loss_of(logprobs[a:b], sampler[a:b], advantages[a:b], weights[a:b])[0]
        for a, b in ((0, cut), (cut, len(rows)))
        if logprobs[a:b]
    ]
    assert sum(parts) == pytest.approx(whole)


def test_a_huge_gap_gives_a_finite_loss():
    value, _, _ = loss_of([0.0], [-1000.0], [-1.0], [1.0])
    assert math.isfinite(value)
