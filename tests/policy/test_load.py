from pathlib import Path

import pytest
import torch
from tests.policy.tiny_models import full_logits, tiny

from spaniel.config import EnvConfig, LoraConfig, PolicyConfig, load_recipe
from spaniel.errors import ArtifactError, ConfigError
from spaniel.policy import load
from spaniel.policy.load import (
    TINY_KNOWS,
    add_lora,
    load_policy_model,
    random_tiny,
    tiny_config,
    unfamiliar_settings,
)


class Words:
    """A tokenizer of which only the size is asked."""

    def __len__(self):
        return 300


def test_random_tiny_has_the_stated_shape_and_its_seed_decides_the_weights():
    cfg = PolicyConfig(model="random-tiny", device="cpu")
    tokenizer = Words()
    before = torch.random.get_rng_state()
    first, given = load_policy_model(cfg, seed=1, tokenizer=tokenizer)
    assert given is tokenizer
    assert torch.equal(torch.random.get_rng_state(), before)
    again, other = random_tiny(300, seed=1), random_tiny(300, seed=2)
    layer = first.model.layers[0]
    assert layer.feed_forward.w1.weight.shape == (352, 128)
    assert [type(m).__name__ for m in (layer.conv, first.model.layers[1].self_attn)] == [
        "Lfm2ShortConv",
        "Lfm2Attention",
    ]
    assert first.lm_head.weight is first.model.embed_tokens.weight
    assert first.model.embed_tokens.weight.shape == (300, 128)
    assert not first.training
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_tiny_config_has_about_the_stated_parameters():
    model = random_tiny(4096, seed=0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(2.1e6, rel=0.02)
    assert tiny_config(10).vocab_size == 10


def test_a_local_directory_is_loaded_in_the_asked_precision(tmp_path):
    model = tiny("qwen3")
    model.save_pretrained(tmp_path)
    cfg = PolicyConfig(model=str(tmp_path), device="cpu", dtype="bfloat16")
    loaded, _ = load_policy_model(cfg, seed=0, tokenizer=Words())
    assert loaded.lm_head.weight.dtype is torch.bfloat16
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.bfloat16())


@pytest.mark.parametrize("name", ["spaniel-tiny", "random-tiny"])
def test_an_absent_packaged_model_is_an_artifact_error(name, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "TINY_FOLDER", tmp_path)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json|model\.safetensors"):
        load_policy_model(PolicyConfig(model=name, device="cpu"), seed=0)


def test_a_model_that_does_not_exist_is_one_line(tmp_path):
    cfg = PolicyConfig(model=str(tmp_path / "nothing"), device="cpu")
    for tokenizer in (None, Words()):
        with pytest.raises(ConfigError, match=r"policy\.model .*nothing") as caught:
            load_policy_model(cfg, seed=0, tokenizer=tokenizer)
        assert "\n" not in str(caught.value)


def test_a_device_that_does_not_exist_is_refused():
    for device in ("abacus", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(ConfigError, match=r"policy\.device"):
            load_policy_model(PolicyConfig(model="random-tiny", device=device), seed=0)


def test_lora_trains_adapters_alone_starts_as_the_model_itself_and_says_its_share(capsys):
    plain = tiny("lfm2")
    before = full_logits(plain, (1, 2, 3))
    model = add_lora(tiny("lfm2"), LoraConfig(rank=2), seed=1)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)
    assert torch.equal(full_logits(model, (1, 2, 3)), before)
    assert "parameters train" in capsys.readouterr().err
    again = add_lora(tiny("lfm2"), LoraConfig(rank=2), seed=1)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_lora_on_layers_that_do_not_exist_is_refused():
    with pytest.raises(ConfigError, match="target_modules"):
        add_lora(tiny("llama"), LoraConfig(target_modules=("nothing",)), seed=0)


def test_settings_that_the_packaged_policy_never_saw_are_named():
    tiny_policy = PolicyConfig(model="spaniel-tiny")
    assert unfamiliar_settings(tiny_policy, EnvConfig(**TINY_KNOWS)) == []
    odd = EnvConfig(**{**TINY_KNOWS, "max_results": 9})
    assert unfamiliar_settings(tiny_policy, odd) == ["max_results = 4"]
    assert unfamiliar_settings(PolicyConfig(model="some/model"), EnvConfig()) == []


def test_the_packaged_recipes_use_the_settings_that_the_packaged_policy_knows():
    root = Path(__file__).parents[2]
    recipes = [load_recipe(p) for p in root.glob("recipes/*/recipe.toml")]
    recipes.append(load_recipe(root / "src/spaniel/quickstart.toml"))
    base = load_recipe(root / "recipes/tiny-base/recipe.toml")
    assert unfamiliar_settings(PolicyConfig(model="spaniel-tiny"), base.env) == []
    for recipe in recipes:
        assert unfamiliar_settings(recipe.policy, recipe.env) == [], recipe.name
