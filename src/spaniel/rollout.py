"""The one agent loop: policy x environment -> trajectory, in training, evaluation and serving.

    first messages -> [prompt ids] -> policy.complete -> text -> episode.step -> observation ids
                           ^                                                          |
                           +----------------------- appended -------------------------+

Every token the policy sees or writes goes through one append-only ``Ledger``. Sampled ids
enter as sampled; observations are rendered once and appended. When the window takes something out
of sight, the ledger starts a new segment: what is left is laid again, as context, from the ids
that are there.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from spaniel.config import RewardConfig
from spaniel.env.dialects import THINK_CLOSE, THINK_OPEN
from spaniel.env.episode import Environment, Episode
from spaniel.env.window import OMITTED, num_omitted, text_without_thoughts, without_thoughts
from spaniel.errors import (
    ConfigError,
    PolicyError,
    RewardError,
    RolloutError,
    TrainingError,
    boundary,
)
from spaniel.policy.base import Policy, Request, Sampling
from spaniel.progress import Progress
from spaniel.renderer import Renderer
from spaniel.rewards.ranking import score
from spaniel.types import (
    Completion,
    FinishReason,
    Group,
    Message,
    Question,
    StopReason,
    Trajectory,
    Turn,
)


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from any path of names and numbers; equal paths give equal seeds."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class Ledger:
    """Parallel arrays over everything one trajectory's policy saw and wrote, append-only."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.loss_mask: list[bool] = []
        self.sampler_logprobs: list[float] = []
        self.policy_versions: list[int] = []
        self.routes: list[bytes] = []
        self.segments: list[int] = [0]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def in_sight(self) -> tuple[int, ...]:
        """Ids of the current segment: what the policy is asked with."""
        return tuple(self.token_ids[self.segments[-1] :])

    @property
    def num_in_sight(self) -> int:
        """Tokens of the current segment."""
        return len(self) - self.segments[-1]

    @property
    def num_routed(self) -> int:
        """Tokens of the current segment whose experts are known: the first ones."""
        return sum(map(bool, self.routes[self.segments[-1] :]))

    def start_segment(self) -> None:
        """Begin a token sequence that does not extend the one before."""
        self.segments.append(len(self))

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Tokens the policy did not write: prompt, observations, role markers."""
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([False] * len(token_ids))
        self.sampler_logprobs.extend([0.0] * len(token_ids))
        self.policy_versions.extend([-1] * len(token_ids))
        self.routes.extend([b""] * len(token_ids))

    def append_completion(self, completion: Completion) -> tuple[int, int]:
        """Exactly the sampled tokens; returns their span."""
        start = len(self)
        self.token_ids.extend(completion.token_ids)
        self.loss_mask.extend([True] * len(completion.token_ids))
        self.sampler_logprobs.extend(completion.logprobs)
        self.policy_versions.extend([completion.policy_version] * len(completion.token_ids))
        first = self.segments[-1] + self.num_routed
        self.routes.extend([b""] * len(completion.token_ids))
        self.routes[first : first + len(completion.routes)] = completion.routes
        return start, len(self)


def check_ledger(trajectory: Trajectory) -> None:
    """Raise ``TrainingError`` unless the ledger's invariants hold; run on every trajectory.

    One length; a token has a version if and only if it was sampled; sampled log-probs are
    finite and at most 0 (rounding aside), others exactly 0; the turns' spans are in order
    and cover exactly the sampled tokens; segments start in order, between turns; if the experts
    of any token are known, they are of all that a prediction was made from.
    """
    t = trajectory
    lengths = {len(t.token_ids), len(t.loss_mask), len(t.sampler_logprobs), len(t.policy_versions)}
    broken = ""
    if len(lengths) != 1:
        broken = f"arrays differ in length: {sorted(lengths)}"
    elif any(mask != (v >= 0) for mask, v in zip(t.loss_mask, t.policy_versions, strict=True)):
        broken = "a token is sampled without a version, or has one without being sampled"
    elif any(
        not (math.isfinite(lp) and lp <= 1e-4) if mask else lp != 0.0
        for mask, lp in zip(t.loss_mask, t.sampler_logprobs, strict=True)
    ):
        broken = "a log-prob is not finite, above 0, or set on a token that was not sampled"
    else:
        spans = [position for turn in t.turns for position in range(turn.start, turn.end)]
        if spans != [i for i, mask in enumerate(t.loss_mask) if mask]:
            broken = "the turns do not cover exactly the sampled tokens"
        elif t.segments != tuple(sorted({0, *t.segments})) or any(
            turn.start < segment < turn.end for turn in t.turns for segment in t.segments
        ):
            broken = f"segments start out of order or inside a turn: {t.segments}"
        elif t.routes and not _routes_are_whole(t):
            broken = "the experts of some tokens that predictions were made from are not known"
    if broken:
        raise TrainingError(f"trajectory {t.trajectory_id}: the token ledger is broken: {broken}")


def _routes_are_whole(t: Trajectory) -> bool:
    if len(t.routes) != len(t.token_ids) or len({len(r) for r in t.routes if r}) > 1:
        return False
    for start, end in t.segment_bounds:
        last = max((turn.end for turn in t.turns if start < turn.end <= end), default=start)
        if not all(t.routes[start : last - 1]):
            return False
    return True


async def rollout(
    question: Question,
    *,
    policy: Policy,
    renderer: Renderer,
    environment: Environment,
    temperature: float,
    top_p: float = 1.0,
    seed: int,
    trajectory_id: str,
) -> Trajectory:
    """One trajectory, not scored yet.

    Infrastructure failures (``RolloutError``) are returned as a trajectory with that stop
    reason, holding what happened before. Everything else that raises is a bug and passes.
    """
    episode = environment.episode(question, seed=seed_of(seed, "aliases"))
    ledger = Ledger()
    turns: list[Turn] = []
    started = time.perf_counter()
    sampling = Sampling(temperature=temperature, top_p=top_p)
    report: tuple[str, ...] | None = None
    error = ""
    format_ok = False
    try:
        messages = episode.reset()
        history = _History(messages, renderer, environment)
        ledger.append_context(renderer.initial(messages))
        while (stop := _budget_spent(ledger, episode)) is None:
            limit = min(
                environment.cfg.max_tokens_per_turn,
                environment.cfg.max_tokens - ledger.num_in_sight,
            )
            request = Request(
                episode_id=trajectory_id,
                token_ids=ledger.in_sight,
                messages=tuple(history.messages()),
                sampling=replace(sampling, max_tokens=limit, seed=seed_of(seed, episode.num_turns)),
                num_routed=ledger.num_routed,
            )
            with boundary(PolicyError, "complete"):
                completion = await policy.complete(request)
            start, end = ledger.append_completion(completion)
            reason = completion.finish_reason
            # Recorded before the tool runs: what was sampled stays when the tool breaks.
            turns.append(Turn(start=start, end=end, text=completion.text, finish_reason=reason))
            step = await environment.step(episode, completion.text, reason)
            turns[-1] = replace(
                turns[-1],
                call=step.call,
                errors=step.errors,
                hits=step.hits,
                docids=step.docids,
                observation=step.shown,
            )
            if step.report is not None:
                stop, report, format_ok = StopReason.REPORTED, step.report, not step.errors
                break
            history.append(completion, step.observation)
            if episode.num_turns < environment.cfg.max_turns and not history.extend(ledger):
                stop = StopReason.MAX_TOKENS
                break
    except RolloutError as failure:
        stop, error = StopReason.INFRASTRUCTURE, str(failure)
    finally:
        await policy.end_episode(trajectory_id)
    trajectory = Trajectory(
        qid=question.qid,
        trajectory_id=trajectory_id,
        token_ids=tuple(ledger.token_ids),
        loss_mask=tuple(ledger.loss_mask),
        sampler_logprobs=tuple(ledger.sampler_logprobs),
        policy_versions=tuple(ledger.policy_versions),
        routes=tuple(ledger.routes) if any(ledger.routes) else (),
        segments=tuple(ledger.segments),
        turns=tuple(turns),
        stop_reason=stop,
        error=error,
        report=report or (),
        format_ok=format_ok,
        tool_s=episode.tool_s,
        wall_s=time.perf_counter() - started,
    )
    check_ledger(trajectory)
    return trajectory


def _budget_spent(ledger: Ledger, episode: Episode) -> StopReason | None:
    cfg = episode.environment.cfg
    if episode.num_turns >= cfg.max_turns:
        return StopReason.MAX_TURNS
    if ledger.num_in_sight >= cfg.max_tokens:
        return StopReason.MAX_TOKENS
    return None


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A turn as it was sampled, and what the environment said back."""

    completion: Completion
    observation: str

    @property
    def ended(self) -> bool:
        return self.completion.finish_reason is FinishReason.STOP


