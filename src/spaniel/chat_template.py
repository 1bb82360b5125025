"""What a chat template writes around messages, and whether it only ever appends.

The text side of ``renderer.py``: nothing here knows token ids. Test conversations of the shape
``[system, user, assistant, user (observation), assistant, user (observation) ...]`` are
rendered; what stands between their contents must be the same whatever the contents, however
many turns. A template that drops, moves, rewrites or repeats a message is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spaniel.errors import ConfigError

PINNED_DATE = "26 Jul 2024"
"""What templates that print the current date print instead: the same prompt on every day."""

# Templates reach the clock through `strftime_now`. A macro of that name shadows it, in every
# version of transformers; a format code that is not listed stays as it is written.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{{ format|replace('%d', '26')|replace('%b', 'Jul')"
    "|replace('%B', 'July')|replace('%m', '07')|replace('%Y', '2024') }}{% endmacro +%}"
)
# (assistant messages, what every content is filled with) of the test conversations.
_FILLINGS = (
    (0, ""),
    (2, ""),
    (3, "\n\n<|im_end|> {{ x }} {% y %} <tool_response> é🙂"),
    (2, "long " * 500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLayout:
    """The template's own text around the contents of a conversation.

    opening[0] SYSTEM opening[1] USER reopened ASSISTANT closed OBSERVATION ... prompt
    """

    opening: tuple[str, str] | None
    """Before the system message, and between it and the user's; None: no system message."""
    bare_opening: str | None
    """Before a user message that comes first; None: the template needs a system message."""
    reopened: str
    """From a user message to the assistant message after it, in the history."""
    closed: str
    """From an assistant message to the observation after it; starts with the end of turn."""
    prompt: str
    """From the last user message to where the policy writes: ``reopened`` and any prefill."""
    trimmed_roles: frozenset[str] = frozenset()
    """Roles whose surrounding white space the template drops."""
    system_problem: str = ""
    """Why the system message cannot stand alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """One message of a test conversation."""

    label: str
    role: str
    word: str
    """Occurs in ``content`` and in no other message."""
    content: str


class ChatTemplate:
    """A chat template under test: what it writes around contents, or why it cannot be used."""

    def __init__(self, tokenizer: Any, *, enable_thinking: bool, tool_responses: bool) -> None:
        self.name = str(getattr(tokenizer, "name_or_path", "")) or "tokenizer"
        self._tokenizer = tokenizer
        self._enable_thinking = enable_thinking
        self._tool_responses = tool_responses
        self.source = self._load()
        self._check_thinking()
        self._opens_think = self._prompt_opens_think()

    def find_layout(self) -> TemplateLayout:
        """Find the layout with a system message; without one if the template takes none.

        Raises:
            ConfigError: the template is append-only in neither form.
        """
        try:
            bare = self._probe_layout(with_system=False)
        except ConfigError:
            return self._probe_layout(with_system=True)
        try:
            full = self._probe_layout(with_system=True)
        except ConfigError as error:
            return replace(bare, system_problem=str(error))
        if (bare.closed, bare.prompt) != (full.closed, full.prompt):
            return full
        return replace(full, bare_opening=bare.bare_opening)

    def notes(self, layout: TemplateLayout) -> Iterator[str]:
        """Say what a user should know about this template."""
        if layout.opening is None:
            yield (
                "The system message is folded into the first user message. As a message of its "
                f"own: {layout.system_problem}"
            )
        prefill = layout.prompt.removeprefix(layout.reopened)
        if prefill:
            yield (
                f"The generation prompt ends in {prefill!r}, which the template leaves out of "
                "earlier turns; the ledger keeps it there as context, in training and in serving."
            )
        if self._opens_think:
            yield "The generation prompt opens the think block: completions hold only </think>."
        elif not self._enable_thinking and not self._keeps_reasoning():
            yield (
                "The template drops reasoning from earlier turns; with thinking off, a completion "
                "that reasons all the same stays whole in the ledger."
            )
        if "strftime_now" in self.source or "date_string" in self.source:
            yield f"The template prints the date; it is pinned to {PINNED_DATE}."

    def _load(self) -> str:
        try:
            template: str = self._tokenizer.get_chat_template()
        except (ValueError, AttributeError) as cause:
            raise ConfigError(
                f"{self.name} has no chat template: use an instruction-tuned model, or set "
                "tokenizer.chat_template and save the tokenizer again"
            ) from cause
        return (_PINNED_CLOCK if "strftime_now" in template else "") + template

    def _check_thinking(self) -> None:
        """Only reasoning between think tags can be followed through the history."""
        source = self.source
        if self._enable_thinking and "enable_thinking" in source and "</think>" not in source:
            raise ConfigError(
                f"{self.name}: enable_thinking needs a chat template that marks reasoning with "
                "<think> tags, and this one marks it in another way, so nothing shows whether it "
                "is kept: use enable_thinking=False"
            )

    def _render(self, probes: Sequence[_Probe]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                [self._message(probe) for probe in probes],
                chat_template=self.source,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=self._enable_thinking,
                date_string=PINNED_DATE,
            )
        except Exception as cause:  # a template is a program; it may raise anything
            roles = ", ".join(probe.role for probe in probes)
            raise ConfigError(
                f"{self.name}: the chat template fails on messages [{roles}]: {cause}: set a "
                "chat_template that takes user and assistant messages in turns"
            ) from cause
        return text

    def _message(self, probe: _Probe) -> dict[str, str]:
        """Hand reasoning over apart from the answer where the template asks for it so."""
        reasoning, tag, answer = probe.content.rpartition("</think>")
        if not tag or "reasoning_content" not in self.source:
            return {"role": probe.role, "content": probe.content}
        return {
            "role": probe.role,
            "reasoning_content": reasoning.removeprefix("<think>").strip("\n"),
            "content": answer.strip("\n"),
        }

    def _prompt_opens_think(self) -> bool:
        """Whether the policy starts inside a think block that the generation prompt opened."""
        question = _Probe(label="user", role="user", word="hello", content="hello")
        try:
            prompt = self._render([question]).partition("hello")[2]
        except ConfigError:  # it may need a system message
            return False
        return prompt.rfind("<think>") > prompt.rfind("</think>")

    def _keeps_reasoning(self) -> bool:
        try:
            self._gaps(self._conversation(2, with_system=False, thinking=True))
        except ConfigError:
            return False
        return True

    def _probe_layout(self, *, with_system: bool) -> TemplateLayout:
        *opening, reopened, closed, prompt = self._gaps(
            self._conversation(1, with_system=with_system)
        )
        for num_turns, filling in _FILLINGS:
            probes = self._conversation(num_turns, with_system=with_system, filling=filling)
            self._check_gaps(probes, [*opening, *(reopened, closed) * num_turns, prompt])
        if not prompt.startswith(reopened):
            raise ConfigError(
                f"{self.name}: the generation prompt must start as an assistant turn of the "
                f"history does, got {prompt!r} and {reopened!r}: the chat template ignores "
                "add_generation_prompt or adds text to earlier turns; set another one"
            )
        return TemplateLayout(
            opening=(opening[0], opening[1]) if with_system else None,
            bare_opening=None if with_system else opening[0],
            reopened=reopened,
            closed=closed,
            prompt=prompt,
            trimmed_roles=self._trimmed_roles(with_system=with_system),
        )

    def _conversation(
        self, num_turns: int, *, with_system: bool, filling: str = "", thinking: bool = False
    ) -> list[_Probe]:
        """A conversation of ``num_turns`` assistant messages, each followed by an observation."""
        reply = "{}"
        if self._opens_think:
            reply = "because\n</think>\n\n{}"
        elif thinking or self._enable_thinking:
            reply = "<think>\nbecause\n</think>\n\n{}"
        observed = "<tool_response>\n{}\n</tool_response>" if self._tool_responses else "{}"
        messages = [("system message", "system", "{}")] if with_system else []
        messages.append(("first user message", "user", "{}"))
        for turn in range(1, num_turns + 1):
            messages.append((f"assistant message {turn}", "assistant", reply))
            messages.append((f"observation {turn}", "user", observed))
        return [_probe(label, role, form, filling) for label, role, form in messages]

    def _gaps(self, probes: Sequence[_Probe]) -> list[str]:
        """The template's text before, between and after the contents, which must be intact."""
        text = self._render(probes)
        gaps = []
        start = 0
        for i, probe in enumerate(probes):
            found = text.find(probe.content, start)
            if found < 0 or text.count(probe.content) > 1:
                raise ConfigError(self._blame(text, probes, i))
            gaps.append(text[start:found])
            start = found + len(probe.content)
        return [*gaps, text[start:]]

    def _blame(self, text: str, probes: Sequence[_Probe], i: int) -> str:
        """Say what the template did to message ``i``, and what to do about it."""
        probe = probes[i]
        advice = "set a chat_template that only appends"
        if text.count(probe.content) > 1:
            did = f"repeats the {probe.label}"
        elif probe.content in text:
            did = f"moves the {probe.label} ahead of the {probes[i - 1].label}"
        elif probe.word not in text:
            did = f"drops the {probe.label}"
        elif "</think>" in probe.content:
            did = f"drops the reasoning of {probe.label}"
            if self._enable_thinking:
                advice = "use enable_thinking=False"
            if self._enable_thinking and not self._tool_responses:
                advice += (
                    ", or observations that are tool responses (tool_responses=True, with a "
                    "dialect that writes <tool_response>)"
                )
        else:
            did = f"changes the {probe.label} to {_excerpt(text[text.index(probe.word) :])}"
        return (
            f"{self.name}: the chat template is not append-only: in a conversation of "
            f"{len(probes)} messages it {did}: {advice}"
        )

    def _check_gaps(self, probes: Sequence[_Probe], expected: Sequence[str]) -> None:
        labels = ["start", *(f"{probe.label}" for probe in probes), "end"]
        for i, (got, want) in enumerate(zip(self._gaps(probes), expected, strict=True)):
            if got != want:
                raise ConfigError(
                    f"{self.name}: the chat template's text between the {labels[i]} and the "
                    f"{labels[i + 1]} must not depend on other messages, got {want!r} in one "
                    f"conversation and {got!r} in another: set a chat_template that only appends"
                )

    def _trimmed_roles(self, *, with_system: bool) -> frozenset[str]:
        probes = [
            replace(probe, content=f"\n {probe.content} \n")
            for probe in self._conversation(0, with_system=with_system)
        ]
        text = self._render(probes)
        return frozenset(probe.role for probe in probes if probe.content not in text)


def _probe(label: str, role: str, form: str, filling: str) -> _Probe:
    word = f"zq{label.replace(' ', '')}qz"
    return _Probe(label=label, role=role, word=word, content=form.format(f"{word}{filling}."))


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
