"""One question's world: first messages out, the policy's text in, observations out. Single use."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from spaniel.config import EnvConfig
from spaniel.env.aliases import UNKNOWN, Aliases, bare
from spaniel.env.dialects import DIALECTS, parse_turn
from spaniel.env.evidence import Extractor, make_extractor
from spaniel.env.tools import FINDER_TOOLS, CallError, CallProblem, Tool, check_call
from spaniel.errors import QueryError, ToolError, boundary
from spaniel.index.engine import ContextEngine, SearchEngine, headings
from spaniel.index.query import parse_query
from spaniel.store import hash_of
from spaniel.types import Document, FinishReason, Hit, Message, Question, ToolCall

TASK = (
    "Find the documents that together answer the question. Report every document that is needed "
    "and no other; the answer itself is not asked for."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one turn of the policy did."""

    observation: str = ""
    """For the policy, in the dialect; empty when the episode is over."""
    shown: str = ""
    """The same without the dialect's wrapping."""
    call: ToolCall | None = None
    errors: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()
    docids: tuple[str, ...] = ()
    report: tuple[str, ...] | None = None
    """Set when the policy reported: true docids in its order, each once; ids never shown as
    ``unknown:<id>``."""


TOOL_THREADS = 64
"""Calls under way at once to an engine that waits for another machine."""


class Environment:
    """What all episodes share: the engine, the tools, the dialect, the budgets."""

    def __init__(
        self, engine: SearchEngine, cfg: EnvConfig, tools: tuple[Tool, ...] | None = None
    ) -> None:
        self.engine, self.cfg = engine, cfg
        self.tools = tools if tools is not None else _tools_of(cfg)
        self.dialect = DIALECTS[cfg.dialect]
        self.system_prompt = f"{TASK}\n\n{self.dialect.instructions(self.tools)}"

    @property
    def fingerprint(self) -> str:
        """Hash of prompt, tools, budgets and index: what a score depends on besides the policy."""
        cfg = self.cfg.model_dump(mode="json")
        return hash_of([self.system_prompt, cfg, self.engine.fingerprint])

    def episode(self, question: Question, *, seed: int) -> "Episode":
        """A fresh world for one rollout; ``seed`` draws its shown ids."""
        if self.cfg.tools == "researcher":
            from spaniel.env.researcher import ResearcherEpisode

            return ResearcherEpisode(self, question, seed)
        return Episode(self, question, seed)

    @cached_property
    def extractor(self) -> Extractor:
        """Reads the pages that a researcher visits."""
        return make_extractor(self.cfg.evidence)

    def reminder(self, question: Question) -> str:
        """What stands below every observation; empty unless ``env.remind``."""
        return f"\nQuestion: {question.text}" if self.cfg.remind else ""

    async def step(self, episode: "Episode", text: str, reason: FinishReason) -> "Step":
        """``episode.step``; on a thread when engine or extractor ask another machine, so that
        the other episodes go on."""
        waits = self.engine.waits or (self.cfg.tools == "researcher" and self.extractor.waits)
        if not waits:
            return episode.step(text, reason)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, episode.step, text, reason)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="tool")