class _History:
    """All exchanges of an episode, and how they are laid into its ledger."""

    def __init__(
        self, first: Sequence[Message], renderer: Renderer, environment: Environment
    ) -> None:
        self.first, self.renderer, self.environment = list(first), renderer, environment
        self.exchanges: list[_Exchange] = []
        self._num_laid_as_markers = 0
        self._marker = environment.dialect.observation(OMITTED)
        if environment.cfg.drop_thoughts:
            prompt = renderer.decode(renderer.observation("", ended=True))
            if prompt.count(THINK_OPEN) > prompt.count(THINK_CLOSE):
                raise ConfigError(
                    "env.drop_thoughts must be false for this chat template: it opens every turn "
                    f"with {THINK_OPEN} itself, which would stay behind"
                )

    def append(self, completion: Completion, observation: str) -> None:
        """Take in the latest exchange."""
        self.exchanges.append(_Exchange(completion, observation))

    def messages(self) -> list[Message]:
        """What is in sight, as messages."""
        drop_thoughts = self.environment.cfg.drop_thoughts
        omitted = self._num_omitted()
        out = list(self.first)
        for number, exchange in enumerate(self.exchanges):
            text = exchange.completion.text
            text = text_without_thoughts(text) if drop_thoughts else text
            shown = self._marker if number < omitted else exchange.observation
            out += [Message(role="assistant", content=text), Message(role="user", content=shown)]
        return out

    def extend(self, ledger: Ledger) -> bool:
        """Lay the latest exchange's observation; all that is left in sight when something went.

        Returns:
            False, with nothing laid, when no room for another turn would be left.
        """
        latest = self.exchanges[-1]
        sampled = latest.completion.token_ids
        went = self._num_omitted() > self._num_laid_as_markers or self._kept(latest) != sampled
        if went:
            parts = self._laid_anew()
        else:
            parts = [self.renderer.observation(latest.observation, ended=latest.ended)]
        before = 0 if went else ledger.num_in_sight
        if before + sum(map(len, parts)) >= self.environment.cfg.max_tokens:
            return False
        if went:
            self._num_laid_as_markers = self._num_omitted()
            ledger.start_segment()
        for part in parts:
            ledger.append_context(part)
        return True

    def _laid_anew(self) -> list[tuple[int, ...]]:
        parts = [self.renderer.initial(self.first)]
        omitted = self._num_omitted()
        for number, exchange in enumerate(self.exchanges):
            shown = self._marker if number < omitted else exchange.observation
            parts.append(self._kept(exchange))
            parts.append(self.renderer.observation(shown, ended=exchange.ended))
        return parts

    def _kept(self, exchange: _Exchange) -> tuple[int, ...]:
        """The sampled ids of an earlier turn that stay in sight."""
        ids = tuple(exchange.completion.token_ids)
        if not self.environment.cfg.drop_thoughts:
            return ids
        return without_thoughts(ids, self.renderer.decode)

    def _num_omitted(self) -> int:
        return num_omitted(len(self.exchanges), self.environment.cfg.window)


