"""The model that samples."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

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


class VllmConfig(StageConfig):
    """vLLM servers to sample from."""

    urls: tuple[str, ...] = ()
    """Servers that run already, with the flags that docs/policy.md names; none are started then."""
    servers: int = Field(1, ge=1)
    """Servers to start on this machine; with several GPUs each takes one."""
    environment: Path | None = None
    """Virtual environment with vLLM; the one that ``spaniel policy install-vllm`` makes by
    default."""
    port: int | None = Field(None, ge=1024, le=65535)
    """Of the first server, the others count up; free ones by default."""
    max_model_tokens: int | None = Field(None, ge=64)
    """Longest prompt and completion together; ``env.max_tokens`` by default."""
    gpu_memory_frac: float = Field(0.85, gt=0, lt=1)
    """Share of the GPU's memory for weights and caches; less where the trainer lives there too."""
    cpu_cache_gb: int | None = Field(None, ge=1)
    """Memory for caches on a CPU."""
    sleep: bool = False
    """Give the GPU's memory free during updates: for a trainer on the same card."""
    start_s: float = Field(900.0, gt=0)
    """Seconds until a started server has to be healthy."""
    request_s: float = Field(1800.0, gt=0)
    """Seconds until a request is given up."""
    max_restarts: int = Field(2, ge=0)
    """Times that a server which died is started anew."""
    arguments: tuple[str, ...] = ()
    """Further arguments for ``vllm serve``, such as ``--tensor-parallel-size=2``."""


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
    vllm: VllmConfig | None = None
    """Set: sample from vLLM servers instead of in this process."""
    freeze_routers: bool = True
    """Keep the routers of a mixture-of-experts as they are; a dense model has none."""
    replay_routing: bool = True
    """Send each token to the experts that it went to in sampling when a mixture-of-experts is
    trained."""
    enable_thinking: bool = False
    """Let a thinking model think; refused where its template would drop what it thought."""
    max_live_episodes: int = Field(128, ge=1)
    """Episodes whose key/value caches the engine holds at once."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; its own choice by default."""

    @model_validator(mode="after")
    def _vllm_adds_adapters_itself(self) -> "PolicyConfig":
        if self.vllm is not None and self.lora is not None and self.lora.merge:
            raise ValueError("lora.merge must be false with policy.vllm: vLLM adds adapters itself")
        return self
