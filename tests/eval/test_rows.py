import pytest

from spaniel.errors import ConfigError, DataError
from spaniel.eval.rows import (
    billed_prompt_tokens,
    from_fused,
    from_groups,
    from_lists,
    system_rank,
    trajectory_row,
)
from spaniel.types import (
    FinishReason,
    Group,
    Question,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)

QUESTION = Question(qid="q", text="?", targets=("a", "b"), hops=2, kind="chain")


def turn(start, end, name):
    return Turn(
        start=start,
        end=end,
        text="",
        finish_reason=FinishReason.STOP,
        call=ToolCall(name=name, arguments={}),
        docids=("a",) if name == "read" else (),
    )


def trajectory(report=("a",), *, number=0, stop=StopReason.REPORTED, segments=(0,), wall_s=2.0):
    """Three calls: 10 prompt tokens, 2 written, 5 seen, 3 written, 4 seen, 1 written."""
    mask = [False] * 10 + [True] * 2 + [False] * 5 + [True] * 3 + [False] * 4 + [True]
    return Trajectory(
        qid="q",
        trajectory_id=f"q/{number}",
        token_ids=(0,) * 25,
        loss_mask=tuple(mask),
        sampler_logprobs=(0.0,) * 25,
        policy_versions=(0,) * 25,
        segments=segments,
        turns=(turn(10, 12, "search"), turn(17, 20, "read"), turn(24, 25, "report")),
        stop_reason=stop,
        report=tuple(report),
        reward=0.5,
        wall_s=wall_s,
    )


def test_a_trajectorys_row_counts_calls_and_tokens():
    row = trajectory_row(trajectory(["a", "x"]), QUESTION)
    assert (row.qid, row.hops, row.kind) == ("q", 2, "chain")
    assert (row.recall, row.precision, row.num_returned) == (0.5, 0.5, 2)
    assert (row.searches, row.reads) == (1, 1)
    # Prompts of 10, 17 and 24 tokens; 2 + 3 + 1 written.
    assert (row.prompt_tokens, row.completion_tokens) == (51, 6)
    assert (row.latency_s, row.reward, row.stop_reason) == (2.0, 0.5, "reported")


def test_a_new_segment_starts_a_new_prompt():
    assert billed_prompt_tokens(trajectory(segments=(0, 14))) == 10 + (17 - 14) + (24 - 14)


def test_an_endpoints_own_token_counts_win():
    row = trajectory_row(trajectory(), QUESTION, usage=(900, 80))
    assert (row.prompt_tokens, row.completion_tokens) == (900, 80)


def test_ending_without_a_report_returned_nothing():
    row = trajectory_row(trajectory(["a"], stop=StopReason.MAX_TURNS), QUESTION)
    assert (row.num_returned, row.ndcg, row.stop_reason) == (0, 0.0, "max_turns")


def test_a_failed_rollout_has_no_row():
    with pytest.raises(DataError, match="q/0 failed by the infrastructure"):
        trajectory_row(trajectory(stop=StopReason.INFRASTRUCTURE), QUESTION)


def test_failed_rollouts_are_counted_and_every_other_is_a_row():
    group = Group(
        question=QUESTION,
        trajectories=(
            trajectory(["a", "b"]),
            trajectory([], number=1, stop=StopReason.INFRASTRUCTURE),
            trajectory(["x"], number=2),
        ),
    )
    result = from_groups("policy-rl", [group], usage={"q/2": (7, 3)}, made_by={"seed": 1})
    assert [row.ndcg for row in result.rows] == [1.0, 0.0]
    assert [row.prompt_tokens for row in result.rows] == [51, 7]
    assert (result.failed, result.made_by) == (1, {"seed": 1})


def test_fused_rollouts_add_their_costs_and_wait_for_the_slowest():
    group = Group(
        question=QUESTION,
        trajectories=(trajectory(["a"]), trajectory(["b"], number=1, wall_s=3.0)),
    )
    fused = from_fused("policy-rl-rrf2", [group], lambda lists: [d for ids in lists for d in ids])
    (row,) = fused.rows
    assert (row.ndcg, row.searches, row.completion_tokens) == (1.0, 2, 12)
    assert (row.latency_s, row.reward, row.stop_reason) == (3.0, None, "")


def test_a_question_whose_rollouts_all_failed_is_not_fused():
    failed = trajectory(stop=StopReason.INFRASTRUCTURE)
    group = Group(question=QUESTION, trajectories=(failed,))
    result = from_fused("policy-rl-rrf2", [group], lambda lists: [])
    assert (result.rows, result.failed) == ((), 1)


def test_a_classical_search_is_judged_on_its_top_k():
    lists = {"q": ["a", "x", "y", "b"]}
    (row,) = from_lists("bm25", lists, [QUESTION], k=2, latency_s={"q": 0.25}).rows
    assert (row.recall, row.precision, row.num_returned) == (0.5, 0.5, 2)
    assert (row.searches, row.completion_tokens, row.latency_s) == (1, 0, 0.25)


def test_a_classical_search_must_answer_every_question():
    with pytest.raises(DataError, match="question q has no list"):
        from_lists("bm25", {}, [QUESTION], k=10)


def test_systems_have_an_order_and_known_names():
    names = ["bm25", "vector", "hybrid", "vector+reranker", "policy-start", "policy-sft"]
    names += ["policy-rl", "policy-rl-rrf4", "api:any/model-1"]
    backwards = names[::-1]
    assert sorted(backwards, key=system_rank) == names
    for wrong in ("BM25", "policy-rl-rrf0", "policy", "api:", "vectorXreranker"):
        with pytest.raises(ConfigError, match="a system must be one of bm25"):
            system_rank(wrong)
