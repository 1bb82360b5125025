"""What a recipe will cost, before it is started: tokens, memory, time, money (``--dry-run``)."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from spaniel.config import PolicyConfig, Recipe

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TURN_TOKENS = 60
"""Sampled tokens of a typical turn, when the policy writes calls and little else."""
TYPICAL_FILL = 0.5
"""Share of the token budget that a typical trajectory uses."""
LORA_SHARE = 0.004
"""Of the parameters, at rank 16 on all linear layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The numbers of a causal LM that memory depends on."""

    parameters: float
    layers: int
    kv_width: int
    """Key and value numbers a token keeps per layer."""
    width: int
    source: str
    """Where the numbers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The projected size of the RL stage."""

    size: ModelSize
    rollouts: int
    tokens_per_rollout: int
    """Typical: prompt, observations and completions."""
    trained_tokens: int
    """Sampled tokens over the run."""
    forward_tokens: int
    """Tokens that pass the model: once sampled or prefilled, once trained on."""
    weights_gb: float
    optimizer_gb: float
    cache_gb: float
    """Key/value caches of all live episodes at the typical length."""
    activations_gb: float
    flops: float

    @property
    def memory_gb(self) -> float:
        """Weights, optimizer state, caches and the activations of one microbatch."""
        return self.weights_gb + self.optimizer_gb + self.cache_gb + self.activations_gb


def make_plan(recipe: Recipe) -> Plan:
    """Estimate from the recipe alone; nothing is loaded but a local model's ``config.json``."""
    rl, env, policy = recipe.rl, recipe.env, recipe.policy
    size = model_size(policy)
    rollouts = rl.steps * rl.groups_per_step * rl.group_size
    tokens = round(env.max_tokens * TYPICAL_FILL)
    trained = rollouts * min(env.max_turns, 6) * min(TURN_TOKENS, env.max_tokens_per_turn)
    bytes_each = BYTES[policy.dtype]
    share = LORA_SHARE if policy.lora is not None else 1.0
    copies = 2 if policy.lora is not None and policy.lora.merge else 1
    micro = rl.optimizer.microbatch_tokens
    kept_layers = 1 if rl.optimizer.recompute_activations else size.layers
    live = min(policy.max_live_episodes, rl.groups_per_step * rl.group_size)
    return Plan(
        size=size,
        rollouts=rollouts,
        tokens_per_rollout=tokens,
        trained_tokens=trained,
        forward_tokens=2 * rollouts * tokens,
        weights_gb=copies * size.parameters * bytes_each / 1e9,
        # Two moments and a gradient in float32 for each trained parameter.
        optimizer_gb=share * size.parameters * 12 / 1e9,
        cache_gb=live * tokens * size.layers * size.kv_width * bytes_each / 1e9,
        # About 16 width-sized values a token and layer in a gated transformer block.
        activations_gb=micro * size.width * 16 * kept_layers * bytes_each / 1e9
        + micro * size.width * size.layers * bytes_each / 1e9,
        # 2 per parameter forward; the trained pass is forward and backward, 6 (4 with LoRA's
        # frozen weights, plus 2 when activations are recomputed).
        flops=rollouts
        * tokens
        * size.parameters
        * (2 + (4 if policy.lora else 6) + (2 if rl.optimizer.recompute_activations else 0)),
    )


def plan_lines(recipe: Recipe) -> list[str]:
    """The plan for a person."""
    plan, prices = make_plan(recipe), recipe.eval.prices
    rl = recipe.rl
    hours = {name: plan.flops / rate / 3600 for name, rate in RATES.items()}
    lines = [
        f"model: {recipe.policy.model}, {plan.size.parameters / 1e9:.3g} B parameters "
        f"({plan.size.source})",
        f"rollouts: {rl.steps} steps x {rl.groups_per_step} questions x {rl.group_size} = "
        f"{plan.rollouts:,}",
        f"tokens: about {plan.tokens_per_rollout:,} a rollout, {plan.forward_tokens / 1e6:,.0f} M "
        f"through the model, {plan.trained_tokens / 1e6:,.1f} M trained",
        f"memory: {plan.memory_gb:.1f} GB (weights {plan.weights_gb:.1f}, optimizer "
        f"{plan.optimizer_gb:.1f}, caches {plan.cache_gb:.1f}, activations "
        f"{plan.activations_gb:.1f})",
    ]
    for name, value in hours.items():
        usd = value * (prices.machine_usd_per_hour if "CPU" in name else GPU_USD_PER_HOUR)
        lines.append(f"time on {name}: about {value:.2g} h, {usd:.2f} USD")
    lines.append("estimates: half the token budget a rollout; measured numbers replace them")
    return lines


RATES = {"two CPU cores (0.1 TFLOP/s)": 1e11, "one H100-class GPU at 25 % (250 TFLOP/s)": 2.5e14}
"""Floating-point operations a second that small batches really reach."""
GPU_USD_PER_HOUR = 3.0


def model_size(policy: PolicyConfig) -> ModelSize:
    """From a local ``config.json``; else from the name (``Qwen3-4B``); else the tiny default."""
    config = Path(policy.model) / "config.json"
    if config.exists():
        return _from_config(json.loads(config.read_text(encoding="utf-8")), str(config))
    if policy.model in ("spaniel-tiny", "random-tiny"):
        return ModelSize(parameters=2.1e6, layers=8, kv_width=64, width=128, source="built in")
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bBmM])(?![a-z])", policy.model.split("/")[-1])
    billions = 4.0
    if found:
        billions = float(found.group(1)) / (1000 if found.group(2) in "mM" else 1)
    # Shapes of the Qwen3 family by size: a token of a 4 B model keeps 2 x 8 x 128 numbers a layer.
    layers = 28 if billions < 3 else 36 if billions < 14 else 64
    width = 1024 if billions < 1 else 2048 if billions < 3 else 2560 if billions < 6 else 4096
    source = "read off the name" if found else "a 4 B model assumed: no size in the name"
    return ModelSize(
        parameters=billions * 1e9, layers=layers, kv_width=2048, width=width, source=source
    )


def _from_config(config: dict[str, int], source: str) -> ModelSize:
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or width // heads
    inner = config.get("intermediate_size") or 4 * width
    per_layer = width * head * (2 * heads + 2 * kv_heads) + 3 * width * inner
    tied = 1 if config.get("tie_word_embeddings", True) else 2
    return ModelSize(
        parameters=float(layers * per_layer + tied * config["vocab_size"] * width),
        layers=layers,
        kv_width=2 * kv_heads * head,
        width=width,
        source=source,
    )
