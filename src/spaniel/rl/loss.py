"""The RL loss, top to bottom: log-probs -> ratio -> clipped surrogate -> KL -> scalar.

Shape letter: T trained tokens of one microbatch. Context tokens never get here.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0  # exp() of a larger gap overflows; such a token is a sampler/trainer mismatch


def policy_loss(
    logprobs_T: Tensor,
    *,
    sampler_logprobs_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    ref_logprobs_T: Tensor | None = None,
    kl_beta: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped token-level policy-gradient loss.

    PPO's clip (https://arxiv.org/abs/1707.06347, eq. 7) with DAPO's asymmetric bounds
    (https://arxiv.org/abs/2503.14476, eq. 10), minus ``kl_beta`` times the k3 estimate of
    KL to a frozen reference (DeepSeekMath, https://arxiv.org/abs/2402.03300, eq. 4).

    Args:
        logprobs_T: of the current policy, with gradient, nats.
        sampler_logprobs_T: of the policy that sampled, recorded when it did.
        weights_T: normalisation of the whole update (``samples.py``): with the global token
            mean, 1 / trained tokens of the update.
        ref_logprobs_T: of the frozen reference; needed when ``kl_beta`` > 0.

    Returns:
        Scalar loss and detached scalar metrics; both add up over microbatches. Metrics are
        means over the update's tokens under ``weights_T``.
    """
    log_ratio = (logprobs_T - sampler_logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    token_loss = -torch.minimum(ratio * advantages_T, clipped * advantages_T)

    ref_kl_T = torch.zeros_like(token_loss)
    if kl_beta > 0:
        assert ref_logprobs_T is not None, "kl_beta > 0 needs ref_logprobs_T"
        ref_log_ratio = (ref_logprobs_T - logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ref_kl_T = ref_log_ratio.exp() - 1 - ref_log_ratio
        token_loss = token_loss + kl_beta * ref_kl_T

    loss = (token_loss * weights_T).sum()
    with torch.no_grad():
        metrics = {
            "loss": loss.detach(),
            "ratio/mean": (ratio * weights_T).sum(),
            "ratio/clipped_frac": ((ratio != clipped) * weights_T).sum(),
            "kl/sampler_k3": ((ratio - 1 - log_ratio) * weights_T).sum(),
            "kl/reference_k3": (ref_kl_T * weights_T).sum(),
            "advantage/token_mean": (advantages_T * weights_T).sum(),
        }
    return loss, metrics
