"""Demonstrations: from labels alone, or from a stronger model; both through the one agent loop.

The label teacher is a ``Policy`` that may look at the targets but types only words that are
visible in the question or in what was already shown, so that what it does can be learnt. Before a
search it may think the question anew, with what it knows by now filled in (``thoughts.py``). It
is a policy like any other: its turns are parsed, executed and recorded by ``rollout.py``, and
its ledger holds the student's tokens.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spaniel.config import DemonstrationConfig
from spaniel.env.episode import Environment
from spaniel.errors import ConfigError
from spaniel.index.engine import SearchEngine
from spaniel.policy.base import Policy, Request
from spaniel.renderer import Renderer
from spaniel.rollout import Runner, seed_of
from spaniel.sft.thoughts import reduced, with_thought
from spaniel.types import Completion, Document, FinishReason, Question, ToolCall, Trajectory

_CAPITALISED = r"(?:[A-Z]\.|[A-Z\u00c0-\u00de0-9&][\w'\u2019\-]*)"
_SMALL = r"(?:of|the|and|de|du|la|von|van|der|for|in|on|to|a|at|&)"
_NAME = re.compile(rf"{_CAPITALISED}(?:,? (?:{_SMALL} ){{0,2}}{_CAPITALISED})*")
"""A run of capitalised words, small words inside allowed: a name, or the start of a sentence."""
_WORD = re.compile(r"[\w'\u2019\-]+")
_PARENTHESIS = re.compile(r" \([^)]*\)$")
_QUESTION_WORDS = frozenset(
    word
    for line in (
        "who whom whose what which when where why how the a an in of is are was were did does",
        "do that and or to for by on at from with it its has have had be been as than this name",
    )
    for word in line.split()
)
MAX_TRIED = 8
"""Queries the teacher tries on the engine before it gives a document up."""


class LabelTeacher:
    """A policy that walks from the question to its targets; see the module's docstring.

    Each turn it does the first that applies: a detour, with probability ``noise`` (a query or
    a document that leads nowhere, never twice running); read a target that was shown; search
    with a visible name that shows a missing target; report the targets it read, in the order
    in which it read them.
    """

    version = 0

    def __init__(
        self,
        questions: Sequence[Question],
        environment: Environment,
        renderer: Renderer,
        *,
        noise: float,
        seed: int,
        thoughts: bool = False,
    ) -> None:
        self.questions = {question.qid: question for question in questions}
        self.environment, self.renderer = environment, renderer
        self.noise, self.seed, self.thoughts = noise, seed, thoughts
        self._walks: dict[str, _Walk] = {}

    async def complete(self, request: Request) -> Completion:
        """The next call of this episode's walk, as the student's tokens."""
        walk = self._walks.get(request.episode_id)
        if walk is None:
            question = self.questions[request.episode_id.rpartition("/")[0]]
            walk = _Walk(
                question=question,
                engine=self.environment.engine,
                random=random.Random(seed_of(self.seed, request.episode_id)),
                noise=self.noise,
                max_results=self.environment.cfg.max_results,
                turns_left=self.environment.cfg.max_turns,
            )
            self._walks[request.episode_id] = walk
        else:
            walk.observe(request.messages[-1].content)
        call = walk.next_call()
        text = self.environment.dialect.write(call, self.environment.tools)
        if self.thoughts and call.name == "search":
            text = with_thought(walk.new_thought(), text)
        ids = self.renderer.encode_completion(text)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            policy_version=0,
            finish_reason=FinishReason.STOP,
            text=text,
        )

    async def end_episode(self, episode_id: str) -> None:
        """Forget the walk."""
        self._walks.pop(episode_id, None)

    async def load(self, version: int, weights: Any) -> None:
        """A teacher has no weights."""


@dataclass(kw_only=True)
class _Walk:
    question: Question
    engine: SearchEngine
    random: random.Random
    noise: float
    max_results: int
    turns_left: int
    aliases: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    """Visible texts, latest last, the question's excepted."""
    read: list[str] = field(default_factory=list)
    queries: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    detoured: bool = False
    last: ToolCall | None = None
    thought: str = ""
    """The last one, or nothing yet."""

    # -- what it thinks ----------------------------------------------------------------------

    def new_thought(self) -> str:
        """The question with what has become known filled in; empty when nothing has."""
        visible = "\n".join([self.question.text, *self.texts])
        thought = reduced(self.question, self.read, visible)
        before = self.thought or self.question.text
        self.thought = thought
        return thought if thought != before else ""

    # -- what came back --------------------------------------------------------------------

    def observe(self, content: str) -> None:
        """Take in the observation of the last call: new ids after a search, text after a read."""
        assert self.last is not None
        if self.last.name == "report":
            return  # refused, for it named nothing: there was nothing to name
        if self.last.name == "read":
            self.texts.append(content)
            return
        hits = self.engine.search(self.last.arguments["query"], self.max_results)
        documents = iter(self.engine.read_batch([hit.docid for hit in hits]))
        document = next(documents, None)
        for line in content.split("\n"):
            if document is None:
                break
            head = f"{' '.join(document.title.split())} ["
            if line.startswith(head.lstrip()):
                alias, _, snippet = line[len(head.lstrip()) :].partition("]")
                self.aliases[document.docid] = alias
                self.texts.append(snippet)
                document = next(documents, None)

    # -- what to do next -------------------------------------------------------------------

    def next_call(self) -> ToolCall:
        """Decide, and remember what was decided."""
        self.turns_left -= 1
        self.last = self._decide()
        if self.last.name == "search":
            self.queries.add(self.last.arguments["query"])
        return self.last

    def _decide(self) -> ToolCall:
        found = [d for d in self.read if d in self.question.targets]
        shown = [d for d in self.aliases if d in self.question.targets and d not in self.read]
        missing = [d for d in self.question.targets if d not in self.aliases]
        if self.turns_left <= 0:
            return self._report(found + shown)
        needed = 2 * len(missing) + len(shown) + 1
        if self.turns_left > needed and not self.detoured and self.random.random() < self.noise:
            detour = self._detour()
            if detour is not None:
                self.detoured = True
                return detour
        self.detoured = False
        if shown:
            return self._read(shown[0])
        while missing := [d for d in missing if d not in self.given_up]:
            query = self._revealing_query(missing)
            if query is not None:
                return ToolCall(name="search", arguments={"query": query})
            self.given_up.update(missing)
        return self._report(found)

    def _read(self, docid: str) -> ToolCall:
        self.read.append(docid)
        return ToolCall(name="read", arguments={"doc_id": self.aliases[docid]})

    def _report(self, docids: list[str]) -> ToolCall:
        # Somebody who found nothing still has to end; the first hit is the best guess there is.
        docids = docids or list(self.aliases)[:1]
        return ToolCall(name="report", arguments={"doc_ids": [self.aliases[d] for d in docids]})

    def _detour(self) -> ToolCall | None:
        others = [d for d in self.aliases if d not in self.question.targets and d not in self.read]
        if others and self.random.random() < 0.5:
            return self._read(self.random.choice(others))
        names = [n for n in self._visible_names() if n not in self.queries]
        query = self.random.choice(names) if names else ""
        if not query or not self.engine.search(query, 1):
            return None
        return ToolCall(name="search", arguments={"query": query})

    def _visible_names(self) -> list[str]:
        """Name-like spans of the visible texts, latest text first, each once."""
        texts = [*reversed(self.texts), self.question.text]
        spans = (m.group().rstrip(".,'\u2019-") for text in texts for m in _NAME.finditer(text))
        return [s for s in dict.fromkeys(spans) if len(s) > 2 and s.lower() not in _QUESTION_WORDS]

    def _revealing_query(self, missing: list[str]) -> str | None:
        """A query of visible words that shows a missing target now, best reason first."""
        for docid in missing:
            target = self.engine.read(docid)
            for tried, query in enumerate(self._queries_for(target)):
                if tried >= MAX_TRIED:
                    break
                hits = self.engine.search(query, self.max_results)
                if query not in self.queries and any(h.docid in missing for h in hits):
                    return query
        return None

    def _queries_for(self, target: Document) -> Iterator[str]:
        title = _PARENTHESIS.sub("", target.title).lower()
        text = target.text.lower()
        names = self._visible_names()
        in_title = [n for n in names if n.lower() == title] or [
            n for n in names if n.lower() in title or title in n.lower()
        ]
        in_text = [n for n in names if n.lower() in text and n not in in_title]
        hints = [
            w
            for w in _WORD.findall(self.question.text)
            if w.lower() not in _QUESTION_WORDS and w.islower() and w in f"{title} {text}"
        ]
        for name in (in_title + in_text)[:4]:
            yield name
        for name in (in_title + in_text)[:2]:
            yield from (f"{name} {hint}" for hint in hints[:2])
        words = [w for w in _WORD.findall(self.question.text) if w.lower() not in _QUESTION_WORDS]
        yield " ".join(words)


