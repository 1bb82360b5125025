"""Keys, values and convolution states of many episodes, each with its own length.

A forward pass takes one *chunk* of new tokens from each of some slots, laid end to end in a
single row of T tokens: there is no padding anywhere, so nothing can leak out of it. Chunks of
one token (decoding) attend together, in runs of neighbouring slots; longer chunks (prefill)
attend one by one.

Shapes: T tokens of the pass, R chunks, H query heads, K key/value heads, G = H / K, D head
dimension, C channels of a convolution of W taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spaniel.lending import added, attend_chunk, chunk_mask

CAPACITY_BLOCK = 256
"""Positions by which every slot grows."""

MERGE_COST = {"cpu": 512, "cuda": 65536}
"""One attention call costs as much as reading this many cached positions: 16 us on a CPU
core pair (measured), a launch against memory bandwidth on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The part of one slot in a forward pass."""

    slot: int
    start: int
    """Tokens of this slot that are cached already."""
    token_ids: Sequence[int]
    """[n >= 1] the tokens that follow them."""

    @property
    def end(self) -> int:
        """Tokens cached after the pass."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring slots that decode one token each, in one attention call."""

    first: int
    """The first slot."""
    num_slots: int
    length: int
    """Positions read of each."""
    mask: Tensor | None
    """[num_slots, 1, 1, length] added to the scores, or None when all is read."""
    tokens: Tensor
    """[num_slots] packed token of each slot; any for a slot that is not in the pass."""
    members: Tensor | None
    """Which of the slots are in the pass; None for all."""


class Layout:
    """Where everything of one forward pass lies. Decoding chunks must come first, by slot."""

    def __init__(self, chunks: Sequence[Chunk], device: torch.device, dtype: torch.dtype) -> None:
        self.chunks = chunks
        self.device, self.dtype = device, dtype
        self.sizes = [len(chunk.token_ids) for chunk in chunks]
        self.offsets = [0]
        for size in self.sizes:
            self.offsets.append(self.offsets[-1] + size)
        self.capacity = max(chunk.end for chunk in chunks)
        self.num_slots = max(chunk.slot for chunk in chunks) + 1
        self.num_decoding = next(
            (i for i, size in enumerate(self.sizes) if size > 1), len(self.sizes)
        )
        self.slots_R = torch.tensor([chunk.slot for chunk in chunks], device=device)
        sizes_R = torch.tensor(self.sizes, device=device)
        starts_R = torch.tensor([chunk.start for chunk in chunks], device=device)
        self.offsets_R = torch.tensor(self.offsets[:-1], device=device)
        self.fresh_R = starts_R == 0
        self.chunk_T = torch.repeat_interleave(
            torch.arange(len(chunks), device=device), sizes_R, output_size=self.offsets[-1]
        )
        self.within_T = torch.arange(self.offsets[-1], device=device) - self.offsets_R[self.chunk_T]
        self.positions_T = self.within_T + starts_R[self.chunk_T]
        self.slots_T = self.slots_R[self.chunk_T]
        self.last_R = self.offsets_R + sizes_R - 1
        self.runs = _runs(chunks[: self.num_decoding], device, dtype)
        self._masks: dict[int, Tensor] = {}
        self._taps: dict[int, tuple[Tensor, Tensor]] = {}

    def mask(self, number: int, groups: int) -> Tensor | None:
        """[groups * n, length] added to the scores of a chunk whose query heads are stacked.

        None for a chunk with nothing cached before it: plain causal attention.
        """
        chunk = self.chunks[number]
        if chunk.start and number not in self._masks:
            self._masks[number] = chunk_mask(
                chunk.start, chunk.end, groups, device=self.device, dtype=self.dtype
            )
        return self._masks.get(number)

    def taps(self, width: int) -> tuple[Tensor, Tensor]:
        """Rows of ``cat([states [R * (W - 1)], inputs [T]])`` that a causal convolution reads.

        Returns:
            [W - 1, T] the inputs before each token, oldest first; [R, W - 1] the state after
            the pass.
        """
        if width not in self._taps:
            memory = width - 1
            base = len(self.chunks) * memory
            back = torch.arange(memory, 0, -1, device=self.device)[:, None]
            inside = self.within_T - back
            before = self.chunk_T * memory + memory + inside
            token = torch.arange(self.offsets[-1], device=self.device)
            taps = torch.where(inside >= 0, base + token - back, before)
            # The state after the pass is what a token just behind the chunk would look back at.
            number = torch.arange(len(self.chunks), device=self.device)
            inside = self.last_R - self.offsets_R + 1 - back
            before = number * memory + memory + inside
            states = torch.where(inside >= 0, base + self.last_R + 1 - back, before)
            self._taps[width] = taps, states.T.contiguous()
        return self._taps[width]


