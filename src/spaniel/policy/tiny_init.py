"""How the small default policy starts: random weights, arranged so that copying is in reach.

A policy of a few million parameters has to copy names it saw into queries it writes. From plain
random weights that skill appears late and suddenly, if at all. Three choices bring it forward:

- attention starts by looking for equal content and passing it on: query and key project alike,
  value and output are each other's transpose (mimetic initialisation,
  https://arxiv.org/abs/2305.09828);
- a short convolution starts as a shift by one token, its gates open, so that "the token after
  the last time I saw this one" is a single attention step (an induction head,
  https://arxiv.org/abs/2209.11895);
- feed-forward blocks start silent, so that the residual stream starts as the embeddings.

Everything trains; nothing is frozen or looked up. Learning rates above 1e-3 destroy the start
before it can be used.
"""

import math
from typing import Any

import torch
from torch import Tensor

EMBEDDING_STD = 0.06
CONSTANT = 0.3
"""First coordinate of every embedding: what opens the convolutions' gates."""
NORM_WEIGHT = 0.8
"""Of query and key norms: how sharply attention starts. At 2 it copies at once but can hardly
learn to look elsewhere, at 0.5 it does not copy."""
OUTPUT_WEIGHT = 2.5
"""Of the last norm: with tied embeddings this small, 1 could not put more than half of the
probability on one token of 4,096."""


@torch.no_grad()
def copying_start(model: Any, *, seed: int) -> None:
    """Set the weights of an ``Lfm2ForCausalLM`` in place; see the module's docstring.

    Every attention layer has to follow a convolution layer, whose shift it reads.
    """
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    embeddings = model.get_input_embeddings().weight
    embeddings.copy_(EMBEDDING_STD * _normal(embeddings.shape, generator))
    embeddings[:, 0] = CONSTANT
    model.model.embedding_norm.weight.fill_(OUTPUT_WEIGHT)
    shifted = torch.eye(width)
    for layer in model.model.layers:
        _silence(layer.feed_forward, width, generator)
        if hasattr(layer, "conv"):
            shifted = _orthogonal(width, width, generator)
            _shift_by_one(layer.conv, shifted, width, generator)
        else:
            _look_up_and_pass_on(layer.self_attn, shifted, width, generator)


def _silence(feed_forward: Any, width: int, generator: torch.Generator) -> None:
    for projection in (feed_forward.w1, feed_forward.w3):
        projection.weight.copy_(_normal(projection.weight.shape, generator) / math.sqrt(width))
    feed_forward.w2.weight.zero_()


def _shift_by_one(conv: Any, basis: Tensor, width: int, generator: torch.Generator) -> None:
    """out_t = basis^T x_(t-1): gates of one, the tap of the previous token."""
    norm = math.sqrt((CONSTANT**2 + (width - 1) * EMBEDDING_STD**2) / width)
    weight = 0.3 * _normal(conv.in_proj.weight.shape, generator) / math.sqrt(width)
    weight[: 2 * width, 0] += norm / CONSTANT
    weight[2 * width :] += torch.eye(width)
    conv.in_proj.weight.copy_(weight)
    taps = 0.1 * _normal(conv.conv.weight.shape, generator)
    taps[:, 0, -2] += 1.0
    conv.conv.weight.copy_(taps)
    conv.out_proj.weight.copy_(EMBEDDING_STD * basis.T)


def _look_up_and_pass_on(
    attention: Any, shifted: Tensor, width: int, generator: torch.Generator
) -> None:
    """Queries hold the token, keys the token before, values the token: so the output is what
    followed the last time."""
    size = attention.head_dim
    num_kv = attention.k_proj.weight.shape[0] // size
    num_heads = attention.q_proj.weight.shape[0] // size
    content = _orthogonal(num_kv * size, width, generator)
    passed_on = _orthogonal(num_kv * size, width, generator)
    attention.k_proj.weight.copy_(content @ shifted)
    attention.v_proj.weight.copy_(passed_on)
    for head in range(num_heads):
        group = slice(head * num_kv // num_heads * size, (head * num_kv // num_heads + 1) * size)
        own = slice(head * size, (head + 1) * size)
        attention.q_proj.weight[own] = content[group]
        attention.out_proj.weight[:, own] = EMBEDDING_STD * passed_on[group].T
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        noise = 0.1 * _normal(projection.weight.shape, generator) / math.sqrt(width)
        projection.weight.add_(noise)
    attention.q_layernorm.weight.fill_(NORM_WEIGHT)
    attention.k_layernorm.weight.fill_(NORM_WEIGHT)


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns] whose rows are orthonormal, in blocks of at most ``columns`` rows."""
    blocks = []
    for first in range(0, rows, columns):
        size = min(columns, rows - first)
        basis: Tensor = torch.linalg.qr(torch.randn(columns, size, generator=generator))[0]
        blocks.append(basis.T)
    return torch.cat(blocks)
