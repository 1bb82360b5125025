"""The table and the bill."""

from pathlib import Path

from pydantic import Field

from spaniel.config.stage import EndpointConfig, StageConfig


class PriceConfig(StageConfig):
    """Stated prices of the bill."""

    machine_usd_per_hour: float = Field(0.10, ge=0)
    """Of the machine this runs on."""
    api_name: str = "frontier API"
    """The API model that a query is compared with."""
    api_usd_per_million_input: float = Field(2.50, ge=0)
    """Its price."""
    api_usd_per_million_output: float = Field(10.00, ge=0)
    """Its price."""


class EvalConfig(StageConfig):
    """Policy -> scores, against classical retrieval on the same questions."""

    k: int = Field(10, ge=1)
    """Documents a baseline returns."""
    num_fused: int = Field(4, ge=2)
    """Rollouts fused by reciprocal rank in the ``policy-rl-rrf<N>`` row."""
    temperature: float = Field(1.0, ge=0)
    """Of the policies; 0 is greedy."""
    rerank_candidates: int = Field(30, ge=1)
    """Vector hits the reranker orders."""
    rerank_train_questions: int = Field(300, ge=0)
    """Training questions the reranker is tuned on; 0 leaves it untuned."""
    bootstrap_samples: int = Field(2000, ge=100)
    """Resamples behind every interval."""
    endpoint: EndpointConfig | None = None
    """A frontier model driving the same tools."""
    compare_with: tuple[Path, ...] = ()
    """Directories of other runs, whose training curves the report draws over this one's."""
    prices: PriceConfig = PriceConfig()
