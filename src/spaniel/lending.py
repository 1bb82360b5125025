"""Run the forward pass of a transformers model with attention and convolutions of our own.

The sampling engine and the packed update lay tokens of many sequences end to end in one row, so
that nothing is padded. The model's own code runs; what would mix the sequences is lent to it for
the length of a block and given back after: its attention function, and the short convolution of
an LFM2.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from spaniel.errors import ConfigError

ATTENTION_NAME = "spaniel_lent"
CONVOLUTIONS = ("Lfm2ShortConv", "Lfm2MoeShortConv")
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias", "sliding_window")
ADVICE = "use a model with full attention in every layer, or an LFM2"


class Lent(Protocol):
    """What the layers of a model ask instead of attending and convolving themselves."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float
    ) -> Tensor:
        """[1, H, T, D] over the new keys and values [1, K, T, D] -> [1, T, H, D]."""
        ...

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
        """Causal and depthwise: [T, C] by [C, W] -> [T, C]."""
        ...


class Lender:
    """What of one model is replaceable, and the replacing.

    Args:
        model: a causal LM, or a PEFT model around one.
        who: what cannot run a model that is refused, for the message: "the sampling engine".

    Raises:
        ConfigError: the configuration says that a layer is more than causal attention or a
            short convolution.
    """

    def __init__(self, model: Any, who: str) -> None:
        # LoRA lives inside the layers, so the unwrapped model still calls the adapters.
        self.model: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.modules = list(self.model.modules())
        self.convolutions = [m for m in self.modules if type(m).__name__ in CONVOLUTIONS]
        configs = [m.config for m in self.modules if hasattr(m, "config")]
        self._configs = list({id(config): config for config in configs}.values())
        self._check(model, who)

    @contextmanager
    def lend(self) -> Iterator[None]:
        """The model asking the ``lent`` of its keyword arguments, a ``Lent``, in each layer."""
        names = [config._attn_implementation for config in self._configs]
        methods = [module.__dict__.get("forward") for module in self.convolutions]
        try:
            for config in self._configs:
                config._attn_implementation = ATTENTION_NAME
            for module in self.convolutions:
                module.forward = functools.partial(_lent_convolution, module)
            yield
        finally:
            for config, name in zip(self._configs, names, strict=True):
                config._attn_implementation = name
            for module, method in zip(self.convolutions, methods, strict=True):
                del module.forward
                if method is not None:
                    module.forward = method

    def _check(self, model: Any, who: str) -> None:
        config = self.model.config
        refused = f"{who} cannot run {type(self.model).__name__}"
        allowed = {"full_attention"}
        if self.convolutions:
            allowed.add("conv")
        layer_types = getattr(config, "layer_types", None) or ()
        if strange := sorted(set(layer_types) - allowed):
            raise ConfigError(f"{refused}: it has {', '.join(strange)} layers; {ADVICE}")
        if not layer_types and getattr(config, "sliding_window", None) is not None:
            raise ConfigError(
                f"{refused}: it has sliding_attention layers (window {config.sliding_window}); "
                f"{ADVICE}"
            )
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") in ("dynamic", "longrope"):
            raise ConfigError(
                f"{refused}: its {rope['rope_type']} rotary embedding changes cached keys as a "
                f"sequence grows; {ADVICE}"
            )
        if not getattr(self.model, "_supports_attention_backend", False):
            raise ConfigError(
                f"{refused}: its attention is not replaceable in transformers; {ADVICE}"
            )
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ConfigError(f"{refused} with prompt learning; use LoRA")


def _lent_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    lent: Lent | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in the interface of transformers, [1, H, T, D] -> [1, T, H, D].

    Raises:
        ConfigError: the layer asks for more than plain causal attention is, or did not pass on
            what was lent.
    """
    for name in UNSUPPORTED_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise ConfigError(f"there is no attention with {name} here; {ADVICE}")
    if lent is None:
        raise ConfigError(
            f"{type(module).__name__} does not pass keyword arguments to its attention "
            f"function; {ADVICE}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return lent.attend(query, key, value, int(module.layer_idx), scale), None


AttentionInterface.register(ATTENTION_NAME, _lent_attention)


def _lent_convolution(
    module: Any, hidden_states: Tensor, *args: Any, lent: Lent, **kwargs: Any
) -> Tensor:
    """``Lfm2ShortConv.forward``, [1, T, C] -> [1, T, C]."""
    gate_in, gate_out, inputs = module.in_proj(hidden_states[0]).chunk(3, dim=-1)
    convolved = lent.convolve(
        gate_in * inputs, module.conv.weight[:, 0], module.conv.bias, module.layer_idx
    )
    projected: Tensor = module.out_proj(gate_out * convolved)
    return projected[None]


def attend_chunk(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Causal attention of n queries that are the last of ``length`` keys.

    Args:
        query: [1, H, n, D].
        keys: [1, K, length, D], values likewise.
        mask: ``chunk_mask`` for H / K groups; None when n = length.
        scale: factor on the scores.

    Returns:
        [1, H, n, D].
    """
    if mask is None:
        return scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
    # Query heads that share a key head are stacked as further queries: no copy of the keys.
    _, heads, n, dim = query.shape
    stacked = query.reshape(1, keys.shape[1], -1, dim)
    out = scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(1, heads, n, -1)


def chunk_mask(
    start: int, end: int, groups: int, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[groups * (end - start), end] to add to the scores of queries at positions from ``start``."""
    queries = torch.arange(start, end, device=device)
    keys = torch.arange(end, device=device)
    return added(keys[None, :] <= queries[:, None], dtype).repeat(groups, 1)


def added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, -inf elsewhere. Made once a pass: a bool mask is turned into this by every
    attention call."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, float("-inf")
    )
