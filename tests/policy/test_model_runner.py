import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.tiny_models import KINDS, VOCAB, full_logits, some_ids, tiny

from spaniel.errors import ConfigError
from spaniel.policy.kv_cache import CAPACITY_BLOCK, Chunk
from spaniel.policy.model_runner import ModelRunner


def feed(runner, parts):
    """One pass over (slot, start, ids) parts; [n, V] logits of each."""
    chunks = [Chunk(slot=s, start=start, token_ids=ids) for s, start, ids in parts]
    chunks.sort(key=lambda chunk: (len(chunk.token_ids) > 1, chunk.slot))
    sizes = [len(chunk.token_ids) for chunk in chunks]
    logits = runner.forward(chunks, keep="all").split(sizes)
    return {chunk.slot: part for chunk, part in zip(chunks, logits, strict=True)}


MODELS = {kind: tiny(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(
    plans=st.dictionaries(
        st.integers(0, 5),
        st.lists(st.sampled_from([1, 0, 2, 3, 17]), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=15, deadline=None)
def test_any_ragged_chunking_gives_the_logits_of_one_plain_pass(kind, plans):
    """``plans``: slot -> tokens fed in each pass."""
    model = MODELS[kind]
    runner = ModelRunner(model, max_slots=6)
    texts = {slot: some_ids(sum(sizes), seed=slot) for slot, sizes in plans.items()}
    fed = dict.fromkeys(plans, 0)
    got = {slot: [] for slot in plans}
    for number in range(8):
        parts = []
        for slot, sizes in plans.items():
            size = sizes[number] if number < len(sizes) else 0
            if size:
                parts.append((slot, fed[slot], texts[slot][fed[slot] : fed[slot] + size]))
                fed[slot] += size
        if parts:
            for slot, logits in feed(runner, parts).items():
                got[slot].append(logits)
    for slot, text in texts.items():
        if text:
            expected = full_logits(model, text)
            torch.testing.assert_close(torch.cat(got[slot]), expected, atol=5e-5, rtol=1e-5)


def test_a_long_neighbour_never_reaches_a_short_chunk_through_the_convolution():
    runner = ModelRunner(
        tiny(
            "lfm2",
            layer_types=["conv", "conv", "full_attention"],
            num_hidden_layers=3,
            conv_L_cache=4,
        ),
        max_slots=3,
    )
    short, long = some_ids(2, seed=1), some_ids(60, seed=2)
    alone = feed(runner, [(0, 0, short)])[0]
    together = feed(runner, [(1, 0, short), (0, 0, long), (2, 0, long)])[1]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    step = some_ids(1, seed=3)
    torch.testing.assert_close(
        feed(runner, [(1, 2, step), (0, 60, some_ids(30, seed=4)), (2, 60, step)])[1],
        full_logits(runner.model, short + step)[2:],
        atol=2e-5,
        rtol=1e-5,
    )


def test_a_slot_used_again_remembers_nothing_of_its_last_owner():
    runner = ModelRunner(tiny("lfm2"), max_slots=1)
    feed(runner, [(0, 0, some_ids(50, seed=1))])
    fresh = some_ids(9, seed=2)
    got = feed(runner, [(0, 0, fresh)])[0]
    torch.testing.assert_close(got, full_logits(runner.model, fresh), atol=2e-5, rtol=1e-5)


def test_slots_keep_their_content_when_the_cache_grows():
    runner = ModelRunner(tiny("llama"), max_slots=8)
    text = some_ids(CAPACITY_BLOCK + 40, seed=1)
    cut = CAPACITY_BLOCK - 3
    feed(runner, [(0, 0, text[:cut])])
    feed(runner, [(5, 0, some_ids(4, seed=2))])
    got = feed(runner, [(0, cut, text[cut:])])[0]
    expected = full_logits(runner.model, text)[cut:]
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "lfm2"])
def test_a_copied_slot_continues_like_its_source(kind):
    runner = ModelRunner(tiny(kind), max_slots=4)
    prompt, rest = some_ids(12, seed=1), some_ids(5, seed=2)
    feed(runner, [(2, 0, prompt)])
    runner.cache.copy(2, [0, 3], len(prompt))
    for slot in (0, 3):
        got = feed(runner, [(slot, len(prompt), rest)])[slot]
        expected = full_logits(runner.model, prompt + rest)[len(prompt) :]
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


def test_the_model_is_given_back_as_it_was():
    model = tiny("lfm2").train()
    model.model.layers[1].eval()  # a mode that is not the same everywhere
    before = {name: module.training for name, module in model.named_modules()}
    attention = model.config._attn_implementation
    runner = ModelRunner(model, max_slots=2)
    runner.forward([Chunk(slot=0, start=0, token_ids=[1, 2])])
    with pytest.raises(IndexError):
        runner.forward([Chunk(slot=0, start=0, token_ids=[VOCAB])])
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == attention
    assert "forward" not in vars(model.model.layers[0].conv)
    assert all(p.requires_grad for p in model.parameters())
    assert runner.forward([Chunk(slot=0, start=0, token_ids=[1])]).requires_grad is False


def test_dropout_of_a_training_model_does_not_act():
    model = tiny("llama", attention_dropout=0.9).train()
    runner = ModelRunner(model, max_slots=1)
    ids = some_ids(8, seed=1)
    got = feed(runner, [(0, 0, ids)])[0]
    torch.testing.assert_close(got, full_logits(model.eval(), ids), atol=2e-5, rtol=1e-5)


def test_last_logits_are_those_behind_each_chunk():
    runner = ModelRunner(tiny("qwen2"), max_slots=2)
    texts = some_ids(3, seed=1), some_ids(11, seed=2)
    logits = runner.forward([Chunk(slot=i, start=0, token_ids=t) for i, t in enumerate(texts)])
    expected = torch.stack([full_logits(runner.model, text)[-1] for text in texts])
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            lambda: tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
            "sliding_attention",
        ),
        (
            lambda: transformers.MistralForCausalLM(
                transformers.MistralConfig(
                    vocab_size=9,
                    hidden_size=16,
                    intermediate_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    num_key_value_heads=1,
                    sliding_window=4,
                )
            ),
            "sliding_attention",
        ),
        (
            lambda: transformers.MambaForCausalLM(
                transformers.MambaConfig(vocab_size=9, hidden_size=16, num_hidden_layers=1)
            ),
            "MambaForCausalLM",
        ),
        (
            lambda: tiny(
                "llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
            ),
            "dynamic",
        ),
    ],
)
def test_layers_the_cache_cannot_hold_are_refused_by_name(model, named):
    with pytest.raises(ConfigError, match=named):
        ModelRunner(model(), max_slots=1)


def test_a_layer_that_keeps_its_memory_elsewhere_is_refused():
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ConfigError, match=r"layers \[1\] \(LlamaDecoderLayer\)"):
        ModelRunner(model, max_slots=1)
