"""Fine-tune a sentence encoder: questions and their targets get similar vectors.

The loss is the multiple-negatives ranking loss (Henderson et al., https://arxiv.org/abs/1705.00652)
with hard negatives (Karpukhin et al., https://arxiv.org/abs/2004.04906): the cross-entropy of a
target's similarity among those of the batch's other targets and all its negatives,

    loss = mean over (q, t) of  -log( exp(s cos(q, t)) / sum_d exp(s cos(q, d)) )       s = 20

where documents that answer q themselves are no part of its sum: questions share targets, and
what the batch has beside t may be another target of q.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spaniel.config import EncoderTrainingConfig
from spaniel.corpus.encoder import load_sentence_transformer, model_path
from spaniel.index.engine import SearchEngine
from spaniel.index.fit import fit
from spaniel.index.hard_negatives import Lesson
from spaniel.index.vectors import text_of

SCALE = 20.0
"""s of the loss: cosines span a few tenths."""
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One question with one of its targets."""

    lesson: Lesson
    target: str


def train_encoder(
    lessons: Sequence[Lesson], engine: SearchEngine, cfg: EncoderTrainingConfig
) -> tuple[Any, int]:
    """A sentence-transformers model that learned from the lessons, and its optimizer steps.

    Args:
        engine: what the lessons were mined from; gives the texts.

    Raises:
        ConfigError: there is no such model, or sentence-transformers is missing.
        TrainingError: the loss is not finite.
    """
    model = load_sentence_transformer(model_path(cfg.model)).float()
    longest, model.max_seq_length = model.max_seq_length, cfg.max_tokens
    pairs = [Pair(lesson=lesson, target=target) for lesson in lessons for target in lesson.targets]

    def loss(batch: Sequence[Pair], rng: random.Random) -> Tensor:
        docids, allowed = batch_documents(batch, cfg.num_negatives, rng)
        queries = vectors_of(model, [pair.lesson.query for pair in batch], "query")
        documents = vectors_of(model, [text_of(d) for d in engine.read_batch(docids)], "document")
        return ranking_loss(queries, documents, allowed.to(queries.device))

    num_steps = fit(model, pairs, loss, cfg, what="encoder")
    model.max_seq_length = longest
    return model, num_steps


def batch_documents(
    batch: Sequence[Pair], num_negatives: int, rng: random.Random
) -> tuple[list[str], Tensor]:
    """The documents of a batch, and which of them stand in whose sum.

    Returns:
        (docids, [B, num_docids] bool): the first B are the pairs' own targets, in order; False
        where a document answers the pair's question without being its own target, and where it
        has stood before.
    """
    targets = [pair.target for pair in batch]
    drawn = [hit.docid for p in batch for hit in p.lesson.draw(num_negatives, rng)]
    docids = targets + sorted(set(drawn) - set(targets))
    first = {docid: place for place, docid in reversed(list(enumerate(docids)))}
    rows = [
        [
            j == i or (docid not in pair.lesson.targets and first[docid] == j)
            for j, docid in enumerate(docids)
        ]
        for i, pair in enumerate(batch)
    ]
    return docids, torch.tensor(rows)


def ranking_loss(queries_BD: Tensor, documents_ND: Tensor, allowed_BN: Tensor) -> Tensor:
    """Mean cross-entropy of document i for query i among the allowed ones; vectors of length 1."""
    logits_BN = SCALE * queries_BD @ documents_ND.T
    logits_BN = logits_BN.masked_fill(~allowed_BN, float("-inf"))
    labels_B = torch.arange(len(queries_BD), device=logits_BN.device)
    return torch.nn.functional.cross_entropy(logits_BN, labels_B)


def vectors_of(model: Any, texts: list[str], task: str) -> Tensor:
    """Vectors of length 1, with gradients; prompts as ``encode_query`` and ``encode_document``
    take them."""
    names = ("query",) if task == "query" else _DOCUMENT_PROMPTS
    name = next((n for n in names if n in model.prompts), model.default_prompt_name)
    features = model.preprocess(texts, prompt=model.prompts.get(name), task=task)
    features = {
        key: value.to(model.device) if isinstance(value, Tensor) else value
        for key, value in features.items()
    }
    vectors: Tensor = model(features, task=task)["sentence_embedding"]
    return torch.nn.functional.normalize(vectors, dim=-1)
