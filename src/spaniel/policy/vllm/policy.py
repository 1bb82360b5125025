"""A policy over vLLM servers: token ids in, token ids and the log-probs they were drawn with out.

    episode --sticky--> server      POST /inference/v1/generate   ids, seed, salt of the version
    update  --files---> each one    an adapter is loaded under a new name; whole weights are read
                                    over the old ones when nothing is under way; caches of the
                                    old version are never looked up again

A completion is made by one version of the weights. A server that died is started again with the
weights of now, as often as ``policy.vllm.max_restarts`` allows.
"""

import asyncio
import atexit
import base64
import io
import math
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from spaniel.config import PolicyConfig, VllmConfig
from spaniel.errors import ConfigError, PolicyError
from spaniel.policy.base import Request
from spaniel.policy.vllm.install import DEFAULT_ENVIRONMENT, is_for_cpu
from spaniel.policy.vllm.server import SERVED_NAME, VllmServer, is_healthy
from spaniel.progress import say
from spaniel.routing import packed_choices
from spaniel.types import Completion, FinishReason

ADAPTER_FILE = "adapter_model.safetensors"


class VllmPolicy:
    """Samples from one or several vLLM servers that hold the same weights.

    Args:
        model: folder or id of the weights that servers start with.
        decode: ids to text, for ``Completion.text``.
        stop_ids: tokens that end a turn.
        directory: for the servers' logs.
        note_routes: tell with each completion which experts its tokens went through.

    Raises:
        ConfigError: there is no vLLM to start, or a server given by URL does not answer.
        PolicyError: a server could not be started.
    """

    def __init__(
        self,
        model: str,
        policy: PolicyConfig,
        cfg: VllmConfig,
        *,
        decode: Callable[[Sequence[int]], str],
        stop_ids: Sequence[int],
        directory: Path,
        note_routes: bool = False,
    ) -> None:
        self.cfg = cfg
        self._note_routes = note_routes
        self._decode, self._stop_ids = decode, tuple(stop_ids)
        self._version = 0
        self._weights: Path | None = None
        self._adapters: list[str] = []
        """Names under which the latest were loaded, the current one last."""
        self._asleep = False
        self._servers: list[VllmServer] = []
        self._http = httpx.Client(timeout=httpx.Timeout(cfg.request_s, connect=10))
        self._threads = ThreadPoolExecutor(policy.max_live_episodes + 4, "vllm")
        self._recovering = threading.RLock()
        self._homes: dict[str, str] = {}
        """Of each episode, the server that holds its prefix."""
        self._num_under_way = 0
        self._loaded: asyncio.Event | None = None
        """Set while weights are being loaded: what new completions wait for."""
        if cfg.urls:
            self._urls = [url.rstrip("/") for url in cfg.urls]
            for url in self._urls:
                if not is_healthy(url):
                    raise ConfigError(f"policy.vllm.urls: {url}/health does not answer")
        else:
            self._servers = [
                VllmServer(
                    model,
                    policy,
                    cfg,
                    log=directory / f"vllm-{n}.log",
                    number=n,
                    note_routes=note_routes,
                )
                for n in range(cfg.servers)
            ]
            self._urls = [server.url for server in self._servers]
            atexit.register(self.close)
            for server in self._servers:
                server.start()

    @property
    def version(self) -> int:
        """Weight updates behind the current weights."""
        return self._version

    # -- sampling ----------------------------------------------------------------------------

    async def complete(self, request: Request) -> Completion:
        """Sample one completion.

        Raises:
            PolicyError: the server failed and could not be brought back, refused the request, or
                gave a log-prob that is no number.
        """
        while self._loaded is not None:
            await self._loaded.wait()
        url = self._home(request.episode_id)
        version, name = self._version, self._name
        request_id = uuid.uuid4().hex
        body: dict[str, Any] = {
            "request_id": request_id,
            "model": name,
            "token_ids": list(request.token_ids),
            "cache_salt": f"version-{version}",
            "sampling_params": {
                "temperature": request.sampling.temperature,
                "top_p": request.sampling.top_p,
                "max_tokens": request.sampling.max_tokens,
                "stop_token_ids": list(self._stop_ids),
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        if not starts_on_cpu(self.cfg):
            # vLLM on a CPU dies of a seed when it feeds a prompt in several pieces.
            body["sampling_params"]["seed"] = request.sampling.seed
        if self._note_routes:
            body["sampling_params"]["routed_experts_prompt_start"] = request.num_routed
        loop = asyncio.get_running_loop()
        self._num_under_way += 1
        try:
            generate = partial(self._post, url, "/inference/v1/generate", body)
            answer = await loop.run_in_executor(self._threads, generate)
        except asyncio.CancelledError:
            # The thread waits on; without this the server would sample to the end for nobody.
            self._threads.submit(
                self._try_post, url, "/abort_requests", {"request_ids": [request_id]}
            )
            raise
        finally:
            self._num_under_way -= 1
        return self._completion(answer["choices"][0], request, version)

    def _completion(self, choice: dict[str, Any], request: Request, version: int) -> Completion:
        ids = tuple(choice["token_ids"])
        drawn = choice["logprobs"]["content"]
        if [token["token_id"] for token in drawn] != list(ids):
            raise PolicyError("vLLM gave log-probs of other tokens than it sampled")
        logprobs = tuple(float(token["logprob"]) for token in drawn)
        if not all(map(math.isfinite, logprobs)):
            raise PolicyError(f"vLLM gave log-probs that are no numbers: {logprobs}")
        if request.sampling.temperature == 0:
            logprobs = (0.0,) * len(ids)  # the distribution that was drawn from is a point
        reasons = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
        if choice["finish_reason"] not in reasons or not ids:
            raise PolicyError(f"vLLM ended a completion with {choice['finish_reason']!r}")
        reason = reasons[choice["finish_reason"]]
        ended = reason is FinishReason.STOP and ids[-1] in self._stop_ids
        return Completion(
            token_ids=ids,
            logprobs=tuple(min(lp, 0.0) for lp in logprobs),
            policy_version=version,
            finish_reason=reason,
            text=self._decode(ids[:-1] if ended else ids),
            routes=self._routes(choice, request),
        )

    def _routes(self, choice: dict[str, Any], request: Request) -> tuple[bytes, ...]:
        if not self._note_routes:
            return ()
        if choice.get("routed_experts") is None:
            raise PolicyError(
                "vLLM told no experts: start it with --enable-return-routed-experts, or set "
                "policy.replay_routing to false"
            )
        array = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
        expected = len(request.token_ids) + len(choice["token_ids"]) - 1 - request.num_routed
        if array.ndim != 3 or len(array) != expected:
            raise PolicyError(f"vLLM told experts {array.shape} for {expected} tokens")
        return tuple(packed_choices(array))

    async def end_episode(self, episode_id: str) -> None:
        """Forget which server holds the episode's prefix."""
        self._homes.pop(episode_id, None)

    def _home(self, episode_id: str) -> str:
        """The server of an episode, for its prefix lies there; a new one goes where least are."""
        if episode_id not in self._homes:
            load = dict.fromkeys(self._urls, 0)
            for url in self._homes.values():
                load[url] += 1
            self._homes[episode_id] = min(load, key=lambda url: load[url])
        return self._homes[episode_id]

    # -- weights -----------------------------------------------------------------------------

    async def load(self, version: int, weights: Any) -> None:
        """Serve these weights from now on.

        Completions under way are finished by the weights that began them; new ones wait.

        Args:
            weights: folder with ``adapter_model.safetensors``, or with a whole model.

        Raises:
            PolicyError: a server refused them.
        """
        assert self._loaded is None, "weights are being loaded already"
        self._loaded = asyncio.Event()
        folder = Path(weights)
        try:
            if not _is_adapter(folder):
                # Whole weights are read over the old ones: nothing may be half done. An adapter
                # lies beside the one before, which those under way go on with.
                while self._num_under_way:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(self._load_everywhere, version, folder)
            self._version = version
        finally:
            self._loaded.set()
            self._loaded = None

    @property
    def _name(self) -> str:
        return self._adapters[-1] if self._adapters else SERVED_NAME

    def _load_everywhere(self, version: int, weights: Path) -> None:
        self._wake()
        # A name is never used twice: caches and adapters are looked up by it.
        name = f"version-{version}-{uuid.uuid4().hex[:6]}" if _is_adapter(weights) else None
        for url in self._urls:
            self._load(url, weights, name)
        self._weights = weights
        if name is not None:
            self._adapters.append(name)
        for old in self._adapters[:-2]:
            for url in self._urls:
                self._post(url, "/v1/unload_lora_adapter", {"lora_name": old})
        self._adapters = self._adapters[-2:]

    def _load(self, url: str, weights: Path, name: str | None) -> None:
        if name is not None:
            adapter = {"lora_name": name, "lora_path": str(weights.resolve())}
            self._post(url, "/v1/load_lora_adapter", adapter)
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.resolve())}}
        self._post(url, "/collective_rpc", reload)
        self._post(url, "/reset_prefix_cache", {})

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probs [len - 1] of a sequence at temperature 1, as the first server computes them.

        Raises:
            PolicyError: the server failed.
        """
        body = {
            "model": self._name,
            "token_ids": list(token_ids),
            "cache_salt": uuid.uuid4().hex,
            "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
        }
        answer = self._post(self._urls[0], "/inference/v1/generate", body)
        tables = answer["prompt_logprobs"][1:]
        return tuple(
            float(table[str(token)]["logprob"])
            for table, token in zip(tables, token_ids[1:], strict=True)
        )

    def forget(self) -> None:
        """Give the GPU's memory to the update, where ``policy.vllm.sleep`` says so; ``load`` takes
        it back."""
        if self.cfg.sleep and not self._asleep:
            for url in self._urls:
                self._post(url, "/sleep?level=1", {})
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            for url in self._urls:
                self._post(url, "/wake_up", {})
            self._asleep = False

    # -- the wire ----------------------------------------------------------------------------

    def _post(self, url: str, path: str, body: dict[str, Any]) -> Any:
        """Ask a server; bring it back and ask again when it has died."""
        for _ in range(self.cfg.max_restarts + 1):
            try:
                answer = self._http.post(f"{url}{path}", json=body)
            except httpx.HTTPError as error:
                self._bring_back(url, str(error) or type(error).__name__)
                continue
            if answer.status_code >= 400:
                raise PolicyError(f"vLLM {path}: {answer.status_code} {answer.text[:300]}")
            is_json = "json" in answer.headers.get("content-type", "")
            return answer.json() if is_json else answer.text
        raise PolicyError(f"vLLM server at {url} failed again and again")

    def _try_post(self, url: str, path: str, body: dict[str, Any]) -> None:
        try:
            self._http.post(f"{url}{path}", json=body)
        except httpx.HTTPError as error:
            say(f"vLLM {path} failed: {error}")

    def _bring_back(self, url: str, cause: str) -> None:
        """Start a server anew, with the weights of now. One thread does it, others wait.

        Raises:
            PolicyError: it is not ours to start, or was started too often.
        """
        server = next((s for s in self._servers if s.url == url), None)
        with self._recovering:
            if is_healthy(url):
                return
            if server is None:
                raise PolicyError(f"the vLLM server at {url} does not answer: {cause}")
            if server.num_starts > self.cfg.max_restarts:
                raise PolicyError(
                    f"vLLM server {server.number} died {server.num_starts} times "
                    f"(policy.vllm.max_restarts = {self.cfg.max_restarts}): {server.last_words()}"
                )
            say(f"vLLM server {server.number} died ({cause}): starting it anew")
            server.stop()
            server.start()
            if self._weights is not None:
                self._load(url, self._weights, self._adapters[-1] if self._adapters else None)

    def close(self) -> None:
        """Stop the servers that were started here."""
        for server in self._servers:
            server.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()


def starts_on_cpu(cfg: VllmConfig) -> bool:
    """Whether the servers that are started here have vLLM's CPU build."""
    return not cfg.urls and is_for_cpu(cfg.environment or DEFAULT_ENVIRONMENT)


def _is_adapter(weights: Path) -> bool:
    return (weights / ADAPTER_FILE).exists()
