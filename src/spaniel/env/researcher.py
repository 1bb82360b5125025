"""The researcher's tools: several queries at once, and pages read for a goal.

    search(queries)        results of each query: title, id, address, excerpt
    visit(ref_ids, goal)   what those pages say about the goal, quoted, with a summary
    report(doc_ids)        ends the task

Ids are the episode's, as everywhere. One observation holds all answers of a call: its characters
are shared out evenly among the queries or pages.
"""

from spaniel.env.episode import Episode, Step, flat
from spaniel.env.evidence import Evidence
from spaniel.env.tools import REPORT, CallProblem, Parameter, Tool
from spaniel.errors import ToolError, boundary
from spaniel.types import Document, Hit, ToolCall

SEARCH = Tool(
    name="search",
    description="titles, ids, addresses and excerpts of matching pages, for each query",
    parameters=(Parameter(name="queries", kind="string_list", description="words to look for"),),
)
VISIT = Tool(
    name="visit",
    description="what pages say about a goal",
    parameters=(
        Parameter(name="ref_ids", kind="string_list", description="ids from a search"),
        Parameter(name="goal", kind="string", description="what you want to know"),
    ),
)
RESEARCHER_TOOLS = (SEARCH, VISIT, REPORT)


class ResearcherEpisode(Episode):
    """An episode whose policy searches by several queries and visits pages for a goal."""

    def _execute(self, call: ToolCall, problems: tuple[CallProblem, ...]) -> Step:
        if call.name == "search":
            return self._search_all(call, problems)
        if call.name == "visit":
            return self._visit_all(call, problems)
        return super()._execute(call, problems)

    def _search_all(self, call: ToolCall, problems: tuple[CallProblem, ...]) -> Step:
        asked, ignored = self._at_most(call.arguments["queries"])
        room = self._room(len(asked), ignored)
        parts, shown_hits = [], list[Hit]()
        for query in asked:
            head = f"Results for: {flat(query)}\n"
            if not query.strip():
                parts.append(f"{head}Error: a query must not be blank.")
                problems = (*problems, CallProblem.BAD_ARGUMENT)
                continue
            found = self._search(query)
            text, kept = self._show_hits(*found, room=room - len(head), with_url=True)
            parts.append(f"{head}{text}")
            shown_hits += [hit for hit in kept if hit.docid not in {h.docid for h in shown_hits}]
            self._steps.append(f"searched: {query}")
        shown = "\n\n".join(parts) + ignored
        errors = tuple(str(p) for p in problems)
        return Step(shown=shown, call=call, errors=errors, hits=tuple(shown_hits))

    def _visit_all(self, call: ToolCall, problems: tuple[CallProblem, ...]) -> Step:
        asked, ignored = self._at_most(call.arguments["ref_ids"])
        goal = call.arguments["goal"]
        room = self._room(len(asked), ignored)
        parts: list[str] = []
        docids: list[str] = []
        for alias in asked:
            docid = self.aliases.docid(alias)
            if docid is None:
                parts.append(f"Error: no page {alias!r}; use an id from a search result.")
                problems = (*problems, CallProblem.UNKNOWN_ID)
                continue
            document = self._read(docid)
            head = f"{flat(document.title)} [{self.aliases.show(docid)}] {document.url}".rstrip()
            parts.append(f"{head}\n{self._said(goal, document, room - len(head) - 1)}")
            docids.append(docid)
            self._steps.append(f"visited: {flat(document.title)}")
        shown = "\n\n".join(parts) + ignored
        errors = tuple(str(p) for p in problems)
        return Step(shown=shown, call=call, errors=errors, docids=tuple(docids))

    def _said(self, goal: str, document: Document, room: int) -> str:
        with boundary(ToolError, "visit"):
            evidence = self.environment.extractor.extract(goal, document, max(room - 20, 1))
        return _shown(evidence)[: max(room, 0)]

    def _at_most(self, items: list[str]) -> tuple[list[str], str]:
        """The first different items that one call may have, and a note on the rest."""
        most = self.environment.cfg.max_queries
        unique = list(dict.fromkeys(items))
        left_out = len(unique) - most
        note = f"\n\nNote: {left_out} more were ignored; {most} at once." if left_out > 0 else ""
        return unique[:most], note

    def _room(self, count: int, ignored: str) -> int:
        """Characters of one part of the observation."""
        whole = self.environment.cfg.max_observation_chars - len(ignored)
        return max(whole // count - 2, 0)


def _shown(evidence: Evidence) -> str:
    if not evidence.quotations and not evidence.summary:
        return "The page is empty."
    quoted = " ... ".join(evidence.quotations)
    if not evidence.summary:
        return quoted
    return f"Summary: {evidence.summary}\n{quoted}".rstrip()
