"""Record what TRL's GRPO loss gives on one fixed batch, for ``tests/rl/test_loss_against_trl.py``.

    python bench/make_trl_loss_golden.py [--out tests/data/trl_loss.json]

Needs TRL, which Spaniel does not depend on. ``GRPOTrainer._compute_loss`` itself runs, on a
stand-in for the trainer whose forward pass returns given log-probs: two groups of three sequences
of different lengths, with observation tokens between the sampled ones, ratios on both sides of
both clip bounds, and one sequence without an advantage. Written are the batch, and for each
setting the loss and its gradient by the log-probs. Prints the losses as one JSON object.
"""

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from accelerate import Accelerator
from trl import GRPOTrainer

GROUP_SIZE = 3
MAX_COMPLETION_LENGTH = 16
LENGTHS = (5, 9, 12, 3, 16, 7)
REWARDS = (1.0, 0.0, 0.5, 0.25, 0.0, 1.0)
OUT = Path(__file__).parent.parent / "tests" / "data" / "trl_loss.json"


def make_batch() -> list[dict[str, Any]]:
    """Sequences: per completion token its mask, and log-probs under three policies."""
    rng = random.Random(7)
    sequences = []
    for number, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        old = [-rng.uniform(0.05, 4.0) for _ in range(length)]
        # An observation of a third of the length stands in the middle of the longer ones.
        context = range(length // 3, 2 * length // 3) if length > 6 else ()
        sequences.append(
            {
                "group": number // GROUP_SIZE,
                "reward": reward,
                "mask": [int(position not in context) for position in range(length)],
                "logprobs": [round(value + rng.uniform(-0.6, 0.6), 6) for value in old],
                "sampler_logprobs": [round(value, 6) for value in old],
                "ref_logprobs": [round(value + rng.uniform(-0.8, 0.8), 6) for value in old],
            }
        )
    return sequences


def advantages(sequences: list[dict[str, Any]]) -> list[float]:
    """``r - mean(r)`` within each group: what TRL computes for ``scale_rewards="none"``."""
    rewards = torch.tensor([s["reward"] for s in sequences], dtype=torch.float64)
    groups = rewards.view(-1, GROUP_SIZE)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten().tolist()


def padded(sequences: list[dict[str, Any]], name: str) -> torch.Tensor:
    rows = [torch.tensor(s[name], dtype=torch.float64) for s in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def trl_loss(sequences: list[dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    """Loss and gradient by TRL's own code."""
    logps = padded(sequences, "logprobs").requires_grad_(True)
    tool_mask = padded(sequences, "mask").long()
    lengths = torch.tensor([len(s["mask"]) for s in sequences])
    completion_mask = (torch.arange(logps.shape[1])[None] < lengths[:, None]).long()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (
            logps,
            torch.zeros_like(logps),
            None,
        ),
        accelerator=Accelerator(cpu=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        loss_type=case["loss_type"],
        beta=case["beta"],
        epsilon_low=case["epsilon"],
        epsilon_high=case["epsilon_high"],
        max_completion_length=MAX_COMPLETION_LENGTH,
        importance_sampling_level=case["level"],
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": torch.zeros(len(sequences), 2, dtype=torch.long),
        "prompt_mask": torch.ones(len(sequences), 2, dtype=torch.long),
        "completion_ids": torch.zeros_like(completion_mask),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages(sequences), dtype=torch.float64),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
        "old_per_token_logps": padded(sequences, "sampler_logprobs"),
        "ref_per_token_logps": padded(sequences, "ref_logprobs"),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    metrics = trainer._metrics["train"]
    return {
        **case,
        "loss": loss.item(),
        "gradient": [
            row[: len(s["mask"])].tolist() for row, s in zip(logps.grad, sequences, strict=True)
        ],
        "clipped_low_frac": metrics["clip_ratio/low_mean"][0]
        if "clip_ratio/low_mean" in metrics
        else None,
        "clipped_high_frac": metrics["clip_ratio/high_mean"][0]
        if "clip_ratio/high_mean" in metrics
        else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    sequences = make_batch()
    settings = [
        *(
            (loss_type, "token", beta, low, high)
            for loss_type in ("dapo", "grpo", "dr_grpo")
            for beta in (0.0, 0.05)
            for low, high in ((0.2, 0.2), (0.2, 0.28))
        ),
        # CISPO's bound is the highest weight itself; GSPO's bounds are narrow.
        ("cispo", "token", 0.0, 0.2, 1.28),
        ("cispo", "token", 0.05, 0.2, 1.1),
        ("grpo", "sequence", 0.0, 0.05, 0.05),
        ("grpo", "sequence", 0.05, 0.02, 0.1),
    ]
    names = ("loss_type", "level", "beta", "epsilon", "epsilon_high")
    cases = [dict(zip(names, values, strict=True)) for values in settings]
    golden = {
        "made_by": "bench/make_trl_loss_golden.py",
        "trl": trl.__version__,
        "torch": torch.__version__,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "advantages": advantages(sequences),
        "sequences": sequences,
        "cases": [trl_loss(sequences, case) for case in cases],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    shown = [{k: v for k, v in case.items() if k != "gradient"} for case in golden["cases"]]
    print(json.dumps({"trl": trl.__version__, "out": str(args.out), "cases": shown}, indent=2))


if __name__ == "__main__":
    main()