async def demonstrate(
    questions: Sequence[Question],
    cfg: DemonstrationConfig,
    runner: Runner,
    *,
    seed: int,
) -> tuple[list[Trajectory], dict[str, float]]:
    """Roll the teacher out and keep what is good enough.

    Returns:
        The kept trajectories (nDCG at least ``cfg.min_reward``), and the counts and means of
        what was made: ``made``, ``kept``, ``ndcg``.
    """
    groups = await runner.groups(
        questions, cfg.per_question, seed=seed_of(seed, "demonstrations"), what="demonstrations"
    )
    scored = [t for g in groups for t in g.scored]
    kept = [t for t in scored if t.reward_parts["ndcg"] >= cfg.min_reward]
    mean = sum(t.reward_parts["ndcg"] for t in scored) / max(1, len(scored))
    return kept, {"made": len(scored), "kept": len(kept), "ndcg": mean}


def make_teacher(
    questions: Sequence[Question],
    cfg: DemonstrationConfig,
    environment: Environment,
    renderer: Renderer,
    *,
    seed: int,
) -> Policy:
    """The policy that demonstrates. Raises ``ConfigError`` when the endpoint is not set up."""
    if cfg.teacher == "labels":
        if environment.cfg.tools != "finder":
            raise ConfigError(
                "the label teacher knows the finder's tools only: set env.tools to finder, or "
                "sft.demonstrations.teacher to endpoint"
            )
        return LabelTeacher(
            questions,
            environment,
            renderer,
            noise=cfg.noise,
            seed=seed,
            thoughts=cfg.thoughts,
        )
    from spaniel.policy.openai import EndpointPolicy

    if cfg.endpoint is None:
        raise ConfigError("sft.demonstrations.teacher is endpoint: set sft.demonstrations.endpoint")
    return EndpointPolicy(cfg.endpoint, renderer)
