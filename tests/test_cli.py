"""What a user sees when something is wrong: one line, and an exit code that means something."""

import errno
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from spaniel.cli import app, main
from spaniel.config import settings


def run(monkeypatch, *arguments):
    """(exit code, stderr) of a command in this process."""
    import contextlib
    import io

    monkeypatch.setattr(sys, "argv", ["spaniel", *map(str, arguments)])
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, err.getvalue()


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.toml"
    path.write_text(
        'name = "t"\n[corpus.source]\ntype = "jsonl"\ncorpus = "corpus.jsonl"\n'
        'questions = "questions.jsonl"\n'
    )
    rows = [{"docid": f"d{i}", "title": f"Title {i}", "text": f"words {i}"} for i in range(5)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    question = {"qid": "q1", "text": "which?", "targets": ["d1"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    return path


def test_a_typo_in_a_recipe_is_one_line_and_exit_code_2(recipe, monkeypatch):
    recipe.write_text(recipe.read_text() + "[rl]\ngroupsize = 3\n")
    code, err = run(monkeypatch, "corpus", recipe)
    assert code == 2
    assert err.count("\n") == 1
    assert "did you mean group_size" in err


def test_a_missing_recipe_is_exit_code_2(monkeypatch):
    code, err = run(monkeypatch, "rl", "nowhere.toml")
    assert code == 2
    assert "no such recipe" in err


def test_a_corrupt_corpus_line_names_file_line_and_field(recipe, monkeypatch):
    with (recipe.parent / "corpus.jsonl").open("a") as file:
        file.write('{"docid": "d9", "title": 3, "text": "x"}\n')
    code, err = run(monkeypatch, "corpus", recipe)
    assert code == 2
    assert "corpus.jsonl:6" in err
    assert "title" in err
    assert not (recipe.parent / "runs/t/corpus").exists()


def test_a_corrupt_corpus_line_can_be_skipped(recipe, tmp_path):
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write("{broken\n")
    result = CliRunner().invoke(app, ["corpus", str(recipe), "--corpus.on_bad", "skip"])
    assert result.exit_code == 0
    assert (tmp_path / "runs/t/corpus/manifest.json").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(recipe, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, err = run(monkeypatch, "corpus", recipe)
    assert code == 1
    assert "No space left on device" in err
    assert not (recipe.parent / "runs/t/corpus").exists()


def test_a_stage_whose_input_is_missing_names_the_command(recipe, monkeypatch):
    code, err = run(monkeypatch, "rl", recipe)
    assert code == 2
    assert "run `spaniel questions preflight` first" in err


def test_a_finished_stage_is_not_made_again(recipe, monkeypatch):
    assert run(monkeypatch, "corpus", recipe)[0] == 0
    code, err = run(monkeypatch, "corpus", recipe)
    assert code == 0
    assert "corpus: up to date" in err


def test_an_index_is_built_asked_read_changed_and_checked(recipe, tmp_path):
    def index(*arguments):
        result = CliRunner().invoke(app, ["index", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout

    index("build", recipe)
    assert "Title 3  [d3]" in index("search", recipe, "words 3", "--k", "1")
    assert index("read", recipe, "d3") == "Title 3\n\nwords 3\n"
    (tmp_path / "more.jsonl").write_text('{"docid": "x", "title": "Beagle", "text": "a hound"}\n')
    assert "1 documents added" in index("add", recipe, tmp_path / "more.jsonl")
    assert "Beagle" in index("search", recipe, "hound")
    assert "1 deleted: 5 in the index" in index("delete", recipe, "--docid", "d3")
    assert "Title 3" not in index("search", recipe, "words 3")
    assert "5 documents" in index("verify", recipe)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["read", "recipe.toml", "nowhere"], "no document has the docid 'nowhere'"),
        (["delete", "recipe.toml", "--docid", "nowhere"], "nothing was changed"),
        (["delete", "recipe.toml"], "name what to delete"),
        (["add", "recipe.toml", "nowhere.jsonl"], "nowhere.jsonl"),
        (["add", "recipe.toml", "corpus.jsonl"], "add --replace"),
    ],
)
def test_what_an_index_cannot_do_is_one_line(recipe, monkeypatch, arguments, message):
    run(monkeypatch, "index", "build", recipe)
    code, err = run(monkeypatch, "index", *arguments)
    assert code == 2
    assert message in err.splitlines()[-1]


def test_a_deleted_target_is_warned_of(recipe, monkeypatch):
    run(monkeypatch, "index", "build", recipe)
    code, err = run(monkeypatch, "index", "delete", recipe, "--docid", "d1")
    assert code == 0
    assert "1 questions ask for a document that was deleted" in err


def test_ctrl_c_is_exit_code_130(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("spaniel.cli.commands.app", interrupted)
    code, err = run(monkeypatch, "corpus", "x.toml")
    assert code == 130
    assert "interrupted" in err


def test_help_names_every_command_and_its_purpose():
    done = subprocess.run(
        [sys.executable, "-m", "spaniel", "--help"], capture_output=True, text=True, check=True
    )
    for name in ("corpus", "index", "questions", "sft", "rl", "eval", "run", "quickstart"):
        assert name in done.stdout


def test_the_dry_run_prints_the_plan_of_the_reference_job(monkeypatch, capsys):
    from pathlib import Path

    path = Path(__file__).parents[1] / "recipes/musique-qwen3-4b/recipe.toml"
    monkeypatch.setattr(sys, "argv", ["spaniel", "rl", str(path), "--dry-run"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (0, None)
    out = capsys.readouterr().out
    assert "300 steps x 32 questions x 8 = 76,800" in out
    assert "GB" in out
    assert "USD" in out


def test_settings_are_listed_with_their_docs(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["spaniel", "settings"])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert all(name in out for name, _ in settings())
