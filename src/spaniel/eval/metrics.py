"""Scores of returned lists against the targets: nDCG, recall, precision, F1.

nDCG looks at the order; the others at the set, over the length of the list as it was
returned. A baseline returns its top k, so its precision pays for a full list of k, and
an agent that reports three documents is judged on three.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spaniel.errors import DataError
from spaniel.rewards.ranking import ndcg


@dataclass(frozen=True, slots=True, kw_only=True)
class ListScores:
    """Scores of one returned list, each in [0, 1]."""

    ndcg: float
    recall: float
    """Targets returned / all targets."""
    precision: float
    """Targets returned / documents returned; 0 for an empty list."""
    f1: float
    """Harmonic mean of precision and recall; 0 when both are."""
    num_returned: int
    """Different documents, after the cut."""
    num_duplicates: int
    """Repeated ids that were dropped: the first place of each is kept."""


def score_list(
    returned: Sequence[str], targets: Collection[str], k: int | None = None
) -> ListScores:
    """Score one list against one question's targets.

    Args:
        returned: docids, best first; repeated ones are dropped and counted.
        targets: at least one docid.
        k: look at the first k different documents only; nDCG is then nDCG@k.

    Raises:
        DataError: there are no targets.
        ConfigError: ``k`` is below 1.
    """
    gain = ndcg(returned, targets, k)
    unique = list(dict.fromkeys(returned))
    top, wanted = unique[:k], set(targets)
    num_found = sum(docid in wanted for docid in top)
    return ListScores(
        ndcg=gain,
        recall=num_found / len(wanted),
        precision=num_found / len(top) if top else 0.0,
        # 2PR / (P + R), without the division by zero of nothing found.
        f1=2 * num_found / (len(top) + len(wanted)),
        num_returned=len(top),
        num_duplicates=len(returned) - len(unique),
    )


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Docids by falling score; ties by falling docid, which is trec_eval's order."""
    return sorted(scores, key=lambda docid: (scores[docid], docid), reverse=True)


def score_run(
    run: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    *,
    k: int | None = None,
    min_grade: int = 1,
) -> dict[str, ListScores]:
    """Score a whole run: every judged question, in the order of the qrels.

    A question the run does not hold is scored as an empty list, because a run file cannot
    say "nothing found" in another way. Questions without a relevant document, and those
    of the run that nobody judged, are left out.

    Args:
        run: ``{qid: {docid: score}}``.
        qrels: ``{qid: {docid: grade}}``.
        k: cut-off; None takes the lists as they are.
        min_grade: smallest grade that counts as relevant.

    Raises:
        DataError: run and qrels share no question, which means they belong to two data sets.
    """
    if run and qrels and not run.keys() & qrels.keys():
        raise DataError(
            f"run and qrels must be about the same questions, got none in common of {len(run)} "
            f"and {len(qrels)} (such as {next(iter(run))!r} and {next(iter(qrels))!r})"
        )
    scores = {}
    for qid, grades in qrels.items():
        targets = [docid for docid, grade in grades.items() if grade >= min_grade]
        if targets:
            scores[qid] = score_list(ranked(run.get(qid, {})), targets, k)
    return scores
