"""Every record that crosses a stage: plain data, no torch, no I/O.

Records are frozen and keyword-only. A later stage makes a new record with
``dataclasses.replace``; no field waits to be filled in. On disk they are JSON lines under
the same field names (see ``store.py``), so trainer, evaluation and viewer read one file.
"""

import itertools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One source text: the unit that is read, reported and labelled."""

    docid: str
    title: str
    text: str
    url: str = ""
    links: tuple[str, ...] = ()
    """docids this document links to, in text order."""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A character span of a document: the unit of the passage view, never a copy of the text."""

    docid: str
    start: int
    """First character, in code points of ``Document.text``."""
    end: int
    """One past the last character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A task for the agent."""

    qid: str
    text: str
    targets: tuple[str, ...] = ()
    """docids that answer it, each once; order carries no meaning. May be empty (unlabelled)."""
    answers: tuple[str, ...] = ()
    """All accepted strings. May be empty."""
    hops: int = 0
    """Documents one has to find to answer it; 0 when unknown."""
    kind: str = ""
    """Question type in the words of its source: ``chain``, ``comparison``, ``bridge``."""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result of a search."""

    docid: str
    score: float
    rank: int
    """From 1."""
    snippet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message: role is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


class FinishReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"
    """The policy sampled its end-of-turn token."""
    LENGTH = "length"
    """The token limit of the turn cut it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a policy sampled in one call."""

    token_ids: tuple[int, ...]
    """[num_tokens] exactly the sampled ids, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...]
    """[num_tokens] nats, of the distribution really sampled from (after temperature, top-p)."""
    policy_version: int
    """Weight updates behind the weights that sampled it."""
    finish_reason: FinishReason
    text: str
    """The ids decoded without the end-of-turn token: what the environment parses."""
    routes: tuple[bytes, ...] = ()
    """Experts that each token went through (``routing.py``), from token ``num_routed`` of the
    request to the last but one sampled: the last has not been through the model. Empty for a
    model without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One parsed call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion and the observation after it, as spans into the trajectory's ledger."""

    start: int
    """Ledger position of the first sampled token."""
    end: int
    """One past the last sampled token; the observation's tokens follow, up to the next turn."""
    text: str
    """What the policy wrote."""
    finish_reason: FinishReason
    call: ToolCall | None = None
    """The call that was executed, if one was."""
    errors: tuple[str, ...] = ()
    """Names of what was wrong with the turn (``CallProblem`` values), most severe first."""
    hits: tuple[Hit, ...] = ()
    """Results of a search, under their true docids."""
    docids: tuple[str, ...] = ()
    """The documents that were read or visited."""
    observation: str = ""
    """What the environment said back, as shown (shown ids, cut to the budget)."""


class StopReason(StrEnum):
    """Why a trajectory ended."""

    REPORTED = "reported"
    """The policy called ``report``: the only natural end."""
    MAX_TURNS = "max_turns"
    """The turn budget ran out before a report."""
    MAX_TOKENS = "max_tokens"
    """The token budget of the whole trajectory ran out before a report."""
    INFRASTRUCTURE = "infrastructure"
    """A tool, the sampler or the scorer broke; recorded, counted, never scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The token ledger of one rollout, its turns, and how it ended.

    ``token_ids``, ``loss_mask``, ``sampler_logprobs`` and ``policy_versions`` are parallel
    arrays over everything the policy saw and wrote, in order. A token was sampled if and
    only if its mask is True. ``segments`` lists where a new token sequence starts when the
    history could not be extended; training treats each segment as its own sequence.
    """

    qid: str
    trajectory_id: str
    """Prints as a path: ``q17/3``."""
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True where the policy sampled the token; prompt, observations and markers are context."""
    sampler_logprobs: tuple[float, ...]
    """Nats; 0.0 where the mask is False."""
    policy_versions: tuple[int, ...]
    """-1 where the mask is False."""
    routes: tuple[bytes, ...] = ()
    """Experts that each token went through when it was first seen, b"" for those behind the last
    prediction of their segment; empty for a model without experts."""
    segments: tuple[int, ...] = (0,)
    """Start of each token sequence in the ledger; one sequence in the usual case."""
    turns: tuple[Turn, ...] = ()
    stop_reason: StopReason
    error: str = ""
    """What broke, when ``stop_reason`` is ``infrastructure``."""
    report: tuple[str, ...] = ()
    """Reported documents in the policy's order, each once, as true docids. An id that this
    episode never showed stays in its place as ``unknown:<id>``: it is scored as a miss."""
    format_ok: bool = False
    """The report was one valid call, with known ids, each once."""
    reward: float | None = None
    """None until scored, and for ever when the infrastructure failed. Never 0 for that."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Unweighted terms of the reward."""
    tool_s: float = 0.0
    """Seconds spent in tools."""
    wall_s: float = 0.0
    """Seconds from the first prompt to the end, waiting for the sampler included."""

    @property
    def segment_bounds(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each segment in the ledger."""
        return tuple(itertools.pairwise((*self.segments, len(self.token_ids))))

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens the policy wrote."""
        return sum(self.loss_mask)

    @property
    def failed_by_infrastructure(self) -> bool:
        """True when this rollout says nothing about the policy."""
        return self.stop_reason is StopReason.INFRASTRUCTURE

    def num_calls(self, name: str) -> int:
        """Executed calls of one tool."""
        return sum(1 for turn in self.turns if turn.call is not None and turn.call.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of the same question; advantages are relative to these siblings."""

    question: Question
    trajectories: tuple[Trajectory, ...]

    @property
    def scored(self) -> tuple[Trajectory, ...]:
        """The trajectories that say something about the policy."""
        return tuple(t for t in self.trajectories if not t.failed_by_infrastructure)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A flat token sequence ready for a loss; the arrays share one length L."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    """[L] factor of each token's loss, normalisation of the whole update included: 0 where
    the token is context. Losses are sums, so that no split into microbatches changes them."""
    sampler_logprobs: tuple[float, ...]
    """[L] nats; 0.0 at context."""
    advantage: float = 0.0
    """Of the whole trajectory: the same for each of its tokens."""
    advantages: tuple[float, ...] | None = None
    """Of each trained token, in order, where they differ; ``advantage`` is then not looked at."""
    values: tuple[float, ...] | None = None
    """Of the state before each trained token, in order, under the weights before the update."""
    ref_logprobs: tuple[float, ...] | None = None
    """Nats, of the trained tokens alone, in order, under a frozen reference."""
    routes: tuple[bytes, ...] = ()
    """[L] experts to send each token to, b"" for the router's own choice; empty for all."""
