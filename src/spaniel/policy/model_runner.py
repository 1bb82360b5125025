"""One forward pass of a transformers causal LM over ragged chunks of many cached sequences.

The model's own forward runs, with three things lent to it for the length of the pass: our
attention function, our cache, and a short convolution that continues from the cache. The
module is given back as it was: mode, attention implementation and methods.
"""

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from spaniel.errors import ConfigError
from spaniel.policy.kv_cache import Chunk, Layout, SlotCache

ATTENTION_NAME = "spaniel_slots"
CONVOLUTIONS = ("Lfm2ShortConv",)
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias", "sliding_window")


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    slot_cache: SlotCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in the interface of transformers, over the slots of ``slot_cache``.

    Raises:
        ConfigError: the layer asks for something that plain causal attention is not.
    """
    for name in UNSUPPORTED_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise ConfigError(f"the sampling engine has no attention with {name}; {_ADVICE}")
    if slot_cache is None:
        raise ConfigError(
            f"{type(module).__name__} does not pass keyword arguments to its attention "
            f"function; {_ADVICE}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return slot_cache.attend(query, int(module.layer_idx), scale), None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION_NAME, slot_attention)

_ADVICE = "use a model with full attention in every layer, or an LFM2"


def _short_convolution(
    module: Any, hidden_states: Tensor, *args: Any, slot_cache: SlotCache, **kwargs: Any
) -> Tensor:
    """``Lfm2ShortConv.forward`` [1, T, C] -> [1, T, C] over the slots of ``slot_cache``."""
    gate_in, gate_out, inputs = module.in_proj(hidden_states[0]).chunk(3, dim=-1)
    convolved = slot_cache.convolve(
        gate_in * inputs, module.conv.weight[:, 0], module.conv.bias, module.layer_idx
    )
    projected: Tensor = module.out_proj(gate_out * convolved)
    return projected[None]


class ModelRunner:
    """Runs a causal LM over chunks of slots.

    Raises:
        ConfigError: the model has layers whose memory the cache cannot hold; names them.
    """

    def __init__(self, model: Any, *, max_slots: int) -> None:
        # LoRA lives inside the layers, so the unwrapped model still calls the adapters.
        self.model: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._check_declared(model)
        self._modules = list(self.model.modules())
        self._convolutions = [m for m in self._modules if type(m).__name__ in CONVOLUTIONS]
        configs = [m.config for m in self._modules if hasattr(m, "config")]
        self._configs = list({id(config): config for config in configs}.values())
        self._cache_argument = _cache_argument(self.model)
        self.cache = SlotCache(max_slots)
        embedding = self.model.get_input_embeddings().weight
        self.device: torch.device = embedding.device
        self.dtype: torch.dtype = embedding.dtype
        self.vocab_size: int = embedding.shape[0]
        self.max_positions: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self._check_layers()

    @property
    def can_rewind(self) -> bool:
        """True when a slot may be cut back to any earlier length; convolutions cannot."""
        return not self._convolutions

    def forget(self) -> None:
        """Drop everything cached."""
        self.cache = SlotCache(self.cache.max_slots)

    @torch.no_grad()
    def forward(
        self,
        chunks: Sequence[Chunk],
        *,
        keep: Literal["last", "all"] = "last",
        cache: SlotCache | None = None,
    ) -> Tensor:
        """Feed the chunks, and give next-token logits.

        Chunks of one token must come first, ordered by slot.

        Returns:
            float32 [R, V] behind the last token of each chunk, or [T, V] behind every token.
        """
        cache = cache or self.cache
        layout = cache.layout = Layout(chunks, self.device, self.dtype)
        ids = torch.tensor([i for chunk in chunks for i in chunk.token_ids], device=self.device)
        with self._lent():
            output = self.model(
                input_ids=ids[None],
                position_ids=layout.positions_T[None],
                use_cache=True,
                logits_to_keep=layout.last_R if keep == "last" else 0,
                slot_cache=cache,
                **{self._cache_argument: cache},
            )
        logits: Tensor = output.logits[0]
        return logits.float()

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The model in evaluation mode with our attention and convolutions, then as before."""
        training = [module for module in self._modules if module.training]
        attention = [config._attn_implementation for config in self._configs]
        methods = [module.__dict__.get("forward") for module in self._convolutions]
        try:
            for module in training:
                module.training = False
            for config in self._configs:
                config._attn_implementation = ATTENTION_NAME
            for module in self._convolutions:
                module.forward = functools.partial(_short_convolution, module)
            yield
        finally:
            for module in training:
                module.training = True
            for config, name in zip(self._configs, attention, strict=True):
                config._attn_implementation = name
            for module, method in zip(self._convolutions, methods, strict=True):
                del module.forward
                if method is not None:
                    module.forward = method

    def _check_declared(self, model: Any) -> None:
        """Refuse what the configuration says the engine cannot run."""
        config = self.model.config
        name = type(self.model).__name__
        allowed = {"full_attention"}
        if any(type(m).__name__ in CONVOLUTIONS for m in self.model.modules()):
            allowed.add("conv")
        layer_types = getattr(config, "layer_types", None) or ()
        if strange := sorted(set(layer_types) - allowed):
            raise ConfigError(
                f"the sampling engine cannot run {name}: it has {', '.join(strange)} layers; "
                f"{_ADVICE}"
            )
        if not layer_types and getattr(config, "sliding_window", None) is not None:
            raise ConfigError(
                f"the sampling engine cannot run {name}: it has sliding_attention layers "
                f"(window {config.sliding_window}); {_ADVICE}"
            )
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") in ("dynamic", "longrope"):
            raise ConfigError(
                f"the sampling engine cannot run {name}: its {rope['rope_type']} rotary "
                f"embedding changes cached keys as a sequence grows; {_ADVICE}"
            )
        if not getattr(self.model, "_supports_attention_backend", False):
            raise ConfigError(
                f"the sampling engine cannot run {name}: its attention is not replaceable in "
                f"transformers; {_ADVICE}"
            )
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ConfigError(
                f"the sampling engine cannot run {name} with prompt learning; use LoRA"
            )

    def _check_layers(self) -> None:
        """Refuse a model with layers that keep their memory where the cache does not see it."""
        cache = SlotCache(1)
        self.forward([Chunk(slot=0, start=0, token_ids=[0, 0])], cache=cache)
        seen = cache.attention_layers | cache.convolution_layers
        missing = sorted(set(range(self.model.config.num_hidden_layers)) - seen)
        if missing:
            layers = self.model.get_decoder().layers
            kinds = sorted({type(layers[number]).__name__ for number in missing})
            raise ConfigError(
                f"the sampling engine cannot run {type(self.model).__name__}: layers {missing} "
                f"({', '.join(kinds)}) keep no keys and values in the cache; {_ADVICE}"
            )


def _cache_argument(model: Any) -> str:
    """transformers renamed ``past_key_values`` to ``cache``."""
    parameters = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
