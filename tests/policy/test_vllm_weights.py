import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.policy.tiny_models import full_logits, some_ids, tiny

from spaniel.config import LoraConfig
from spaniel.policy.load import add_lora
from spaniel.policy.vllm.weights import save_for_vllm


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_a_tied_model_for_a_cpu_gets_a_head_of_its_own_and_computes_the_same(
    tmp_path, kind, shard, monkeypatch
):
    model = tiny(kind, tie_word_embeddings=True)
    save = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda where: save(where, max_shard_size=shard))
    save_for_vllm(model, tmp_path, on_cpu=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is not loaded.get_input_embeddings().weight
    ids = some_ids(20, seed=1)
    assert torch.equal(full_logits(loaded, ids), full_logits(model, ids))
    files = {path.name for path in tmp_path.glob("*.safetensors")}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == files
    assert (len(files) > 2) == (shard == "20KB")
    assert torch.equal(
        load_file(tmp_path / "model-head.safetensors")["lm_head.weight"], model.lm_head.weight
    )


@pytest.mark.parametrize(("tied", "on_cpu"), [(True, False), (False, True)])
def test_others_are_saved_as_transformers_does(tmp_path, tied, on_cpu):
    model = tiny("llama", tie_word_embeddings=tied)
    save_for_vllm(model, tmp_path, on_cpu=on_cpu)
    assert {p.name for p in tmp_path.glob("*.safetensors")} == {"model.safetensors"}
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is tied


def test_an_adapter_is_saved_as_peft_does(tmp_path):
    model = add_lora(tiny("llama", tie_word_embeddings=True), LoraConfig(rank=2), seed=0)
    save_for_vllm(model, tmp_path, on_cpu=True)
    assert {p.name for p in tmp_path.glob("*.safetensors")} == {"adapter_model.safetensors"}
