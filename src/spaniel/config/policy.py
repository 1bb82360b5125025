"""The model that samples."""

from typing import Literal

from pydantic import Field

from spaniel.config.stage import StageConfig


class LoraConfig(StageConfig):
    """Low-rank adapters (https://arxiv.org/abs/2106.09685) through PEFT."""

    rank: int = Field(16, ge=1)
    """Width of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapters: they count alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers that get adapters: a name, names, or all-linear."""
    merge: bool = False
    """Sample from a merged copy of the weights: faster tokens for twice the memory."""


class PolicyConfig(StageConfig):
    """The model that searches."""

    model: str = "spaniel-tiny"
    """Hugging Face id or local path; ``spaniel-tiny`` ships with the package;
    ``random-tiny`` is the same architecture with random weights."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights; bfloat16 is for GPUs, slow on most CPUs."""
    device: str = "auto"
    """``auto`` takes CUDA where there is one."""
    lora: LoraConfig | None = None
    """None trains all weights."""
    enable_thinking: bool = False
    """Let a thinking model think; refused where its template would drop what it thought."""
    max_live_episodes: int = Field(128, ge=1)
    """Episodes whose key/value caches the engine holds at once."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; its own choice by default."""
