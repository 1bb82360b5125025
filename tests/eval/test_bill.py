import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.config import PriceConfig, RLConfig
from spaniel.errors import DataError
from spaniel.eval.bill import QueryUse, StageUse, bill_lines, make_bill, project_training
from spaniel.eval.formats import duration, fixed, p_value, signed, usd
from spaniel.store import dump_line

PRICES = PriceConfig(
    machine_usd_per_hour=2.0,
    api_name="big model",
    api_usd_per_million_input=3.0,
    api_usd_per_million_output=15.0,
)
QUERY = QueryUse(prompt_tokens=2000, completion_tokens=100, latency_s=0.8, machine_s=0.9)


def test_a_hand_computed_bill():
    bill = make_bill(
        [StageUse(stage="sft", machine_s=1800), StageUse(stage="rl", machine_s=5400)], QUERY, PRICES
    )
    assert (bill.training_hours, bill.training_usd) == (2.0, 4.0)
    assert bill.query_usd == pytest.approx(0.0005)  # 0.9 s of 2 $/h
    assert bill.api_query_usd == pytest.approx(0.0075)  # 2000 * 3 + 100 * 15 per million
    assert bill.break_even_queries == 572  # 4 / 0.007 = 571.4
    assert '"training_usd":4.0' in dump_line(bill)
    assert bill_lines(bill) == [
        "training: 2.0 h of the machine at $2.00 an hour: $4.00",
        "a query: 2,000 prompt and 100 completion tokens, 0.80 s to the answer, 0.90 s of the "
        "machine: $0.00050",
        "the same tokens from big model at $3.00 and $15.00 a million: $0.0075",
        "training costs as much as 572 such queries to the endpoint; whether they are worth it, "
        "the table above says",
    ]


def test_a_cheaper_endpoint_is_never_broken_even_with():
    slow = QueryUse(prompt_tokens=10, completion_tokens=1, latency_s=1, machine_s=60)
    bill = make_bill([StageUse(stage="rl", machine_s=60)], slow, PRICES)
    assert bill.break_even_queries is None
    assert "never pays for itself" in bill_lines(bill)[-1]


AMOUNTS = st.floats(0, 1e6).map(lambda amount: round(amount, 6))
"""A saving of 1e-300 dollars a query would be paid back after more queries than a float holds."""


@given(AMOUNTS, st.floats(0, 100), AMOUNTS)
def test_break_even_is_the_first_query_that_pays(machine_s, query_s, tokens):
    query = QueryUse(
        prompt_tokens=tokens, completion_tokens=tokens / 10, latency_s=1, machine_s=query_s
    )
    bill = make_bill([StageUse(stage="rl", machine_s=machine_s)], query, PRICES)
    saving = bill.api_query_usd - bill.query_usd
    n = bill.break_even_queries
    if n is None:
        assert saving <= 0
    else:
        assert n * saving >= bill.training_usd * (1 - 1e-9)
        assert (n - 1) * saving <= bill.training_usd * (1 + 1e-9)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_measurements_that_cannot_be_are_refused(value):
    with pytest.raises(DataError, match="machine_s of stage rl must be finite and >= 0"):
        make_bill([StageUse(stage="rl", machine_s=value)], QUERY, PRICES)


def test_a_projection_counts_every_rollout_and_step():
    rl = RLConfig(steps=10, groups_per_step=4, group_size=8)
    found = project_training(rl, rollout_s=2.0, update_s=8.0, prices=PRICES)
    assert found.rollouts == 320
    assert found.hours == pytest.approx(0.2)  # (320 * 2 + 10 * 8) / 3600
    assert found.usd == pytest.approx(0.4)


def test_numbers_are_written_for_people():
    assert [usd(v) for v in (0, 1234.5, 0.25, 0.0831, 0.000003056)] == [
        "$0.00",
        "$1,234.50",
        "$0.25",
        "$0.083",
        "$0.0000031",
    ]
    assert [duration(s) for s in (0.4, 12, 420, 9000)] == ["0.40 s", "12 s", "7 min", "2.5 h"]
    assert [p_value(p) for p in (0.0001, 0.0123, 1.0)] == ["p < 0.001", "p = 0.012", "p = 1.000"]
    assert [signed(v) for v in (0.1234, -0.05, -0.00001)] == ["+0.123", "-0.050", "+0.000"]
    assert fixed(None) == "\N{EN DASH}"
