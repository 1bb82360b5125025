"""Which experts the routers of a mixture-of-experts chose: noted in sampling, replayed in training.

Sampler and trainer round differently. Where two experts are nearly tied, that sends a token
through another expert, and its log-prob jumps (https://arxiv.org/abs/2510.11370). A replaying
router computes its scores, and their gradient, as ever; only its choice is the one of sampling.

Shapes: N tokens of a pass, M routers of the model, k experts of a token, B bytes of its choices:
M * k numbers, router by router, of one byte each up to 256 experts, of two beyond.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spaniel.errors import ConfigError

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the experts of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The choices of a pass that are to be replayed."""

    choices_NB: Tensor
    """uint8."""
    known_N: Tensor
    """False where the router chooses for itself."""


def routes_of(tokens: Sequence[bytes], device: torch.device) -> Routes | None:
    """The choices of tokens laid end to end, b"" where they are not known; None without any."""
    size = max(map(len, tokens), default=0)
    if not size:
        return None
    flat = b"".join(choices or bytes(size) for choices in tokens)
    return Routes(
        choices_NB=torch.frombuffer(bytearray(flat), dtype=torch.uint8).view(-1, size).to(device),
        known_N=torch.tensor([bool(choices) for choices in tokens], device=device),
    )


class Routers:
    """The routers of a model, in the order of its layers; none in a dense model.

    Raises:
        ConfigError: the model has experts, but no router of a kind that can be replayed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[Any] = [m for m in model.modules() if _is_router(m)]
        config = getattr(model, "config", None)
        counts = [getattr(config, name, None) or 0 for name in EXPERT_COUNTS]
        if max(counts) > 1 and not self.modules:
            raise ConfigError(
                f"the routers of {type(model).__name__} cannot be replayed; set "
                "policy.replay_routing to false"
            )

    def __len__(self) -> int:
        return len(self.modules)

    @contextmanager
    def noted(self) -> Iterator[list[Tensor]]:
        """Every pass in this block appends its choices, uint8 [N, B], to the list."""
        made: list[Tensor] = []
        waiting: list[Tensor] = []

        def note(number: int, chosen_Nk: Tensor) -> Tensor:
            waiting.append(chosen_Nk)
            if number == len(self) - 1:
                made.append(self._packed(torch.cat(waiting, 1)))
                waiting.clear()
            return chosen_Nk

        with self._lent(note):
            yield made

    @contextmanager
    def replayed(self, routes: Routes | None) -> Iterator[None]:
        """Forward passes over these tokens, and recomputations of them, choose as noted."""
        if routes is None:
            yield
            return
        if not self.modules:
            raise ConfigError("the samples were routed to experts, but the model has no routers")
        choices_NMk = self._unpacked(routes.choices_NB)

        def replay(number: int, chosen_Nk: Tensor) -> Tensor:
            noted_Nk = choices_NMk[:, number].to(chosen_Nk.dtype)
            return torch.where(routes.known_N[:, None], noted_Nk, chosen_Nk)

        with self._lent(replay):
            yield

    @contextmanager
    def _lent(self, choose: Any) -> Iterator[None]:
        before = [module.__dict__.get("forward") for module in self.modules]
        try:
            for number, module in enumerate(self.modules):
                choose_here = functools.partial(choose, number)
                module.forward = functools.partial(_route, module, module.forward, choose_here)
            yield
        finally:
            for module, forward in zip(self.modules, before, strict=True):
                del module.forward
                if forward is not None:
                    module.forward = forward

    def _packed(self, choices: Tensor) -> Tensor:
        wide = any(_num_experts(module) > 256 for module in self.modules)
        return choices.short().view(torch.uint8) if wide else choices.to(torch.uint8)

    def _unpacked(self, choices_NB: Tensor) -> Tensor:
        """Inverse of ``_packed``, int64 [N, M, k]."""
        num_choices = sum(module.top_k for module in self.modules)
        if choices_NB.shape[1] == 2 * num_choices:
            choices_NB = choices_NB.view(torch.int16)
        if choices_NB.shape[1] != num_choices:
            raise ConfigError(
                f"the samples were routed by another model: {choices_NB.shape[1]} bytes a token, "
                f"where {len(self)} routers choose {num_choices} experts"
            )
        return choices_NB.long().view(len(choices_NB), len(self), -1)


def packed_choices(choices: Any) -> list[bytes]:
    """The bytes of each token, of a numpy array [N, M, k] of integers as a server sends it."""
    kind = "u1" if choices.dtype.itemsize == 1 else "<i2"
    return [token.tobytes() for token in choices.astype(kind).reshape(len(choices), -1)]


def freeze_routers(model: nn.Module) -> None:
    """Take the routers out of the training: what they choose must not run away from what
    the experts have learned."""
    for module in model.modules():
        if _is_router(module):
            module.requires_grad_(False)


def _is_router(module: nn.Module) -> bool:
    return type(module).__name__.lower().endswith("topkrouter")


def _num_experts(router: Any) -> int:
    return int(router.weight.shape[0])


def _route(router: Any, forward: Any, choose: Any, *args: Any, **kwargs: Any) -> Any:
    """The router's own forward, with ``choose`` between its scores and its choice."""
    with _Choice(router, choose) as choice:
        out = forward(*args, **kwargs)
    if choice.num_seen != 1:
        raise ConfigError(
            f"{type(router).__name__} chooses its experts {choice.num_seen} times: it cannot be "
            "replayed; set policy.replay_routing to false"
        )
    return out


class _Choice(TorchFunctionMode):
    """Finds the one ``topk`` of a router that goes over all experts."""

    def __init__(self, router: Any, choose: Any) -> None:
        super().__init__()
        self._num_experts, self._top_k, self._choose = _num_experts(router), router.top_k, choose
        self.num_seen = 0

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].shape[-1] != self._num_experts:
            return out
        values, chosen = out
        if chosen.shape[-1] != self._top_k:
            return out
        self.num_seen += 1
        replayed = self._choose(chosen)
        if replayed is not chosen:
            values = args[0].gather(-1, replayed)
        return torch.return_types.topk((values, replayed))