def _runs(chunks: Sequence[Chunk], device: torch.device, dtype: torch.dtype) -> list[Run]:
    """Cut decoding chunks into runs: join neighbours while reading the surplus is cheaper than
    another call."""
    merge_cost = MERGE_COST.get(device.type, MERGE_COST["cuda"])
    spans: list[tuple[int, int, int]] = []
    first, length = 0, 0
    for i, chunk in enumerate(chunks):
        if i > first:
            slots = chunk.slot - chunks[first].slot + 1
            longest = max(length, chunk.end)
            surplus = slots * longest - (chunks[i - 1].slot - chunks[first].slot + 1) * length
            if surplus - chunk.end <= merge_cost:
                length = longest
                continue
            spans.append((first, i, length))
        first, length = i, chunk.end
    if chunks:
        spans.append((first, len(chunks), length))
    return [_run(chunks[a:b], a, longest, device, dtype) for a, b, longest in spans]


def _run(
    chunks: Sequence[Chunk],
    first_token: int,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Run:
    first = chunks[0].slot
    num_slots = chunks[-1].slot - first + 1
    lengths, tokens = [1] * num_slots, [first_token] * num_slots
    for i, chunk in enumerate(chunks):
        lengths[chunk.slot - first] = chunk.end
        tokens[chunk.slot - first] = first_token + i
    mask = None
    if min(lengths) < length:
        positions = torch.arange(length, device=device)
        ends = torch.tensor(lengths, device=device)
        mask = added(positions < ends[:, None], dtype)[:, None, None, :]
    members = None
    if len(chunks) < num_slots:
        members = torch.tensor([chunk.slot - first for chunk in chunks], device=device)
    return Run(
        first=first,
        num_slots=num_slots,
        length=length,
        mask=mask,
        tokens=torch.tensor(tokens, device=device),
        members=members,
    )


class SlotCache:
    """What attention and short convolutions remember, per layer and slot.

    Passed to a transformers model as its cache. It holds no lengths: each chunk says how
    much of its slot is valid, and whatever lies behind that is overwritten.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self.layout: Layout | None = None
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}
        self._routes: Tensor | None = None

    @property
    def attention_layers(self) -> set[int]:
        """Layers whose keys and values came by."""
        return set(self._keys)

    @property
    def convolution_layers(self) -> set[int]:
        """Layers whose convolution states came by."""
        return set(self._states)

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        stores = (*self._keys.values(), *self._values.values(), *self._states.values())
        routes = 0 if self._routes is None else self._routes.nbytes
        return sum(store.nbytes for store in stores) + routes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by models only when they get no position ids; ours always do."""
        return 0

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values [1, K, T, D] of a layer at their slots and positions."""
        layout = self._layout()
        for stores, new in ((self._keys, keys), (self._values, values)):
            store = _fit(
                stores.get(layer_idx), new, layout.num_slots, layout.capacity, self.max_slots
            )
            store[layout.slots_T, :, layout.positions_T] = new[0].transpose(0, 1)
            stores[layer_idx] = store
        return keys, values

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float
    ) -> Tensor:
        """Causal attention of the new tokens over everything in their slots.

        Args:
            query: [1, H, T, D].
            keys: the new ones, which ``update`` has stored already; so are the values.
            layer: whose keys and values.
            scale: factor on the scores.

        Returns:
            [1, T, H, D].
        """
        layout = self._layout()
        keys, values = self._keys[layer], self._values[layer]
        heads, kv_heads = query.shape[1], keys.shape[1]
        query_THD = query[0].transpose(0, 1)
        out = query.new_empty(len(layout.slots_T), heads, values.shape[-1])
        for run in layout.runs:
            slots = slice(run.first, run.first + run.num_slots)
            attended = scaled_dot_product_attention(
                query_THD[run.tokens].view(run.num_slots, kv_heads, heads // kv_heads, -1),
                keys[slots, :, : run.length],
                values[slots, :, : run.length],
                attn_mask=run.mask,
                scale=scale,
            ).reshape(run.num_slots, heads, -1)
            if run.members is None:
                out[run.tokens[0] : run.tokens[0] + run.num_slots] = attended
            else:
                out[run.tokens[run.members]] = attended[run.members]
        for number in range(layout.num_decoding, len(layout.chunks)):
            chunk = layout.chunks[number]
            tokens = slice(layout.offsets[number], layout.offsets[number + 1])
            attended = attend_chunk(
                query[:, :, tokens],
                keys[chunk.slot, None, :, : chunk.end],
                values[chunk.slot, None, :, : chunk.end],
                layout.mask(number, heads // kv_heads),
                scale,
            )
            out[tokens] = attended[0].transpose(0, 1)
        return out[None]

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
        """Causal depthwise convolution of each chunk, continued from its slot's last inputs.

        Args:
            inputs: [T, C].
            weight: [C, W].
            bias: [C] or None.
            layer: whose states.

        Returns:
            [T, C].
        """
        layout = self._layout()
        channels, width = weight.shape
        if (states := self._states.get(layer)) is None:
            states = inputs.new_zeros(self.max_slots, width - 1, channels)
            self._states[layer] = states
        before = states[layout.slots_R].masked_fill_(layout.fresh_R[:, None, None], 0)
        source = torch.cat([before.view(-1, channels), inputs])
        taps, after = layout.taps(width)
        out = inputs * weight[:, -1]
        for back, rows in enumerate(taps):
            out.addcmul_(source[rows], weight[:, back])
        states[layout.slots_R] = source[after]
        return out if bias is None else out.add_(bias)

    def note_routes(self, choices_TB: Tensor) -> None:
        """Keep the experts that the tokens of the pass went through (``routing.py``)."""
        layout = self._layout()
        store = _fit(
            self._routes,
            choices_TB[None, None],
            layout.num_slots,
            layout.capacity,
            self.max_slots,
        )
        store[layout.slots_T, 0, layout.positions_T] = choices_TB
        self._routes = store

    def routes(self, slot: int, start: int, end: int) -> tuple[bytes, ...]:
        """Those of a slot's tokens from ``start`` to ``end``; empty when none were noted."""
        if self._routes is None:
            return ()
        return tuple(row.tobytes() for row in self._routes[slot, 0, start:end].cpu().numpy())

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give slots the first ``length`` positions, and the convolution states, of another."""
        for stores in (self._keys, self._values):
            for layer, store in stores.items():
                store = _fit(store, store, max(targets) + 1, length, self.max_slots)
                for target in targets:
                    store[target, :, :length] = store[source, :, :length]
                stores[layer] = store
        for states in self._states.values():
            for target in targets:
                states[target] = states[source]
        if (routes := self._routes) is not None:
            routes = _fit(routes, routes, max(targets) + 1, length, self.max_slots)
            for target in targets:
                routes[target, :, :length] = routes[source, :, :length]
            self._routes = routes

    def _layout(self) -> Layout:
        assert self.layout is not None, "a forward pass sets the layout first"
        return self.layout


def _fit(store: Tensor | None, like: Tensor, num_slots: int, capacity: int, most: int) -> Tensor:
    """The store [slots, K, capacity, D], made or grown so that slots and positions fit.

    Slots double up to ``most``, positions grow by blocks.
    """
    if store is None:
        store = like.new_zeros(0, like.shape[1], 0, like.shape[3])
    old_slots, _, old_capacity, _ = store.shape
    if num_slots <= old_slots and capacity <= old_capacity:
        return store
    if num_slots > old_slots:
        num_slots = max(num_slots, min(2 * old_slots, most))
    blocks = -(-max(capacity, old_capacity) // CAPACITY_BLOCK)
    # Zeros, not uninitialised memory: a masked NaN still poisons the sum it is weighted into.
    grown = store.new_zeros(
        max(num_slots, old_slots), store.shape[1], blocks * CAPACITY_BLOCK, store.shape[3]
    )
    grown[:old_slots, :, :old_capacity] = store
    return grown
