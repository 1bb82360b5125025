"""One update over several devices: FSDP2 shards the model, every rank takes a share of the samples.

    torchrun --nproc-per-node 2 -m spaniel rl mine.toml

    rank 0   samples, scheduler, logs, checkpoints;  a share of each update
    rank 1+  wait for rank 0's next command;         a share of each update

Rank 0 deals the samples of an update; each rank computes the gradient of its share, summed over the
ranks, so that the denominator stays the one of the whole update. A rank that has no samples left
runs passes without weight until the others are done: every pass gathers parameters from all.
After the step rank 0 has the whole weights again, in the model it samples from and saves.
Checkpoints are those of a single process, and either goes on from the other's.
"""

import datetime
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from spaniel.config import OptimizerConfig
from spaniel.errors import TrainingError
from spaniel.learner import Learner, Objective, trained_state
from spaniel.microbatch import (
    SHARDED_FORWARD,
    Microbatch,
    Predictions,
    base_model_of,
    microbatches,
    predict_tokens,
    waiting_pass,
)
from spaniel.types import TrainingSample
from spaniel.value_head import ValueHead

PATIENCE = datetime.timedelta(days=7)
"""How long a rank waits for the next command: rank 0 may sample for hours. A rank that died is
torchrun's to notice, and it stops the others."""

_EXIT = "exit"


def started_by_torchrun() -> bool:
    """Whether this process is one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_lead() -> bool:
    """Whether this process is rank 0, or alone."""
    return int(os.environ.get("RANK", "0")) == 0


# -- sharding --------------------------------------------------------------------------------


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a causal LM in place, layer by layer; gradients are sums over the ranks."""
    base = base_model_of(model)
    units = [*base.get_decoder().layers, base]
    for unit in units:
        fully_shard(unit, mesh=mesh)
        _sum_gradients(unit)
    setattr(base, SHARDED_FORWARD, types.MethodType(predict_tokens, base))
    register_fsdp_forward_method(base, SHARDED_FORWARD)


def _sum_gradients(unit: Any) -> None:
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def _whole(value: Any) -> Any:
    """A tensor with the parts of all ranks; in a dictionary or list, each of them. All ranks
    have to ask."""
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return value