class Runner:
    """Rolls out questions with one policy in one environment, and scores what comes back."""

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        environment: Environment,
        reward: RewardConfig,
        *,
        temperature: float = 1.0,
        max_failed_frac: float = 0.1,
    ) -> None:
        self.policy, self.renderer, self.environment = policy, renderer, environment
        self.reward, self.temperature = reward, temperature
        self.max_failed_frac = max_failed_frac

    async def trajectory(self, question: Question, *, seed: int, name: str) -> Trajectory:
        """One scored trajectory; unscored when the infrastructure failed."""
        trajectory = await rollout(
            question,
            policy=self.policy,
            renderer=self.renderer,
            environment=self.environment,
            temperature=self.temperature,
            seed=seed,
            trajectory_id=name,
        )
        try:
            with boundary(RewardError, "score"):
                return score(trajectory, question, self.reward)
        except RewardError as failure:
            return replace(trajectory, stop_reason=StopReason.INFRASTRUCTURE, error=str(failure))

    async def group(self, question: Question, size: int, *, seed: int, name: str) -> Group:
        """``size`` trajectories of one question, sampled at once."""
        trajectories = await asyncio.gather(
            *(
                self.trajectory(question, seed=seed_of(seed, number), name=f"{name}/{number}")
                for number in range(size)
            )
        )
        return Group(question=question, trajectories=tuple(trajectories))

    async def groups(
        self,
        questions: Sequence[Question],
        size: int,
        *,
        seed: int,
        what: str,
        concurrency: int = 64,
        on_group: Callable[[Group], Awaitable[None] | None] | None = None,
    ) -> list[Group]:
        """A group for each question, at most ``concurrency`` trajectories at once, with progress.

        Raises:
            TrainingError: too many rollouts failed through the infrastructure; names the cause.
        """
        slots = asyncio.Semaphore(max(1, concurrency // size))
        with Progress(what, len(questions) * size, "rollouts") as progress:

            async def one(question: Question) -> Group:
                async with slots:
                    group = await self.group(
                        question, size, seed=seed_of(seed, question.qid), name=question.qid
                    )
                progress.advance(size)
                if on_group is not None and (pending := on_group(group)) is not None:
                    await pending
                return group

            groups = list(await asyncio.gather(*(one(q) for q in questions)))
        check_failures([t for g in groups for t in g.trajectories], self.max_failed_frac)
        return groups


def check_failures(trajectories: Sequence[Trajectory], max_failed_frac: float) -> None:
    """Raise ``TrainingError`` when too many rollouts failed through the infrastructure."""
    failed = [t for t in trajectories if t.failed_by_infrastructure]
    if failed and len(failed) > max_failed_frac * len(trajectories):
        raise TrainingError(
            f"{len(failed)} of {len(trajectories)} rollouts failed through the infrastructure "
            f"(allowed: {max_failed_frac:.0%}); the first: {failed[0].trajectory_id}: "
            f"{failed[0].error}"
        )
