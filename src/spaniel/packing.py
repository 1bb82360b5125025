"""Many sequences in one row without padding; what they begin with in common, once.

    s0  q a b c        row  q a | b c | d | e f        pieces: [q a] [b c] [d] [e f], where the
    s1  q a d                                          last three have [q a] as parent
    s2  q a e f

The row is a forest of pieces. Linear layers see each token once. A token attends to its own
piece up to itself and to its piece's ancestors; a convolution looks back along the same path.
So hidden states, and with them every gradient, are those of the sequences alone: a shared token's
gradient is the sum over the sequences that hold it.

Shapes: N tokens of the row, H query heads, K key heads, D head dimension, C channels, W taps.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spaniel.errors import ConfigError
from spaniel.lending import Lender, attend_chunk, chunk_mask

MIN_SHARED = 16
"""Tokens that sequences have to begin with in common before they share: every piece costs an
attention call in each layer."""
_WHO = "the packed update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some tokens of the row that follow each other in every sequence that holds them."""

    start: int
    """In the row."""
    end: int
    position: int
    """Of its first token in its sequences."""
    path: tuple[int, ...]
    """Numbers of its ancestors, the first piece of the sequence first."""


class PackedRow:
    """Sequences laid into one row.

    Args:
        sequences: tokens of each; none empty. A token is its id, or a tuple of it and what else
            must be equal for two sequences to share it.
        share: whether common beginnings are laid once.
        device: of the layers that ask.

    Attributes:
        tokens: [N] of the row.
        pieces: in the order of the row.
        places: for each sequence, where in the row its tokens lie, [its length].
    """

    def __init__(
        self, sequences: Sequence[Sequence[Any]], *, share: bool, device: torch.device
    ) -> None:
        self.tokens: list[Any] = []
        self.pieces: list[Piece] = []
        self.places: list[list[int]] = [[] for _ in sequences]
        self._sequences, self.device = sequences, device
        if share:
            self._lay_shared(range(len(sequences)), ())
        else:
            for number, sequence in enumerate(sequences):
                self._lay_piece([number], 0, len(sequence), ())
        self._masks: dict[tuple[int, int, int, torch.dtype], Tensor] = {}
        self._taps: dict[int, Tensor] = {}

    @property
    def positions_1N(self) -> Tensor:
        """[1, N] of each token in its sequences."""
        places = [range(p.position, p.position + p.end - p.start) for p in self.pieces]
        return torch.tensor([[i for part in places for i in part]], device=self.device)

    # -- laying ----------------------------------------------------------------------------

    def _lay_shared(self, numbers: Sequence[int], path: tuple[int, ...]) -> None:
        """Lay what the sequences, all of which end with ``path`` so far, have left."""
        clusters: dict[tuple[Any, ...], list[int]] = {}
        for number in numbers:
            rest = self._sequences[number][len(self.places[number]) :]
            if rest:
                clusters.setdefault(tuple(rest[:MIN_SHARED]), []).append(number)
        for begins, cluster in clusters.items():
            start = len(self.places[cluster[0]])
            if len(cluster) == 1 or len(begins) < MIN_SHARED:
                for number in cluster:
                    self._lay_piece([number], start, len(self._sequences[number]), path)
            else:
                end = start + _num_common([self._sequences[n][start:] for n in cluster])
                piece = self._lay_piece(cluster, start, end, path)
                self._lay_shared(cluster, (*path, piece))

    def _lay_piece(
        self, numbers: Sequence[int], start: int, end: int, path: tuple[int, ...]
    ) -> int:
        """Tokens ``start`` to ``end`` of the sequences, which are the same in all; its number."""
        at = len(self.tokens)
        self.tokens += self._sequences[numbers[0]][start:end]
        self.pieces.append(Piece(start=at, end=len(self.tokens), position=start, path=path))
        for number in numbers:
            self.places[number] += range(at, len(self.tokens))
        return len(self.pieces) - 1

    # -- what the layers do ------------------------------------------------------------------

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float
    ) -> Tensor:
        """Causal attention along the paths: [1, H, N, D] over [1, K, N, D] -> [1, N, H, D]."""
        groups = query.shape[1] // keys.shape[1]
        out = []
        for piece in self.pieces:
            path = [self.pieces[n] for n in piece.path]
            spans = [slice(p.start, p.end) for p in (*path, piece)]
            queries, (seen_keys, seen_values) = query[:, :, spans[-1]], _along(spans, keys, values)
            num_own = piece.end - piece.start
            mask = None
            if piece.position > num_own:
                mask = self._mask(piece, groups, query)
            elif path:
                # Plain causal attention skips half of the scores, masked attention computes all: so
                # attending for the ancestors once more is the cheaper way to a long piece.
                (queries,) = _along(spans, query)
            attended = attend_chunk(queries, seen_keys, seen_values, mask, scale)
            out.append(attended[:, :, -num_own:])
        return torch.cat(out, 2).transpose(1, 2)

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
        """Causal depthwise convolution along the paths.

        Args:
            inputs: [N, C].
            weight: [C, W].
            bias: [C] or None.
            layer: any; all have the same paths.

        Returns:
            [N, C].
        """
        source = torch.cat([inputs, inputs.new_zeros(1, inputs.shape[1])])
        out = inputs * weight[:, -1]
        for back, rows in enumerate(self._taps_of(weight.shape[1])):
            out = out + source[rows] * weight[:, back]
        return out if bias is None else out + bias

    def _mask(self, piece: Piece, groups: int, like: Tensor) -> Tensor:
        end = piece.position + piece.end - piece.start
        key = (piece.position, end, groups, like.dtype)
        if key not in self._masks:
            self._masks[key] = chunk_mask(
                piece.position, end, groups, device=like.device, dtype=like.dtype
            )
        return self._masks[key]

    def _taps_of(self, width: int) -> Tensor:
        """[W - 1, N] where the inputs before each token lie, oldest first; N for none."""
        if width not in self._taps:
            nowhere = len(self.tokens)
            taps = torch.full((width - 1, nowhere), nowhere)
            for places in self.places:
                row = torch.tensor(places)
                for back in range(1, min(width, len(places))):
                    taps[width - 1 - back, row[back:]] = row[:-back]
            self._taps[width] = taps.to(self.device)
        return self._taps[width]


