"""One forward pass of a transformers causal LM over ragged chunks of many cached sequences.

The model's own forward runs, with three things lent to it for the length of the pass: our
attention function, our cache, and a short convolution that continues from the cache. The
module is given back as it was: mode, attention implementation and methods.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from spaniel.errors import ConfigError
from spaniel.lending import ADVICE, Lender
from spaniel.policy.kv_cache import Chunk, Layout, SlotCache
from spaniel.routing import Routers

_WHO = "the sampling engine"


class ModelRunner:
    """Runs a causal LM over chunks of slots.

    Args:
        note_routes: keep the experts that tokens go through, where the model has any.

    Raises:
        ConfigError: the model has layers whose memory the cache cannot hold; names them.
    """

    def __init__(self, model: Any, *, max_slots: int, note_routes: bool = False) -> None:
        self._lender = Lender(model, _WHO)
        self.model: Any = self._lender.model
        self._routers = Routers(self.model) if note_routes else None
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
        return not self._lender.convolutions

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
        with self._lent(), self._noted() as routes:
            output = self.model(
                input_ids=ids[None],
                position_ids=layout.positions_T[None],
                use_cache=True,
                logits_to_keep=layout.last_R if keep == "last" else 0,
                lent=cache,
                **{self._cache_argument: cache},
            )
        for choices_TB in routes:
            cache.note_routes(choices_TB)
        logits: Tensor = output.logits[0]
        return logits.float()

    def _noted(self) -> AbstractContextManager[list[Tensor]]:
        return nullcontext([]) if self._routers is None else self._routers.noted()

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The model in evaluation mode with our attention and convolutions, then as before."""
        training = [module for module in self._lender.modules if module.training]
        try:
            for module in training:
                module.training = False
            with self._lender.lend():
                yield
        finally:
            for module in training:
                module.training = True

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
                f"{_WHO} cannot run {type(self.model).__name__}: layers {missing} "
                f"({', '.join(kinds)}) keep no keys and values in the cache; {ADVICE}"
            )


def _cache_argument(model: Any) -> str:
    """transformers renamed ``past_key_values`` to ``cache``."""
    parameters = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
