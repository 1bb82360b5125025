import random

import ir_measures
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import P, R, nDCG

from spaniel.errors import DataError
from spaniel.eval.metrics import ranked, score_list, score_run

IDS = [f"d{i}" for i in range(12)]


def random_run_and_qrels(seed, *, num_questions=40):
    """Scores on a coarse grid, so that ties are common; some questions are missing."""
    rng = random.Random(seed)
    run, qrels = {}, {}
    for i in range(num_questions):
        judged = rng.sample(IDS, rng.randint(1, 8))
        qrels[f"q{i}"] = {docid: int(rng.random() < 0.6) for docid in judged}
        qrels[f"q{i}"][judged[0]] = 1
        if rng.random() < 0.85:
            run[f"q{i}"] = {d: rng.randint(0, 4) / 2 for d in rng.sample(IDS, rng.randint(1, 12))}
    return run, qrels


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_trec_eval_with_ties(seed):
    run, qrels = random_run_and_qrels(seed)
    names = {"ndcg", "ndcg_cut_3", "set_recall", "set_P", "set_F"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    ours, cut = score_run(run, qrels), score_run(run, qrels, k=3)
    assert theirs
    for qid, expected in theirs.items():
        assert ours[qid].ndcg == pytest.approx(expected["ndcg"], abs=1e-9)
        assert cut[qid].ndcg == pytest.approx(expected["ndcg_cut_3"], abs=1e-9)
        assert ours[qid].recall == pytest.approx(expected["set_recall"], abs=1e-9)
        assert ours[qid].precision == pytest.approx(expected["set_P"], abs=1e-9)
        assert ours[qid].f1 == pytest.approx(expected["set_F"], abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_means_equal_ir_measures_with_missing_questions_as_zero(seed):
    run, qrels = random_run_and_qrels(seed)
    ours = list(score_run(run, qrels, k=5).values())
    assert len(ours) == len(qrels) > len(run)
    theirs = ir_measures.calc_aggregate([nDCG @ 5, R @ 5], qrels, run)
    assert sum(s.ndcg for s in ours) / len(ours) == pytest.approx(theirs[nDCG @ 5], abs=1e-9)
    assert sum(s.recall for s in ours) / len(ours) == pytest.approx(theirs[R @ 5], abs=1e-9)


def test_precision_of_a_full_list_equals_precision_at_k():
    run = {"q": {docid: 12.0 - i for i, docid in enumerate(IDS)}}
    qrels = {"q": {"d1": 1, "d4": 1, "d11": 1}}
    theirs = ir_measures.calc_aggregate([P @ 10], qrels, run)
    assert score_run(run, qrels, k=10)["q"].precision == theirs[P @ 10] == 0.2


def test_hand_computed_scores_of_one_list():
    # 2 of 3 targets among 4 documents: R = 2/3, P = 1/2, F1 = 2 * 2 / (4 + 3).
    scores = score_list(["a", "x", "b", "y"], {"a", "b", "c"})
    assert scores.recall == pytest.approx(2 / 3)
    assert scores.precision == 0.5
    assert scores.f1 == pytest.approx(4 / 7)
    assert (scores.num_returned, scores.num_duplicates) == (4, 0)


def test_duplicates_are_dropped_keeping_the_first_and_counted():
    scores = score_list(["a", "a", "x", "a"], {"a"})
    assert (scores.num_returned, scores.num_duplicates) == (2, 2)
    assert (scores.ndcg, scores.precision) == (1.0, 0.5)


def test_an_empty_list_scores_zero_everywhere():
    scores = score_list([], {"a"})
    assert (scores.ndcg, scores.recall, scores.precision, scores.f1) == (0, 0, 0, 0)


def test_ties_are_broken_by_falling_docid():
    # Two runs that differ only in a name: the tie decides whether the target is first.
    assert ranked({"b": 1.0, "a": 1.0}) == ["b", "a"]
    assert ranked({"b": 1.0, "c": 1.0}) == ["c", "b"]


def test_a_document_named_like_its_question_counts():
    qrels = {"0": {str(i): 1 for i in range(10)}}
    run = {"0": {str(i): 10.0 - i for i in range(10)}}
    assert score_run(run, qrels, k=10)["0"].recall == 1.0


def test_questions_without_a_relevant_document_and_unjudged_ones_are_left_out():
    run = {"q": {"a": 1.0}, "other": {"a": 1.0}}
    assert list(score_run(run, {"q": {"a": 1}, "none": {"b": 0}})) == ["q"]


def test_the_smallest_relevant_grade_is_a_setting():
    run, qrels = {"q": {"a": 2.0, "b": 1.0}}, {"q": {"a": 1, "b": 2}}
    assert score_run(run, qrels)["q"].ndcg == 1.0
    assert score_run(run, qrels, min_grade=2)["q"].ndcg < 1.0


def test_run_and_qrels_of_different_data_sets_are_refused():
    with pytest.raises(DataError, match="same questions"):
        score_run({"x1": {"a": 1.0}}, {"q1": {"a": 1}})


@given(st.lists(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS), min_size=1))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(returned, targets):
    s = score_list(returned, targets)
    both = s.precision + s.recall
    assert s.f1 == pytest.approx(2 * s.precision * s.recall / both if both else 0.0)
    assert s.num_returned + s.num_duplicates == len(returned)
