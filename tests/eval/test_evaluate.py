"""Parts of the evaluation that need no run."""

import json

import pytest

from spaniel.errors import ArtifactError
from spaniel.eval.evaluate import fuse_reports, training_curves


def run_with_log(folder, *rewards):
    (folder / "rl").mkdir(parents=True)
    rows = [{"step": i + 1, "reward/mean": r} for i, r in enumerate(rewards)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rl" / "metrics.jsonl").write_text(text)
    return folder


def test_curves_of_other_runs_lie_under_their_names(tmp_path):
    own, other = run_with_log(tmp_path / "own", 0.1, 0.2), run_with_log(tmp_path / "other", 0.3)
    curves = training_curves(own, [other])
    assert [c.name for c in curves] == ["own", "other"]
    assert [row["reward/mean"] for row in curves[0].metrics] == [0.1, 0.2]


def test_a_run_without_training_has_no_curve_and_another_is_missed(tmp_path):
    assert training_curves(tmp_path, []) == ()
    with pytest.raises(ArtifactError, match=r"compare_with: .*nowhere.* is missing"):
        training_curves(tmp_path, [tmp_path / "nowhere"])


def test_a_fused_report_is_as_long_as_the_median():
    fused = fuse_reports([["a", "b"], ["a"], ["a", "c", "d"]])
    assert fused[0] == "a"
    assert len(fused) == 2
