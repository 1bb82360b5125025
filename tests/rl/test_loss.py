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


# --- other surrogates ---------------------------------------------------------------------

LOG = [math.log(r) for r in (0.1, 0.5, 1.0, 2.0, 6.0)]
SAMPLER = [0.0] * 5
ADVANTAGES = [1.0, -1.0, 2.0, 1.0, -3.0]
WEIGHTS = [0.2] * 5


def test_icepop_by_hand():
    # 0.1 and 6 are outside of [0.2, 5]: no loss, no gradient, but part of the denominator.
    value, grad, metrics = loss_of(LOG, SAMPLER, ADVANTAGES, WEIGHTS, surrogate="icepop")
    assert value == pytest.approx(-(0.5 * -1 + 1 * 2 + 2 * 1) / 5)
    assert grad.tolist() == pytest.approx([0, 0.5 / 5, -2 / 5, -2 / 5, 0])
    assert metrics["ratio/clipped_frac"].item() == pytest.approx(2 / 5)
    assert metrics["ratio/outside_band_frac"].item() == pytest.approx(2 / 5)


def test_cispo_by_hand():
    # The weight stops at 1.5 and has no gradient; every token keeps the gradient of its log-prob.
    value, grad, _ = loss_of(LOG, SAMPLER, ADVANTAGES, WEIGHTS, surrogate="cispo", clip_high=0.5)
    capped = [0.1, 0.5, 1.0, 1.5, 1.5]
    expected = [-w * a / 5 for w, a in zip(capped, ADVANTAGES, strict=True)]
    assert grad.tolist() == pytest.approx(expected)
    assert value == pytest.approx(sum(g * lp for g, lp in zip(expected, LOG, strict=True)))


def test_without_a_surrogate_every_token_has_its_weight():
    value, grad, _ = loss_of(LOG, SAMPLER, ADVANTAGES, WEIGHTS, surrogate="none")
    expected = [-math.exp(lp) * a / 5 for lp, a in zip(LOG, ADVANTAGES, strict=True)]
    assert value == pytest.approx(sum(expected))
    assert grad.tolist() == pytest.approx(expected)


def test_a_sequence_ratio_is_the_geometric_mean_by_hand():
    # Ratios 1.1 and 1.21 of one sequence: 1.1 ** 1.5; each token carries half of its gradient.
    logprobs = [math.log(1.1), math.log(1.21), math.log(0.9)]
    value, grad, _ = loss_of(
        logprobs,
        [0.0] * 3,
        [1.0, 1.0, 2.0],
        [1 / 3] * 3,
        sequences_T=torch.tensor([4, 4, 7]),
        clip_low=0.5,
        clip_high=0.5,
    )
    first = 1.1**1.5
    assert value == pytest.approx(-(2 * first + 2 * 0.9) / 3)
    assert grad.tolist() == pytest.approx([-first / 3, -first / 3, -2 * 0.9 / 3])


def test_k1_is_taken_from_the_advantage_by_hand():
    # d = reference - current = -0.5: the advantage falls from 1 to 1 - 0.1 * 0.5.
    value, grad, metrics = loss_of(
        [-1.0],
        [-1.0],
        [1.0],
        [1.0],
        ref_logprobs_T=torch.tensor([-1.5]).double(),
        kl_beta=0.1,
        kl_estimator="k1",
    )
    assert value == pytest.approx(-0.95)
    assert grad.tolist() == pytest.approx([-0.95])
    assert metrics["advantage/token_mean"].item() == pytest.approx(0.95)


def test_monitors_by_hand():
    _, _, metrics = loss_of([-1.0, -2.0], [-1.5, -1.0], [0.0, 0.0], [0.5, 0.5])
    assert metrics["kl/sampler_k1"].item() == pytest.approx(-(0.5 - 1.0) / 2)
    assert metrics["entropy/sampled"].item() == pytest.approx(1.5)


SURROGATES = st.sampled_from(["clip", "icepop", "cispo", "none"])


@given(tokens, SURROGATES, st.booleans())
def test_on_policy_every_surrogate_has_the_gradient_of_reinforce(rows, surrogate, by_sequence):
    logprobs, advantages = zip(*rows, strict=True)
    weights = [1 / len(rows)] * len(rows)
    sequences = torch.arange(len(rows)) if by_sequence else None
    _, grad, _ = loss_of(
        logprobs, logprobs, advantages, weights, surrogate=surrogate, sequences_T=sequences
    )
    assert grad.tolist() == pytest.approx([-a / len(rows) for a in advantages], abs=1e-12)


@given(tokens, SURROGATES, st.booleans(), st.sampled_from([0.0, 0.3]), st.integers(0, 2**16))
def test_gradients_are_those_of_finite_differences(rows, surrogate, by_sequence, beta, seed):
    logprobs, advantages = zip(*rows, strict=True)
    generator = torch.Generator().manual_seed(seed)
    sampler = torch.tensor(logprobs).double() + 0.5 * torch.randn(len(rows), generator=generator)
    settings = {
        "surrogate": surrogate,
        "sequences_T": torch.arange(len(rows)) // 2 if by_sequence else None,
        "kl_beta": beta,
        "ref_logprobs_T": sampler + 0.2,
    }
    weights = [1 / len(rows)] * len(rows)

    def value(at):
        return loss_of(at, sampler.tolist(), advantages, weights, **settings)[0]

    _, grad, _ = loss_of(logprobs, sampler.tolist(), advantages, weights, **settings)
    if surrogate == "cispo":
        return  # its gradient is not that of its value: the weight has none
    step = 1e-6
    for at in range(len(rows)):
        up, down = list(logprobs), list(logprobs)
        up[at] += step
        down[at] -= step
        numeric = (value(up) - value(down)) / (2 * step)
        # At a bound of clip or band the slope jumps: a difference across it says nothing.
        ratio = math.exp(logprobs[at] - sampler[at].item())
        near = min(abs(ratio - bound) for bound in (0.8, 1.28, 0.2, 5.0))
        if near > 1e-4 and not by_sequence:
            assert grad[at].item() == pytest.approx(numeric, abs=1e-5)
