"""Weights on their way from the trainer to the sampler: copied in, or LoRA merged into a copy."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spaniel.errors import ArtifactError


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy a state dict into a model; of a PEFT model, the adapters alone will do.

    Raises:
        ArtifactError: names are missing or unknown, or shapes differ; nothing was copied.
    """
    if hasattr(model, "get_base_model"):
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        adapters = get_peft_model_state_dict(model)
        if adapters.keys() == weights.keys():
            _check_shapes(adapters, weights)
            set_peft_model_state_dict(model, dict(weights))
            return
    own = model.state_dict()
    # A tied weight may be named once or twice.
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing, unknown = own.keys() - weights.keys() - tied, weights.keys() - own.keys()
    if missing or unknown:
        raise ArtifactError(
            f"the weights do not fit the model: {len(missing)} missing {sorted(missing)[:3]}, "
            f"{len(unknown)} unknown {sorted(unknown)[:3]}"
        )
    _check_shapes(own, weights)
    model.load_state_dict(weights, strict=False)


def copyable_weights(model: Any) -> dict[str, Tensor]:
    """What ``load_weights`` needs to make a second model like this one: of a PEFT model, the
    adapters."""
    if hasattr(model, "get_base_model"):
        from peft import get_peft_model_state_dict

        adapters: dict[str, Tensor] = get_peft_model_state_dict(model)
        return adapters
    own: dict[str, Tensor] = model.state_dict()
    return own


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, Tensor]:
    """The state dict of the plain model with a PEFT model's LoRA added in; all copies.

    W + (alpha / rank) B A (https://arxiv.org/abs/2106.09685, eq. 3). The model is not
    changed. Load it into a second, plain model to sample without the adapters' overhead.
    """
    base = model.get_base_model()
    merged = {}
    for name, value in base.state_dict().items():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.rpartition(".base_layer.")
        value = value.detach().clone()
        if owner and leaf == "weight":
            layer: Any = base.get_submodule(owner)
            for adapter in layer.active_adapters:
                value += layer.get_delta_weight(adapter).to(value.dtype)
        merged[name.replace(".base_layer.", ".")] = value
    return merged


def _check_shapes(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        if own[name].shape != value.shape:
            raise ArtifactError(
                f"the weights do not fit the model: {name} must be {tuple(own[name].shape)}, "
                f"got {tuple(value.shape)}"
            )
