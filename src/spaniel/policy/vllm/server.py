"""One vLLM server as a child process: started, watched, started anew, stopped."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from spaniel.config import PolicyConfig, VllmConfig
from spaniel.errors import ConfigError, PolicyError
from spaniel.policy.vllm.install import DEFAULT_ENVIRONMENT, installed
from spaniel.progress import say

SERVED_NAME = "policy"
"""What the base weights are called in requests; adapters have names of their own."""
_PR_SET_PDEATHSIG = 1


class VllmServer:
    """A server of one model on this machine.

    Args:
        model: folder or Hugging Face id of the weights to start with.
        log: file for what it prints.
        number: of the server; with several GPUs each takes the one of its number.
        note_routes: have it tell which experts tokens go through.

    Raises:
        ConfigError: there is no environment with vLLM.
    """

    def __init__(
        self,
        model: str,
        policy: PolicyConfig,
        cfg: VllmConfig,
        *,
        log: Path,
        number: int,
        note_routes: bool = False,
    ) -> None:
        self.policy, self.cfg, self.log, self.number = policy, cfg, log, number
        self.note_routes = note_routes
        self.environment = cfg.environment or DEFAULT_ENVIRONMENT
        if installed(self.environment) is None:
            raise ConfigError(
                f"{self.environment} holds no vLLM: run `spaniel policy install-vllm`, or set "
                "policy.vllm.environment or policy.vllm.urls"
            )
        self.port = _free_port() if cfg.port is None else cfg.port + number
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = serve_command(self.environment, model, self.port, policy, cfg)
        if note_routes:
            self.command.append("--enable-return-routed-experts")
        self.num_starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether the process runs, healthy or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it is healthy.

        Raises:
            PolicyError: it ended, or was not healthy in time; with the last line of its log.
        """
        self.num_starts += 1
        self.log.parent.mkdir(parents=True, exist_ok=True)
        say(f"vLLM server {self.number}: starting on port {self.port}, log in {self.log}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment_variables()},
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        deadline = time.monotonic() + self.cfg.start_s
        while not is_healthy(self.url):
            if not self.alive:
                raise PolicyError(f"vLLM server {self.number} ended: {self.last_words()}")
            if time.monotonic() > deadline:
                self.stop()
                raise PolicyError(
                    f"vLLM server {self.number} was not healthy after {self.cfg.start_s:.0f} s "
                    f"(policy.vllm.start_s): {self.last_words()}"
                )
            time.sleep(0.5)
        say(f"vLLM server {self.number}: ready")

    def stop(self) -> None:
        """End it and all that it started."""
        if self._process is None:
            return
        for sign, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._process = None

    def last_words(self) -> str:
        """The last line of the log that names an error, or its last line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line.strip() for line in lines[-400:] if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it said nothing"])[-1][:400]

    def _environment_variables(self) -> dict[str, str]:
        variables = {
            # Pausing, weight updates, sleep and cache control are development routes of vLLM.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if self.note_routes:
            variables["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the one that can tell experts
        if self.cfg.cpu_cache_gb is not None:
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(self.cfg.cpu_cache_gb)
        if self.cfg.servers > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
            variables["CUDA_VISIBLE_DEVICES"] = str(self.number)
        return variables


def serve_command(
    environment: Path, model: str, port: int, policy: PolicyConfig, cfg: VllmConfig
) -> list[str]:
    """``vllm serve`` with what token-exact training needs."""
    flags: dict[str, Any] = {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": SERVED_NAME,
        "--dtype": policy.dtype,
        "--max-model-len": cfg.max_model_tokens,
        "--max-num-seqs": policy.max_live_episodes,
        # Of the distribution that was sampled from: temperature and top-p applied.
        "--logprobs-mode": "processed_logprobs",
        "--gpu-memory-utilization": cfg.gpu_memory_frac,
    }
    # Not ``bin/vllm``: it looks its version up under a name that vllm-cpu does not have.
    module = "vllm.entrypoints.openai.api_server"
    command = [str(environment / "bin" / "python"), "-m", module, "--model", model]
    command += [part for name, value in flags.items() for part in (name, str(value))]
    command += ["--enable-scale-out", "--enable-prefix-caching"]
    if policy.lora is not None and not policy.lora.merge:
        command += ["--enable-lora", "--max-loras", "2"]
        command += ["--max-lora-rank", str(_lora_rank(policy.lora.rank))]
    if cfg.sleep:
        command.append("--enable-sleep-mode")
    return [*command, *cfg.arguments]


def is_healthy(url: str) -> bool:
    """Whether a server answers and says that its engine runs."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _lora_rank(rank: int) -> int:
    """vLLM keeps room for one of a few ranks."""
    allowed = (8, 16, 32, 64, 128, 256, 320, 512)
    fitting = [size for size in allowed if size >= rank]
    if not fitting:
        raise ConfigError(f"policy.lora.rank must be <= {allowed[-1]} with vLLM, got {rank}")
    return fitting[0]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _die_with_parent(parent: int) -> Callable[[], None]:
    """For the child: end when its parent is killed, so that no server outlives a run."""

    def ask_kernel() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel
