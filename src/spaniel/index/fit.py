"""The loop that rerankers and encoders are trained by.

The trainers of sentence-transformers would bring ``datasets`` and ``accelerate``, take pairs
instead of an engine's lists, and keep their own checkpoints; what is needed here is thirty lines.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from spaniel.config import RetrieverTrainingConfig
from spaniel.errors import TrainingError
from spaniel.progress import Progress

T = TypeVar("T")
HEAD_LEARNING_RATE = 1e-3
_WARMUP_FRAC = 0.1
_MAX_GRAD_NORM = 1.0


def fit(
    model: nn.Module,
    examples: Sequence[T],
    loss: Callable[[Sequence[T], random.Random], Tensor],
    cfg: RetrieverTrainingConfig,
    *,
    what: str,
    head: Sequence[nn.Parameter] = (),
) -> int:
    """Train a model in place by AdamW; returns the number of optimizer steps.

    The same seed, examples and starting weights give the same weights on a CPU, as long as
    ``cfg.minutes`` is not what ends it.

    Args:
        loss: the mean loss of a batch; draws what it needs from the generator.
        head: parameters that learn at ``HEAD_LEARNING_RATE``: a few numbers of size one, which
            the rate of a transformer would leave where they start.

    Raises:
        TrainingError: the loss is not finite.
    """
    rng = random.Random(cfg.seed)
    fast = {id(p) for p in head}
    body = [p for p in model.parameters() if p.requires_grad and id(p) not in fast]
    rates = (cfg.learning_rate, HEAD_LEARNING_RATE)
    groups = [{"params": p, "lr": lr} for p, lr in zip((body, list(head)), rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    batches = _batches(examples, cfg, rng)
    started = time.monotonic()
    model.train()
    with Progress(f"training the {what}", len(batches), "steps") as progress, seeded(cfg.seed):
        for step, batch in enumerate(batches):
            spent = (time.monotonic() - started) / (60 * cfg.minutes) if cfg.minutes else 0.0
            if spent >= 1:
                batches = batches[:step]
                break
            factor = rate_factor(max((step + 0.5) / len(batches), spent))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            value = loss(batch, rng)
            if not torch.isfinite(value):
                raise TrainingError(
                    f"the loss of the {what} is {value.item()} at step {step + 1}: lower its "
                    "learning_rate"
                )
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_([*body, *head], _MAX_GRAD_NORM)
            optimizer.step()
            progress.advance(note=f"loss {value.item():.3f}")
    model.eval()
    return len(batches)


def rate_factor(progress: float) -> float:
    """Of the learning rate, in (0, 1]: grows over the first tenth and then falls to zero."""
    return min(progress / _WARMUP_FRAC, (1 - progress) / (1 - _WARMUP_FRAC))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch draws by this seed inside, and goes on as before after it."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _batches(
    examples: Sequence[T], cfg: RetrieverTrainingConfig, rng: random.Random
) -> list[list[T]]:
    batches = []
    for _ in range(cfg.epochs):
        shuffled = rng.sample(examples, len(examples))
        batches += [
            shuffled[i : i + cfg.batch_size] for i in range(0, len(shuffled), cfg.batch_size)
        ]
    return batches