def _own_part(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, sharded like another."""
    if not isinstance(like, DTensor):
        return whole.to(like.device)
    return distribute_tensor(
        whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


class Shard(Learner):
    """A rank's learner: every method has to be called on all ranks."""

    def __init__(
        self,
        model: nn.Module,
        cfg: OptimizerConfig,
        *,
        total_steps: int | None,
        value_head: ValueHead | None = None,
        value_factor: float = 1.0,
        mesh: DeviceMesh,
    ) -> None:
        _shard(model, mesh)
        if value_head is not None:
            fully_shard(value_head.to(next(model.parameters()).device), mesh=mesh)
            _sum_gradients(value_head)
        super().__init__(
            model,
            cfg,
            total_steps=total_steps,
            value_head=value_head,
            value_factor=value_factor,
        )

    def accumulate(
        self, samples: Sequence[TrainingSample], objective: Objective, *, temperature: float = 1.0
    ) -> None:
        """Add this rank's share; the ranks together have at least one sample."""
        super().accumulate(samples, objective, temperature=temperature)
        self._num_accumulated += 1  # of others, if not of this rank

    def apply(self, scale: float = 1.0, *, counts: bool = True) -> dict[str, float]:
        """Step on the gradient of all ranks; metrics are sums over them, the same on each."""
        totals: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(totals, self._totals)
        keys = dict.fromkeys(key for part in totals for key in part)
        self._totals = {key: sum(part.get(key, 0.0) for part in totals) for key in keys}
        return super().apply(scale, counts=counts)

    def _batches(self, samples: Sequence[TrainingSample]) -> Iterator[Microbatch]:
        own = list(microbatches(samples, self.cfg.microbatch_tokens, self.device, self.cfg.packing))
        counts = [0] * dist.get_world_size()
        dist.all_gather_object(counts, len(own))
        yield from own
        for _ in range(max(counts) - len(own)):
            yield waiting_pass(self.device, self.cfg.packing)

    def _clipped_norm(self) -> float:
        norm: Any = nn.utils.clip_grad_norm_(self.parameters, self.cfg.max_grad_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def whole_weights(self) -> list[dict[str, Tensor]]:
        """Trained weights of the model, and of the value head if there is one."""
        modules = [m for m in (self.model, self.value_head) if m is not None]
        weights: list[dict[str, Tensor]] = [_whole(trained_state(m)) for m in modules]
        return weights

    def whole_optimizer(self) -> dict[str, Any]:
        """The optimizer's state, as a single process has it."""
        state: dict[str, Any] = _whole(self.optimizer.state_dict())
        return state

    @torch.no_grad()
    def take(self, weights: Sequence[Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Go on from whole weights and, unless ``state`` is empty, optimizer and step."""
        modules = [m for m in (self.model, self.value_head) if m is not None]
        for module, values in zip(modules, weights, strict=True):
            for name, parameter in trained_state(module).items():
                parameter.copy_(_own_part(values[name], parameter))
        if not state:
            return
        for optimizer, saved in zip(
            self.optimizer.optimizers, state["optimizer"]["optimizers"], strict=True
        ):
            order = [p for group in optimizer.param_groups for p in group["params"]]
            moments = {
                number: {
                    key: _own_part(value, order[number])
                    if isinstance(value, Tensor) and value.shape == order[number].shape
                    else value
                    for key, value in entry.items()
                }
                for number, entry in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": moments})
        self.num_steps = state["num_steps"]


# -- rank 0 ----------------------------------------------------------------------------------


class LeadLearner(Learner):
    """Rank 0's face of the ranks: a ``Learner`` whose ``model`` is whole, and whose updates are
    made by all.

    Args:
        model: what is sampled from and saved; it gets the weights of every update.
        copy: makes a model like it, to be sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        cfg: OptimizerConfig,
        *,
        total_steps: int | None,
        value_head: ValueHead | None = None,
        value_factor: float = 1.0,
        copy: Callable[[], nn.Module],
    ) -> None:
        super().__init__(
            model,
            cfg,
            total_steps=total_steps,
            value_head=value_head,
            value_factor=value_factor,
        )
        self._parts = [m for m in (self.model, self.value_head) if m is not None]
        width = None if value_head is None else value_head.linear.in_features
        opening: dict[str, Any] = {
            "cfg": cfg,
            "total_steps": total_steps,
            "value_width": width,
            "value_factor": value_factor,
        }
        _tell("open", opening)
        self._shard = _open(copy(), **opening)
        self._hand_out({})

    def _hand_out(self, state: Mapping[str, Any]) -> None:
        weights = [_whole(trained_state(part)) for part in self._parts]
        _tell("take", {"weights": weights, "state": dict(state)})
        self._shard.take(weights, state)

    def accumulate(
        self, samples: Sequence[TrainingSample], objective: Objective, *, temperature: float = 1.0
    ) -> None:
        """Deal the samples out; see ``Learner``."""
        if not samples:
            return
        shares, _ = deal(samples, dist.get_world_size())
        common = {"objective": objective, "temperature": temperature}
        _tell("accumulate", *({"samples": share, **common} for share in shares))
        self._shard.accumulate(shares[0], objective, temperature=temperature)

    def apply(self, scale: float = 1.0, *, counts: bool = True) -> dict[str, float]:
        """All ranks step; see ``Learner``."""
        arguments: dict[str, Any] = {"scale": scale, "counts": counts, "progress": self._progress}
        _tell("apply", arguments)
        totals = _apply(self._shard, **arguments)
        self.num_steps = self._shard.num_steps
        _tell("whole_weights", {})
        with torch.no_grad():
            for part, values in zip(self._parts, self._shard.whole_weights(), strict=True):
                for name, parameter in trained_state(part).items():
                    parameter.copy_(values[name])
        return totals

    def predictions(
        self, samples: Sequence[TrainingSample], *, temperature: float = 1.0
    ) -> list[Predictions]:
        """By all ranks; see ``Learner``."""
        shares, numbers = deal(samples, dist.get_world_size())
        _tell("predict", *({"samples": s, "temperature": temperature} for s in shares))
        parts = _predict(self._shard, shares[0], temperature)
        out: list[Predictions | None] = [None] * len(samples)
        for part, part_numbers in zip(parts, numbers, strict=True):
            for number, prediction in zip(part_numbers, part, strict=True):
                out[number] = prediction
        return [prediction for prediction in out if prediction is not None]

    def _optimizer_state(self) -> dict[str, Any]:
        _tell("whole_optimizer", {})
        return self._shard.whole_optimizer()

    def restore(self, directory: Path) -> dict[str, Any]:
        """Read it here and hand it out; see ``Learner``."""
        manifest = super().restore(directory)
        saved = torch.load(directory / "optimizer.pt", weights_only=True)
        self._hand_out({"optimizer": saved["optimizer"], "num_steps": self.num_steps})
        return manifest


def deal(
    samples: Sequence[TrainingSample], num_ranks: int
) -> tuple[list[list[TrainingSample]], list[list[int]]]:
    """Shares of about equally many tokens, and the numbers of their samples.

    Samples that begin alike stay together: they are computed once where they lie side by side.
    """
    order = sorted(range(len(samples)), key=lambda i: samples[i].token_ids)
    total = sum(len(s.token_ids) for s in samples)
    numbers: list[list[int]] = [[] for _ in range(num_ranks)]
    before = 0
    for number in order:
        size = len(samples[number].token_ids)
        middle = before + size / 2
        numbers[min(num_ranks - 1, int(middle * num_ranks / total))].append(number)
        before += size
    return [[samples[i] for i in own] for own in numbers], numbers


# -- the other ranks -------------------------------------------------------------------------


def follow(load_model: Callable[[], nn.Module]) -> None:
    """Do what rank 0 tells, until it says that all is done.

    Args:
        load_model: the model of the recipe, as rank 0 has it.
    """
    shard: Shard | None = None
    while True:
        try:
            name, arguments = _told()
        except RuntimeError:
            os._exit(1)  # the connection is gone: rank 0 has ended, and has said why
        if name == _EXIT:
            return
        if name == "open":
            shard = _open(load_model(), **arguments)
            continue
        assert shard is not None, "rank 0 opens a learner first"
        try:
            _COMMANDS[name](shard, **arguments)
        except TrainingError:
            continue  # rank 0 raised the same, and says how it ends


@contextmanager
def opened(device: str) -> Iterator[bool]:
    """The ranks of this run; yields whether this process is to follow rank 0.

    Where there are several, their processes end with the block.

    Args:
        device: ``policy.device``; with CUDA each rank takes the card of its local number.
    """
    if not started_by_torchrun():
        yield False
        return
    on_cuda = device != "cpu" and torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=PATIENCE)
    yield not is_lead()
    # Not after an error: the other ranks may be inside a pass, and torchrun stops them when this
    # process ends.
    if is_lead():
        _tell(_EXIT, {})
    # Whoever leaves first takes its connections with it.
    dist.barrier()
    # A worker thread of gloo that wants the interpreter's lock while the interpreter is taken down
    # aborts the process (https://github.com/pytorch/pytorch/pull/179291), so it is not taken down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _mesh(model: nn.Module) -> DeviceMesh:
    kind = next(model.parameters()).device.type
    return init_device_mesh(kind, (dist.get_world_size(),))


def _open(
    model: nn.Module,
    *,
    cfg: OptimizerConfig,
    total_steps: int | None,
    value_width: int | None,
    value_factor: float,
) -> Shard:
    return Shard(
        model,
        cfg,
        total_steps=total_steps,
        value_head=None if value_width is None else ValueHead(value_width),
        value_factor=value_factor,
        mesh=_mesh(model),
    )


def _apply(shard: Shard, *, scale: float, counts: bool, progress: float) -> dict[str, float]:
    shard.set_progress(progress)
    return shard.apply(scale, counts=counts)


def _predict(
    shard: Shard, samples: Sequence[TrainingSample], temperature: float
) -> list[list[Predictions]]:
    own = shard.predictions(samples, temperature=temperature)
    parts: list[list[Predictions]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, own)
    return parts


_COMMANDS: dict[str, Callable[..., Any]] = {
    "take": Shard.take,
    "accumulate": Shard.accumulate,
    "apply": _apply,
    "predict": _predict,
    "whole_weights": Shard.whole_weights,
    "whole_optimizer": Shard.whole_optimizer,
}


def _tell(name: str, *arguments: dict[str, Any]) -> None:
    """Rank 0: what to do, with the same arguments for all ranks or with those of each."""
    dist.broadcast_object_list([(name, len(arguments))], src=0)
    if len(arguments) == 1:
        dist.broadcast_object_list([arguments[0]], src=0)
    else:
        dist.scatter_object_list([None], list(arguments), src=0)


def _told() -> tuple[str, dict[str, Any]]:
    """The other ranks: what rank 0 tells."""
    header: list[Any] = [None]
    dist.broadcast_object_list(header, src=0)
    name, count = header[0]
    received: list[Any] = [None]
    if count == 1:
        dist.broadcast_object_list(received, src=0)
    else:
        dist.scatter_object_list(received, None, src=0)
    return name, received[0]
