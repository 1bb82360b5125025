"""A reranker that compares word by word, on the weights of a small sentence encoder.

ColBERT's late interaction (Khattab and Zaharia, https://arxiv.org/abs/2004.12832): every token
of the query finds its most similar token in the document; the mean of these similarities,
weighted by how rare the token is among the candidates, is added to the similarity that found
the document. It helps before any training, and ``train_reranker`` tunes it on a few hundred
questions, which is far too few to teach a cross-encoder that starts without a scoring head.

    score = (vector similarity + WEIGHT * match) / (1 + WEIGHT)
    match = sum_t idf_t max_j cos(q_t, d_j) / sum_t idf_t      idf_t = ln(1 + n / (1 + df_t))
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spaniel.corpus.encoder import MINILM, hash_of_files, model_path, quiet_transformers
from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError
from spaniel.index.engine import SearchEngine
from spaniel.index.vectors import text_of
from spaniel.progress import Progress
from spaniel.store import hash_of, publish_directory
from spaniel.types import Document, Hit, Question

WEIGHT = 4.0
"""Of the match, against the similarity of the whole texts."""
_SCALE = 50.0
"""Scores span a few hundredths; times this they are logits."""
_BATCH = 16
_QUERY_TOKENS = 64


class LateInteraction:
    """A ``Reranker``. Safe to share between threads.

    Args:
        model: ``minilm``, a directory (of ``train_reranker`` or any encoder), or a hub name.
        max_tokens: longer documents are cut.
        device: of torch.

    Raises:
        ConfigError: there is no such model, or transformers is missing.
    """

    def __init__(self, model: str = MINILM, *, max_tokens: int = 96, device: str = "cpu") -> None:
        self.path = model_path(model)
        self.max_tokens = max_tokens
        self.device = device
        transformers = import_extra("transformers", "dense")
        try:
            with quiet_transformers():
                self.model = transformers.AutoModel.from_pretrained(self.path).to(device).eval()
                self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"cannot load the reranker {self.path}: {reason}") from error
        # Tokenizers keep their padding in themselves and must not be used by two threads at once.
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Hash of the model's files (of its name, for a model of the hub) and the settings."""
        path = Path(self.path)
        weights = hash_of_files(path) if path.is_dir() else self.path
        return hash_of(["late_interaction", weights, self.max_tokens, WEIGHT])

    waits = False

    def score(
        self, query: str, hits: Sequence[Hit], documents: Sequence[Document], context: str = ""
    ) -> list[float]:
        """[num_hits] scores; the hits' own scores are taken as similarities from -1 to 1. The
        context is not read."""
        texts = [text_of(document) for document in documents]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        matches = [0.0] * len(texts)
        with self._lock, torch.inference_mode():
            words = self.encode([query], _QUERY_TOKENS)
            batches = [order[i : i + _BATCH] for i in range(0, len(order), _BATCH)]
            encoded = [self.encode([texts[i] for i in b], self.max_tokens) for b in batches]
            weights = rarity(words.ids[0], [ids for tokens in encoded for ids in tokens.ids])
            for batch, tokens in zip(batches, encoded, strict=True):
                for i, match in zip(batch, matches_of(words, 0, tokens, weights), strict=True):
                    matches[i] = float(match)
        return [combine(hit.score, match) for hit, match in zip(hits, matches, strict=True)]

    def encode(self, texts: list[str], max_tokens: int) -> "Tokens":
        """Token vectors of texts, padded to the longest."""
        batch = self.tokenizer(
            texts, truncation=True, max_length=max_tokens, padding=True, return_tensors="pt"
        ).to(self.device)
        vectors = self.model(**batch).last_hidden_state
        ids = [
            row[mask.bool()].tolist()[1:-1]
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        return Tokens(
            vectors_BTD=torch.nn.functional.normalize(vectors, dim=-1),
            mask_BT=batch["attention_mask"].bool(),
            ids=ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Encoded texts. B texts, T tokens, D size of a vector."""

    vectors_BTD: Tensor
    """Of length 1."""
    mask_BT: Tensor
    """False at padding."""
    ids: list[list[int]]
    """Token ids of each text, without its first and last special token."""


def rarity(query: list[int], candidates: Sequence[Sequence[int]]) -> Tensor:
    """[num_query_tokens] ``ln(1 + n / (1 + df))`` over the candidates' token ids."""
    holders = [set(ids) for ids in candidates]
    df = torch.tensor([sum(token in ids for ids in holders) for token in query])
    return torch.log1p(len(holders) / (1.0 + df))


def matches_of(queries: Tokens, number: int, documents: Tokens, weights: Tensor) -> Tensor:
    """[num_documents] how well each document's tokens match those of one query, -1 to 1."""
    size = len(queries.ids[number])
    if size == 0:
        return documents.vectors_BTD.new_zeros(len(documents.mask_BT))
    words_TD = queries.vectors_BTD[number, 1 : size + 1]
    similarities = words_TD @ documents.vectors_BTD.transpose(1, 2)
    best = similarities.masked_fill(~documents.mask_BT[:, None], -1.0).amax(2)
    weights = weights.to(best.device)
    return (best * weights).sum(1) / weights.sum()


def combine(similarity: Any, match: Any) -> Any:
    """The score of a document, from floats or tensors."""
    return (similarity + WEIGHT * match) / (1 + WEIGHT)


# --- training -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One question with a target and hits that are none: the target has to score best."""

    query: str
    texts: list[str]
    """The target's first."""
    similarities: list[float]


def train_reranker(
    questions: Sequence[Question],
    engine: SearchEngine,
    directory: Path,
    *,
    base: str = MINILM,
    candidates: int = 30,
    num_negatives: int = 4,
    max_tokens: int = 64,
    learning_rate: float = 5e-5,
    batch_size: int = 8,
    epochs: int = 1,
    seed: int = 0,
) -> LateInteraction:
    """Tune a reranker to put targets before the other hits of an engine; saves and returns it.

    The loss is the cross-entropy of the target among itself and ``num_negatives`` of the
    engine's other hits. Embeddings and the lower half of the layers stay as they are: a third
    less work, and the few questions have less to spoil.

    Args:
        questions: training questions with targets; those with no target among their candidates,
            or nothing else, teach nothing and are left out.
        engine: the engine whose hits will be reranked.
        directory: where the model goes; published whole.
        max_tokens: of a document while training.

    Raises:
        ConfigError: no question is left.
    """
    rng = random.Random(seed)
    choices = _choices(questions, engine, candidates, num_negatives, rng)
    if not choices:
        raise ConfigError("no training question has a target and another document among its hits")
    reranker = LateInteraction(base)
    parameters = _freeze_lower_half(reranker.model)
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate)
    batches = []
    for _ in range(epochs):
        rng.shuffle(choices)
        batches += [choices[i : i + batch_size] for i in range(0, len(choices), batch_size)]
    with Progress("training the reranker", len(batches), "steps") as progress:
        for number, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = learning_rate * (1 - number / len(batches))
            loss = _loss(reranker, batch, max_tokens)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            progress.advance(note=f"loss {loss.item():.3f}")
    manifest = {"questions": len(choices), "seed": seed}
    with publish_directory(directory, manifest) as partial, quiet_transformers():
        reranker.model.save_pretrained(partial)
        reranker.tokenizer.save_pretrained(partial)
    return LateInteraction(str(directory))


def _choices(
    questions: Sequence[Question],
    engine: SearchEngine,
    candidates: int,
    num_negatives: int,
    rng: random.Random,
) -> list[_Choice]:
    # A quoted title in a question is words, not a constraint.
    queries = [question.text.replace('"', " ") for question in questions]
    choices = []
    for question, query, hits in zip(
        questions, queries, engine.search_batch(queries, candidates), strict=True
    ):
        targets = [hit for hit in hits if hit.docid in question.targets]
        others = [hit for hit in hits if hit.docid not in question.targets]
        if targets and others:
            chosen = [rng.choice(targets), *rng.sample(others, min(num_negatives, len(others)))]
            documents = engine.read_batch([hit.docid for hit in chosen])
            choices.append(
                _Choice(
                    query=query,
                    texts=[text_of(document) for document in documents],
                    similarities=[hit.score for hit in chosen],
                )
            )
    return choices


def _freeze_lower_half(model: Any) -> list[torch.nn.Parameter]:
    """Freeze embeddings and the first half of the layers; returns what is left to train."""
    layers = model.encoder.layer
    for module in (model.embeddings, *layers[: len(layers) // 2]):
        module.requires_grad_(False)
    return [p for p in model.parameters() if p.requires_grad]


def _loss(reranker: LateInteraction, batch: Sequence[_Choice], max_tokens: int) -> Tensor:
    queries = reranker.encode([choice.query for choice in batch], _QUERY_TOKENS)
    losses = []
    for number, choice in enumerate(batch):
        documents = reranker.encode(choice.texts, max_tokens)
        weights = rarity(queries.ids[number], documents.ids)
        matches = matches_of(queries, number, documents, weights)
        similarities = torch.tensor(choice.similarities, device=matches.device)
        logits = _SCALE * combine(similarities, matches)
        losses.append(-torch.log_softmax(logits, dim=0)[0])
    return torch.stack(losses).mean()