def _along(spans: Sequence[slice], *tensors: Tensor) -> list[Tensor]:
    """The spans of each [1, heads, N, D], one behind the other."""
    if len(spans) == 1:
        return [tensor[:, :, spans[0]] for tensor in tensors]
    return [torch.cat([tensor[:, :, span] for span in spans], 2) for tensor in tensors]


def _num_common(sequences: Sequence[Sequence[Any]]) -> int:
    """Tokens that all sequences begin with in common."""
    # Whatever the least and the greatest begin with, those between them begin with, too.
    tuples = [tuple(sequence) for sequence in sequences]
    least, greatest = min(tuples), max(tuples)
    pairs = zip(least, greatest, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(least), len(greatest)))


def most_tokens(sequence: Sequence[Any], before: Sequence[Any]) -> int:
    """Tokens that a sequence adds, at the most, to a shared row that holds ``before``."""
    common = _num_common([before, sequence])
    # A piece of fewer than MIN_SHARED tokens is not shared.
    return len(sequence) - max(0, common - MIN_SHARED + 1)


# -- lending it to a model -------------------------------------------------------------------


class Packer:
    """Lends a model what it needs to run packed rows.

    Raises:
        ConfigError: the model has layers that would mix the sequences of a row.
    """

    def __init__(self, model: Any) -> None:
        try:
            self._lender = Lender(model, _WHO)
        except ConfigError as error:
            raise ConfigError(f"{error}, or set the optimizer's packing to rows") from None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """For forward and backward passes: recomputed activations need it in both."""
        with self._lender.lend():
            yield
