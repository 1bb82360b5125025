"""A language model orders the hits, list-wise, by their use for the searcher's next step.

It sees the searcher's question and earlier queries, the query, and title, URL and excerpt of each
candidate. Models favour what stands first or last, so several orders of the same list can be
asked; a candidate's score is its mean rank over the answers.
"""

import json
import random
import re
from collections.abc import Sequence

from spaniel.config import LlmRerankConfig
from spaniel.errors import EndpointError, ToolError
from spaniel.llm import LlmClient, Prompt, Usage
from spaniel.progress import say
from spaniel.store import hash_of
from spaniel.types import Document, Hit, Message

PROMPT_VERSION = 1
SYSTEM = """\
You order search results for somebody who works through a task step by step.
Put first what helps most with the next step: a result that answers the query, or names what has \
to be looked up next. Put last what only shares words with it.
Answer with a JSON list of all labels, best first, such as ["B", "A", "C"], and nothing else."""
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class LlmReranker:
    """A ``Reranker`` behind an endpoint.

    Args:
        cfg: endpoint, orders, and what happens when there is no usable answer.

    Attributes:
        num_kept: lists that were left in the engine's order because the model failed.

    Raises:
        ConfigError: see ``LlmClient``.
    """

    waits = True
    reads_texts = False

    def __init__(self, cfg: LlmRerankConfig) -> None:
        self._cfg = cfg
        self._client = LlmClient(cfg.endpoint)
        self.num_kept = 0

    @property
    def fingerprint(self) -> str:
        """Hash of model, prompt, orders and fallback."""
        endpoint = self._cfg.endpoint
        settings = [self._cfg.num_orders, self._cfg.on_error]
        return hash_of(["llm", endpoint.base_url, endpoint.model, PROMPT_VERSION, settings])

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far."""
        return self._client.usage

    def score(
        self, query: str, hits: Sequence[Hit], documents: Sequence[Document], context: str = ""
    ) -> list[float]:
        """[num_hits] minus the mean rank in the model's answers.

        Raises:
            ToolError: the endpoint failed or its answer names no candidate, and ``on_error`` is
                ``fail``.
        """
        count = min(len(hits), len(LABELS))
        # Hits behind the last label, or all after a failure, keep the engine's order.
        kept = [-float(place) for place in range(len(hits))]
        if count < 2:
            return kept
        ranks = [0.0] * count
        try:
            for order in _orders(query, count, self._cfg.num_orders):
                shown = [(hits[place], documents[place]) for place in order]
                text = self._ask(query, shown, context)
                for rank, place in enumerate(_ranking(text, count)):
                    ranks[order[place]] += rank / self._cfg.num_orders
        except EndpointError as error:
            if self._cfg.on_error == "fail":
                raise ToolError(f"rerank: {error}") from error
            if self.num_kept == 0:
                say(f"rerank failed, the engine's order is kept: {error}")
            self.num_kept += 1
            return kept
        return [*(-rank for rank in ranks), *kept[count:]]

    def _ask(self, query: str, shown: Sequence[tuple[Hit, Document]], context: str) -> str:
        listed = "\n\n".join(
            _candidate(LABELS[place], hit, document) for place, (hit, document) in enumerate(shown)
        )
        task = f"Task and earlier steps:\n{context}\n\n" if context else ""
        messages = (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=f"{task}Query: {query}\n\nResults:\n\n{listed}"),
        )
        prompt = Prompt(messages=messages, max_tokens=self._cfg.max_tokens, temperature=0.0)
        reply = self._client.ask_blocking(prompt)
        return reply.text


def _candidate(label: str, hit: Hit, document: Document) -> str:
    title, excerpt = " ".join(document.title.split()), " ".join(hit.snippet.split())
    lines = [f"{label}: {title}", document.url, excerpt]
    return "\n".join(line for line in lines if line)


def _orders(query: str, count: int, num_orders: int) -> list[list[int]]:
    """The engine's order, then shuffles that depend on the query alone: a repeated search is
    answered from the cache."""
    rng = random.Random(query)
    orders = [list(range(count))]
    while len(orders) < num_orders:
        orders.append(rng.sample(range(count), count))
    return orders


def _ranking(text: str, count: int) -> list[int]:
    """Places of the candidates, best first; those the answer leaves out stand last, in order.

    Raises:
        EndpointError: the answer names none of them.
    """
    named: list[int] = []
    for found in reversed(re.findall(r"\[[^\[\]]*\]", text)):
        try:
            labels = json.loads(found)
        except ValueError:
            continue
        one_letter = [label for label in labels if isinstance(label, str) and len(label) == 1]
        places = [LABELS.find(label) for label in one_letter]
        named = list(dict.fromkeys(p for p in places if 0 <= p < count))
        if named:
            break
    if not named:
        raise EndpointError(f"the answer orders nothing: {text[:80]!r}")
    return named + [place for place in range(count) if place not in named]
