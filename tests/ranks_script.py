"""What ``tests/test_ranks.py`` runs, on one rank or under torchrun: some updates, to a file.

python ranks_script.py OUT FAMILY OPTIMIZER PACKING WITH RESUME

WITH is ``critic``, ``lora``, ``experts`` (routers frozen, their choices replayed) or ``no``.
"""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from tests.policy.tiny_models import tiny
from tests.training_samples import samples

from spaniel.config import OptimizerConfig, PPOConfig, RLConfig
from spaniel.learner import Learner, trained_state
from spaniel.ranks import LeadLearner, follow, opened, started_by_torchrun
from spaniel.rl.trainer import PolicyObjective
from spaniel.routing import freeze_routers
from spaniel.value_head import ValueHead

STEPS = 4


def main() -> None:
    out, family, optimizer, packing, extra, resume = sys.argv[1:]
    torch.set_num_threads(1)

    def model():
        made = tiny(family, tie_word_embeddings=True)
        if extra == "experts":
            freeze_routers(made)
        if extra == "lora":
            from spaniel.config import LoraConfig
            from spaniel.policy.load import add_lora

            return add_lora(made, LoraConfig(rank=4, target_modules=("q_proj", "v_proj")), seed=3)
        return made

    with opened("cpu") as following:
        if following:
            follow(model)
            return
        cfg = OptimizerConfig(
            name=optimizer,
            learning_rate=1e-3,
            warmup_frac=0.0,
            weight_decay=0.01,
            embedding_factor=2.0,
            packing=packing,
            microbatch_tokens=64,
        )
        settings = {"total_steps": STEPS}
        if extra == "critic":
            settings |= {"value_head": ValueHead(32), "value_factor": 5.0}
        if started_by_torchrun():
            learner = LeadLearner(model(), cfg, copy=model, **settings)
        else:
            learner = Learner(model(), cfg, **settings)
        if resume != "no":
            learner.restore(Path(resume))
        objective = PolicyObjective(RLConfig(ppo=PPOConfig() if extra == "critic" else None))
        metrics = []
        while learner.num_steps < STEPS:
            made = batch(learner.num_steps, extra)
            half = len(made) // 2
            learner.accumulate(made[:half], objective)
            learner.accumulate(made[half:], objective)
            metrics.append(learner.apply(0.5))
            if learner.num_steps == 2:
                learner.save(Path(out) / "step-2", {"settings": ""})
        logprobs = [p.tolist() for p in learner.logprobs(batch(9, "no"))]
        weights = {k: v.tolist() for k, v in trained_state(learner.model).items()}
        result = {"metrics": metrics, "logprobs": logprobs, "weights": weights}
        (Path(out) / "result.json").write_text(json.dumps(result))


def batch(step, extra):
    """A few samples; the last is long, so that one rank has less to do than the other."""
    made = samples((40, 25, 30, 45, 70 + step), shared=20)
    if extra == "experts":
        # Two layers, two experts a token: other ones than the routers would choose, often.
        made = [
            replace(s, routes=tuple(bytes([i % 8, (i + 3) % 8] * 2) for i in s.token_ids))
            for s in made
        ]
    if extra == "critic":
        made = [
            replace(
                s,
                advantages=tuple(0.1 * (i % 5) for i in range(len(s.weights) - 2)),
                values=(0.0,) * (len(s.weights) - 2),
            )
            for s in made
        ]
    return made


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
