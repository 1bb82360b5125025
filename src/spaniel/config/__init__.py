"""Every setting of Spaniel: one frozen class per stage, and how a recipe is loaded.

A recipe is one TOML file; ``--stage.field value`` overrides come after it; the field
docstrings are the help text. Unknown keys are refused with a suggestion.
"""

from spaniel.config.corpus import (
    BeirSource,
    CorpusConfig,
    DedupConfig,
    FolderSource,
    HuggingFaceSource,
    JsonlSource,
    NativeSource,
    Source,
    WorldSource,
)
from spaniel.config.env import EnvConfig, EvidenceConfig, RewardConfig, WindowConfig
from spaniel.config.evaluation import EvalConfig, PriceConfig
from spaniel.config.index import (
    CalibrationConfig,
    EncoderTrainingConfig,
    HttpConfig,
    IndexConfig,
    LiveConfig,
    LlmRerankConfig,
    OpenSearchConfig,
    RerankerTrainingConfig,
    RetrieverTrainingConfig,
    ShardConfig,
    SphinxConfig,
)
from spaniel.config.learning import (
    AlarmName,
    BaseConfig,
    DemonstrationConfig,
    OptimizerConfig,
    PPOConfig,
    RLConfig,
    SFTConfig,
)
from spaniel.config.policy import LoraConfig, PolicyConfig, VllmConfig
from spaniel.config.questions import PreflightConfig, QuestionsConfig
from spaniel.config.recipe import (
    Recipe,
    apply_override,
    load_recipe,
    parse_recipe,
    recipe_json,
    settings,
)
from spaniel.config.stage import EndpointConfig, StageConfig

__all__ = [
    "AlarmName",
    "BaseConfig",
    "BeirSource",
    "CalibrationConfig",
    "CorpusConfig",
    "DedupConfig",
    "DemonstrationConfig",
    "EncoderTrainingConfig",
    "EndpointConfig",
    "EnvConfig",
    "EvalConfig",
    "EvidenceConfig",
    "FolderSource",
    "HttpConfig",
    "HuggingFaceSource",
    "IndexConfig",
    "JsonlSource",
    "LiveConfig",
    "LlmRerankConfig",
    "LoraConfig",
    "NativeSource",
    "OpenSearchConfig",
    "OptimizerConfig",
    "PPOConfig",
    "PolicyConfig",
    "PreflightConfig",
    "PriceConfig",
    "QuestionsConfig",
    "RLConfig",
    "Recipe",
    "RerankerTrainingConfig",
    "RetrieverTrainingConfig",
    "RewardConfig",
    "SFTConfig",
    "ShardConfig",
    "Source",
    "SphinxConfig",
    "StageConfig",
    "VllmConfig",
    "WindowConfig",
    "WorldSource",
    "apply_override",
    "load_recipe",
    "parse_recipe",
    "recipe_json",
    "settings",
]
