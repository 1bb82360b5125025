"""A trained policy on disk: a directory that transformers or PEFT load without Spaniel."""

from pathlib import Path
from typing import Any

from spaniel.errors import ArtifactError
from spaniel.policy.weights import load_weights
from spaniel.store import publish_directory, read_manifest

_FULL, _ADAPTER = "model.safetensors", "adapter_model.safetensors"


def save_policy(model: Any, tokenizer: Any, directory: Path, made_by: dict[str, Any]) -> None:
    """Publish a policy atomically: the whole model, or the LoRA adapter alone."""
    with publish_directory(directory, dict(made_by)) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def load_policy_weights(model: Any, directory: Path) -> None:
    """Copy a saved policy's weights into a model of the same shape.

    Raises:
        ArtifactError: the directory holds no complete policy, or one of another shape.
    """
    from safetensors.torch import load_file

    read_manifest(directory, made_by="spaniel run")
    name = _ADAPTER if hasattr(model, "peft_config") else _FULL
    if not (directory / name).exists():
        raise ArtifactError(f"{directory / name} is missing: the policy was trained differently")
    load_weights(model, load_file(directory / name))
