"""Model + optimizer + checkpoints: what SFT and RL share."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spaniel.config import OptimizerConfig
from spaniel.errors import ArtifactError, TrainingError
from spaniel.microbatch import (
    Microbatch,
    Predictions,
    base_model_of,
    decoder_and_head,
    lent_for,
    microbatches,
    predict,
    replayed,
    sample_predictions,
)
from spaniel.optimizer import make_optimizer
from spaniel.store import publish_directory, read_manifest
from spaniel.types import TrainingSample

VALUE_HEAD_FILE = "value_head.safetensors"

Objective = Callable[[Predictions, Microbatch], tuple[Tensor, dict[str, Tensor]]]
"""(predictions for the trained tokens, microbatch) -> loss and metrics, both sums."""


def disable_dropout(model: nn.Module) -> None:
    """Take dropout out for good: it would make trainer and sampler disagree."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]  # a float in every model
    model.eval()


class Learner:
    """Updates a model by samples, and saves everything that an exact resume needs.

    Args:
        total_steps: what the schedule is laid out over; None when it follows ``set_progress``.
        value_head: hidden states [T, D] -> values [T]; trained beside the model, at
            ``value_factor`` times its learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        cfg: OptimizerConfig,
        *,
        total_steps: int | None,
        value_head: nn.Module | None = None,
        value_factor: float = 1.0,
    ) -> None:
        self.model, self.cfg, self.total_steps = model, cfg, total_steps
        # Both refuse what cannot be trained, before anything is rolled out.
        decoder_and_head(model)
        lent_for(model, cfg.packing)
        disable_dropout(model)
        if cfg.recompute_activations:
            base_model_of(model).activation_checkpointing_enable()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        base = base_model_of(model)
        tables = [base.get_input_embeddings().weight, base.get_output_embeddings().weight]
        self.value_head = None if value_head is None else value_head.to(self.device)
        heads = list(self.value_head.parameters()) if self.value_head is not None else []
        self.parameters += heads
        self.optimizer = make_optimizer(model, tables, cfg, heads=heads, head_factor=value_factor)
        self.num_steps = 0
        self._progress = 0.0
        self._num_accumulated = 0
        self._totals: dict[str, float] = {}

    def set_progress(self, done: float) -> None:
        """Let the schedule follow ``done`` in [0, 1] instead of counting steps."""
        self._progress = done

    def step(
        self, samples: Sequence[TrainingSample], objective: Objective, *, temperature: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step over all samples; metrics are sums over the microbatches.

        Raises:
            TrainingError: loss or gradient is not finite. The weights are left as they were.
        """
        self.accumulate(samples, objective, temperature=temperature)
        return self.apply()

    def accumulate(
        self, samples: Sequence[TrainingSample], objective: Objective, *, temperature: float = 1.0
    ) -> None:
        """Add the samples' gradient and metrics to those of the coming ``apply``."""
        if not self._num_accumulated:
            self.optimizer.zero_grad(set_to_none=True)
        # transformers recomputes activations in training mode only; dropout is off either way.
        self.model.train(self.cfg.recompute_activations)
        with lent_for(self.model, self.cfg.packing):
            for batch in self._batches(samples):
                with replayed(self.model, batch):
                    made = predict(
                        self.model, batch, temperature=temperature, value_head=self.value_head
                    )
                    loss, metrics = objective(made, batch)
                    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                if not batch.weights_T.any():
                    continue
                for key, value in metrics.items():
                    self._totals[key] = self._totals.get(key, 0.0) + float(value)
        self.model.eval()
        self._num_accumulated += len(samples)

    def _batches(self, samples: Sequence[TrainingSample]) -> Iterable[Microbatch]:
        return microbatches(samples, self.cfg.microbatch_tokens, self.device, self.cfg.packing)

    def apply(self, scale: float = 1.0, *, counts: bool = True) -> dict[str, float]:
        """Step on ``scale`` times the accumulated gradient; returns the accumulated metrics.

        Without samples it only counts the step. ``scale`` is the one denominator of an update
        whose size was not known when its first samples came. The last of several passes over an
        update's samples is the one that ``counts``.

        Raises:
            TrainingError: loss or gradient is not finite. The weights are left as they were.
        """
        totals, self._totals = self._totals, {}
        if self._num_accumulated:
            if scale != 1.0:
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)
            norm = self._clipped_norm()
            if not math.isfinite(norm) or not math.isfinite(totals.get("loss", 0.0)):
                raise TrainingError(
                    f"step {self.num_steps + 1}: loss {totals.get('loss')} or gradient norm "
                    f"{norm} is not finite; weights were not changed. Lower the learning rate."
                )
            totals["grad_norm"] = norm
            rate = self._learning_rate()
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            totals["learning_rate"] = rate
            self.optimizer.step()
        self._num_accumulated = 0
        self.num_steps += int(counts)
        return totals

    def _clipped_norm(self) -> float:
        """The gradient's norm before it was scaled down to ``max_grad_norm``."""
        return float(nn.utils.clip_grad_norm_(self.parameters, self.cfg.max_grad_norm))

    def _learning_rate(self) -> float:
        if self.total_steps is None:
            return learning_rate_at(self._progress, self.cfg)
        done = self.num_steps / self.total_steps
        return learning_rate_at(done, self.cfg, min_warmup=1 / self.total_steps)

    def logprobs(
        self, samples: Sequence[TrainingSample], *, temperature: float = 1.0
    ) -> list[Tensor]:
        """Log-probs of each sample's trained tokens under the current weights, in sample order."""
        return [p.logprobs_T for p in self.predictions(samples, temperature=temperature)]

    def predictions(
        self, samples: Sequence[TrainingSample], *, temperature: float = 1.0
    ) -> list[Predictions]:
        """Of each sample's trained tokens under the current weights, in sample order."""
        return sample_predictions(
            self.model,
            self._batches(samples),
            packing=self.cfg.packing,
            temperature=temperature,
            value_head=self.value_head,
        )

    # -- checkpoints -----------------------------------------------------------------------

    def save(self, directory: Path, state: dict[str, Any]) -> None:
        """Publish a checkpoint atomically: trained weights, optimizer, RNG, ``state``."""
        manifest = {"num_steps": self.num_steps, "total_steps": self.total_steps, **state}
        with publish_directory(directory, manifest) as partial:
            save_weights(self.model, partial / "weights.safetensors")
            if self.value_head is not None:
                save_weights(self.value_head, partial / VALUE_HEAD_FILE)
            torch.save(
                {"optimizer": self._optimizer_state(), "rng": torch.get_rng_state()},
                partial / "optimizer.pt",
            )

    def _optimizer_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def restore(self, directory: Path) -> dict[str, Any]:
        """Load a checkpoint; returns its state. Raises ``ArtifactError`` when it does not fit."""
        manifest = read_manifest(directory, made_by="spaniel run")
        if manifest["total_steps"] != self.total_steps:
            raise ArtifactError(
                f"{directory} belongs to a run of {manifest['total_steps']} steps, this one has "
                f"{self.total_steps}; resume with the same settings or start a new run_dir"
            )
        load_weights(self.model, directory / "weights.safetensors")
        if self.value_head is not None:
            load_weights(self.value_head, directory / VALUE_HEAD_FILE)
        saved = torch.load(directory / "optimizer.pt", weights_only=True)
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        self.num_steps = manifest["num_steps"]
        return manifest


