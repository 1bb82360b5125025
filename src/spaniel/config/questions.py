"""Splits and pre-flight."""

from typing import Literal

from pydantic import Field

from spaniel.config.stage import StageConfig


class QuestionsConfig(StageConfig):
    """Which questions train and which are held out."""

    num_train: int | None = Field(None, ge=1)
    """At most so many training questions; all by default."""
    num_test: int | None = Field(None, ge=1)
    """At most so many held-out questions; all by default."""
    test_frac: float = Field(0.25, gt=0, lt=1)
    """Share held out when the source brings no split."""
    resplit: bool = False
    """Ignore the source's split and divide the questions anew, without leaks."""
    on_leak: Literal["drop", "error"] = "drop"
    """What happens to training questions that share target documents with test questions: they
    are left out, so that the test set stays whole; or a given split that leaks is refused."""


class PreflightConfig(StageConfig):
    """Roll a small group on each candidate question; keep those that teach."""

    group_size: int = Field(4, ge=2)
    """Rollouts of each candidate question."""
    num_questions: int | None = Field(None, ge=1)
    """Candidates to try; all training questions by default."""
    min_std: float = Field(0.05, ge=0)
    """A question is kept iff the std of its rewards is above this."""
