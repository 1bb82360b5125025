"""The joint where policies vary: a prompt in, a completion out."""

from dataclasses import dataclass
from typing import Any, Protocol

from spaniel.types import Completion, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy: the most likely token, log-prob 0 (the distribution is a point)."""
    top_p: float = 1.0
    max_tokens: int = 128
    """Of this completion."""
    seed: int = 0
    """Of this completion: the same seed, prompt and weights draw the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to make."""

    episode_id: str
    """Requests of one episode share a key/value cache; each prompt extends the one before."""
    token_ids: tuple[int, ...]
    """[num_prompt_tokens] the whole prompt, earlier completions included."""
    messages: tuple[Message, ...]
    """The same conversation as text, for policies that take no token ids."""
    sampling: Sampling
    num_routed: int = 0
    """Tokens of the prompt whose experts are known from earlier completions."""


class Policy(Protocol):
    """Anything that completes a prompt.

    ``complete`` is called by many episodes at once; an implementation batches as it likes.
    It raises on failure and never returns a made-up completion.
    """

    @property
    def version(self) -> int:
        """Weight updates behind the current weights."""
        ...

    async def complete(self, request: Request) -> Completion:
        """Sample one completion."""
        ...

    async def end_episode(self, episode_id: str) -> None:
        """The episode sends no more requests; whatever was cached for it may go."""
        ...

    async def load(self, version: int, weights: Any) -> None:
        """Serve these weights from now on, and forget caches made by others."""
        ...
