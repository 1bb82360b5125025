"""The frozen policy that RL started from, for the KL term."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from spaniel.config import RLConfig
from spaniel.microbatch import microbatches, sample_predictions
from spaniel.types import TrainingSample

ReferenceLogprobs = Callable[[Sequence[TrainingSample]], list[Tensor]]


def frozen_reference(model: Any, cfg: RLConfig) -> ReferenceLogprobs:
    """Log-probs under a copy of the whole model as it is when this is called.

    The returned function gives, for each sample in order, its trained tokens' log-probs [T].
    """
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    device = next(frozen.parameters()).device

    def logprobs(samples: Sequence[TrainingSample]) -> list[Tensor]:
        optimizer = cfg.optimizer
        batches = microbatches(samples, optimizer.microbatch_tokens, device, optimizer.packing)
        made = sample_predictions(
            frozen, batches, packing=optimizer.packing, temperature=cfg.temperature
        )
        return [prediction.logprobs_T for prediction in made]

    return logprobs
