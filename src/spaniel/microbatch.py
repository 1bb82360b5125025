"""Training samples -> the token rows of a forward pass, and back from its hidden states.

Two layouts of the same samples, with the same gradient:

    rows     a padded row for each sample, those of similar length together
    packed   one row of all, end to end (``packing.py``); what samples begin with in common is
             laid once in ``shared``

Shape letters: R rows, L tokens of a row, T trained tokens, D width, V vocabulary.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spaniel.errors import ConfigError
from spaniel.packing import PackedRow, Packer, most_tokens
from spaniel.routing import Routers, Routes, routes_of
from spaniel.types import TrainingSample

Packing = Literal["rows", "packed", "shared"]

SHARDED_FORWARD = "spaniel_predict_tokens"
"""Name of the method of a model whose parameters are sharded that runs ``predict_tokens`` with
all of them at hand (``ranks.py``)."""

LOGITS_CHUNK = 2048
"""Trained positions projected to the vocabulary at once: bounds the memory of logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """The tokens of one forward pass, and its trained tokens as flat arrays."""

    token_ids_RL: Tensor
    routes: Routes | None
    """Experts of the tokens of the rows laid end to end, where the sampler noted them."""
    packed_row: PackedRow | None
    """What lies where when all samples are in one row; None for padded rows."""
    predictors_T: Tensor
    """Place, in the rows laid end to end, of the token that each trained token follows."""
    targets_T: Tensor
    """The trained token ids."""
    samples_T: Tensor
    """Which sample each trained token belongs to, by its number among those given."""
    weights_T: Tensor
    sampler_logprobs_T: Tensor
    advantages_T: Tensor
    values_T: Tensor | None
    """Before the update, when all samples have them."""
    ref_logprobs_T: Tensor | None
    """Under the frozen reference, when all samples have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What the current weights say of a microbatch's trained tokens, with gradient."""

    logprobs_T: Tensor
    """Nats, of the distribution at the temperature of sampling."""
    values_T: Tensor | None = None
    """Of the value head, where there is one."""


def microbatches(
    samples: Sequence[TrainingSample],
    max_tokens: int,
    device: torch.device,
    packing: Packing = "rows",
) -> Iterator[Microbatch]:
    """At most ``max_tokens`` in each, with padding, but one sample at least.

    In ``rows``, attention and convolutions are causal and padding stands on the right, so it
    cannot reach a trained token; no mask is needed.
    """
    numbers = range(len(samples))
    sequences = _sequences(samples)
    if packing == "shared":
        # Next to each other in this order are those that begin with the most in common.
        order = sorted(numbers, key=lambda i: sequences[i])
    else:
        order = sorted(numbers, key=lambda i: len(samples[i].token_ids))
    chosen: list[int] = []
    size = 0
    for number in order:
        sample = samples[number]
        if packing == "rows":
            grown = (len(chosen) + 1) * len(sample.token_ids)
        elif packing == "packed" or not chosen:
            grown = size + len(sample.token_ids)
        else:
            grown = size + most_tokens(sequences[number], sequences[chosen[-1]])
        if chosen and grown > max_tokens:
            yield _microbatch(samples, chosen, device, packing)
            chosen, grown = [], len(sample.token_ids)
        chosen.append(number)
        size = grown
    if chosen:
        yield _microbatch(samples, chosen, device, packing)


def _sequences(samples: Sequence[TrainingSample]) -> list[tuple[Any, ...]]:
    """The tokens of each sample, as what has to be equal for two of them to be computed once."""
    if not any(sample.routes for sample in samples):
        return [sample.token_ids for sample in samples]
    return [
        tuple(zip(s.token_ids, s.routes or (b"",) * len(s.token_ids), strict=True)) for s in samples
    ]


def _microbatch(
    samples: Sequence[TrainingSample],
    chosen: Sequence[int],
    device: torch.device,
    packing: Packing,
) -> Microbatch:
    packed = None
    with_routes = any(samples[i].routes for i in chosen)
    if packing == "rows":
        length = max(len(samples[i].token_ids) for i in chosen)
        token_ids = torch.zeros(len(chosen), length, dtype=torch.long)
        routes = [b""] * token_ids.numel()
        places: list[Sequence[int]] = []
        for row, number in enumerate(chosen):
            ids = samples[number].token_ids
            token_ids[row, : len(ids)] = torch.tensor(ids)
            places.append(range(row * length, row * length + len(ids)))
            routes[row * length : row * length + len(samples[number].routes)] = samples[
                number
            ].routes
    else:
        sequences = _sequences([samples[i] for i in chosen])
        packed = PackedRow(sequences, share=packing == "shared", device=device)
        routes = [route for _, route in packed.tokens] if with_routes else []
        token_ids = torch.tensor([[t[0] for t in packed.tokens] if with_routes else packed.tokens])
        places = list(packed.places)
    trained = [
        (i, place[p - 1], samples[i].token_ids[p], w, samples[i].sampler_logprobs[p])
        for i, place in zip(chosen, places, strict=True)
        for p, w in enumerate(samples[i].weights)
        if w != 0.0 and p > 0
    ]
    samples_T, predictors_T, targets_T, weights_T, sampler_T = zip(*trained, strict=True)

    def of_tokens(values: list[tuple[float, ...] | None]) -> Tensor | None:
        if any(part is None for part in values):
            return None
        return torch.tensor([v for part in values for v in part or ()], device=device)

    advantages_T = of_tokens([samples[i].advantages for i in chosen])
    if advantages_T is None:
        advantages_T = torch.tensor([samples[i].advantage for i in samples_T], device=device)
    return Microbatch(
        token_ids_RL=token_ids.to(device),
        routes=routes_of(routes, device),
        packed_row=packed,
        predictors_T=torch.tensor(predictors_T, device=device),
        targets_T=torch.tensor(targets_T, device=device),
        samples_T=torch.tensor(samples_T, device=device),
        weights_T=torch.tensor(weights_T, device=device),
        sampler_logprobs_T=torch.tensor(sampler_T, device=device),
        advantages_T=advantages_T,
        values_T=of_tokens([samples[i].values for i in chosen]),
        ref_logprobs_T=of_tokens([samples[i].ref_logprobs for i in chosen]),
    )


