"""What every section of a recipe shares."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class StageConfig(BaseModel):
    """Base of every stage's settings: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EndpointConfig(StageConfig):
    """An OpenAI-compatible endpoint: frontier baseline and teacher. The key comes from
    the environment variable named by ``api_key_env``."""

    model: str
    """Name of the model, as the endpoint knows it."""
    base_url: str | None = None
    """None is the SDK's default."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    max_concurrency: int = Field(8, ge=1)
    """Requests under way at once."""
    timeout_s: float = Field(120.0, gt=0)
    """Of one request."""
    max_retries: int = Field(4, ge=0)
    """Of one request, with growing pauses."""
    cache: Path | None = None
    """SQLite file of answers: the same request is paid once."""
    replay: bool = False
    """Answer from the cache only, without key and network."""
    budget_usd: float | None = Field(None, gt=0)
    """Ask no more once so much is spent, at the prices below."""
    usd_per_million_input: float = Field(0.0, ge=0)
    """Price, for the cost ledger."""
    usd_per_million_output: float = Field(0.0, ge=0)
    """Price, for the cost ledger."""
