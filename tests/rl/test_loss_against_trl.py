"""Our loss against TRL's own code, as ``bench/make_trl_loss_golden.py`` recorded it."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from tests.rl.updates import samples_of_update

from spaniel.microbatch import microbatches
from spaniel.rl.loss import policy_loss
from spaniel.rl.samples import trajectory_samples
from spaniel.types import Group, Question, StopReason, Trajectory

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "trl_loss.json").read_text("utf-8"))
SEQUENCES = GOLDEN["sequences"]
ADVANTAGES = GOLDEN["advantages"]
PROMPT = 2


def name(case):
    return f"{case['loss_type']}-{case['level']}-beta{case['beta']}-high{case['epsilon_high']}"


def first_id(number):
    """Every token of the batch has an id of its own, by which its log-probs are found again."""
    return 100 * number


def trajectory(number):
    sequence = SEQUENCES[number]
    mask = (*[False] * PROMPT, *map(bool, sequence["mask"]))
    logprobs = [0.0] * PROMPT + sequence["sampler_logprobs"]
    return Trajectory(
        qid=str(sequence["group"]),
        trajectory_id=str(number),
        token_ids=tuple(range(first_id(number), first_id(number) + len(mask))),
        loss_mask=mask,
        sampler_logprobs=tuple(lp if m else 0.0 for lp, m in zip(logprobs, mask, strict=True)),
        policy_versions=tuple(0 if m else -1 for m in mask),
        stop_reason=StopReason.REPORTED,
        reward=sequence["reward"],
    )


def groups():
    members = {}
    for number, sequence in enumerate(SEQUENCES):
        members.setdefault(sequence["group"], []).append(trajectory(number))
    return [
        Group(question=Question(qid=str(qid), text="?"), trajectories=tuple(ts))
        for qid, ts in members.items()
    ]


def samples_of(case):
    if case["loss_type"] == "dr_grpo":
        weight = 1 / (len(SEQUENCES) * GOLDEN["max_completion_length"])
        return [
            sample
            for number, advantage in enumerate(ADVANTAGES)
            for sample in trajectory_samples(
                trajectory(number), trajectory(number).loss_mask, advantage, weight=weight
            )
        ]
    return samples_of_update(
        groups(),
        normalization="sequence" if case["loss_type"] == "grpo" else "token",
        keep_without_signal=case["beta"] > 0,
    )


def by_id(field):
    return {
        first_id(number) + PROMPT + position: value
        for number, sequence in enumerate(SEQUENCES)
        for position, value in enumerate(sequence[field])
    }


def ours(case):
    """(loss, {token id: gradient by its log-prob})."""
    (batch,) = microbatches(samples_of(case), 100_000, torch.device("cpu"))
    ids = batch.targets_T.tolist()
    logprobs, reference = by_id("logprobs"), by_id("ref_logprobs")
    is_cispo = case["loss_type"] == "cispo"
    logprobs_T = torch.tensor([logprobs[i] for i in ids], dtype=torch.float64, requires_grad=True)
    loss, _ = policy_loss(
        logprobs_T,
        sampler_logprobs_T=batch.sampler_logprobs_T,
        advantages_T=batch.advantages_T,
        weights_T=batch.weights_T,
        surrogate="cispo" if is_cispo else "clip",
        clip_low=case["epsilon"],
        # TRL's bound is the weight itself, ours how far it is above 1.
        clip_high=case["epsilon_high"] - is_cispo,
        sequences_T=batch.samples_T if case["level"] == "sequence" else None,
        ref_logprobs_T=torch.tensor([reference[i] for i in ids], dtype=torch.float64),
        kl_beta=case["beta"],
    )
    loss.backward()
    return loss.item(), dict(zip(ids, logprobs_T.grad.tolist(), strict=True))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name)
def test_the_loss_equals_trls(case):
    loss, _ = ours(case)
    assert loss == pytest.approx(case["loss"], abs=1e-6)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name)
def test_the_gradient_equals_trls_token_by_token(case):
    _, gradient = ours(case)
    expected = {
        first_id(number) + PROMPT + position: value
        for number, row in enumerate(case["gradient"])
        for position, value in enumerate(row)
    }
    assert set(gradient) <= set(expected)
    for token, value in expected.items():
        assert gradient.get(token, 0.0) == pytest.approx(value, abs=1e-6)


def test_the_recorded_batch_reaches_both_clip_bounds_and_every_case_differs():
    clipped = [c for c in GOLDEN["cases"] if c["loss_type"] != "cispo"]
    assert all(c["clipped_low_frac"] > 0 for c in clipped)
    assert all(c["clipped_high_frac"] > 0 for c in clipped if c["level"] == "token")
    losses = sorted(case["loss"] for case in GOLDEN["cases"])
    assert len(losses) == 16
    assert min(b - a for a, b in itertools.pairwise(losses)) > 1e-5
