import random

import torch

from spaniel.policy.load import random_tiny

VOCAB = 1000


def repeated(seed):
    return random.Random(seed).sample(range(VOCAB), 30) * 3


def copied_logits(model):
    """Logits at the second and third time [300, VOCAB], and the tokens that come [300]."""
    ids = torch.tensor([repeated(seed) for seed in range(5)])
    with torch.no_grad():
        logits = model(ids[:, :-1], use_cache=False).logits[:, 29:]
    return logits.flatten(0, 1), ids[:, 30:].flatten()


def copy_loss(model):
    """Mean negative log-likelihood of the second and third time, nats."""
    return float(torch.nn.functional.cross_entropy(*copied_logits(model)))


def test_the_start_prefers_what_followed_last_time():
    logits, following = copied_logits(random_tiny(VOCAB, seed=0))
    own = logits.gather(-1, following[:, None])
    above = (logits > own).float().mean(-1)  # share of the vocabulary that is preferred to it
    assert float(above.mean()) < 0.4  # 0.5 by chance, with a standard error below 0.02


def test_copying_is_learnt_in_a_few_steps():
    model = random_tiny(VOCAB, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    before = copy_loss(model)
    for step in range(100):
        ids = torch.tensor([repeated(100 + 4 * step + i) for i in range(4)])
        logits = model(ids[:, :-1], use_cache=False).logits[:, 29:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 30:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert copy_loss(model) < before - 1.0


def test_the_seed_decides_the_weights():
    first, same, other = (random_tiny(64, seed=s).state_dict() for s in (1, 1, 2))
    name = "model.layers.1.self_attn.v_proj.weight"
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])
