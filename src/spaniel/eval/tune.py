"""Fit the fusion of the three views to labelled questions (``spaniel index tune``).

Rank constant and weights are chosen on one set of questions and compared with the present ones
on another, so that what is reported was not fitted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.config import IndexConfig
from spaniel.errors import DataError
from spaniel.eval.statistics import PairedTest, paired_test
from spaniel.index.backend import VIEWS
from spaniel.index.lexical import LexicalEngine
from spaniel.progress import track
from spaniel.types import Question

DEPTH = 50
"""Documents that each view brings, as in ``LexicalEngine.search``."""
CONSTANTS = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
"""Of the passage and the title view; only ratios count, so the document view keeps 1."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Settings of the weighted reciprocal rank fusion, named as in ``[index]``."""

    rank_constant: float
    weight_document: float
    weight_passage: float
    weight_title: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was tried and what it gains."""

    k: int
    """nDCG is taken over the first ``k`` documents."""
    before: Fusion
    after: Fusion
    fitted_before: float
    """Mean nDCG@k on the questions that were fitted."""
    fitted_after: float
    checked_before: float
    """Mean nDCG@k on the other questions."""
    checked_after: float
    test: PairedTest
    """After minus before on the other questions."""
    num_fitted: int
    views_alone: dict[str, float]
    """Mean nDCG@k of each view by itself on the other questions."""

    def lines(self) -> list[str]:
        """For a person: the settings to take over, and whether it is worth it."""
        t = self.test
        alone = ", ".join(f"{view} {value:.3f}" for view, value in self.views_alone.items())
        verdict = "a real gain" if t.low > 0 else "a loss" if t.high < 0 else "no sure gain"
        return [
            f"fitted on {self.num_fitted} questions: nDCG@{self.k} {self.fitted_before:.3f} -> "
            f"{self.fitted_after:.3f}",
            f"on {t.n} others: {self.checked_before:.3f} -> {self.checked_after:.3f}, difference "
            f"{t.difference:+.3f} [{t.low:+.3f}, {t.high:+.3f}], p = {t.p:.3g}: {verdict}",
            f"each view alone: {alone}",
            "[index]",
            *(f"{name} = {value:g}" for name, value in asdict(self.after).items()),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def tune_fusion(
    engine: LexicalEngine,
    fit: Sequence[Question],
    check: Sequence[Question],
    cfg: IndexConfig,
    *,
    k: int = 10,
    seed: int = 0,
) -> Tuning:
    """The best of a grid of fusions on ``fit``, compared with ``cfg``'s on ``check``.

    Among equally good ones the first of the grid wins, ``cfg``'s own before all.

    Raises:
        DataError: one of the two sets is empty.
    """
    if not fit or not check:
        raise DataError(f"tuning needs questions to fit and to check, got {len(fit)}, {len(check)}")
    before = Fusion(**{name: getattr(cfg, name) for name in Fusion.__dataclass_fields__})
    grid = [before] + [
        Fusion(rank_constant=c, weight_document=1.0, weight_passage=p, weight_title=t)
        for c, p, t in itertools.product(CONSTANTS, WEIGHTS, WEIGHTS)
    ]
    fitted = np.array([_ndcg(engine, q, grid, k) for q in track(fit, "fitting", len(fit))])
    best = int(fitted.mean(axis=0).argmax())
    alone = [
        Fusion(
            rank_constant=1.0,
            **{f"weight_{v}": float(v == view) for v in VIEWS},
        )
        for view in VIEWS
    ]
    compared = [before, grid[best], *alone]
    checked = np.array(
        [_ndcg(engine, q, compared, k) for q in track(check, "checking", len(check))]
    )
    means = checked.mean(axis=0).tolist()
    return Tuning(
        k=k,
        before=before,
        after=grid[best],
        fitted_before=float(fitted[:, 0].mean()),
        fitted_after=float(fitted[:, best].mean()),
        checked_before=means[0],
        checked_after=means[1],
        test=paired_test(checked[:, 1].tolist(), checked[:, 0].tolist(), seed=seed),
        num_fitted=len(fit),
        views_alone=dict(zip(VIEWS, means[2:], strict=True)),
    )


def _ndcg(engine: LexicalEngine, question: Question, grid: Sequence[Fusion], k: int) -> Floats:
    """nDCG@k of one question under each fusion, [len(grid)]."""
    rankings = [[h.docid for h in engine.search_view(v, question.text, DEPTH)] for v in VIEWS]
    docids = sorted({docid for ranking in rankings for docid in ranking})
    if not docids:
        return np.zeros(len(grid))
    column = {docid: i for i, docid in enumerate(docids)}
    ranks = np.full((len(VIEWS), len(docids)), np.inf)
    for view, ranking in enumerate(rankings):
        ranks[view, [column[docid] for docid in ranking]] = np.arange(1, len(ranking) + 1)
    weights = np.array([[f.weight_document, f.weight_passage, f.weight_title] for f in grid])
    constants = np.array([f.rank_constant for f in grid])
    shares = weights[:, :, None] / (constants[:, None, None] + ranks[None])
    # A document of weight 0 alone is not found at all.
    scores = np.where((shares > 0).any(axis=1), shares.sum(axis=1), -np.inf).round(12)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    relevant = np.array([docid in question.targets for docid in docids])
    found = relevant[order] & np.isfinite(np.take_along_axis(scores, order, axis=1))
    discounts = 1 / np.log2(np.arange(2, order.shape[1] + 2))
    ideal = (1 / np.log2(np.arange(2, min(len(question.targets), k) + 2))).sum()
    gains: Floats = (found * discounts).sum(axis=1) / ideal
    return gains
