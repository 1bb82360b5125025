"""The RL loss, top to bottom: log-probs -> ratio -> surrogate -> KL -> scalar.

Shape letter: T trained tokens of one microbatch. Context tokens never get here.

    ratio    rho_t = pi(token) / pi_sampler(token), of the token or of its sequence (GSPO)
    clip     -min(rho A, clip(rho, 1 - low, 1 + high) A)       PPO, GRPO, DAPO; GSPO by sequence
    icepop   -rho A inside the band, 0 outside                 IcePop
    cispo    -[min(rho, 1 + high)] A log pi                    CISPO; [.] without gradient
    none     -rho A
"""

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0  # exp() of a larger gap overflows; such a token is a sampler/trainer mismatch

Surrogate = Literal["clip", "icepop", "cispo", "none"]


def policy_loss(
    logprobs_T: Tensor,
    *,
    sampler_logprobs_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    surrogate: Surrogate = "clip",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    band: tuple[float, float] = (0.2, 5.0),
    sequences_T: Tensor | None = None,
    ref_logprobs_T: Tensor | None = None,
    kl_beta: float = 0.0,
    kl_estimator: Literal["k1", "k3"] = "k3",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Token-level policy-gradient loss.

    ``clip`` is PPO's (https://arxiv.org/abs/1707.06347, eq. 7) with DAPO's asymmetric bounds
    (https://arxiv.org/abs/2503.14476, eq. 10); with ``sequences_T`` it is GSPO
    (https://arxiv.org/abs/2507.18071, eq. 5 and 7). ``icepop`` keeps a token's importance weight
    as it is inside ``band`` and leaves the token out outside of it
    (https://arxiv.org/abs/2510.18855); its denominator counts the tokens left out. ``cispo`` clips
    the weight and not the gradient (https://arxiv.org/abs/2506.13585, eq. 4).

    Args:
        logprobs_T: of the current policy, with gradient, nats.
        sampler_logprobs_T: of the policy that sampled, recorded when it did.
        weights_T: normalisation of the update (``samples.py``): with the global token mean, one
            for each token, or 1 / trained tokens.
        band: lowest and highest ratio of ``icepop``.
        sequences_T: number of each token's sequence; the ratio is then the geometric mean over the
            sequence's tokens. All of a sequence's tokens have to be here.
        ref_logprobs_T: of the frozen reference; needed when ``kl_beta`` > 0.
        kl_estimator: ``k3`` adds ``exp(d) - 1 - d``, d = reference - current, to the loss
            (DeepSeekMath, https://arxiv.org/abs/2402.03300, eq. 4). ``k1`` takes -d from the
            advantage: as a term of the loss its gradient would be zero on average.

    Returns:
        Scalar loss and detached scalar metrics; both add up over microbatches. Metrics are
        means over the update's tokens under ``weights_T``.
    """
    log_ratio_T = (logprobs_T - sampler_logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if sequences_T is not None:
        log_ratio_T = _sequence_means(log_ratio_T, sequences_T)
    ratio_T = log_ratio_T.exp()

    ref_log_ratio_T = torch.zeros_like(ratio_T)
    if kl_beta > 0:
        assert ref_logprobs_T is not None, "kl_beta > 0 needs ref_logprobs_T"
        ref_log_ratio_T = (ref_logprobs_T - logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        if kl_estimator == "k1":
            advantages_T = advantages_T + kl_beta * ref_log_ratio_T.detach()

    kept_T = torch.ones_like(ratio_T, dtype=torch.bool)
    if surrogate == "clip":
        clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high)
        kept_T = ratio_T == clipped_T
        token_loss_T = -torch.minimum(ratio_T * advantages_T, clipped_T * advantages_T)
    elif surrogate == "icepop":
        kept_T = (ratio_T >= band[0]) & (ratio_T <= band[1])
        token_loss_T = -torch.where(kept_T, ratio_T, 0.0) * advantages_T
    elif surrogate == "cispo":
        kept_T = ratio_T <= 1 + clip_high
        weight_T = ratio_T.clamp(max=1 + clip_high).detach()
        token_loss_T = -weight_T * advantages_T * logprobs_T
    else:
        token_loss_T = -ratio_T * advantages_T

    ref_k3_T = ref_log_ratio_T.exp() - 1 - ref_log_ratio_T
    if kl_beta > 0 and kl_estimator == "k3":
        token_loss_T = token_loss_T + kl_beta * ref_k3_T

    loss = (token_loss_T * weights_T).sum()
    with torch.no_grad():
        outside_T = (ratio_T < band[0]) | (ratio_T > band[1])
        means = {
            "ratio/mean": ratio_T,
            "ratio/clipped_frac": ~kept_T,
            "ratio/outside_band_frac": outside_T,
            "kl/sampler_k1": -log_ratio_T,
            "kl/sampler_k3": ratio_T - 1 - log_ratio_T,
            "kl/reference_k3": ref_k3_T,
            "entropy/sampled": -logprobs_T,
            "advantage/token_mean": advantages_T,
        }
        metrics = {name: (values * weights_T).sum() for name, values in means.items()}
    return loss, {"loss": loss.detach(), **metrics}


def _sequence_means(log_ratio_T: Tensor, sequences_T: Tensor) -> Tensor:
    """Each token's sequence mean of the log ratios."""
    _, index_T = torch.unique(sequences_T, return_inverse=True)
    zeros = torch.zeros(int(index_T.max()) + 1, dtype=log_ratio_T.dtype, device=log_ratio_T.device)
    sums = zeros.index_add(0, index_T, log_ratio_T)
    counts = zeros.index_add(0, index_T, torch.ones_like(log_ratio_T))
    return (sums / counts)[index_T]
