import asyncio

import pytest
import torch
from tests.policy.tiny_models import full_logits, some_ids, tiny

from spaniel.config import LoraConfig
from spaniel.errors import ArtifactError
from spaniel.policy.load import add_lora
from spaniel.policy.torch_engine import TorchEngine
from spaniel.policy.weights import load_weights, merged_weights

IDS = some_ids(12, seed=1)


def adapted(kind, **changes):
    """A LoRA model whose adapters do something."""
    model = add_lora(tiny(kind, **changes), LoraConfig(rank=2, alpha=8), seed=1)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=generator)
    return model.eval()


def engine_of(model):
    return TorchEngine(model, stop_ids=[], decode=lambda ids: "")


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_the_engine_samples_from_the_adapters(kind):
    model = adapted(kind)
    logprobs = full_logits(model, IDS)[:-1].log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(IDS[1:])[:, None])[:, 0].tolist()
    engine = engine_of(model)
    assert engine.probe(IDS) == pytest.approx(expected, abs=1e-5)
    with model.disable_adapter():
        assert engine.probe(IDS) != pytest.approx(expected, abs=1e-2)


def test_adapters_alone_can_be_loaded_and_change_the_probe():
    from peft import get_peft_model_state_dict

    trained = adapted("lfm2")
    engine = engine_of(add_lora(tiny("lfm2"), LoraConfig(rank=2, alpha=8), seed=9))
    before = engine.probe(IDS)
    asyncio.run(engine.load(1, get_peft_model_state_dict(trained)))
    assert engine.probe(IDS) == engine_of(trained).probe(IDS)
    assert engine.probe(IDS) != before


@pytest.mark.parametrize(
    ("kind", "changes"), [("llama", {}), ("qwen2", {}), ("lfm2", {"conv_bias": True})]
)
def test_merged_weights_make_the_plain_model_equal_the_adapted_one(kind, changes):
    model = adapted(kind, **changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = tiny(kind, **changes)
    load_weights(plain, merged_weights(model))
    torch.testing.assert_close(
        full_logits(plain, IDS), full_logits(model, IDS), atol=1e-4, rtol=1e-4
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_merged_weights_are_copies():
    model = adapted("llama")
    merged = merged_weights(model)
    owned = {value.data_ptr() for value in model.state_dict().values()}
    assert not owned & {value.data_ptr() for value in merged.values()}


def test_a_tied_weight_may_be_named_once():
    model, other = tiny("lfm2"), tiny("lfm2")
    with torch.no_grad():
        other.model.embed_tokens.weight.mul_(2)
    once = {n: v for n, v in other.state_dict().items() if n != "lm_head.weight"}
    load_weights(model, once)
    assert torch.equal(full_logits(model, IDS), full_logits(other, IDS))
    with pytest.raises(ArtifactError, match="1 missing"):
        load_weights(model, {n: v for n, v in once.items() if "embed_tokens" not in n})


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")
def test_prompt_learning_is_refused():
    import peft

    from spaniel.errors import ConfigError

    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ConfigError, match="prompt learning"):
        engine_of(peft.get_peft_model(tiny("llama"), settings))
