import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.policy import sampling
from spaniel.policy.sampling import draw, nucleus

LOGITS = torch.tensor([[0.0, math.log(2), math.log(5), -math.inf]])  # 1/8, 2/8, 5/8, 0


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.1249, 0), (0.126, 1), (0.374, 1), (0.376, 2), (0.9999, 2)]
)
def test_a_token_is_the_inverse_cdf_of_its_number(uniform, token):
    ids, logprobs = draw(LOGITS, temperatures=[1.0], top_ps=[1.0], uniforms=[uniform])
    assert ids == [token]
    assert logprobs[0] == pytest.approx(math.log([1 / 8, 2 / 8, 5 / 8][token]), abs=1e-6)


def test_the_largest_number_below_one_never_gives_a_token_of_probability_zero():
    ids, logprobs = draw(
        LOGITS.repeat(2, 1),
        temperatures=[1.0, 1.0],
        top_ps=[1.0, 0.6],
        uniforms=[float(np.nextafter(1, 0))] * 2,
    )
    assert ids == [2, 2]
    assert logprobs[1] == pytest.approx(0.0, abs=1e-6)


def test_temperature_zero_is_the_most_likely_token_with_logprob_zero():
    ids, logprobs = draw(LOGITS, temperatures=[0.0], top_ps=[1.0], uniforms=[0.01])
    assert (ids, logprobs) == ([2], [0.0])


def test_frequencies_follow_the_tempered_distribution():
    """20,000 evenly spaced numbers: each share is exact up to 1 / 20,000."""
    count = 20_000
    ids, _ = draw(
        LOGITS.expand(count, -1),
        temperatures=[2.0] * count,
        top_ps=[1.0] * count,
        uniforms=((np.arange(count) + 0.5) / count).tolist(),
    )
    weights = np.sqrt([1, 2, 5])
    np.testing.assert_allclose(
        np.bincount(ids, minlength=4)[:3] / count, weights / weights.sum(), atol=1.1 / count
    )


def test_rows_with_nan_logits_get_a_nan_logprob_and_leave_the_others_alone():
    rows = torch.cat([LOGITS, torch.full((2, 4), math.nan)])
    ids, logprobs = draw(
        rows, temperatures=[1.0, 1.0, 0.0], top_ps=[1.0, 0.5, 1.0], uniforms=[0.9] * 3
    )
    assert ids[0] == 2
    assert [math.isnan(value) for value in logprobs] == [False, True, True]


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=30),
    top_p=st.floats(0.05, 0.99),
    uniform=st.floats(0, 1, exclude_max=True),
)
@settings(deadline=None)
def test_top_p_keeps_the_smallest_set_of_likeliest_tokens_with_that_mass(logits, top_p, uniform):
    row = torch.tensor([logits])
    probs = row.log_softmax(-1).exp()  # as draw has it, so that ties at the edge round alike
    kept = nucleus(probs, torch.tensor([top_p]))
    inside = kept[0] > 0
    mass = float(kept.sum())
    assert mass >= top_p - 1e-5
    assert mass - float(kept[inside[None]].min()) < top_p + 1e-5  # without one, too little
    if not bool(inside.all()):
        assert float(probs[0][~inside].max()) <= float(probs[0][inside].min())
    ids, logprobs = draw(row, temperatures=[1.0], top_ps=[top_p], uniforms=[uniform])
    assert bool(inside[ids[0]])
    assert logprobs[0] == pytest.approx(math.log(float(probs[0, ids[0]]) / mass), abs=1e-4)


def test_top_p_looks_further_than_its_first_candidates(monkeypatch):
    monkeypatch.setattr(sampling, "FIRST_CANDIDATES", 2)
    probs = torch.full((1, 10), 0.1)
    assert int((nucleus(probs, torch.tensor([0.75])) > 0).sum()) == 8


def test_a_row_is_drawn_alike_in_any_company():
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    heats, top_ps = [1.0, 0.0, 0.7, 1.0, 1.3, 1.0], [1.0, 1.0, 0.9, 0.5, 1.0, 0.95]
    uniforms = [0.3, 0.6, 0.1, 0.9, 0.5, 0.8]
    ids, logprobs = draw(rows, temperatures=heats, top_ps=top_ps, uniforms=uniforms)
    for row in range(6):
        one = slice(row, row + 1)
        alone = draw(rows[one], temperatures=heats[one], top_ps=top_ps[one], uniforms=uniforms[one])
        assert alone == ([ids[row]], [pytest.approx(logprobs[row], abs=1e-6)])
