"""A model behind an OpenAI-compatible endpoint: text in, text out, never trained on.

The frontier baseline and the teacher. The endpoint tokenises by itself and says nothing that
could be trained on, so ids come from the renderer and log-probs are zeros.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from spaniel.config import EndpointConfig
from spaniel.errors import ConfigError, PolicyError, boundary
from spaniel.policy.base import Request
from spaniel.renderer import Renderer
from spaniel.types import Completion, FinishReason


@dataclass(slots=True, kw_only=True)
class Usage:
    """What an endpoint was used for, and what that costs at the stated prices."""

    usd_per_million_input: float
    usd_per_million_output: float
    num_requests: int = 0
    """Completions that came back."""
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


class EndpointPolicy:
    """Completes the messages of a request through the Chat Completions API.

    Its completions hold the renderer's ids for the text and log-prob 0.0 each: they are not
    what the endpoint sampled, and must never be trained on with a policy-gradient loss.
    Rate limits and server errors are retried by the SDK, ``max_retries`` times with back-off.

    Args:
        cfg: endpoint, limits and prices.
        renderer: encodes the texts; ``ByteRenderer`` where no model is near.

    Attributes:
        usage: tokens and cost so far.
        tokens_of: episode id -> (prompt, completion) tokens as the endpoint counted them.

    Raises:
        ConfigError: the SDK is missing, or the environment variable of the key is not set.
    """

    def __init__(self, cfg: EndpointConfig, renderer: Renderer) -> None:
        try:
            from openai import AsyncOpenAI
        except ImportError:
            raise ConfigError(
                "an endpoint needs the openai SDK: pip install 'spaniel[endpoint]'"
            ) from None
        key = os.environ.get(cfg.api_key_env)
        if not key:
            raise ConfigError(
                f"the key of {cfg.model} must be in the environment variable {cfg.api_key_env}; "
                f"for a server without keys set it to any word"
            )
        self._cfg = cfg
        self._renderer = renderer
        self._client = AsyncOpenAI(
            api_key=key,
            base_url=cfg.base_url,
            timeout=cfg.timeout_s,
            max_retries=cfg.max_retries,
        )
        self._places = asyncio.Semaphore(cfg.max_concurrency)
        self.usage = Usage(
            usd_per_million_input=cfg.usd_per_million_input,
            usd_per_million_output=cfg.usd_per_million_output,
        )
        self.tokens_of: dict[str, tuple[int, int]] = {}

    @property
    def version(self) -> int:
        """Always 0: nothing here is ever updated."""
        return 0

    async def complete(self, request: Request) -> Completion:
        """One completion of ``request.messages``.

        Raises:
            PolicyError: the endpoint failed after its retries, or answered without a text.
        """
        with boundary(PolicyError, f"endpoint {self._cfg.model}"):
            async with self._places:
                answer = await self._client.chat.completions.create(**self._arguments(request))
            self._count(request.episode_id, answer)
            text, cut = _read(answer)
        ids = self._renderer.encode_completion(text)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            policy_version=0,
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            text=text,
        )

    async def end_episode(self, episode_id: str) -> None:
        """Nothing is kept of an episode."""

    async def load(self, version: int, weights: Any) -> None:
        """Refuse: an endpoint's weights are not ours.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self._cfg.model} is behind an endpoint and cannot be trained")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _arguments(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        # OpenAI's own models refuse max_tokens, many compatible servers know nothing else.
        limit = "max_completion_tokens" if self._cfg.base_url is None else "max_tokens"
        arguments: dict[str, Any] = {
            "model": self._cfg.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            limit: sampling.max_tokens,
            "seed": sampling.seed % 2**31,
        }
        # Reasoning models refuse these, even at the default.
        if sampling.temperature != 1:
            arguments["temperature"] = sampling.temperature
        if sampling.top_p != 1:
            arguments["top_p"] = sampling.top_p
        return arguments

    def _count(self, episode_id: str, answer: Any) -> None:
        usage = getattr(answer, "usage", None)
        prompt = getattr(usage, "prompt_tokens", None) or 0
        completion = getattr(usage, "completion_tokens", None) or 0
        self.usage.num_requests += 1
        self.usage.input_tokens += prompt
        self.usage.output_tokens += completion
        before = self.tokens_of.get(episode_id, (0, 0))
        self.tokens_of[episode_id] = (before[0] + prompt, before[1] + completion)


def _read(answer: Any) -> tuple[str, bool]:
    """The text, and whether the token limit cut it.

    Reasoning is not part of the text. A model that spent its whole budget on reasoning has
    written nothing: an empty text, cut. No text and no reasoning is a broken answer.
    """
    choices = getattr(answer, "choices", None)
    if not choices:
        raise PolicyError(f"the endpoint's answer has no choices: {str(answer)[:120]!r}")
    message, reason = choices[0].message, choices[0].finish_reason
    if reason == "content_filter":
        raise PolicyError("the endpoint's content filter stopped the completion")
    # vLLM and others name it reasoning or reasoning_content.
    thought = getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None)
    if not message.content and not thought:
        raise PolicyError(f"the endpoint's answer has no text (finish_reason {reason!r})")
    return message.content or "", reason == "length"
