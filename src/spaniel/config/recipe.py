"""The whole recipe: read, overridden, validated."""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, model_validator

from spaniel.config.corpus import CorpusConfig
from spaniel.config.env import EnvConfig, RewardConfig
from spaniel.config.evaluation import EvalConfig
from spaniel.config.index import IndexConfig
from spaniel.config.learning import BaseConfig, RLConfig, SFTConfig
from spaniel.config.policy import PolicyConfig
from spaniel.config.questions import PreflightConfig, QuestionsConfig
from spaniel.config.stage import StageConfig
from spaniel.errors import ConfigError


class Recipe(StageConfig):
    """Everything one run needs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Names the run directory."""
    seed: int = Field(0, ge=0)
    """Of everything random in the run."""
    run_dir: Path | None = None
    """Where the run lives; ``runs/<name>`` by default."""
    corpus: CorpusConfig = CorpusConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    preflight: PreflightConfig = PreflightConfig()
    env: EnvConfig = EnvConfig()
    reward: RewardConfig = RewardConfig()
    policy: PolicyConfig = PolicyConfig()
    sft: SFTConfig | None = SFTConfig()
    """``false`` goes from the starting policy straight to RL."""
    rl: RLConfig = RLConfig()
    eval: EvalConfig = EvalConfig()
    base: BaseConfig | None = None
    """Only for recipes that make a default policy of their own."""

    @model_validator(mode="before")
    @classmethod
    def _sft_false_is_none(cls, data: Any) -> Any:
        # TOML has no null.
        return (
            {**data, "sft": None} if isinstance(data, dict) and data.get("sft") is False else data
        )

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_dir if self.run_dir is not None else Path("runs") / self.name


# --- loading ----------------------------------------------------------------------------


def load_recipe(path: Path, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a TOML recipe, apply ``{"rl.steps": "5"}``-style overrides, and validate.

    Override values are read as TOML (``5``, ``true``, ``[1, 2]``, ``"text"``); what is not
    TOML is taken as a plain string. Relative paths stay relative to the working directory.

    Raises:
        ConfigError: the file is missing or not TOML, or a setting is unknown or out of range.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    for dotted, text in (overrides or {}).items():
        apply_override(data, dotted, text)
    return parse_recipe(data, where=str(path))


def apply_override(data: dict[str, Any], dotted: str, text: str) -> Any:
    """Set ``a.b.c`` in a nested dict to a value written as TOML; returns the old value."""
    *parents, leaf = dotted.split(".")
    node = data
    for key in parents:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--{dotted}: {key} is a value, not a table of settings")
        node = child
    old = node.get(leaf)
    node[leaf] = _toml_value(text)
    return old


def parse_recipe(data: dict[str, Any], *, where: str) -> Recipe:
    """Validate a nested dict; ``where`` names it in errors. Raises ``ConfigError``."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_one_line(error, where)) from None


def recipe_json(recipe: Recipe) -> str:
    """The resolved recipe as stable, indented JSON."""
    return json.dumps(recipe.model_dump(mode="json"), indent=2, sort_keys=True)


def settings(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every (dotted name, docstring) of a config class, nested classes included."""
    for name, info in model.model_fields.items():
        dotted = f"{prefix}{name}"
        nested = [c for c in _classes_in(info.annotation) if issubclass(c, BaseModel)]
        if nested:
            for child in nested:
                yield from settings(child, f"{dotted}.")
        else:
            yield dotted, info.description or ""


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _classes_in(annotation: Any) -> list[type]:
    if get_origin(annotation) is not None:
        return [c for arg in get_args(annotation) for c in _classes_in(arg)]
    return [annotation] if isinstance(annotation, type) else []


def _one_line(error: ValidationError, where: str) -> str:
    problems = []
    for item in error.errors():
        path = [str(p) for p in item["loc"]]
        dotted = ".".join(path)
        if item["type"] == "extra_forbidden":
            problems.append(f"{dotted} is not a setting{_did_you_mean(path)}")
        elif item["type"] == "missing":
            problems.append(f"{dotted} must be set")
        else:
            got = f", got {item['input']!r}" if not isinstance(item["input"], dict) else ""
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{dotted}: {message}{got}" if dotted else message)
    return f"{where}: " + "; ".join(problems)


def _did_you_mean(path: list[str]) -> str:
    known = [name for name, _ in settings()]
    leaf = path[-1]
    # The right name under another stage is the commonest slip, so exact leaves come first.
    elsewhere = [name for name in known if name.split(".")[-1] == leaf]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere[:3])}?"
    parent = ".".join(p for p in path[:-1])
    siblings = {n: n.split(".")[-1] for n in known if n.rpartition(".")[0].startswith(parent)}
    close = difflib.get_close_matches(leaf.replace("-", "_"), list(siblings.values()), 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""
