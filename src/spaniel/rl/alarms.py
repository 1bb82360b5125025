"""What a person would notice in the curves of a training, said when it happens.

A rule looks at means over the last steps, and at the first ones for what was normal; single steps
are noisy. An alarm is said once, and again only after it has been silent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spaniel.errors import TrainingError

SPAN = 10
"""Steps of a mean."""

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a training should not do."""

    name: str
    message: str
    """What is seen, what it means, what to do."""


class Alarms:
    """Watches the metrics of a training.

    Args:
        stop_on: names of alarms that end the training.
        earlier: metrics of the steps before, when it goes on after an interruption; what they
            sound is not said again.
    """

    def __init__(self, stop_on: Sequence[str] = (), earlier: Rows = ()) -> None:
        self._stop_on = frozenset(stop_on)
        self._rows = list(earlier)
        self._sounding = set(self._now())

    def check(self, metrics: Mapping[str, float]) -> list[Alarm]:
        """The alarms that begin with this step.

        Raises:
            TrainingError: one of them is among ``stop_on``.
        """
        self._rows.append(metrics)
        sounding = self._now()
        new = [Alarm(name=n, message=m) for n, m in sounding.items() if n not in self._sounding]
        self._sounding = set(sounding)
        for alarm in new:
            if alarm.name in self._stop_on:
                raise TrainingError(f"stopped by the alarm {alarm.name}: {alarm.message}")
        return new

    def _now(self) -> dict[str, str]:
        if len(self._rows) < 2 * SPAN:
            return {}
        first, last = self._rows[:SPAN], self._rows[-SPAN:]
        return {name: text for name, rule in RULES.items() if (text := rule(first, last))}


def mean(rows: Rows, key: str) -> float | None:
    """Over the rows that have the metric; None when none has."""
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else None


# --- rules: (first steps, last steps) -> message, or nothing ----------------------------------


def no_signal(first: Rows, last: Rows) -> str:
    """Most groups have equal rewards."""
    before, now = (mean(rows, "groups/without_signal_frac") for rows in (first, last))
    if now is None or now <= 0.8:
        return ""
    solved = (mean(last, "reward/mean") or 0.0) > (mean(first, "reward/mean") or 0.0)
    cause = "most questions are solved" if solved else "most questions are hopeless for it"
    return (
        f"{now:.0%} of groups have equal rewards ({before or 0.0:.0%} at first), so nothing is "
        f"learnt from them: {cause}; run pre-flight again, or set rl.dynamic_sampling"
    )


def entropy_collapsed(first: Rows, last: Rows) -> str:
    """The policy has stopped trying."""
    before, now = (mean(rows, "entropy/sampled") for rows in (first, last))
    if before is None or now is None or now >= 0.2 * before:
        return ""
    return (
        f"entropy fell from {before:.3f} to {now:.3f} nats a token: siblings do the same, and no "
        "group will have a signal; lower the learning rate, or add rl.kl_beta"
    )


def sampler_differs(first: Rows, last: Rows) -> str:
    """Sampler and trainer compute different log-probs although the weights are the same."""
    now = mean([row for row in last if row.get("tokens/oldest", 0.0) == 0.0], "kl/sampler_k3")
    if now is None or now <= 0.01:
        return ""
    return (
        f"sampler and trainer are {now:.4f} nats apart (k3) on tokens of the same weights: another "
        "precision, another temperature, or another model samples"
    )


def far_ratios(first: Rows, last: Rows) -> str:
    """Many tokens lie outside of the band."""
    now = mean(last, "ratio/outside_band_frac")
    if now is None or now <= 0.02:
        return ""
    return (
        f"{now:.1%} of tokens have a ratio outside of the band: they come from a policy too far "
        'away; lower rl.window or the learning rate, or set rl.surrogate = "icepop"'
    )


def advantage_drifts(first: Rows, last: Rows) -> str:
    """Long and short trajectories differ in advantage: length is rewarded or punished."""
    now, spread = mean(last, "advantage/token_mean"), mean(last, "reward/group_std")
    if now is None or not spread or abs(now) <= 0.3 * spread:
        return ""
    longer = "failures are longer" if now < 0 else "successes are longer"
    return (
        f"the mean advantage of a token is {now:+.3f} with a spread of rewards of {spread:.3f}: "
        f'{longer}; look at completion_tokens/mean, and keep rl.normalization = "token"'
    )


def reward_is_gamed(first: Rows, last: Rows) -> str:
    """The shaped reward rises and the measure does not."""
    gains = {
        key: (mean(last, key) or 0.0) - (mean(first, key) or 0.0)
        for key in ("reward/mean", "reward/ndcg")
    }
    if gains["reward/mean"] <= 0.05 or gains["reward/ndcg"] >= -0.02:
        return ""
    return (
        f"the reward rose by {gains['reward/mean']:.3f} while nDCG fell by "
        f"{-gains['reward/ndcg']:.3f}: the shaping is gamed; lower reward.w_format"
    )


def stopped_searching(first: Rows, last: Rows) -> str:
    """It reports without looking."""
    before, now = (mean(rows, "calls/search") for rows in (first, last))
    if now is None or now >= 0.3 or (before or 0.0) < 0.5:
        return ""
    return (
        f"searches fell from {before:.1f} to {now:.1f} a rollout: it answers without looking; a "
        "reward that needs no search is being paid"
    )


def budgets_end_episodes(first: Rows, last: Rows) -> str:
    """More than half of the rollouts never report."""
    now = sum(mean(last, f"stop/{why}") or 0.0 for why in ("max_turns", "max_tokens"))
    if now <= 0.5:
        return ""
    return (
        f"budgets end {now:.0%} of rollouts before a report: raise env.max_turns or "
        "env.max_tokens, or demonstrate shorter walks"
    )


def infrastructure_fails(first: Rows, last: Rows) -> str:
    """Rollouts are lost, not yet enough to stop."""
    now = mean(last, "rollouts/failed_frac")
    if now is None or now <= 0.02:
        return ""
    return f"{now:.1%} of rollouts fail through the infrastructure: read their errors"


def tokens_are_stale(first: Rows, last: Rows) -> str:
    """Much of what is sampled is never trained."""
    old, trained = mean(last, "tokens/too_old") or 0.0, mean(last, "tokens/trained") or 0.0
    if old <= 0.2 * (old + trained):
        return ""
    return (
        f"{old / (old + trained):.0%} of sampled tokens are too old to be trained: lower "
        "rl.window, or raise rl.max_token_age"
    )


RULES: dict[str, Callable[[Rows, Rows], str]] = {
    rule.__name__: rule
    for rule in (
        no_signal,
        entropy_collapsed,
        sampler_differs,
        far_ratios,
        advantage_drifts,
        reward_is_gamed,
        stopped_searching,
        budgets_end_episodes,
        infrastructure_fails,
        tokens_are_stale,
    )
}
"""By name, in the order in which they are said."""
