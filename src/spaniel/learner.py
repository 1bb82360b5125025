"""Model + optimizer + checkpoints: what SFT and RL share.

Shape letters: B rows of a microbatch, L padded length, T trained tokens, D width, V vocabulary.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spaniel.config import OptimizerConfig
from spaniel.errors import ArtifactError, ConfigError, TrainingError
from spaniel.optimizer import make_optimizer
from spaniel.store import publish_directory, read_manifest
from spaniel.types import TrainingSample

LOGITS_CHUNK = 2048
"""Trained positions projected to the vocabulary at once: bounds the memory of logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Right-padded rows of one forward pass, and their trained tokens as flat arrays."""

    token_ids_BL: Tensor
    rows_T: Tensor
    """Row of each trained token."""
    positions_T: Tensor
    """Position of each trained token, from 1: it is predicted from the one before."""
    weights_T: Tensor
    sampler_logprobs_T: Tensor
    advantages_T: Tensor

    @property
    def targets_T(self) -> Tensor:
        """The trained token ids."""
        return self.token_ids_BL[self.rows_T, self.positions_T]


Objective = Callable[[Tensor, Microbatch], tuple[Tensor, dict[str, Tensor]]]
"""(log-probs of the trained tokens, microbatch) -> loss and metrics, both sums."""


def microbatches(
    samples: Sequence[TrainingSample], max_tokens: int, device: torch.device
) -> Iterator[Microbatch]:
    """Rows of similar length together, at most ``max_tokens`` with padding (one row at least).

    Attention and convolutions are causal and padding stands on the right, so it cannot reach
    a trained token; no mask is needed.
    """
    rows: list[TrainingSample] = []
    for sample in sorted(samples, key=lambda s: len(s.token_ids)):
        if rows and (len(rows) + 1) * len(sample.token_ids) > max_tokens:
            yield _microbatch(rows, device)
            rows = []
        rows.append(sample)
    if rows:
        yield _microbatch(rows, device)


def _microbatch(rows: Sequence[TrainingSample], device: torch.device) -> Microbatch:
    length = max(len(row.token_ids) for row in rows)
    token_ids = torch.zeros(len(rows), length, dtype=torch.long)
    trained: list[tuple[int, int, float, float, float]] = []
    for number, row in enumerate(rows):
        token_ids[number, : len(row.token_ids)] = torch.tensor(row.token_ids)
        trained += [
            (number, position, weight, row.sampler_logprobs[position], row.advantage)
            for position, weight in enumerate(row.weights)
            if weight != 0.0 and position > 0
        ]
    rows_T, positions_T, weights_T, sampler_T, advantages_T = zip(*trained, strict=True)
    return Microbatch(
        token_ids_BL=token_ids.to(device),
        rows_T=torch.tensor(rows_T, device=device),
        positions_T=torch.tensor(positions_T, device=device),
        weights_T=torch.tensor(weights_T, device=device),
        sampler_logprobs_T=torch.tensor(sampler_T, device=device),
        advantages_T=torch.tensor(advantages_T, device=device),
    )


def trained_logprobs(model: nn.Module, batch: Microbatch, *, temperature: float = 1.0) -> Tensor:
    """Log-probs of the trained tokens, [T], nats, of the distribution at ``temperature``.

    Only positions that predict a trained token are projected to the vocabulary: four fifths
    of a search trajectory are observations, and their logits would be waste.
    """
    decoder, head = decoder_and_head(model)
    hidden_BLD = decoder(input_ids=batch.token_ids_BL, use_cache=False).last_hidden_state
    hidden_TD = hidden_BLD[batch.rows_T, batch.positions_T - 1]
    chunks = []
    for start in range(0, len(hidden_TD), LOGITS_CHUNK):
        part, targets = (
            hidden_TD[start : start + LOGITS_CHUNK],
            batch.targets_T[start:][:LOGITS_CHUNK],
        )
        if len(hidden_TD) > LOGITS_CHUNK and torch.is_grad_enabled():
            # Logits of all chunks at once would undo the chunking: recompute them backwards.
            chunks.append(
                checkpoint(_logprobs, head, part, targets, temperature, use_reentrant=False)
            )
        else:
            chunks.append(_logprobs(head, part, targets, temperature))
    return torch.cat(chunks)


def _logprobs(head: nn.Module, hidden_TD: Tensor, targets_T: Tensor, temperature: float) -> Tensor:
    logits_TV = head(hidden_TD).float() / temperature
    return torch.log_softmax(logits_TV, dim=-1).gather(-1, targets_T[:, None])[:, 0]


def decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """(layers up to the last hidden state, projection to the vocabulary) of a causal LM.

    Adapters live inside the layers, so a PEFT model gives its base model's parts.

    Raises:
        ConfigError: the model changes its logits after the projection (soft-capping, scaling).
    """
    base = base_model_of(model)
    config = base.config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        value = getattr(config, name, None)
        if value not in (None, 1, 1.0):
            raise ConfigError(
                f"{type(base).__name__} changes its logits ({name}={value}): not supported"
            )
    return base.base_model, base.get_output_embeddings()


def base_model_of(model: nn.Module) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    base: Any = model
    return base.get_base_model() if hasattr(model, "peft_config") else base


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
    """

    def __init__(self, model: nn.Module, cfg: OptimizerConfig, *, total_steps: int | None) -> None:
        self.model, self.cfg, self.total_steps = model, cfg, total_steps
        decoder_and_head(model)  # refuses what cannot be trained, before anything is rolled out
        disable_dropout(model)
        if cfg.recompute_activations:
            base_model_of(model).activation_checkpointing_enable()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        base = base_model_of(model)
        tables = [base.get_input_embeddings().weight, base.get_output_embeddings().weight]
        self.optimizer = make_optimizer(model, tables, cfg)
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
        for batch in microbatches(samples, self.cfg.microbatch_tokens, self.device):
            logprobs_T = trained_logprobs(self.model, batch, temperature=temperature)
            loss, metrics = objective(logprobs_T, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
            for key, value in metrics.items():
                self._totals[key] = self._totals.get(key, 0.0) + float(value)
        self.model.eval()
        self._num_accumulated += len(samples)

    def apply(self, scale: float = 1.0) -> dict[str, float]:
        """Step on ``scale`` times the accumulated gradient; returns the accumulated metrics.

        Without samples it only counts the step. ``scale`` is the one denominator of an update
        whose size was not known when its first samples came.

        Raises:
            TrainingError: loss or gradient is not finite. The weights are left as they were.
        """
        totals, self._totals = self._totals, {}
        if self._num_accumulated:
            if scale != 1.0:
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)
            norm = float(nn.utils.clip_grad_norm_(self.parameters, self.cfg.max_grad_norm))
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
        self.num_steps += 1
        return totals

    def _learning_rate(self) -> float:
        if self.total_steps is None:
            return learning_rate_at(self._progress, self.cfg)
        done = self.num_steps / self.total_steps
        return learning_rate_at(done, self.cfg, min_warmup=1 / self.total_steps)

    @torch.no_grad()
    def logprobs(
        self, samples: Sequence[TrainingSample], *, temperature: float = 1.0
    ) -> list[Tensor]:
        """Log-probs of each sample's trained tokens under the current weights, in sample order."""
        order = sorted(range(len(samples)), key=lambda i: len(samples[i].token_ids))
        out: list[Tensor] = [torch.empty(0)] * len(samples)
        at = 0
        for batch in microbatches(
            [samples[i] for i in order], self.cfg.microbatch_tokens, self.device
        ):
            values_T = trained_logprobs(self.model, batch, temperature=temperature)
            for row in range(len(batch.token_ids_BL)):
                out[order[at]] = values_T[batch.rows_T == row].cpu()
                at += 1
        return out

    # -- checkpoints -----------------------------------------------------------------------

    def save(self, directory: Path, state: dict[str, Any]) -> None:
        """Publish a checkpoint atomically: trained weights, optimizer, RNG, ``state``."""
        manifest = {"num_steps": self.num_steps, "total_steps": self.total_steps, **state}
        with publish_directory(directory, manifest) as partial:
            save_weights(self.model, partial / "weights.safetensors")
            torch.save(
                {"optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state()},
                partial / "optimizer.pt",
            )

    def restore(self, directory: Path) -> dict[str, Any]:
        """Load a checkpoint; returns its state. Raises ``ArtifactError`` when it does not fit."""
        manifest = read_manifest(directory, made_by="spaniel run")
        if manifest["total_steps"] != self.total_steps:
            raise ArtifactError(
                f"{directory} belongs to a run of {manifest['total_steps']} steps, this one has "
                f"{self.total_steps}; resume with the same settings or start a new run_dir"
            )
        load_weights(self.model, directory / "weights.safetensors")
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
