"""Weights as vLLM reads them: a folder with a whole model, or with an adapter."""

from pathlib import Path
from typing import Any

from spaniel.store import read_json, write_json

_BODY_FILE, _HEAD_FILE = "model-body.safetensors", "model-head.safetensors"


def save_for_vllm(model: Any, folder: Path, *, on_cpu: bool) -> None:
    """The weights as transformers or PEFT save them; for a CPU with a head of their own.

    vLLM's CPU build keeps a packed copy of the projection to the vocabulary. Where that is tied to
    the embedding, an update of the weights does not reach the copy, so there the two are saved
    apart.
    """
    model.save_pretrained(folder)
    config = folder / "config.json"
    if on_cpu and config.exists() and read_json(config).get("tie_word_embeddings"):
        _add_head(model, folder)
        write_json(config, {**read_json(config), "tie_word_embeddings": False})


def _add_head(model: Any, folder: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = read_json(index)
    else:
        body = (folder / "model.safetensors").rename(folder / _BODY_FILE)
        with safe_open(body, "pt") as opened:
            files = {"metadata": {}, "weight_map": dict.fromkeys(opened.keys(), _BODY_FILE)}
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head) + ".weight"
    save_file({name: head.weight.detach().cpu().clone()}, folder / _HEAD_FILE, {"format": "pt"})
    files["weight_map"][name] = _HEAD_FILE
    write_json(index, files)
