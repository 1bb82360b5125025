"""Demonstrations, SFT, the base from random weights, RL."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, model_validator

from spaniel.config.stage import EndpointConfig, StageConfig

AlarmName = Literal[
    "no_signal",
    "entropy_collapsed",
    "sampler_differs",
    "far_ratios",
    "advantage_drifts",
    "reward_is_gamed",
    "stopped_searching",
    "budgets_end_episodes",
    "infrastructure_fails",
    "tokens_are_stale",
]
"""Rules of ``rl/alarms.py``."""


class OptimizerConfig(StageConfig):
    """AdamW or Muon with warm-up, and cosine or constant after it."""

    name: Literal["adamw", "muon"] = "adamw"
    """``muon``: of the matrices inside the layers; embeddings, norms and biases stay AdamW's."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak of the schedule."""
    embedding_factor: float = Field(1.0, gt=0)
    """Learning rate of the token embeddings, as a multiple of the others'."""
    warmup_frac: float = Field(0.05, ge=0, lt=1)
    """Share of the steps with a linearly growing rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: constant, or a cosine down to ``final_frac``."""
    final_frac: float = Field(0.1, ge=0, le=1)
    """Share of the peak at which a cosine ends."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; norms and biases never decay."""
    beta2: float = Field(0.95, gt=0, lt=1)
    """Decay of AdamW's second moment."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Of Muon."""
    nesterov: bool = True
    """Whether Muon looks a step ahead."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = Field(16384, ge=64)
    """Tokens (padding included) of one forward pass."""
    packing: Literal["rows", "packed", "shared"] = "shared"
    """How samples lie in a forward pass: a padded row each; end to end without padding; or so, with
    what they begin with in common laid once. The gradient is the same."""
    recompute_activations: bool = False
    """Keep no activations between layers' forward and backward passes: less memory, a third
    more time."""


class DemonstrationConfig(StageConfig):
    """Where the demonstrations of SFT come from."""

    teacher: Literal["labels", "endpoint"] = "labels"
    """``labels``: a demonstrator that may look at the targets but types only visible words.
    ``endpoint``: a stronger model, filtered by reward."""
    per_question: int = Field(1, ge=1)
    """Walks of the teacher for each training question."""
    noise: float = Field(0.3, ge=0, le=1)
    """Chance of a detour at each turn of the label demonstrator: it shows how to recover."""
    thoughts: bool = False
    """Whether it thinks a question anew before each search, with what is known filled in."""
    title_questions: int = Field(0, ge=0)
    """One-hop questions made from the corpus's titles, demonstrated besides the training
    questions: a curriculum for a small policy on real text."""
    min_reward: float = Field(0.7, ge=0)
    """A demonstration is kept iff its nDCG is at least this."""
    endpoint: EndpointConfig | None = None
    """Where the stronger model answers."""


class SFTConfig(StageConfig):
    """Demonstrations -> policy."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the demonstrations; may be a fraction."""
    trajectories_per_step: int = Field(32, ge=1)
    """Demonstrations of one optimizer step."""
    observation_loss_weight: float = Field(0.0, ge=0, le=1)
    """Loss on context tokens; only useful for a model that starts from random weights."""
    optimizer: OptimizerConfig = OptimizerConfig(schedule="cosine")
    demonstrations: DemonstrationConfig = DemonstrationConfig()


Shares = tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]


class BaseConfig(StageConfig):
    """Train the small default policy from random weights, on worlds nobody else uses."""

    num_worlds: int = Field(40, ge=1)
    """Generated worlds; demonstrations are drawn from each."""
    first_seed: int = Field(100_000, ge=1000)
    """Their seeds count up from here; quick starts use seeds below 1,000."""
    pages: int = Field(800, ge=200)
    """Pages of each world."""
    questions: int = Field(700, ge=1)
    """Questions of each world, a quarter of them with one hop."""
    noise: float = Field(0.25, ge=0, le=1)
    """Detours of the label demonstrator."""
    thoughts: bool = False
    """Whether it thinks a question anew before each search, with what is known filled in."""
    min_reward: float = Field(0.7, ge=0)
    """Demonstrations with a lower nDCG are dropped."""
    start: Path | None = None
    """Folder of a policy to go on from, with its tokenizer; random weights by default."""
    vocab_size: int = Field(4096, ge=512, le=65536)
    """Of the byte-level BPE tokenizer, trained on these worlds and ``extra_texts``."""
    extra_texts: tuple[Path, ...] = ()
    """BEIR corpus.jsonl files whose text the tokenizer shall also know."""
    copy_steps: int = Field(150, ge=0)
    """First steps: random sequences that repeat, which teach to copy."""
    drill_questions: int = Field(3000, ge=0)
    """One-hop questions of each world for reading drills: a page, and a few questions on it."""
    chain_questions: int = Field(8000, ge=0)
    """Questions of two to four hops of each world for chain drills: a few pages, and all those
    questions that live on them."""
    tight_questions: int = Field(900, ge=0)
    """Questions of each world for tight walks: every search shows the right page in full."""
    drill_frac: float = Field(0.25, ge=0, le=1)
    """After the copying, until this share of the time: drills only."""
    mixed_frac: float = Field(0.85, ge=0, le=1)
    """Until this share of the time: ``mixed_shares``; then ``final_shares``."""
    mixed_shares: Shares = (0.2, 0.35, 0.2, 0.25)
    """Of the tokens: drills, chain drills, tight walks, whole demonstrations. What is left out is
    forgotten."""
    final_shares: Shares = (0.05, 0.2, 0.15, 0.6)
    """The same for the end."""
    minutes: float = Field(60.0, gt=0)
    """Wall-clock budget of the training; the schedule is laid out over it."""
    tokens_per_step: int = Field(8000, ge=64)
    """Tokens of one optimizer step, about."""
    observation_loss_weight: float = Field(0.05, ge=0, le=1)
    """Loss on context tokens during the drills."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=1e-3, schedule="cosine", weight_decay=0.01
    )


class PPOConfig(StageConfig):
    """Advantages from a value head by GAE, instead of from a question's other rollouts."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount a trained token."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """1: reward minus value; 0: each value against the next."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float = Field(0.2, gt=0)
    """How far a value may move from the one before the update."""
    value_factor: float = Field(10.0, gt=0)
    """Learning rate of the value head, as a multiple of the policy's: it starts at 0."""
    epochs: int = Field(1, ge=1)
    """Passes over an update's samples, each an optimizer step."""


