import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ArtifactError, DataError
from spaniel.store import (
    JsonlLog,
    dump_line,
    from_plain,
    iter_lines,
    publish_directory,
    read_manifest,
    read_records,
    to_plain,
    write_json,
    write_records,
)
from spaniel.types import (
    Document,
    FinishReason,
    Hit,
    Question,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)

text = st.text(max_size=30)
trajectories = st.builds(
    Trajectory,
    qid=text,
    trajectory_id=text,
    token_ids=st.just((1, 2)),
    loss_mask=st.just((False, True)),
    sampler_logprobs=st.tuples(st.just(0.0), st.floats(-9, 0)),
    policy_versions=st.just((-1, 3)),
    turns=st.lists(
        st.builds(
            Turn,
            start=st.just(1),
            end=st.just(2),
            text=text,
            finish_reason=st.sampled_from(FinishReason),
            call=st.none() | st.builds(ToolCall, name=text, arguments=st.just({"query": "x"})),
            errors=st.lists(text, max_size=2).map(tuple),
            hits=st.lists(
                st.builds(Hit, docid=text, score=st.floats(0, 9), rank=st.integers(1, 9)),
                max_size=2,
            ).map(tuple),
            observation=text,
        ),
        max_size=2,
    ).map(tuple),
    stop_reason=st.sampled_from(StopReason),
    reward=st.none() | st.floats(-1, 2),
    report=st.lists(text, max_size=3).map(tuple),
)


@given(st.lists(trajectories, max_size=3))
def test_records_round_trip_whatever_the_text_holds(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    assert write_records(path, records) == len(records)
    assert list(read_records(path, Trajectory)) == records


def test_line_separators_inside_text_do_not_split_a_record(tmp_path):
    path = tmp_path / "documents.jsonl"
    document = Document(docid="d", title="a\u2028b", text="c\u0085d\x0be\x1cf\ng")
    write_records(path, [document])
    assert list(read_records(path, Document)) == [document]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_never_reach_a_file(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_line({"x": value})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"qid": "q"}, "field text is missing"),
        ({"qid": "q", "text": 3}, "field text must be str, got int"),
        ({"qid": "q", "text": "t", "targets": "d1"}, "field targets must be a list"),
        ({"qid": "q", "text": "t", "hops": True}, "field hops must be int"),
        ({"qid": "q", "text": "t", "colour": 1}, "unknown field colour"),
        ([], "must hold a JSON object"),
    ],
)
def test_a_bad_record_names_file_line_and_field(tmp_path, data, message):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"qid":"ok","text":"t"}\n' + json.dumps(data) + "\n")
    with pytest.raises(DataError, match=f"questions.jsonl:2: {message}"):
        list(read_records(path, Question))


def test_plain_data_of_a_record_is_json_and_comes_back():
    question = Question(qid="q", text="t", targets=("a", "b"), metadata={"k": [1, None]})
    plain = json.loads(json.dumps(to_plain(question)))
    assert from_plain(Question, plain, where="here") == question


def test_a_body_that_raises_leaves_the_old_directory(tmp_path):
    final = tmp_path / "index"
    with publish_directory(final, {"n": 1}) as partial:
        (partial / "data").write_text("old")

    def dies() -> None:
        with publish_directory(final, {"n": 2}) as partial:
            (partial / "data").write_text("new")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        dies()
    assert (final / "data").read_text() == "old"
    assert read_manifest(final, made_by="x")["n"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["index"]


def test_a_directory_without_a_manifest_is_not_complete(tmp_path):
    (tmp_path / "index").mkdir()
    with pytest.raises(ArtifactError, match="run `spaniel index build` first"):
        read_manifest(tmp_path / "index", made_by="spaniel index build")


def test_a_full_disk_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"n": 1})

    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_log_killed_in_the_middle_of_a_line_goes_on_from_the_last_whole_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1}\n{"step":2,"rew')
    log = JsonlLog(path)
    log.append({"step": 2})
    log.close()
    assert [row for _, row in iter_lines(path)] == [{"step": 1}, {"step": 2}]


def test_a_log_survives_kill_9(tmp_path):
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from spaniel.store import JsonlLog
        log = JsonlLog(Path(sys.argv[1]))
        step = 0
        while True:
            log.append({"step": step, "text": "x" * 1000})
            step += 1
            if step == 50:
                print("ready", flush=True)
        """
    )
    path = tmp_path / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    JsonlLog(path).close()
    steps = [row["step"] for _, row in iter_lines(path)]
    assert len(steps) >= 50
    assert steps == list(range(len(steps)))
