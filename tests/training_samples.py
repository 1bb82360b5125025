"""Samples for the learner's tests, and the plainest objective."""

import torch

from spaniel.types import TrainingSample


def samples(lengths=(9, 5, 7, 12), vocab=64, shared=0):
    """Random ids of these lengths; the first ``shared`` are the same in all."""
    rng = torch.Generator().manual_seed(0)
    prefix = torch.randint(0, vocab, (shared,), generator=rng).tolist()
    made = []
    for length in lengths:
        ids = prefix + torch.randint(0, vocab, (length - shared,), generator=rng).tolist()
        weights = [0.0, 0.0] + [0.02 * (1 + i % 3) for i in range(length - 2)]
        made.append(
            TrainingSample(
                token_ids=tuple(ids),
                weights=tuple(weights),
                sampler_logprobs=(0.0, 0.0) + (-4.0,) * (length - 2),
                advantage=1.0 if length % 2 else -1.0,
            )
        )
    return made


def nll(predictions, batch):
    loss = -(predictions.logprobs_T * batch.weights_T).sum()
    return loss, {"loss": loss.detach()}
