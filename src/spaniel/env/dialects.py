"""How a call is written: text -> call or a named error, observation -> text.

One parser serves training, evaluation and serving, so that a bad call has the same
consequence everywhere. A parser never executes text and never raises anything but
``CallError``.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spaniel.env.tools import CallError, CallProblem, Tool
from spaniel.types import ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """The first call of a turn, and what else was odd about the turn."""

    call: ToolCall
    problems: tuple[CallProblem, ...] = ()
    """``EXTRA_CALLS`` and ``INVENTED_RESULT``: the call counts, the rest is ignored."""


class Dialect(Protocol):
    """A pure pair: how the policy writes calls, how the environment writes observations."""

    name: str

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the system prompt says about the tools."""
        ...

    def write(self, call: ToolCall, tools: Sequence[Tool]) -> str:
        """A call as text; ``parse`` reads it back."""
        ...

    def parse_visible(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        """Read text outside thinking. Raises ``CallError``."""
        ...

    def observation(self, text: str) -> str:
        """What the environment says back, as the content of a message."""
        ...


def parse_turn(dialect: Dialect, text: str, tools: Sequence[Tool]) -> ParsedTurn:
    """Read one turn of the policy. Thinking text is taken out first; calls in it do not count.

    Raises:
        CallError: there is no call that could be executed; says which problem.
    """
    visible, thoughts, closed = split_thinking(text)
    try:
        return dialect.parse_visible(visible, tools)
    except CallError as error:
        if error.problem is not CallProblem.NO_CALL:
            raise
        if not closed:
            message = f"the thinking block was never closed with {THINK_CLOSE}"
            raise CallError(CallProblem.UNCLOSED_THINKING, message) from None
        if _has_call(dialect, thoughts, tools):
            message = "the call stands inside the thinking block; write it after the block"
            raise CallError(CallProblem.CALL_IN_THINKING, message) from None
        raise


def split_thinking(text: str) -> tuple[str, str, bool]:
    """(text outside thinking blocks, text inside, whether every block was closed).

    A closing tag without an opening one ends a block that the generation prompt opened.
    """
    close, open_ = text.find(THINK_CLOSE), text.find(THINK_OPEN)
    if close != -1 and (open_ == -1 or close < open_):
        text = THINK_OPEN + text
    visible, thoughts = "", ""
    while True:
        before, found, rest = text.partition(THINK_OPEN)
        visible += before
        if not found:
            return visible, thoughts, True
        inside, found, text = rest.partition(THINK_CLOSE)
        thoughts += inside
        if not found:
            return visible, thoughts, False


def _has_call(dialect: Dialect, text: str, tools: Sequence[Tool]) -> bool:
    try:
        dialect.parse_visible(text, tools)
    except CallError as error:
        return error.problem is not CallProblem.NO_CALL
    return True


def _describe(tool: Tool, signature: str) -> str:
    return f"{signature}: {tool.description}"


# --- hermes -------------------------------------------------------------------------------

_DECODER = json.JSONDecoder()
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_RESULT_OPEN, _RESULT_CLOSE = "<tool_response>", "</tool_response>"
_TAG = re.compile(r"<(/?(?:tool_call|tool_response|think)>)")


class HermesDialect:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: what Qwen and most open
    models were trained on."""

    name = "hermes"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """JSON schemas of the tools and the form of a call."""
        schemas = "\n".join(json.dumps(_schema(tool)) for tool in tools)
        return (
            "# Tools\n\nYou call one function a turn. Signatures:\n"
            f"<tools>\n{schemas}\n</tools>\n\n"
            f"Write each call as JSON within {_CALL_OPEN}{_CALL_CLOSE} tags:\n"
            f'{_CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n'
            f"{_CALL_CLOSE}"
        )

    def write(self, call: ToolCall, tools: Sequence[Tool]) -> str:
        """The call as tagged JSON."""
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return f"{_CALL_OPEN}\n{body}\n{_CALL_CLOSE}"

    def parse_visible(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        """The first tagged call; JSON is decoded from the tag on: tags inside strings are text."""
        start = text.find(_CALL_OPEN)
        if start == -1:
            raise CallError(CallProblem.NO_CALL, f"no call found; write one in {_CALL_OPEN} tags")
        body_at = start + len(_CALL_OPEN)
        while body_at < len(text) and text[body_at].isspace():
            body_at += 1
        try:
            body, end = _DECODER.raw_decode(text, body_at)
        except (ValueError, RecursionError) as error:
            raise CallError(CallProblem.BAD_SYNTAX, f"the call is not JSON: {error}") from None
        rest = text[end:].lstrip()
        if not rest.startswith(_CALL_CLOSE):
            raise CallError(CallProblem.BAD_SYNTAX, f"the call must end with {_CALL_CLOSE}")
        call = _hermes_call(body)
        return ParsedTurn(call=call, problems=self._after(rest[len(_CALL_CLOSE) :], text[:start]))

    def observation(self, text: str) -> str:
        """The text in ``<tool_response>`` tags, as Qwen's own template writes tool results.

        Corpus text is hostile: a document that spells one of these tags must not be able to end
        its own tool result, so tags inside the text are broken by a space.
        """
        return f"{_RESULT_OPEN}\n{_TAG.sub(_broken, text)}\n{_RESULT_CLOSE}"

    @staticmethod
    def _after(rest: str, before: str) -> tuple[CallProblem, ...]:
        problems = []
        if _RESULT_OPEN in rest or _RESULT_OPEN in before:
            problems.append(CallProblem.INVENTED_RESULT)
        if _CALL_OPEN in rest:
            problems.append(CallProblem.EXTRA_CALLS)
        return tuple(problems)


def _broken(tag: re.Match[str]) -> str:
    return f"< {tag.group(1)}"


def _hermes_call(body: Any) -> ToolCall:
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise CallError(CallProblem.BAD_SYNTAX, 'the call must be {"name": ..., "arguments": ...}')
    arguments = body.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise CallError(CallProblem.BAD_ARGUMENT, "arguments must be a JSON object")
    return ToolCall(name=body["name"], arguments=arguments)


def _schema(tool: Tool) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "string": {"type": "string"},
        "string_list": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {
                    p.name: {**kinds[p.kind], "description": p.description} for p in tool.parameters
                },
                "required": [p.name for p in tool.parameters],
            },
        },
    }


# --- plain --------------------------------------------------------------------------------

_PLAIN_START = re.compile(r"^[ \t]*([A-Za-z_][A-Za-z0-9_]*)\(", re.MULTILINE)
_PLAIN_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_PLAIN_RESULT = "Results:"
_ESCAPED_CODE = re.compile(r"u([0-9a-fA-F]{4})")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in "\"'\\/"}


class PlainDialect:
    """``search("...")`` on a line of its own: short, and readable without a manual."""

    name = "plain"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """One line a tool."""
        return "One call a turn:\n" + "\n".join(
            _describe(tool, self._signature(tool)) for tool in tools
        )

    def write(self, call: ToolCall, tools: Sequence[Tool]) -> str:
        """The call with positional arguments, in the tool's order."""
        parameters = next(t for t in tools if t.name == call.name).parameters
        values = [json.dumps(call.arguments[p.name], ensure_ascii=False) for p in parameters]
        return f"{call.name}({', '.join(values)})"

    def parse_visible(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        """The first line that starts with ``name(``."""
        started = _PLAIN_START.search(text)
        if started is None:
            example = self._signature(tools[0])
            raise CallError(CallProblem.NO_CALL, f"no call found; write one like {example}")
        name = started.group(1)
        reader = _ArgumentReader(text, started.end())
        positional, named = reader.read()
        arguments = _bind(name, positional, named, tools)
        rest = text[reader.at :]
        problems = []
        invented = f"\n{_PLAIN_RESULT}"
        if invented in f"\n{rest}" or invented in f"\n{text[: started.start()]}":
            problems.append(CallProblem.INVENTED_RESULT)
        if _PLAIN_START.search(rest):
            problems.append(CallProblem.EXTRA_CALLS)
        return ParsedTurn(call=ToolCall(name=name, arguments=arguments), problems=tuple(problems))

    def observation(self, text: str) -> str:
        """The text under a ``Results:`` line, which no line of the text can look like."""
        text = re.sub(rf"^{_PLAIN_RESULT}", f" {_PLAIN_RESULT}", text, flags=re.MULTILINE)
        return f"{_PLAIN_RESULT}\n{text}"

    @staticmethod
    def _signature(tool: Tool) -> str:
        forms = {"string": '"{}"', "string_list": '["{}", ...]'}
        arguments = ", ".join(
            forms[p.kind].format(p.name.removesuffix("s")) for p in tool.parameters
        )
        return f"{tool.name}({arguments})"


def _bind(
    name: str, positional: list[Any], named: dict[str, Any], tools: Sequence[Tool]
) -> dict[str, Any]:
    tool = next((t for t in tools if t.name == name), None)
    if tool is None:
        return named  # ``check_call`` names the unknown tool
    if len(positional) > len(tool.parameters):
        message = f"{name} takes {len(tool.parameters)} argument(s), got {len(positional)}"
        raise CallError(CallProblem.UNKNOWN_ARGUMENT, message)
    bound = {p.name: v for p, v in zip(tool.parameters, positional, strict=False)}
    for key in named:
        if key in bound:
            raise CallError(CallProblem.BAD_SYNTAX, f"argument {key} of {name} is given twice")
    return {**bound, **named}


class _ArgumentReader:
    """Reads ``"a", ["b", 'c'], key=1)`` from just after the opening parenthesis.

    Literals only: quoted strings, numbers, lists of those. Nothing is evaluated.
    """

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def read(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named values; leaves ``at`` behind the closing parenthesis."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        self._skip_space()
        while not self._take(")"):
            key = _PLAIN_NAME.match(self.text, self.at)
            if key:
                self.at = key.end()
                named[key.group(1)] = self._value()
            else:
                positional.append(self._value())
            self._skip_space()
            if not self._take(",") and self._peek() != ")":
                self._fail("a comma or ) was expected")
            self._skip_space()
        return positional, named

    def _value(self) -> Any:
        char = self._peek()
        if char in ("'", '"'):
            return self._string(char)
        if char == "[":
            return self._list()
        number = _PLAIN_NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return float(number.group()) if number.group(1) else int(number.group())
        self._fail("a quoted string or a list was expected")

    def _string(self, quote: str) -> str:
        self.at += 1
        out = []
        while (char := self._peek()) != quote:
            if char in ("", "\n"):
                self._fail("a string is not closed")
            self.at += 1
            if char == "\\":
                char = self._escaped()
            out.append(char)
        self.at += 1
        return "".join(out)

    def _escaped(self) -> str:
        """What follows a backslash, as JSON has it; an unknown escape stands for itself."""
        code = _ESCAPED_CODE.match(self.text, self.at)
        if code:
            self.at = code.end()
            return chr(int(code.group(1), 16))
        char = self._peek()
        self.at += len(char)
        return _ESCAPES.get(char, "\\" + char)

    def _list(self) -> list[Any]:
        self.at += 1
        values = []
        self._skip_space()
        while not self._take("]"):
            if self._peek() == "[":
                self._fail("a list inside a list is not allowed")
            values.append(self._value())
            self._skip_space()
            if not self._take(",") and self._peek() != "]":
                self._fail("a comma or ] was expected")
            self._skip_space()
        return values

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, char: str) -> bool:
        if self._peek() == char:
            self.at += 1
            return True
        return False

    def _skip_space(self) -> None:
        while self._peek().isspace():
            self.at += 1

    def _fail(self, message: str) -> Any:
        raise CallError(CallProblem.BAD_SYNTAX, f"{message} at character {self.at}")


DIALECTS: dict[str, Dialect] = {d.name: d for d in (PlainDialect(), HermesDialect())}
