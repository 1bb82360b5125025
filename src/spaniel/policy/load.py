"""The model that searches, by name: device, precision, adapters."""

import sys
import warnings
from pathlib import Path
from typing import Any

from spaniel.config import EnvConfig, LoraConfig, PolicyConfig
from spaniel.errors import ArtifactError, ConfigError
from spaniel.progress import say

TINY_FOLDER = Path(__file__).parent / "tiny"
"""Weights, configuration and tokenizer of ``spaniel-tiny``; ``random-tiny`` shares the
tokenizer."""

TINY_KNOWS = {
    "dialect": "plain",
    "max_results": 4,
    "snippet_words": 12,
    "max_observation_chars": 900,
    "remind": True,
}
"""``[env]`` settings that ``spaniel-tiny`` was trained with. A language model adapts to others;
one of 2 M parameters knows no others."""


def unfamiliar_settings(policy: PolicyConfig, env: EnvConfig) -> list[str]:
    """``[env]`` settings that the packaged policy has never seen, as ``name = known``."""
    if not _is_tiny(policy):
        return []
    return [
        f"{name} = {value!r}" for name, value in TINY_KNOWS.items() if getattr(env, name) != value
    ]


def load_policy_model(cfg: PolicyConfig, *, seed: int, tokenizer: Any = None) -> tuple[Any, Any]:
    """The causal LM and its tokenizer.

    Args:
        cfg: which model, where, in which precision, with which adapters.
        seed: of random weights: those of ``random-tiny``, and new LoRA matrices.
        tokenizer: take this one instead of the model's own.

    Returns:
        (transformers causal LM, wrapped by PEFT when ``cfg.lora`` is set; tokenizer).

    Raises:
        ConfigError: torch or transformers is missing, or the model or device does not exist.
        ArtifactError: the files of the packaged model are not there.
    """
    torch = import_torch()
    from spaniel.routing import freeze_routers

    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    device = _device(cfg.device)
    dtype = getattr(torch, cfg.dtype)
    if cfg.model == "random-tiny":
        tokenizer = tokenizer if tokenizer is not None else _packaged_tokenizer()
        model = random_tiny(len(tokenizer), seed=seed).to(dtype)
    else:
        source = _packaged(("config.json", "model.safetensors")) if _is_tiny(cfg) else cfg.model
        tokenizer = tokenizer if tokenizer is not None else _tokenizer(cfg, source)
        model = _pretrained(source, dtype)
    model = model.to(device)
    if cfg.freeze_routers:
        freeze_routers(model)
    if cfg.lora is not None:
        model = add_lora(model, cfg.lora, seed=seed)
    return model.eval(), tokenizer


def tiny_config(vocab_size: int) -> Any:
    """The small default architecture: short convolutions and attention alternating, 8 layers
    of width 128, about 2.1 M parameters with a vocabulary of 4,096."""
    from transformers import Lfm2Config

    config: Any = Lfm2Config(
        vocab_size=vocab_size,
        hidden_size=128,
        # Lfm2 would shrink and round the size of the feed-forward block without this.
        block_auto_adjust_ff_dim=False,
        intermediate_size=352,
        num_hidden_layers=8,
        layer_types=["conv", "full_attention"] * 4,
        # Wide heads and slow rotations: a name has to be found again hundreds of tokens later.
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=True,
        # A padding id would freeze its embedding; stop tokens are the renderer's business.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.conv_dim = config.block_dim = config.hidden_size  # what vLLM's LFM2 looks for
    return config


def random_tiny(vocab_size: int, *, seed: int) -> Any:
    """``tiny_config`` with random weights (``tiny_init.py``); torch's own random state is left
    alone."""
    torch = import_torch()
    from transformers import Lfm2ForCausalLM

    from spaniel.policy.tiny_init import copying_start

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Lfm2ForCausalLM(tiny_config(vocab_size))
    copying_start(model, seed=seed)
    return model.eval()


def add_lora(model: Any, cfg: LoraConfig, *, seed: int) -> Any:
    """The model with trainable low-rank adapters, everything else frozen. Says their share.

    Raises:
        ConfigError: PEFT is missing, or no layer has a name in ``target_modules``.
    """
    torch = import_torch()
    try:
        import peft
    except ImportError:
        raise ConfigError("policy.lora needs PEFT: pip install 'spaniel[train]'") from None
    targets = cfg.target_modules
    settings = peft.LoraConfig(
        r=cfg.rank,
        lora_alpha=cfg.alpha,  # type: ignore[arg-type]
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT asks the model for an attribute that transformers has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(seed)
        try:
            model = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ConfigError(f"policy.lora.target_modules: {error}") from None
    trainable, total = model.get_nb_trainable_parameters()
    say(f"LoRA: {trainable:,} of {total:,} parameters train ({trainable / total:.2%})")
    return model


def import_torch() -> Any:
    """The ``torch`` module. Raises ``ConfigError`` with the extra to install."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"this needs {error.name or 'torch'}: pip install 'spaniel[train]'"
        ) from None
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return torch


def _is_tiny(cfg: PolicyConfig) -> bool:
    return cfg.model == "spaniel-tiny"


def _device(name: str) -> Any:
    torch = import_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"policy.device must be a torch device, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"policy.device is {name!r}, but torch sees no CUDA device; use cpu")
    return device


def _pretrained(source: str, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(_unknown(source, error)) from None


def _tokenizer(cfg: PolicyConfig, source: str) -> Any:
    if _is_tiny(cfg):
        return _packaged_tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(_unknown(source, error)) from None


def _packaged_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_packaged(("tokenizer.json",)))


def _packaged(files: tuple[str, ...]) -> str:
    missing = [name for name in files if not (TINY_FOLDER / name).exists()]
    if missing:
        raise ArtifactError(
            f"the packaged model is incomplete: {TINY_FOLDER} lacks {', '.join(missing)}; "
            f"set policy.model to a Hugging Face id or a local path"
        )
    return str(TINY_FOLDER)


def _unknown(source: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"policy.model {source!r} cannot be loaded: {reason}"


def end_ids(model: Any) -> tuple[int, ...]:
    """Tokens that end a text by the model's own generation settings."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)