def learning_rate_at(done: float, cfg: OptimizerConfig, *, min_warmup: float = 0.0) -> float:
    """The rate when the share ``done`` of the training is behind: linear warm-up over
    ``warmup_frac``, then constant, or cosine to ``final_frac`` of the peak.

    Args:
        min_warmup: share of one step: even the first step of a warm-up moves the weights.
    """
    if done < cfg.warmup_frac:
        return cfg.learning_rate * min(1.0, (done + min_warmup) / cfg.warmup_frac)
    if cfg.schedule == "constant":
        return cfg.learning_rate
    after = min(1.0, (done - cfg.warmup_frac) / (1 - cfg.warmup_frac))
    final = cfg.final_frac
    return cfg.learning_rate * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * after)))


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name: all of them, or the adapter's alone."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def save_weights(model: nn.Module, path: Path) -> None:
    """Trained parameters as safetensors."""
    from safetensors.torch import save_file

    save_file({name: p.contiguous().cpu() for name, p in trained_state(model).items()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy trained parameters in. Raises ``ArtifactError`` when names or shapes differ."""
    from safetensors.torch import load_file

    saved, own = load_file(path), trained_state(model)
    if set(saved) != set(own):
        odd = sorted(set(saved) ^ set(own))[:3]
        raise ArtifactError(f"{path} was made by another model or adapter: differs in {odd}")
    with torch.no_grad():
        for name, parameter in own.items():
            if saved[name].shape != parameter.shape:
                raise ArtifactError(f"{path}: {name} has shape {tuple(saved[name].shape)}")
            parameter.copy_(saved[name])


def weights_fingerprint(model: nn.Module) -> str:
    """Hash of the trained weights: equal if and only if the bytes are equal."""
    import hashlib

    digest = hashlib.sha256()
    for name, parameter in sorted(trained_state(model).items()):
        digest.update(json.dumps([name, list(parameter.shape)]).encode())
        digest.update(parameter.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
