"""A question with what is known filled in: what a demonstrator thinks before its next search.

    From which town is the company that published The Feast run?
    From which town is Plegburg Partners run?

So each step of a long question becomes the same small one: what does the last page say of the
name that stands in it?
"""

from collections.abc import Collection
from typing import Any

from spaniel.env.dialects import THINK_CLOSE, THINK_OPEN
from spaniel.types import Question


def with_thought(thought: str, call: str) -> str:
    """A turn's text: the thought, if there is one, then the call."""
    return f"{THINK_OPEN}{thought}{THINK_CLOSE}\n{call}" if thought else call


def reduced(question: Question, read: Collection[str], visible: str) -> str:
    """The question's text with each described entity that is known by its name.

    Questions say in ``metadata["parts"]`` what they describe; those that do not stay as they are.

    Args:
        read: docids of the documents that were read.
        visible: everything that was shown; a name that does not stand in it is not written.
    """
    text = question.text
    parts: list[dict[str, Any]] = [dict(part) for part in question.metadata.get("parts", ())]
    for number, part in enumerate(parts):
        if not set(part["docids"]) <= set(read) or part["name"] not in visible:
            continue
        text = _filled(text, part["preface"], "")
        text = _filled(text, part["phrase"], part["name"])
        # An outer description holds the inner one.
        for outer in parts[number + 1 :]:
            outer["phrase"] = _filled(outer["phrase"], part["phrase"], part["name"])
            outer["preface"] = _filled(outer["preface"], part["phrase"], part["name"])
    return text[:1].upper() + text[1:]


def _filled(text: str, phrase: str, name: str) -> str:
    """The first place of a phrase, at the start of a sentence or not, taken by a name."""
    for form in (phrase, phrase[:1].upper() + phrase[1:]):
        if form and form in text:
            return text.replace(form, name, 1)
    return text
