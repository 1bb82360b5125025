"""A default policy of one's own: the stages of ``spaniel sft base``."""

from typing import Any

from spaniel.checkpoints import MetricsLog
from spaniel.config import BaseConfig, PolicyConfig, Recipe
from spaniel.errors import ArtifactError
from spaniel.policy.load import import_torch
from spaniel.progress import say
from spaniel.rollout import seed_of
from spaniel.run import Run
from spaniel.stages.common import open_checkpoints, training_stage
from spaniel.store import publish_directory


def make_base_demonstrations(run: Run) -> dict[str, Any]:
    """Generate worlds, train a tokenizer on them, let the label teacher walk through them."""
    import_torch()
    from spaniel.sft.base import base_demonstrations, base_tokenizer, make_renderer
    from spaniel.sft.ledgers import save_demonstrations

    cfg = _base(run.recipe)

    def make() -> dict[str, Any]:
        tokenizer = base_tokenizer(run.recipe, cfg)
        demonstrations = base_demonstrations(run.recipe, cfg, make_renderer(tokenizer))
        outputs = {
            "demonstrations": len(demonstrations),
            "tokens": sum(len(d.token_ids) for d in demonstrations),
        }
        with publish_directory(run.path("base", "data"), outputs) as partial:
            tokenizer.save_pretrained(partial / "tokenizer")
            save_demonstrations(partial / "demonstrations.npz", demonstrations)
        say(f"{outputs['demonstrations']:,} demonstrations, {outputs['tokens']:,} tokens")
        return outputs

    made_from = {"num_worlds", "first_seed", "pages", "questions", "noise", "min_reward"}
    made_from |= {
        "vocab_size",
        "extra_texts",
        "drill_questions",
        "chain_questions",
        "tight_questions",
        "start",
    }
    settings = _base_settings(run.recipe, made_from)
    return run.stage("base-demonstrations", settings=settings, needs=(), make=make)


def make_base(run: Run, *, resume: bool = False) -> dict[str, Any]:
    """Train a small policy from random weights; the result is a model directory."""
    import_torch()
    from transformers import AutoTokenizer

    from spaniel.learner import Learner, weights_fingerprint
    from spaniel.policy.export import save_policy
    from spaniel.policy.load import load_policy_model, random_tiny
    from spaniel.sft.base import train_base
    from spaniel.sft.ledgers import load_demonstrations

    cfg = _base(run.recipe)
    settings = _base_settings(run.recipe, set(type(cfg).model_fields))

    def make() -> dict[str, Any]:
        data = run.path("base", "data")
        tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
        seed = seed_of(run.recipe.seed, "model")
        if cfg.start is None:
            model = random_tiny(len(tokenizer), seed=seed)
        else:
            own = PolicyConfig(model=str(cfg.start))
            model, _ = load_policy_model(own, seed=seed, tokenizer=tokenizer)
        learner = Learner(model, cfg.optimizer, total_steps=None)
        checkpoints = open_checkpoints(run, "base", settings, resume=resume)
        state = checkpoints.restore(learner)
        log = MetricsLog(run.path("base", "metrics.jsonl"), first_step=learner.num_steps)

        def on_step(step: int, metrics: dict[str, float], seconds: float) -> None:
            log.append(step, metrics)
            if step % 50 == 0:
                say(
                    f"base {step}  {metrics['progress']:.0%}  own-token loss "
                    f"{metrics['loss/own_tokens']:.4f}"
                )
            if step % 100 == 0:
                checkpoints.save(learner, step, seconds=seconds)

        train_base(
            learner,
            load_demonstrations(data / "demonstrations.npz"),
            cfg,
            vocab_size=len(tokenizer),
            seed=seed_of(run.recipe.seed, "base"),
            on_step=on_step,
            seconds=state.get("seconds", 0.0),
        )
        log.close()
        save_policy(model, tokenizer, run.path("base", "policy"), {"stage": "base"})
        return {"steps": learner.num_steps, "weights": weights_fingerprint(model)}

    return training_stage(run, "base", settings=settings, needs=("base-demonstrations",), make=make)


def _base(recipe: Recipe) -> BaseConfig:
    if recipe.base is None:
        raise ArtifactError("this recipe has no [base] section: there is no base to train")
    return recipe.base


def _base_settings(recipe: Recipe, names: set[str]) -> dict[str, Any]:
    dump = recipe.model_dump(mode="json")
    base = {name: value for name, value in dump["base"].items() if name in names}
    return {"base": base, **{name: dump[name] for name in ("seed", "env", "index", "reward")}}
