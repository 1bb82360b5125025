"""The frozen policy that RL started from, for the KL term."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spaniel.config import RLConfig
from spaniel.learner import microbatches, trained_logprobs
from spaniel.types import TrainingSample

ReferenceLogprobs = Callable[[Sequence[TrainingSample]], list[Tensor]]


def frozen_reference(model: Any, cfg: RLConfig) -> ReferenceLogprobs:
    """Log-probs under a copy of the whole model as it is when this is called.

    The returned function gives, for each sample in order, its trained tokens' log-probs [T].
    """
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    device = next(frozen.parameters()).device

    @torch.no_grad()
    def logprobs(samples: Sequence[TrainingSample]) -> list[Tensor]:
        out = []
        for batch in microbatches(samples, cfg.optimizer.microbatch_tokens, device):
            values_T = trained_logprobs(frozen, batch, temperature=cfg.temperature)
            out += [values_T[batch.rows_T == row] for row in range(len(batch.token_ids_BL))]
        return out

    return logprobs
