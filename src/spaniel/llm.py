"""One client for every model behind an OpenAI-compatible endpoint: cache, budget, replay.

Policies, teachers, rerankers and judges ask through it. The SDK retries rate limits and server
errors with back-off; this file adds what the SDK does not have:

- a cache on disk: the same request (endpoint, model, messages, sampling, sample number) is paid
  once, and an interrupted run goes on where it stopped;
- a cost ledger, and a budget that stops before it is exceeded by more than what is under way;
- replay: answers from the cache only, without a key and without a network.
"""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from spaniel.cache import TextCache
from spaniel.config import EndpointConfig
from spaniel.errors import ConfigError, EndpointError
from spaniel.store import hash_of
from spaniel.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is asked, and how the answer is sampled."""

    messages: tuple[Message, ...]
    max_tokens: int
    """Of the answer, reasoning included."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    sample: int = 0
    """Tells equal prompts apart that shall have different answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the endpoint answered."""

    text: str
    """Without reasoning; empty when the token limit was spent on reasoning."""
    cut: bool = False
    """The token limit ended it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """As the endpoint counted them, reasoning included."""


@dataclass(slots=True, kw_only=True)
class Usage:
    """What an endpoint was used for, and what that costs at the stated prices."""

    usd_per_million_input: float
    usd_per_million_output: float
    num_requests: int = 0
    """Answers that came back and were paid for."""
    num_cached: int = 0
    """Answers out of the cache."""
    input_tokens: int = 0
    """As the endpoint counted them: each request with its whole prompt."""
    output_tokens: int = 0
    """Reasoning included."""

    @property
    def usd(self) -> float:
        """Cost so far."""
        millionth = 1e-6
        return millionth * (
            self.input_tokens * self.usd_per_million_input
            + self.output_tokens * self.usd_per_million_output
        )


class LlmClient:
    """Asks one endpoint. Safe to use from several threads and event loops.

    Args:
        cfg: endpoint, limits, prices, cache.

    Attributes:
        usage: tokens and cost so far.

    Raises:
        ConfigError: the SDK is missing, the environment variable of the key is not set, or
            replay has no cache.
    """

    def __init__(self, cfg: EndpointConfig) -> None:
        if cfg.replay and cfg.cache is None:
            raise ConfigError(f"replay of {cfg.model} needs its cache: set cache")
        if not cfg.replay:
            _sdk()
            _key(cfg)
        self._cfg = cfg
        self._cache = AnswerCache(cfg.cache) if cfg.cache is not None else None
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self._slots = threading.BoundedSemaphore(cfg.max_concurrency)
        self.usage = Usage(
            usd_per_million_input=cfg.usd_per_million_input,
            usd_per_million_output=cfg.usd_per_million_output,
        )

    async def ask(self, prompt: Prompt) -> Reply:
        """One completion.

        Raises:
            EndpointError: the endpoint failed after its retries, the answer has no text, the
                budget is spent, or replay has no answer.
        """
        arguments = self._arguments(prompt)
        key = self._key_of(arguments, prompt.sample)
        reply = self._known(key)
        if reply is None:
            async with self._semaphore():
                with _failures_named():
                    answer = await self._async_client.chat.completions.create(**arguments)
            reply = self._take(key, answer)
        return reply

    def ask_blocking(self, prompt: Prompt) -> Reply:
        """``ask`` for callers on a thread."""
        arguments = self._arguments(prompt)
        key = self._key_of(arguments, prompt.sample)
        reply = self._known(key)
        if reply is None:
            with self._slots, _failures_named():
                answer = self._client.chat.completions.create(**arguments)
            reply = self._take(key, answer)
        return reply

    async def close(self) -> None:
        """Close the connections of ``ask``."""
        if "_async_client" in self.__dict__:
            await self._async_client.close()

    def close_blocking(self) -> None:
        """Close the connections of ``ask_blocking`` and the cache."""
        if "_client" in self.__dict__:
            self._client.close()
        if self._cache is not None:
            self._cache.close()

    # -- inside --------------------------------------------------------------------------------

    @cached_property
    def _async_client(self) -> Any:
        return _sdk().AsyncOpenAI(**self._sdk_arguments())

    @cached_property
    def _client(self) -> Any:
        return _sdk().OpenAI(**self._sdk_arguments())

    def _sdk_arguments(self) -> dict[str, Any]:
        cfg = self._cfg
        return {
            "api_key": _key(cfg),
            "base_url": cfg.base_url,
            "timeout": cfg.timeout_s,
            "max_retries": cfg.max_retries,
        }

    def _semaphore(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._waiting:
            self._waiting = {loop: asyncio.Semaphore(self._cfg.max_concurrency)}
        return self._waiting[loop]

    def _arguments(self, prompt: Prompt) -> dict[str, Any]:
        # OpenAI's own models refuse max_tokens, many compatible servers know nothing else.
        limit = "max_completion_tokens" if self._cfg.base_url is None else "max_tokens"
        arguments: dict[str, Any] = {
            "model": self._cfg.model,
            "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
            limit: prompt.max_tokens,
        }
        if prompt.seed is not None:
            arguments["seed"] = prompt.seed % 2**31
        # Reasoning models refuse these, even at the default.
        if prompt.temperature != 1:
            arguments["temperature"] = prompt.temperature
        if prompt.top_p != 1:
            arguments["top_p"] = prompt.top_p
        return arguments

    def _key_of(self, arguments: dict[str, Any], sample: int) -> str:
        return hash_of([self._cfg.base_url, arguments, sample])

    def _known(self, key: str) -> Reply | None:
        """The answer out of the cache; None when the endpoint may be asked."""
        cfg = self._cfg
        if self._cache is not None:
            reply = self._cache.get(key)
            if reply is not None:
                with self._lock:
                    self.usage.num_cached += 1
                return reply
        if cfg.replay:
            raise EndpointError(f"replay: {cfg.cache} has no answer of {cfg.model} to this request")
        if cfg.budget_usd is not None and self.usage.usd >= cfg.budget_usd:
            raise EndpointError(
                f"the budget of {cfg.budget_usd:g} USD for {cfg.model} is spent "
                f"({self.usage.usd:.2f} USD): raise budget_usd to go on"
            )
        return None

    def _take(self, key: str, answer: Any) -> Reply:
        """Count an answer, read it, keep it."""
        usage = getattr(answer, "usage", None)
        prompt = getattr(usage, "prompt_tokens", None) or 0
        completion = getattr(usage, "completion_tokens", None) or 0
        with self._lock:
            self.usage.num_requests += 1
            self.usage.input_tokens += prompt
            self.usage.output_tokens += completion
        text, cut = _read(answer)
        reply = Reply(text=text, cut=cut, prompt_tokens=prompt, completion_tokens=completion)
        if self._cache is not None:
            self._cache.put(key, reply)
        return reply


class AnswerCache:
    """Replies by the hash of their request. Raises ``ConfigError`` as ``TextCache``."""

    def __init__(self, path: Path) -> None:
        self._texts = TextCache(path)

    def get(self, key: str) -> Reply | None:
        """The answer, if it is there."""
        text = self._texts.get(key)
        return Reply(**json.loads(text)) if text is not None else None

    def put(self, key: str, reply: Reply) -> None:
        """Keep an answer; on disk when this returns."""
        self._texts.put({key: json.dumps(asdict(reply))})

    def close(self) -> None:
        """Close the file."""
        self._texts.close()


def _sdk() -> Any:
    try:
        import openai
    except ImportError:
        raise ConfigError(
            "an endpoint needs the openai SDK: pip install 'spaniel[endpoint]'"
        ) from None
    return openai


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except _sdk().OpenAIError as error:
        raise EndpointError(f"{type(error).__name__}: {error}") from error
    except ValueError as error:  # an answer that is not JSON
        raise EndpointError(f"the answer cannot be read: {error}") from error


def _key(cfg: EndpointConfig) -> str:
    key = os.environ.get(cfg.api_key_env)
    if not key:
        raise ConfigError(
            f"the key of {cfg.model} must be in the environment variable {cfg.api_key_env}; "
            f"for a server without keys set it to any word"
        )
    return key


def _read(answer: Any) -> tuple[str, bool]:
    """The text, and whether the token limit cut it.

    Reasoning is not part of the text. A model that spent its whole budget on reasoning has
    written nothing: an empty text, cut. No text and no reasoning is a broken answer.
    """
    choices = getattr(answer, "choices", None)
    if not choices:
        raise EndpointError(f"the endpoint's answer has no choices: {str(answer)[:120]!r}")
    message, reason = choices[0].message, choices[0].finish_reason
    if reason == "content_filter":
        raise EndpointError("the endpoint's content filter stopped the completion")
    # vLLM and others name it reasoning or reasoning_content.
    thought = getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None)
    if not message.content and not thought:
        raise EndpointError(f"the endpoint's answer has no text (finish_reason {reason!r})")
    return message.content or "", reason == "length"
