"""Train a cross-encoder to put a question's targets before the engine's other hits.

The loss is the cross-entropy of a target among itself and some negatives, the engine's rank
included in every score (``cross_encoder.py``): what the engine knows need not be learned again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spaniel.config import RerankerTrainingConfig
from spaniel.corpus.encoder import model_path
from spaniel.errors import ConfigError
from spaniel.index.cross_encoder import start_cross_encoder
from spaniel.index.engine import SearchEngine
from spaniel.index.fit import fit
from spaniel.index.hard_negatives import Lesson
from spaniel.index.token_match import TokenMatch
from spaniel.index.vectors import text_of
from spaniel.types import Hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One question with one of its targets that the engine found: it has to score best."""

    lesson: Lesson
    target: Hit


class _Ranker(nn.Module):
    """What is trained: the model and the weight of the engine's rank."""

    def __init__(self, model: Any, prior: float) -> None:
        super().__init__()
        self.model = model
        self.prior = nn.Parameter(torch.tensor(prior))

    def forward(self, pairs: list[tuple[str, str]], ranks: Tensor) -> Tensor:
        """[num_pairs] scores."""
        prompt = self.model.prompts.get(self.model.default_prompt_name)
        features = {
            key: value.to(self.model.device) if isinstance(value, Tensor) else value
            for key, value in self.model.preprocess(pairs, prompt=prompt).items()
        }
        scores: Tensor = self.model(features)["scores"][:, 0]
        return scores - self.prior * ranks.to(scores).log()


def train_cross_encoder(
    lessons: Sequence[Lesson], engine: SearchEngine, cfg: RerankerTrainingConfig
) -> tuple[Any, float, int]:
    """A ``CrossEncoder`` that learned from the lessons, the weight of the engine's rank beside
    it, and the number of optimizer steps.

    Args:
        engine: what the lessons were mined from; gives the texts.

    Raises:
        ConfigError: the engine found no target, there is no such model, or
            sentence-transformers is missing.
        TrainingError: the loss is not finite.
    """
    choices = [Choice(lesson=lesson, target=hit) for lesson in lessons for hit in lesson.found]
    if not choices:
        raise ConfigError("no training question has a target among the engine's hits")
    model, prior = start_cross_encoder(model_path(cfg.model))
    model.float()
    longest, model.max_seq_length = model.max_seq_length, cfg.max_tokens
    ranker = _Ranker(model, prior)

    def loss(batch: Sequence[Choice], rng: random.Random) -> Tensor:
        lists = [[c.target, *c.lesson.draw(cfg.num_negatives, rng)] for c in batch]
        hits = [hit for hits in lists for hit in hits]
        texts = [text_of(d) for d in engine.read_batch([hit.docid for hit in hits])]
        queries = [c.lesson.query for c, hits in zip(batch, lists, strict=True) for _ in hits]
        ranks = torch.tensor([hit.rank for hit in hits])
        scores = ranker(list(zip(queries, texts, strict=True)), ranks)
        return list_loss(scores, [len(hits) for hits in lists])

    fresh = [module for module in model if isinstance(module, TokenMatch)]
    head = [ranker.prior, *(p for module in fresh for p in module.parameters())]
    num_steps = fit(ranker, choices, loss, cfg, what="reranker", head=head)
    model.max_seq_length = longest
    return model, ranker.prior.item(), num_steps


def list_loss(scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean over lists of the cross-entropy of each list's first score among its own."""
    lists = torch.split(scores, list(sizes))
    return torch.stack([-torch.log_softmax(part, dim=0)[0] for part in lists]).mean()
