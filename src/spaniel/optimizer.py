"""AdamW for everything, or Muon for the matrices inside the layers and AdamW for the rest."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from spaniel.config import OptimizerConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steep at 0, so that five steps bring singular values near 1."""
NEWTON_SCHULZ_STEPS = 5
SPECTRAL_SCALE = 0.2
"""Makes an update's root mean square that of AdamW's, so that both share one learning rate
(Moonlight, https://arxiv.org/abs/2502.16982, eq. 4)."""


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (https://kellerjordan.github.io/posts/muon/).

        buf = momentum buf + (1 - momentum) g
        W  -= lr (weight_decay W + 0.2 sqrt(max(rows, columns)) orthogonal(buf))

    ``torch.optim.Muon`` computes the same in bfloat16 only, which is slow on most CPUs; here the
    iteration runs in float32 there.

    Args:
        params: matrices, or groups of them.
        nesterov: look one step ahead along the momentum.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        nesterov: bool,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        shapes = [p.shape for group in self.param_groups for p in group["params"]]
        if any(len(shape) != 2 for shape in shapes):
            raise ValueError(f"Muon updates matrices, got shapes {shapes}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch allows a closure to give the loss
        """One update of every matrix that has a gradient."""
        assert closure is None, "Muon takes no closure"
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        buffer = state["momentum"]
        buffer.lerp_(grad, 1 - group["momentum"])
        update = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        scale = SPECTRAL_SCALE * math.sqrt(max(p.shape))
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(_orthogonalized_whole(update).to(p.dtype), alpha=-group["lr"] * scale)


def _orthogonalized_whole(update: Tensor) -> Tensor:
    """``orthogonalized``; of a sharded matrix the whole, of which this rank's part is kept."""
    if not isinstance(update, DTensor):
        return orthogonalized(update)
    whole = orthogonalized(update.full_tensor())
    return distribute_tensor(whole, update.device_mesh, update.placements, src_data_rank=None)


def orthogonalized(matrix: Tensor) -> Tensor:
    """About U V^T of a matrix U S V^T, by Newton-Schulz; singular values end near 1.

    Args:
        matrix: [rows, columns].
    """
    a, b, c = NEWTON_SCHULZ
    # The fewer rows, the smaller the products.
    turned = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.to(torch.float32 if matrix.device.type == "cpu" else torch.bfloat16)
    x = x.T if turned else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


class Optimizers:
    """Several optimizers behind the face of one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all of them."""
        return list(itertools.chain.from_iterable(o.param_groups for o in self.optimizers))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """One step of each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Of each, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What ``state_dict`` gave."""
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)


def make_optimizer(
    model: nn.Module,
    embeddings: Sequence[Tensor],
    cfg: OptimizerConfig,
    *,
    heads: Sequence[Tensor] = (),
    head_factor: float = 1.0,
) -> Optimizers:
    """The optimizer of a recipe over a model's trained parameters.

    Args:
        embeddings: the table of token embeddings, then an output projection of its own, if any.
        heads: parameters beside the model, never decayed, at ``head_factor`` times the rate.

    Matrices decay, norms and biases do not; embeddings have a rate of their own, and are never
    Muon's: a token's row has nothing to be orthogonal to. Each group has a ``factor`` by which its
    rate differs from the schedule's.
    """
    muon: list[Tensor] = []
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for p in model.parameters():
        if not p.requires_grad:
            continue
        is_embedding = any(p is other for other in embeddings)
        if cfg.name == "muon" and p.dim() == 2 and not is_embedding:
            muon.append(p)
            continue
        decay = cfg.weight_decay if p.dim() >= 2 else 0.0
        factor = cfg.embedding_factor if p is embeddings[0] else 1.0
        groups.setdefault((decay, factor), []).append(p)
    if heads:
        groups.setdefault((0.0, head_factor), []).extend(heads)
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        adamw = [
            {"params": params, "weight_decay": decay, "factor": factor}
            for (decay, factor), params in groups.items()
        ]
        optimizers.append(torch.optim.AdamW(adamw, lr=cfg.learning_rate, betas=(0.9, cfg.beta2)))
    if muon:
        optimizers.append(
            Muon(
                [{"params": muon, "factor": 1.0}],
                lr=cfg.learning_rate,
                momentum=cfg.momentum,
                weight_decay=cfg.weight_decay,
                nesterov=cfg.nesterov,
            )
        )
    return Optimizers(optimizers)
