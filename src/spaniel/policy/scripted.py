"""A policy that says what it was told to: the test double for everything."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spaniel.errors import PolicyError
from spaniel.policy.base import Request
from spaniel.renderer import Renderer
from spaniel.types import Completion, FinishReason

LOGPROB = -1.0
"""Of every scripted token."""


class ScriptedPolicy:
    """Completes from scripts, without a model.

    Args:
        renderer: encodes the texts, and their end of turn.
        scripts: the completions of each episode in order, by episode id; or a function of
            the request that writes one.

    Attributes:
        requests: everything that was asked, in order.
        ended: episode ids, in the order in which they ended.
    """

    def __init__(
        self,
        renderer: Renderer,
        scripts: Mapping[str, Sequence[str]] | Callable[[Request], str],
    ) -> None:
        self._renderer = renderer
        self._scripts = scripts
        self._version = 0
        self._num_turns: dict[str, int] = {}
        self.requests: list[Request] = []
        self.ended: list[str] = []

    @property
    def version(self) -> int:
        """What ``load`` said last."""
        return self._version

    async def complete(self, request: Request) -> Completion:
        """Give the next text of the episode's script, cut to ``max_tokens``.

        Raises:
            PolicyError: the episode has no script, or no text left in it.
        """
        self.requests.append(request)
        ids = self._renderer.encode_completion(self._text(request))
        limit = request.sampling.max_tokens
        cut = len(ids) > limit
        ids = ids[:limit]
        return Completion(
            token_ids=ids,
            logprobs=(LOGPROB,) * len(ids),
            policy_version=self._version,
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            text=self._renderer.decode(ids),
        )

    async def end_episode(self, episode_id: str) -> None:
        """Start the episode's script again, should it come back."""
        self.ended.append(episode_id)
        self._num_turns.pop(episode_id, None)

    async def load(self, version: int, weights: Any) -> None:
        """Only the version counts."""
        self._version = version

    def _text(self, request: Request) -> str:
        if not isinstance(self._scripts, Mapping):
            return self._scripts(request)
        episode = request.episode_id
        turn = self._num_turns.get(episode, 0)
        script = self._scripts.get(episode)
        if script is None or turn >= len(script):
            known = f"{len(script)} texts" if script is not None else "no script"
            raise PolicyError(f"episode {episode} has {known}, asked for number {turn + 1}")
        self._num_turns[episode] = turn + 1
        return script[turn]