def waiting_pass(device: torch.device, packing: Packing) -> Microbatch:
    """A microbatch without weight, for a rank that has none left while others still have."""
    sample = TrainingSample(
        token_ids=(0, 0),
        weights=(0.0, 1.0),
        sampler_logprobs=(0.0, 0.0),
        advantages=(0.0,),
        values=(0.0,),
        ref_logprobs=(0.0,),
    )
    (batch,) = microbatches([sample], 2, device, packing)
    return replace(batch, weights_T=torch.zeros_like(batch.weights_T))


def lent_for(model: nn.Module, packing: Packing) -> AbstractContextManager[None]:
    """The model able to run microbatches of this packing; around forward and backward passes.

    Raises:
        ConfigError: the model has layers that would mix the samples of a packed row.
    """
    return nullcontext() if packing == "rows" else Packer(model).lent()


def replayed(model: nn.Module, batch: Microbatch) -> AbstractContextManager[None]:
    """The model sending tokens to the experts of sampling, where they were noted; around forward
    and backward passes."""
    return nullcontext() if batch.routes is None else Routers(model).replayed(batch.routes)


def predict(
    model: nn.Module,
    batch: Microbatch,
    *,
    temperature: float = 1.0,
    value_head: nn.Module | None = None,
) -> Predictions:
    """One forward pass over a microbatch.

    Only positions that predict a trained token are projected to the vocabulary: four fifths
    of a search trajectory are observations, and their logits would be waste.
    """
    base = base_model_of(model)
    run = getattr(base, SHARDED_FORWARD, None) or functools.partial(predict_tokens, base)
    logprobs_T, hidden_TD = run(batch, temperature)
    values_T = None if value_head is None else value_head(hidden_TD)
    return Predictions(logprobs_T=logprobs_T, values_T=values_T)


def predict_tokens(model: Any, batch: Microbatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs [T] of the trained tokens, and the hidden states [T, D] that predict them."""
    decoder, head = decoder_and_head(model)
    packed: dict[str, Any] = {}
    if batch.packed_row is not None:
        packed = {"lent": batch.packed_row, "position_ids": batch.packed_row.positions_1N}
    hidden_RLD = decoder(input_ids=batch.token_ids_RL, use_cache=False, **packed).last_hidden_state
    hidden_TD = hidden_RLD.flatten(0, 1)[batch.predictors_T]
    chunks = []
    for start in range(0, len(hidden_TD), LOGITS_CHUNK):
        part, targets = (
            hidden_TD[start : start + LOGITS_CHUNK],
            batch.targets_T[start:][:LOGITS_CHUNK],
        )
        if len(hidden_TD) > LOGITS_CHUNK and torch.is_grad_enabled():
            # Logits of all chunks at once would undo the chunking: recompute them backwards.
            chunks.append(
                checkpoint(_logprobs, head, part, targets, temperature, use_reentrant=False)
            )
        else:
            chunks.append(_logprobs(head, part, targets, temperature))
    return torch.cat(chunks), hidden_TD


def _logprobs(head: nn.Module, hidden_TD: Tensor, targets_T: Tensor, temperature: float) -> Tensor:
    logits_TV = head(hidden_TD).float() / temperature
    return torch.log_softmax(logits_TV, dim=-1).gather(-1, targets_T[:, None])[:, 0]


@torch.no_grad()
def sample_predictions(
    model: nn.Module,
    batches: Iterable[Microbatch],
    *,
    packing: Packing,
    temperature: float = 1.0,
    value_head: nn.Module | None = None,
) -> list[Predictions]:
    """Of each sample's trained tokens under the current weights, in sample order, on the CPU.

    Args:
        batches: of all samples; those without weight are run and left out.
    """
    out: dict[int, Predictions] = {}
    with lent_for(model, packing):
        for batch in batches:
            with replayed(model, batch):
                made = predict(model, batch, temperature=temperature, value_head=value_head)
            if not batch.weights_T.any():
                continue
            for number in set(batch.samples_T.tolist()):
                own_T = batch.samples_T == number
                out[number] = Predictions(
                    logprobs_T=made.logprobs_T[own_T].cpu(),
                    values_T=None if made.values_T is None else made.values_T[own_T].cpu(),
                )
    return [out[number] for number in range(len(out))]


def decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """(layers up to the last hidden state, projection to the vocabulary) of a causal LM.

    Adapters live inside the layers, so a PEFT model gives its base model's parts.

    Raises:
        ConfigError: the model changes its logits after the projection (soft-capping, scaling).
    """
    base = base_model_of(model)
    config = base.config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        value = getattr(config, name, None)
        if value not in (None, 1, 1.0):
            raise ConfigError(
                f"{type(base).__name__} changes its logits ({name}={value}): not supported"
            )
    return base.base_model, base.get_output_embeddings()


def base_model_of(model: nn.Module) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    base: Any = model
    return base.get_base_model() if hasattr(model, "get_base_model") else base


def hidden_width(model: nn.Module) -> int:
    """D, the size of the last hidden state."""
    width: int = base_model_of(model).get_output_embeddings().weight.shape[1]
    return width
