"""The wheel installs without extras, holds its data files, and its command starts."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    call(*pip, "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    return next(folder.glob("spaniel-*.whl"))


def test_the_wheel_holds_every_data_file_of_the_package(wheel):
    package = ROOT / "src" / "spaniel"
    data = {
        f"spaniel/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert data <= set(zipfile.ZipFile(wheel).namelist())


def test_it_installs_without_extras_and_its_command_starts(wheel, tmp_path):
    call(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    constraints = ROOT / "constraints.txt"
    call(python, "-m", "pip", "-q", "install", "-c", constraints, wheel, cwd=tmp_path)
    assert "quickstart" in call(tmp_path / "venv/bin/spaniel", "--help", cwd=tmp_path)
    loaded = call(
        python, "-c", "import spaniel.cli, sys; print('torch' in sys.modules)", cwd=tmp_path
    )
    assert loaded.strip() == "False"
    recipe = tmp_path / "world.toml"
    recipe.write_text('name = "w"\n[corpus.source]\ntype = "world"\npages = 200\nquestions = 30\n')
    spaniel = tmp_path / "venv/bin/spaniel"
    call(spaniel, "index", "build", recipe, cwd=tmp_path)
    call(spaniel, "index", "search", recipe, "river", cwd=tmp_path)
    refused = subprocess.run(
        [spaniel, "sft", "base", ROOT / "recipes/tiny-base/recipe.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "pip install" in refused.stderr
