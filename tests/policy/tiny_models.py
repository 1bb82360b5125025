"""Two-layer models of width 32 with weights large enough that no two tokens tie."""

import random
from typing import Any

import torch
import transformers

VOCAB = 97


def tiny(kind: str, **changes: Any) -> Any:
    """A random causal LM: ``llama``, ``qwen2``, ``qwen3`` or ``lfm2``."""
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
    if kind == "qwen3":
        settings |= {"head_dim": 8}
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "lfm2": (transformers.Lfm2Config, transformers.Lfm2ForCausalLM),
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return model(config(**(settings | changes))).eval()


KINDS = ("llama", "qwen2", "qwen3", "lfm2")


def some_ids(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(count))


@torch.no_grad()
def full_logits(model: Any, token_ids: tuple[int, ...] | list[int]) -> torch.Tensor:
    """[L, V] of one plain forward pass, no cache."""
    logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits
