import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ConfigError, DataError
from spaniel.eval.results import (
    EvalProtocol,
    build_results,
    default_pairs,
    finite,
    write_results,
)
from spaniel.eval.rows import QuestionRow, SystemResult
from spaniel.eval.table import format_table
from spaniel.store import read_json

PROTOCOL = EvalProtocol(
    recipe="tiny",
    corpus_hash="c0",
    num_documents=20,
    index_fingerprint="i0",
    questions_hash="q0",
    num_questions=4,
    system_prompt="Find.",
    tools="hermes: search, read, report",
    k=10,
    temperature=1.0,
    seed=7,
    version="0.1.0",
)


def row(qid, ndcg, *, hops=2, kind="chain", searches=1, latency_s=1.0, stop="", reward=None):
    return QuestionRow(
        qid=qid,
        hops=hops,
        kind=kind,
        ndcg=ndcg,
        recall=ndcg,
        precision=ndcg / 2,
        f1=ndcg / 2,
        num_returned=2,
        searches=searches,
        latency_s=latency_s,
        completion_tokens=30 if stop else 0,
        stop_reason=stop,
        reward=reward,
    )


def bm25(values=(0.2, 0.4, 0.0, 0.2)):
    rows = tuple(row(f"q{i}", v, hops=2 + i % 2) for i, v in enumerate(values))
    return SystemResult(system="bm25", rows=rows, made_by={"k": 10})


def policy(values=(0.8, 1.0, 0.6, 0.8), **extra):
    rows = tuple(
        row(f"q{i}", v, hops=2 + i % 2, searches=i, stop="reported") for i, v in enumerate(values)
    )
    return SystemResult(system="policy-rl", rows=rows, **extra)


def test_a_row_holds_means_intervals_and_segments():
    results = build_results([policy(failed=3), bm25()], protocol=PROTOCOL)
    first, second = results["rows"]
    assert (first["system"], first["n"], first["ndcg"]) == ("bm25", 4, pytest.approx(0.2))
    assert second["ndcg"] == pytest.approx(0.8)
    assert second["ndcg_ci"][0] <= 0.8 <= second["ndcg_ci"][1]
    assert second["f1_ci"] == pytest.approx([v / 2 for v in second["ndcg_ci"]])
    assert {hops: cell["n"] for hops, cell in second["by_hops"].items()} == {"2": 2, "3": 2}
    assert second["by_hops"]["3"]["ndcg"] == pytest.approx(0.9)
    assert list(second["by_kind"]) == ["chain"]
    assert {k: c["n"] for k, c in second["by_searched"].items()} == {"no": 1, "yes": 3}
    assert second["by_searched"]["no"]["ndcg"] == pytest.approx(0.8)
    assert (second["failed"], second["stops"]) == (3, {"reported": 4})
    assert (first["funnel"], second["funnel"]) == ({}, {})
    assert first["made_by"] == {"k": 10}
    assert results["protocol"]["corpus_hash"] == "c0"


def test_a_comparison_pairs_the_questions_both_answered():
    # q3 failed for the policy: three differences of 0.6, so p = 2 / 2^3.
    results = build_results([bm25(), policy((0.8, 1.0, 0.6))], protocol=PROTOCOL)
    ndcg, f1 = results["comparisons"]
    assert (ndcg["a"], ndcg["b"], ndcg["metric"], ndcg["n"]) == ("policy-rl", "bm25", "ndcg", 3)
    assert ndcg["difference"] == pytest.approx(0.6)
    assert (ndcg["p"], f1["p"]) == (0.25, 0.25)
    assert f1["difference"] == pytest.approx(0.3)


def test_several_rollouts_of_a_question_count_as_their_mean():
    rows = (row("q0", 0.0), row("q0", 1.0), row("q0", 0.5), row("q1", 1.0))
    results = build_results([SystemResult(system="policy-rl", rows=rows)], protocol=PROTOCOL)
    (found,) = results["rows"]
    assert (found["n"], found["num_rollouts"]) == (2, 4)
    assert found["ndcg"] == pytest.approx(0.75)


def test_the_reward_is_reported_when_every_row_has_one():
    rows = (row("q0", 0.5, reward=0.6), row("q1", 1.0, reward=1.0))
    some = (rows[0], row("q1", 1.0))
    for system_rows, expected in ((rows, pytest.approx(0.8)), (some, None)):
        result = SystemResult(system="policy-rl", rows=system_rows)
        assert build_results([result], protocol=PROTOCOL)["rows"][0]["reward"] == expected


