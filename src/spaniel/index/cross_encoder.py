"""A reranker that reads query and document together, through sentence-transformers' CrossEncoder.

<directory>/scoring.json    which head scores, and how much the engine's own rank counts
<directory>/...             the model, as ``CrossEncoder.save_pretrained`` writes it

    score(q, d) = model(q, d) - prior ln rank(d)

``prior`` is 0 for a model that knows nothing of this engine, such as one from the hub.
"""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spaniel.corpus.encoder import hash_of_files, hash_of_weights, model_path, quiet_transformers
from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError, ToolError, boundary
from spaniel.index.query import parse_query
from spaniel.index.vectors import text_of
from spaniel.store import hash_of, read_json, write_json
from spaniel.types import Document, Hit

SCORING = "scoring.json"
START_PRIOR = 1.0
"""Of the engine's rank, beside a head that was not trained yet."""
_HEAD = "1_TokenMatch"


class CrossEncoderReranker:
    """A ``Reranker``. Safe to share between threads.

    Args:
        model: a directory that ``save_cross_encoder`` wrote, any other directory of a cross-encoder
            with one output, or a name of the Hugging Face hub.
        max_tokens: of query and document together; longer documents are cut.
        device: of torch; None takes CUDA where there is one.

    Raises:
        ConfigError: there is no such model, it has no trained head or several outputs, or
            sentence-transformers is missing.
    """

    waits = False

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int = 256,
        batch_size: int = 16,
        device: str | None = None,
    ) -> None:
        self.path = model_path(model)
        self.batch_size = batch_size
        self.model, self.prior = load_cross_encoder(self.path, device=device)
        self.max_tokens = min(max_tokens, self.model.max_seq_length or max_tokens)
        self.model.max_seq_length = self.max_tokens
        # Tokenizers keep their padding in themselves and must not be used by two threads at once.
        self._lock = threading.Lock()
        directory = Path(self.path)
        weights = hash_of_files(directory) if directory.is_dir() else hash_of_weights(self.model)
        self._fingerprint = hash_of(["cross_encoder", weights, self.max_tokens])

    @property
    def fingerprint(self) -> str:
        """Hash of the model's files (of its weights, for a model of the hub) and the limit."""
        return self._fingerprint

    def score(
        self, query: str, hits: Sequence[Hit], documents: Sequence[Document], context: str = ""
    ) -> list[float]:
        """[num_hits] scores. Quotes and ``site:`` of the query are not read, nor is
        the context. Without any word there is nothing to compare: the engine's order stays.

        Raises:
            ToolError: the model failed.
        """
        parsed = parse_query(query)
        words = " ".join((*parsed.keywords, *parsed.phrases))
        if not words:
            return [-float(hit.rank) for hit in hits]
        texts = [text_of(document) for document in documents]
        # Each text once and in one order: batches decide the last bits of a score, and copies
        # must tie.
        unique = sorted(set(texts))
        with self._lock, boundary(ToolError, "rerank"):
            scores = self.model.predict(
                [(words, text) for text in unique],
                batch_size=self.batch_size,
                # A sigmoid would make all good scores 1.
                activation_fn=import_extra("torch", "dense").nn.Identity(),
                show_progress_bar=False,
            )
        score_of = dict(zip(unique, map(float, scores), strict=True))
        return [
            score_of[text] - self.prior * math.log(hit.rank)
            for text, hit in zip(texts, hits, strict=True)
        ]


def load_cross_encoder(path: str, *, device: str | None = None) -> tuple[Any, float]:
    """A ``CrossEncoder`` that ranks, and the weight of the engine's rank.

    Raises:
        ConfigError: as ``CrossEncoderReranker``.
    """
    scoring = Path(path) / SCORING
    if scoring.exists():
        found = read_json(scoring)
        if found["head"] == "token_match":
            return _load_token_match(path, device), float(found["prior"])
        return _load_library(path, device), float(found["prior"])
    model = _load_library(path, device)
    if not _has_trained_head(model):
        raise ConfigError(
            f"{path} is no reranker: it has no trained head for scores. Train one with "
            "`spaniel index train-reranker`, or name a cross-encoder"
        )
    return model, 0.0


def start_cross_encoder(path: str, *, device: str | None = None) -> tuple[Any, float]:
    """A ``CrossEncoder`` to train, and the weight that the engine's rank starts with.

    One that ranks already goes on from where it is. An encoder gets a head that compares its
    tokens, which ranks worse than a good engine by itself: the engine's rank counts beside it.

    Raises:
        ConfigError: there is no such model, or it has several outputs.
    """
    if (Path(path) / SCORING).exists():
        return load_cross_encoder(path, device=device)
    model = _load_library(path, device)
    if _has_trained_head(model):
        return model, 0.0
    return _with_token_match(path, device), START_PRIOR


def save_cross_encoder(model: Any, prior: float, directory: Path) -> None:
    """Write what ``load_cross_encoder`` reads into an existing directory."""
    with quiet_transformers():
        model.save_pretrained(str(directory), create_model_card=False)
    head = "token_match" if (directory / _HEAD).exists() else "library"
    write_json(directory / SCORING, {"head": head, "prior": prior})


def _load_library(path: str, device: str | None) -> Any:
    library = import_extra("sentence_transformers", "dense")
    local = Path(path).is_dir()
    with _loading(path):
        model = library.CrossEncoder(path, device=device, local_files_only=local)
    if _has_trained_head(model) and model.num_labels != 1:
        raise ConfigError(f"{path} has {model.num_labels} outputs; a reranker needs one")
    return model


def _has_trained_head(model: Any) -> bool:
    """False where the library put a new head on an encoder."""
    architectures = model.config.architectures or [""]
    return len(model) > 1 or architectures[0].endswith("ForSequenceClassification")


def _with_token_match(path: str, device: str | None) -> Any:
    from spaniel.index.token_match import TokenMatch

    library = import_extra("sentence_transformers", "dense")
    with _loading(path):
        encoder = library.base.modules.Transformer(path)
        # An encoder's configuration has two until somebody sets them.
        encoder.model.config.num_labels = 1
        tokenizer = encoder.tokenizer
        names = ("cls", "sep", "bos", "eos", "pad")
        ids = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
        border_ids = sorted(token for token in ids if token is not None)
        head = TokenMatch(encoder.model.config.hidden_size, border_ids)
        return library.CrossEncoder(modules=[encoder, head], device=device)


def _load_token_match(path: str, device: str | None) -> Any:
    from spaniel.index.token_match import TokenMatch

    library = import_extra("sentence_transformers", "dense")
    with _loading(path):
        encoder = library.base.modules.Transformer.load(path, local_files_only=True)
        modules = [encoder, TokenMatch.read(str(Path(path) / _HEAD))]
        return library.CrossEncoder(modules=modules, device=device).eval()


@contextmanager
def _loading(path: str) -> Iterator[None]:
    torch = import_extra("torch", "dense")
    # They would warn of a new head, which the caller looks for, and of an encoder's conversion.
    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        # A new head is drawn; the caller's random state is not to notice.
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"cannot load the reranker {path}: {reason}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
