"""A model behind an OpenAI-compatible endpoint: text in, text out, never trained on.

The frontier baseline and the teacher. The endpoint tokenises by itself and says nothing that
could be trained on, so ids come from the renderer and log-probs are zeros.
"""

from typing import Any

from spaniel.config import EndpointConfig
from spaniel.errors import ConfigError, PolicyError, boundary
from spaniel.llm import LlmClient, Prompt, Usage
from spaniel.policy.base import Request
from spaniel.renderer import Renderer
from spaniel.types import Completion, FinishReason


class EndpointPolicy:
    """Completes the messages of a request through the Chat Completions API.

    Its completions hold the renderer's ids for the text and log-prob 0.0 each: they are not
    what the endpoint sampled, and must never be trained on with a policy-gradient loss.

    Args:
        cfg: endpoint, limits, prices, cache.
        renderer: encodes the texts; ``ByteRenderer`` where no model is near.

    Attributes:
        tokens_of: episode id -> (prompt, completion) tokens as the endpoint counted them.

    Raises:
        ConfigError: see ``LlmClient``.
    """

    def __init__(self, cfg: EndpointConfig, renderer: Renderer) -> None:
        self._cfg = cfg
        self._renderer = renderer
        self._client = LlmClient(cfg)
        self.tokens_of: dict[str, tuple[int, int]] = {}

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far."""
        return self._client.usage

    @property
    def version(self) -> int:
        """Always 0: nothing here is ever updated."""
        return 0

    async def complete(self, request: Request) -> Completion:
        """One completion of ``request.messages``.

        Raises:
            PolicyError: the endpoint failed after its retries, or answered without a text.
        """
        sampling = request.sampling
        with boundary(PolicyError, f"endpoint {self._cfg.model}"):
            reply = await self._client.ask(
                Prompt(
                    messages=request.messages,
                    max_tokens=sampling.max_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    seed=sampling.seed,
                )
            )
        prompt, completion = self.tokens_of.get(request.episode_id, (0, 0))
        self.tokens_of[request.episode_id] = (
            prompt + reply.prompt_tokens,
            completion + reply.completion_tokens,
        )
        ids = self._renderer.encode_completion(reply.text)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            policy_version=0,
            finish_reason=FinishReason.LENGTH if reply.cut else FinishReason.STOP,
            text=reply.text,
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