def test_unknown_hops_are_a_segment_of_their_own_or_none():
    unknown = SystemResult(system="bm25", rows=(row("q0", 1.0, hops=0, kind=""),))
    mixed = SystemResult(system="vector", rows=(row("q0", 1.0, hops=0), row("q1", 0.0)))
    first, second = build_results([unknown, mixed], protocol=PROTOCOL)["rows"]
    assert (first["by_hops"], first["by_kind"]) == ({}, {})
    assert list(second["by_hops"]) == ["2", "unknown"]


def test_a_system_without_any_answer_has_no_means():
    failed = SystemResult(system="policy-rl", rows=(), failed=4)
    results = build_results([bm25(), failed], protocol=PROTOCOL)
    assert results["rows"][1]["ndcg"] is None
    assert results["rows"][1]["ndcg_ci"] is None
    assert results["comparisons"] == []
    assert "policy-rl  0" in format_table(results)


def test_nan_becomes_null_with_a_count(tmp_path):
    rows = (row("q0", 0.5, latency_s=math.nan),)
    results = build_results([SystemResult(system="bm25", rows=rows)], protocol=PROTOCOL)
    write_results(tmp_path / "results.json", results)
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["rows"][0]["latency_s"] is None
    assert (results["non_finite"], read_json(tmp_path / "results.json")) == (1, results)


def test_a_quality_that_is_no_share_is_refused():
    for wrong in (math.nan, 1.5, -0.1):
        broken = SystemResult(system="bm25", rows=(row("q9", wrong),))
        with pytest.raises(DataError, match=r"bm25, question q9: ndcg must be in \[0, 1\]"):
            build_results([broken], protocol=PROTOCOL)


def test_rollouts_that_disagree_about_their_question_are_refused():
    rows = (row("q0", 0.5, hops=2), row("q0", 0.5, hops=3))
    with pytest.raises(DataError, match="rows differ in hops or kind"):
        build_results([SystemResult(system="bm25", rows=rows)], protocol=PROTOCOL)


def test_a_system_may_occur_once_and_must_be_known():
    with pytest.raises(DataError, match="bm25 must occur once"):
        build_results([bm25(), bm25()], protocol=PROTOCOL)
    with pytest.raises(ConfigError, match="a system must be one of"):
        build_results([], protocol=PROTOCOL, not_run={"gpt": "no key"})


def test_the_trained_policy_is_compared_with_everything():
    systems = ["bm25", "policy-start", "policy-sft", "policy-rl", "policy-rl-rrf4"]
    assert default_pairs(systems) == [
        ("policy-rl", "bm25"),
        ("policy-rl", "policy-start"),
        ("policy-rl", "policy-sft"),
        ("policy-rl-rrf4", "policy-rl"),
        ("policy-sft", "policy-start"),
    ]
    assert default_pairs(["bm25", "policy-start"]) == [("policy-start", "bm25")]
    assert default_pairs(["bm25", "vector"]) == []


plain = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_cleaned_data_is_always_json_and_cleaning_again_changes_nothing(value):
    cleaned, count = finite(value)
    json.dumps(cleaned, allow_nan=False)
    assert finite(cleaned) == (cleaned, 0)
    assert count >= 0


def test_the_plain_table_of_a_golden_result():
    results = build_results(
        [bm25((0.25, 0.25)), policy((1.0, 1.0), failed=1)],
        protocol=PROTOCOL,
        not_run={"api:big": "no key in OPENAI_API_KEY"},
    )
    expected = """\
System     n                   nDCG  Recall  Precision                     F1  Searches  Reads  Tokens  s/question
bm25       2   0.250 [0.250, 0.250]   0.250      0.125   0.125 [0.125, 0.125]       1.0    0.0       –        1.00
policy-rl  2  *1.000 [1.000, 1.000]  *1.000     *0.500  *0.500 [0.500, 0.500]       0.5    0.0      30        1.00

policy-rl: 1 rollouts failed by the infrastructure, in no mean
policy-rl vs bm25: nDCG +0.750 [0.750, 0.750], p = 0.500; F1 +0.375 [0.375, 0.375], p = 0.500 (n = 2)
intervals: 95 % bootstrap over questions; p: two-sided paired permutation test; \
if no system differed, 2 such tests would show a p < 0.05 with a chance of up to 10%
not run: api:big: no key in OPENAI_API_KEY
"""  # noqa: E501, RUF001
    assert format_table(results) == expected


def test_the_markdown_table_has_equal_pipes_and_marks_the_best():
    lines = format_table(build_results([bm25(), policy()], protocol=PROTOCOL), markdown=True)
    table = [line for line in lines.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len({len(line) for line in table}) == 1
    assert table[1].startswith("| ---")
    assert "**0.800**" in table[3]
    assert "**" not in table[2]
