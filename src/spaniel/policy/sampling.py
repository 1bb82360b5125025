"""Draw one token per row, each row by its own number, with the log-prob of what was drawn from."""

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_CANDIDATES = 256
"""Top-p looks at so many of the likeliest tokens before it sorts the whole vocabulary."""


def draw(
    logits_RV: Tensor,
    *,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    uniforms: Sequence[float],
) -> tuple[list[int], list[float]]:
    """A token id and its log-prob for each row.

    The token is the inverse of the cumulative distribution, in vocabulary order, at the
    row's uniform number, so a row's draw does not depend on the rows beside it.

    Args:
        logits_RV: float32.
        temperatures: per row; 0 takes the most likely token, with log-prob 0.
        top_ps: per row, in (0, 1]; the smallest set of most likely tokens with at least this
            mass is kept, and renormalised.
        uniforms: per row, in [0, 1).

    Returns:
        [R] ids and [R] log-probs in nats of exactly that distribution. A row whose logits are
        not finite gets log-prob NaN.
    """
    device = logits_RV.device
    heat_R = torch.tensor(temperatures, device=device, dtype=torch.float32)
    greedy_R = heat_R == 0
    scaled_RV = logits_RV / torch.where(greedy_R, 1.0, heat_R)[:, None]
    logprobs_RV = scaled_RV.log_softmax(-1)
    probs_RV = logprobs_RV.exp()
    narrow = [row for row, top_p in enumerate(top_ps) if top_p < 1]
    if narrow:
        limits = torch.tensor([top_ps[row] for row in narrow], device=device)
        probs_RV[narrow] = nucleus(probs_RV[narrow], limits)
    ids_R = _inverse_cdf(probs_RV, torch.tensor(uniforms, device=device, dtype=torch.float64))
    if any(heat == 0 for heat in temperatures):
        ids_R = torch.where(greedy_R, logits_RV.argmax(-1), ids_R)
    chosen_R = logprobs_RV.gather(-1, ids_R[:, None])[:, 0]
    if narrow:
        chosen_R[narrow] -= probs_RV[narrow].sum(-1).log()
    # chosen * 0 keeps a NaN a NaN
    chosen_R = torch.where(greedy_R, chosen_R * 0, chosen_R)
    return ids_R.tolist(), chosen_R.tolist()


def nucleus(probs_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """The probabilities with everything outside each row's top-p set made 0; not renormalised.

    The set is the shortest prefix, by falling probability, with mass >= top_p
    (https://arxiv.org/abs/1904.09751).
    """
    num_tokens = probs_RV.shape[-1]
    for count in (min(FIRST_CANDIDATES, num_tokens), num_tokens):
        top = probs_RV.topk(count, dim=-1)
        mass_before = top.values.cumsum(-1, dtype=torch.float64) - top.values
        if bool((mass_before[:, -1] + top.values[:, -1] >= top_p_R).all()):
            break
    kept = torch.where(mass_before < top_p_R[:, None], top.values, 0)
    return torch.zeros_like(probs_RV).scatter_(-1, top.indices, kept)


def _inverse_cdf(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    cdf_RV = probs_RV.cumsum(-1, dtype=torch.float64)
    total_R = cdf_RV[:, -1]
    # Strictly below the total, so that the token found has probability above 0.
    target_R = torch.minimum(
        uniform_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R))
    )
    found_R = torch.searchsorted(cdf_RV, target_R[:, None], right=True)[:, 0]
    return found_R.clamp_(max=probs_RV.shape[-1] - 1)