class RLConfig(StageConfig):
    """Groups -> better policy."""

    steps: int = Field(300, ge=0)
    """Optimizer steps."""
    groups_per_step: int = Field(32, ge=1)
    """Questions per optimizer step."""
    group_size: int = Field(8, ge=1)
    """Trajectories sampled per question; advantages are relative to these siblings, unless they
    are those of ``ppo``."""
    ppo: PPOConfig | None = None
    """Set: PPO with a critic. A question's rollouts need no siblings then."""
    window: int = Field(0, ge=0)
    """How many batches ahead of the update groups are sampled. 0 is synchronous."""
    max_token_age: int | None = Field(None, ge=0)
    """Tokens sampled more updates ago than this are context only; ``window`` by default."""
    start_groups: int | None = Field(None, ge=1)
    """The gradient starts when so many groups are ready; with all of them by default."""
    dynamic_sampling: bool = False
    """A group whose rewards are all equal is replaced by another question's."""
    max_refill: float = Field(3.0, ge=0)
    """At most so many batches of groups are dropped in a step before it makes do with fewer."""
    stall_s: float = Field(14_400.0, gt=0)
    """The run stops when no group was finished for so many seconds."""
    stop_on: tuple[AlarmName, ...] = ()
    """Alarms that end the training; all others are only said."""
    scale_by_std: bool = False
    """Advantage (r - mean) / (std + eps) instead of r - mean."""
    normalization: Literal["token", "sequence", "group"] = "token"
    """Denominator of the loss: trained tokens of the update; each sequence's own length
    (biased, for the ablation); each group's tokens."""
    surrogate: Literal["clip", "icepop", "cispo", "none"] = "clip"
    """What becomes of a token whose ratio to the sampling policy is far from 1: PPO's clip; left
    out (IcePop); its weight clipped but not its gradient (CISPO); nothing."""
    ratio: Literal["token", "sequence"] = "token"
    """Each token's own ratio, or its sequence's geometric mean (GSPO)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped at 1 + clip_high."""
    band_low: float = Field(0.2, ge=0, lt=1)
    """IcePop leaves tokens out whose ratio is below."""
    band_high: float = Field(5.0, gt=1)
    """IcePop leaves tokens out whose ratio is above."""
    kl_beta: float = Field(0.0, ge=0)
    """Weight of KL to the frozen policy that RL started from."""
    kl_estimator: Literal["k1", "k3"] = "k3"
    """``k3`` is a term of the loss, ``k1`` of the advantages."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling; the trainer's log-probs use the same."""
    max_logprob_gap: float = Field(0.02, gt=0)
    """Largest allowed mean |sampler - trainer| log-prob of the same tokens, nats."""
    max_failed_frac: float = Field(0.1, ge=0, le=1)
    """More rollouts than this failing through the infrastructure in a step stop the run."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept while training."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)

    @property
    def token_age_limit(self) -> int:
        """``max_token_age``, or its default."""
        return self.window if self.max_token_age is None else self.max_token_age

    @property
    def overlaps(self) -> bool:
        """Whether sampling goes on while the gradient is computed: the sampler needs weights of
        its own then."""
        return self.window > 0 or (self.start_groups or self.groups_per_step) < self.groups_per_step

    @property
    def min_scored(self) -> int:
        """Trajectories of a group that have to be scored for it to teach anything."""
        return 2 if self.ppo is None else 1

    @model_validator(mode="after")
    def _advantages_have_something_to_be_relative_to(self) -> "RLConfig":
        if self.ppo is None and self.group_size < 2:
            raise ValueError(f"group_size must be >= 2 unless rl.ppo is set, got {self.group_size}")
        if self.ppo is not None and (self.dynamic_sampling or self.scale_by_std):
            raise ValueError(
                "dynamic_sampling and scale_by_std are about siblings: rl.ppo knows neither"
            )
        return self

    @model_validator(mode="after")
    def _start_groups_at_most_all(self) -> "RLConfig":
        if self.start_groups is not None and self.start_groups > self.groups_per_step:
            raise ValueError(
                f"start_groups must be <= groups_per_step, got {self.start_groups} > "
                f"{self.groups_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _clip_high_at_least_low(self) -> "RLConfig":
        if self.clip_high < self.clip_low:
            raise ValueError(
                f"clip_high must be >= clip_low, got clip_high={self.clip_high} < "
                f"clip_low={self.clip_low}"
            )
        return self
