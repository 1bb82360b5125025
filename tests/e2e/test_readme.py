"""The README's blocks, run as they stand on a folder of Markdown files."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.test_pipeline import spaniel

from spaniel.world import generate_world

pytestmark = pytest.mark.slow

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## Your own corpus")[1].split("\n## ")[0]
SEARCH = README.split("## The search environment by itself")[1].split("\n## ")[0]
QUICK = [
    *("--rl.steps", "1", "--rl.groups_per_step", "2", "--rl.group_size", "2"),
    *("--preflight.num_questions", "4", "--preflight.min_std", "0", "--eval.num_fused", "2"),
    *("--eval.rerank_train_questions", "4", "--policy.threads", "1"),
]


def block(language: str, section: str = SECTION) -> str:
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, language
    return found.group(1)


def commands(section: str = SECTION) -> list[list[str]]:
    lines = (shlex.split(line, comments=True) for line in block("sh", section).splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``mine.toml`` with the documents and questions that it names."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.toml").write_text(block("toml"), encoding="utf-8")
    world = generate_world(200, 5)
    names = {}
    for number, document in enumerate(world.documents()):
        names[document.docid] = f"{number % 3}/{number}.md"
        path = folder / "docs" / names[document.docid]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {document.title}\n\n{document.text}\n", encoding="utf-8")
    for path in ("docs/guide/setup.md", "more/extra.md"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("# Setting it up\n\nAn exact phrase, and keywords.\n")
    with (folder / "questions.jsonl").open("w", encoding="utf-8") as file:
        for question in world.questions(40, seed=1, min_hops=1, max_hops=1):
            targets = [names[docid] for docid in question.targets]
            row = {"qid": question.qid, "text": question.text, "targets": targets}
            file.write(json.dumps(row) + "\n")
    return folder


def test_the_first_command_goes_from_a_folder_to_a_table(folder):
    program, *arguments = commands()[0]
    assert program == "spaniel"
    done = spaniel(folder, *arguments, *QUICK)
    assert "policy-rl" in done.stdout
    assert (folder / "runs/mine/eval/report.html").exists()
    assert "[env] is not what spaniel-tiny was trained with" not in done.stderr


@pytest.mark.parametrize("arguments", commands()[1:], ids=" ".join)
def test_the_other_commands_are_planned(folder, arguments):
    done = spaniel(folder, *arguments[1:], "--dry-run")
    assert "model:" in done.stdout
    assert "memory:" in done.stdout


def test_the_search_environment_works_by_itself(folder):
    """Every command of the block as it stands, in its order; the server is asked and stopped."""
    shown = {}
    *others, serve = commands(SEARCH)
    for _, *arguments in others:
        shown[arguments[1]] = spaniel(folder, *arguments).stdout
    assert "Setting it up  [guide/setup.md]" in shown["search"]
    assert "An exact phrase" in shown["read"]
    assert "1 documents added" in shown["add"]
    assert "are as they were built" in shown["verify"]
    assert "on 10 others" in shown["tune"]
    port = free_port()
    arguments = [str(port) if a == "8080" else a for a in serve[1:]]
    command = [sys.executable, "-m", "spaniel", *arguments]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if str(port) in line:
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            assert json.load(answer)["status"] == "ok"
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)


def test_calibration_without_a_key_is_one_line(folder):
    done = spaniel(folder, "index", "record", "mine.toml", check=False)
    assert done.returncode == 2
    assert "index.live" in done.stderr.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
