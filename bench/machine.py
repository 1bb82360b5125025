"""What every measurement says about itself: when, which commit, on what, with which versions."""

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def about(packages: Sequence[str]) -> dict[str, Any]:
    """Date, commit, machine, and the versions of some installed packages."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_gib": round(_memory_kib("MemTotal", "/proc/meminfo") / 2**20, 1),
            "system": platform.system(),
        },
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
    }


def peak_rss_mib() -> float:
    """Highest resident memory of this process since its start, or since ``reset_peak_rss``."""
    return _memory_kib("VmHWM", "/proc/self/status") / 1024


def rss_mib() -> float:
    """Resident memory of this process."""
    return _memory_kib("VmRSS", "/proc/self/status") / 1024


def reset_peak_rss() -> None:
    """Let ``peak_rss_mib`` start from the memory that is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory_kib(field: str, path: str) -> int:
    for line in Path(path).read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0])
    raise OSError(f"{path} has no {field}: this needs Linux")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
