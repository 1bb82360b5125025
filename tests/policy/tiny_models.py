"""Two-layer models of width 32 with weights large enough that no two tokens tie."""

import random
from typing import Any

import torch
import transformers

VOCAB = 97


def tiny(kind: str, **changes: Any) -> Any:
    """A random causal LM of one of ``KINDS``, or of ``MIXTURES``."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if kind == "lfm2":
        settings |= {"layer_types": ["conv", "full_attention"]}
    if kind in ("qwen3", "qwen3_moe"):
        settings |= {"head_dim": 8}
    if kind in MIXTURES:
        name = "num_local_experts" if kind == "mixtral" else "num_experts"
        settings |= {name: 8, "num_experts_per_tok": 2}
    if kind in ("qwen3_moe", "lfm2_moe"):
        settings |= {"moe_intermediate_size": 24}
    if kind == "lfm2_moe":
        settings |= {"layer_types": ["conv", "full_attention"], "num_dense_layers": 0}
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "lfm2": (transformers.Lfm2Config, transformers.Lfm2ForCausalLM),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
        "lfm2_moe": (transformers.Lfm2MoeConfig, transformers.Lfm2MoeForCausalLM),
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return model(config(**(settings | changes))).eval()


KINDS = ("llama", "qwen2", "qwen3", "lfm2")
MIXTURES = ("mixtral", "qwen3_moe", "olmoe", "lfm2_moe")


def some_ids(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(count))


@torch.no_grad()
def full_logits(model: Any, token_ids: tuple[int, ...] | list[int]) -> torch.Tensor:
    """[L, V] of one plain forward pass, no cache."""
    logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits
