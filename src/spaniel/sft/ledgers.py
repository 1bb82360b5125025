"""Token ledgers of demonstrations, compact: a base learns from tens of millions of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DRILL, TIGHT, CHAIN = 0, -1, -2


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Ids and mask of one demonstration."""

    token_ids: NDArray[np.uint16]
    own: NDArray[np.bool_]
    """True at the teacher's tokens."""
    hops: int
    """Of the question; ``DRILL``, ``CHAIN`` and ``TIGHT`` for lessons of ``reading.py``."""


def save_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """All ledgers end to end in one compressed file."""
    np.savez_compressed(
        path,
        token_ids=np.concatenate([d.token_ids for d in demonstrations]),
        own=np.concatenate([d.own for d in demonstrations]),
        ends=np.cumsum([len(d.token_ids) for d in demonstrations]),
        hops=np.array([d.hops for d in demonstrations]),
    )


def load_demonstrations(path: Path) -> list[Demonstration]:
    """What ``save_demonstrations`` wrote."""
    with np.load(path) as arrays:
        ends = arrays["ends"][:-1]
        parts = zip(
            np.split(arrays["token_ids"], ends),
            np.split(arrays["own"], ends),
            arrays["hops"].tolist(),
            strict=True,
        )
        return [Demonstration(ids, own, hops) for ids, own, hops in parts]