class Episode:
    """One rollout's world. ``reset`` once, then ``step`` until a report or a budget ends it."""

    def __init__(self, environment: Environment, question: Question, seed: int) -> None:
        self.environment, self.question = environment, question
        self.aliases = Aliases(seed)
        self.num_turns = 0
        self.tool_s = 0.0
        self._steps: list[str] = []
        """Earlier calls, for engines that rank by what the policy is after."""

    def reset(self) -> list[Message]:
        """System prompt and question."""
        return [
            Message(role="system", content=self.environment.system_prompt),
            Message(role="user", content=f"Question: {self.question.text}"),
        ]

    def step(self, text: str, finish_reason: FinishReason) -> Step:
        """Execute the policy's turn.

        Raises:
            ToolError: the search engine broke. A call that is the policy's own mistake never
                raises: it is an observation with an entry in ``errors``.
        """
        self.num_turns += 1
        call: ToolCall | None = None
        problems: tuple[CallProblem, ...] = ()
        try:
            if finish_reason is FinishReason.LENGTH:
                limit = self.environment.cfg.max_tokens_per_turn
                message = f"the turn was cut at {limit} tokens; nothing was executed"
                raise CallError(CallProblem.CUT, message)
            parsed = parse_turn(self.environment.dialect, text, self.environment.tools)
            problems = parsed.problems
            check_call(parsed.call, self.environment.tools)
            call = parsed.call
            step = self._execute(call, problems)
        except CallError as error:
            errors = tuple(str(p) for p in (error.problem, *problems))
            step = Step(shown=f"Error: {error.message}.", errors=errors)
        return self._with_observation(step)

    def _execute(self, call: ToolCall, problems: tuple[CallProblem, ...]) -> Step:
        notes = tuple(str(p) for p in problems)
        if call.name == "search":
            query = call.arguments["query"]
            room = self.environment.cfg.max_observation_chars
            shown, hits = self._show_hits(*self._search(query), room=room)
            self._steps.append(f"searched: {query}")
            return Step(shown=shown, call=call, errors=notes, hits=hits)
        if call.name == "read":
            docid = self._known(call.arguments["doc_id"])
            document = self._read(docid)
            shown = self._show_document(document)
            self._steps.append(f"read: {flat(document.title)}")
            return Step(shown=shown, call=call, errors=notes, docids=(docid,))
        report, errors = self._report(call.arguments["doc_ids"])
        return Step(call=call, errors=errors + notes, report=report)

    # -- tools -----------------------------------------------------------------------------

    def _search(self, query: str) -> tuple[tuple[Hit, ...], tuple[str, ...]]:
        """Hits, and what of the query was ignored."""
        started = time.perf_counter()
        try:
            with boundary(ToolError, "search", passing=QueryError):
                notes = parse_query(query).notes
                hits = self._hits(query)
        except QueryError as error:
            raise CallError(CallProblem.BAD_ARGUMENT, str(error)) from None
        self.tool_s += time.perf_counter() - started
        return tuple(hits), notes

    def _hits(self, query: str) -> list[Hit]:
        engine, k = self.environment.engine, self.environment.cfg.max_results
        if isinstance(engine, ContextEngine):
            return engine.search_for(query, k, "\n".join([self.question.text, *self._steps]))
        return engine.search(query, k)

    def _read(self, docid: str) -> Document:
        started = time.perf_counter()
        with boundary(ToolError, "read"):
            document = self.environment.engine.read(docid)
        self.tool_s += time.perf_counter() - started
        return document

    def _known(self, alias: str) -> str:
        docid = self.aliases.docid(alias)
        if docid is None:
            message = f"no document {alias!r}; use an id from a search result"
            raise CallError(CallProblem.UNKNOWN_ID, message)
        return docid

    def _report(self, aliases: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        resolved = [self.aliases.docid(a) or f"{UNKNOWN}{bare(a)}" for a in aliases]
        unique = tuple(dict.fromkeys(resolved))
        errors = []
        if any(docid.startswith(UNKNOWN) for docid in unique):
            errors.append(str(CallProblem.UNKNOWN_ID))
        if len(unique) < len(resolved):
            errors.append(str(CallProblem.DUPLICATE_IDS))
        return unique, tuple(errors)

    # -- what is shown ---------------------------------------------------------------------

    def _show_hits(
        self,
        hits: tuple[Hit, ...],
        notes: tuple[str, ...],
        *,
        room: int,
        with_url: bool = False,
    ) -> tuple[str, tuple[Hit, ...]]:
        """Text of as many hits as fit into ``room`` characters, one at least, and those hits;
        below them, what was ignored."""
        note = f"\nNote: {'; '.join(notes)}." if notes else ""
        if not hits:
            return f"No documents match.{note}", ()
        lines: list[str] = []
        left = longest = max(room - len(note), 0)
        with boundary(ToolError, "read"):
            documents = headings(self.environment.engine, [hit.docid for hit in hits])
        for hit, document in zip(hits, documents, strict=True):
            # The id stands after the title it belongs to: copying it is one induction step.
            head = f"{flat(document.title)} [{self.aliases.show(hit.docid)}]"
            url = document.url if with_url else ""
            line = " ".join(part for part in (head, url, flat(hit.snippet)) if part).strip()
            left -= len(line) + 1
            if left < 0 and lines:
                break
            lines.append(line[:longest])
        return "\n".join(lines) + note, hits[: len(lines)]

    def _show_document(self, document: Document) -> str:
        head = f"{flat(document.title)} [{self.aliases.show(document.docid)}]\n"
        room = max(self.environment.cfg.max_observation_chars - len(head), 0)
        if len(document.text) <= room:
            return head + document.text
        return f"{head}{document.text[:room]} [cut: {len(document.text) - room} more characters]"

    def _with_observation(self, step: Step) -> Step:
        if step.report is not None:
            return step
        shown = step.shown
        if CallProblem.EXTRA_CALLS in step.errors:
            shown += "\nOnly the first call was executed: one call a turn."
        shown += self.environment.reminder(self.question)
        if self.num_turns == self.environment.cfg.max_turns - 1:
            shown += "\nLast turn: report now."
        observation = self.environment.dialect.observation(shown)
        return Step(
            observation=observation,
            shown=shown,
            call=step.call,
            errors=step.errors,
            hits=step.hits,
            docids=step.docids,
        )


def _tools_of(cfg: EnvConfig) -> tuple[Tool, ...]:
    if cfg.tools == "finder":
        return FINDER_TOOLS
    from spaniel.env.researcher import RESEARCHER_TOOLS

    return RESEARCHER_TOOLS


def flat(text: str) -> str:
    """One line: a title or an excerpt cannot start a line that looks like another hit."""
    return " ".join(text.split())
