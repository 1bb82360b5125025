"""The environment and its reward."""

from typing import Literal

from pydantic import Field

from spaniel.config.stage import EndpointConfig, StageConfig


class EvidenceConfig(StageConfig):
    """What ``visit`` says about a page."""

    endpoint: EndpointConfig | None = None
    """The model that reads; without one the sentences that share most with the goal."""
    language: str = "english"
    """Stemmer for the sentences, a Snowball language or ``none``."""
    max_page_chars: int = Field(40_000, ge=1000)
    """Characters of a page that the model reads."""
    max_tokens: int = Field(2048, ge=16)
    """Of its answer, reasoning included."""


class WindowConfig(StageConfig):
    """What of a long episode stays in sight."""

    observations: int = Field(ge=1)
    """The latest that always stay whole."""
    dropped_at_once: int = Field(4, ge=1)
    """Older ones that are replaced by markers together. Each time a new token sequence begins,
    which is prefilled anew and trained on as a sequence of its own."""


class EnvConfig(StageConfig):
    """Question + turns -> observations."""

    tools: Literal["finder", "researcher"] = "finder"
    """``search``, ``read``, ``report``; or ``search`` with several queries, ``visit`` with a goal,
    ``report``."""
    max_queries: int = Field(5, ge=1)
    """Queries, and pages of a visit, in one call of a researcher."""
    evidence: EvidenceConfig = EvidenceConfig()
    dialect: Literal["plain", "hermes"] = "hermes"
    """How a call is written: ``search("...")`` or ``<tool_call>{...}</tool_call>``."""
    max_results: int = Field(5, ge=1, le=100)
    """Hits shown for a search."""
    snippet_words: int = Field(48, ge=0)
    """Words of a hit's excerpt; 0 shows titles only."""
    max_turns: int = Field(10, ge=1)
    """Completions in a trajectory."""
    max_tokens_per_turn: int = Field(512, ge=1)
    """Sampled tokens in a turn."""
    max_tokens: int = Field(8192, ge=64)
    """Tokens in sight at once, prompt and observations included: without a window and with thoughts
    kept, those of the whole trajectory."""
    window: WindowConfig | None = None
    """Replaces older observations by markers; without it all stay."""
    drop_thoughts: bool = False
    """Take the thoughts of earlier turns out of sight, as some chat templates do. Every turn behind
    a thought is then a token sequence of its own."""
    max_observation_chars: int = Field(4000, ge=100)
    """Characters of one observation; longer ones are cut with a note."""
    remind: bool = False
    """Repeat the question below every observation: a policy of a few million parameters reads
    a page far better when the question stands beside it."""


class RewardConfig(StageConfig):
    """R = w_ndcg nDCG + w_format [format ok] - overlong_penalty max(0, |L| - tau |T|) / |T|."""

    w_ndcg: float = Field(1.0, ge=0)
    """Weight of the nDCG over the targets."""
    w_format: float = Field(0.1, ge=0)
    """Weight of a report that is one valid call."""
    overlong_penalty: float = Field(0.1, ge=0)
    """lambda: cost of each target's worth of documents beyond the allowance."""
    overlong_tau: float = Field(1.5, ge=1)
    """tau: documents one may report per target before it costs."""
