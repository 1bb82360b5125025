"""The tools of the document finder: what they are called, what they take, how calls are checked."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from spaniel.types import ToolCall


class CallProblem(StrEnum):
    """Every way a turn can be bad. ``tests/env/test_decisions.py`` numbers what each one does."""

    NO_CALL = "no_call"
    """The turn holds no call at all."""
    CUT = "cut"
    """The token limit ended the turn; what stands in it is not executed."""
    UNCLOSED_THINKING = "unclosed_thinking"
    """A thinking block never ends, so nothing after its start counts."""
    CALL_IN_THINKING = "call_in_thinking"
    """The only call stands inside thinking text, where it does not count."""
    BAD_SYNTAX = "bad_syntax"
    """A call starts but is not written in the dialect."""
    UNKNOWN_TOOL = "unknown_tool"
    MISSING_ARGUMENT = "missing_argument"
    UNKNOWN_ARGUMENT = "unknown_argument"
    BAD_ARGUMENT = "bad_argument"
    """An argument has the wrong type or is blank."""
    EMPTY_LIST = "empty_list"
    """``report`` without ids."""
    UNKNOWN_ID = "unknown_id"
    """An id that this episode never showed."""
    DUPLICATE_IDS = "duplicate_ids"
    """``report`` names an id more than once; the first counts."""
    EXTRA_CALLS = "extra_calls"
    """Several calls in one turn; only the first is executed."""
    INVENTED_RESULT = "invented_result"
    """The policy wrote a tool result itself; everything after the first call is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: Literal["string", "string_list"]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool as the policy sees it."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]


SEARCH = Tool(
    name="search",
    description="titles, ids and excerpts of matching documents",
    parameters=(Parameter(name="query", kind="string", description="words to look for"),),
)
READ = Tool(
    name="read",
    description="one document in full",
    parameters=(Parameter(name="doc_id", kind="string", description="an id from a search"),),
)
REPORT = Tool(
    name="report",
    description="ends the task: ids of the documents, best first",
    parameters=(Parameter(name="doc_ids", kind="string_list", description="ids, each one once"),),
)
FINDER_TOOLS = (SEARCH, READ, REPORT)


class CallError(Exception):
    """A call that cannot be executed: the problem, and what to tell the policy."""

    def __init__(self, problem: CallProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message


def check_call(call: ToolCall, tools: Iterable[Tool]) -> None:
    """Raise ``CallError`` unless ``call`` names a tool and gives exactly its arguments."""
    by_name = {tool.name: tool for tool in tools}
    tool = by_name.get(call.name)
    if tool is None:
        names = ", ".join(by_name)
        raise CallError(CallProblem.UNKNOWN_TOOL, f"no tool {call.name!r}; the tools are {names}")
    for parameter in tool.parameters:
        if parameter.name not in call.arguments:
            raise CallError(
                CallProblem.MISSING_ARGUMENT, f"{tool.name} needs the argument {parameter.name}"
            )
        _check_value(tool, parameter, call.arguments[parameter.name])
    for name in call.arguments:
        if name not in {parameter.name for parameter in tool.parameters}:
            raise CallError(CallProblem.UNKNOWN_ARGUMENT, f"{tool.name} has no argument {name}")


def _check_value(tool: Tool, parameter: Parameter, value: Any) -> None:
    where = f"{parameter.name} of {tool.name}"
    if parameter.kind == "string":
        if not isinstance(value, str):
            raise CallError(CallProblem.BAD_ARGUMENT, f"{where} must be a string")
        if not value.strip():
            raise CallError(CallProblem.BAD_ARGUMENT, f"{where} must not be blank")
        _check_encodable(where, value)
    else:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise CallError(CallProblem.BAD_ARGUMENT, f"{where} must be a list of strings")
        if not value:
            raise CallError(CallProblem.EMPTY_LIST, f"{where} must name at least one id")
        for item in value:
            _check_encodable(where, item)


def _check_encodable(where: str, value: str) -> None:
    """JSON can spell half a surrogate pair, which no engine or file can take as text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{where} holds half a surrogate pair"
        raise CallError(CallProblem.BAD_ARGUMENT, message) from None
