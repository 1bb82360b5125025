"""A scoring head for a cross-encoder that starts from a sentence encoder.

A sentence encoder has never seen two texts in one input, so a new linear head on its pooled
output starts from noise, and the few hundred questions of a corpus are too few to find the
signal. Its tokens, though, still find their like when query and document are read together:

    score = s sum_t a_t max_j cos(h_t, h_j)        a = softmax over t of u . h_t / |h_t|

over the query's tokens t and the document's tokens j, all seen in one pass. At the start u = 0:
the mean of the best matches, as in ColBERT (https://arxiv.org/abs/2004.12832), but with each
token read in the light of the other text. For weights that were never trained on pairs that is
a loss: read apart, as ``late_interaction.py`` does, the same tokens rank better
(``bench/results/train_retriever.json``). Start from a cross-encoder where there is one.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

START_SCALE = 20.0
"""s at the start: matches differ by a few hundredths."""


class TokenMatch(Module):
    """The last module of a ``CrossEncoder``: token vectors -> one score.

    Args:
        size: of a token's vector.
        border_ids: ids of the tokens that stand before, between and after the two texts.
    """

    config_keys = ["size", "border_ids"]  # noqa: RUF012  # the library reads a list

    def __init__(self, size: int, border_ids: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size, self.border_ids = size, list(border_ids)
        self.log_scale = nn.Parameter(torch.tensor(math.log(START_SCALE)))
        self.importance = nn.Parameter(torch.zeros(size))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``scores`` [B, 1]."""
        vectors_BTD = nn.functional.normalize(features["token_embeddings"], dim=-1)
        query_BT, document_BT = self.sides(features["input_ids"], features["attention_mask"])
        similarities_BTT = vectors_BTD @ vectors_BTD.transpose(1, 2)
        best_BT = similarities_BTT.masked_fill(~document_BT[:, None], -1.0).amax(2)
        # A finite minimum: a softmax over nothing but -inf would be NaN.
        logits_BT = (vectors_BTD @ self.importance).masked_fill(~query_BT, -1e9)
        matches_B = (best_BT * logits_BT.softmax(1)).sum(1)
        features["scores"] = (self.log_scale.exp() * matches_B)[:, None]
        return features

    def sides(self, ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Masks [B, T] of the query's and of the document's own tokens.

        Told from the tokens between the texts, since not every tokenizer numbers the texts.
        """
        borders = torch.tensor(self.border_ids, device=ids_BT.device)
        border_BT = torch.isin(ids_BT, borders)
        own_BT = mask_BT.bool() & ~border_BT
        passed_BT = border_BT.cumsum(1)
        first_B = passed_BT.masked_fill(~own_BT, ids_BT.shape[1] + 1).amin(1)
        query_BT = own_BT & (passed_BT == first_B[:, None])
        return query_BT, own_BT & ~query_BT

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write settings and weights into a directory."""
        self.save_config(output_path)
        self.save_torch_weights(output_path)

    @classmethod
    def read(cls, directory: str) -> "TokenMatch":
        """The head that ``save`` wrote."""
        head = cls(**cls.load_config(directory))
        cls.load_torch_weights(directory, model=head)
        return head
