"""What a visited page says about a goal: sentences picked here, or by a model behind an endpoint.

Evidence is quoted, never paraphrased: a quotation that does not stand in the page is dropped.
The model's summary is its own words, and is marked as such.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spaniel.config import EvidenceConfig
from spaniel.errors import EndpointError, ToolError
from spaniel.index.analysis import Analyzer
from spaniel.llm import LlmClient, Prompt, Usage
from spaniel.store import hash_of
from spaniel.types import Document, Message

PROMPT_VERSION = 1
SYSTEM = """\
You read a page for somebody with a goal. Answer with a JSON object and nothing else:
{"evidence": ["<passage copied word for word>", ...], "summary": "<what the page says about it>"}
Copy every passage that bears on the goal, the most telling first. If none does, leave the list \
empty and say so in the summary."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][\"”』」）]*|\n\s*\n\s*")  # noqa: RUF001


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a page says about a goal."""

    quotations: tuple[str, ...]
    """Substrings of the page's text, in the order in which they are shown."""
    summary: str = ""
    """In the words of the model that read the page; empty without one."""
    num_invented: int = 0
    """Quotations of the model that do not stand in the page; left out."""


class Extractor(Protocol):
    """Reads pages for a goal."""

    @property
    def waits(self) -> bool:
        """Whether it asks another machine."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of what its evidence depends on."""
        ...

    def extract(self, goal: str, document: Document, max_chars: int) -> Evidence:
        """Evidence of at most ``max_chars`` characters. Raises ``ToolError``."""
        ...


class SentenceExtractor:
    """The sentences that share most with the goal, rare words first; in text order.

    A word weighs ``ln((N + 1) / n)`` for a page of N sentences, n of which hold it. Without any
    shared word the page's beginning has to do.
    """

    waits = False

    def __init__(self, language: str) -> None:
        self._language = language
        self._analyzer = Analyzer(language)

    @property
    def fingerprint(self) -> str:
        """Hash of the method and the language."""
        return hash_of(["sentences", self._language])

    def extract(self, goal: str, document: Document, max_chars: int) -> Evidence:
        """See ``Extractor``; neighbouring sentences are one quotation."""
        spans = sentence_spans(document.text)
        if not spans:
            return Evidence(quotations=())
        wanted = self._terms(goal)
        held = [self._terms(document.text[start:end]) & wanted for start, end in spans]
        counts = Counter(term for terms in held for term in terms)
        weights = {t: math.log((len(spans) + 1) / n) for t, n in counts.items()}
        scores = [sum(weights[t] for t in sorted(terms)) for terms in held]
        chosen: set[int] = set()
        room = max_chars
        for number in sorted(range(len(spans)), key=lambda i: (-scores[i], i)):
            if counts and not scores[number]:
                break
            size = spans[number][1] - spans[number][0] + 1
            if size <= room:
                chosen.add(number)
                room -= size
        if not chosen:  # even the best sentence is longer than the room
            best = max(range(len(spans)), key=lambda i: (scores[i], -i))
            start, end = spans[best]
            return Evidence(quotations=(document.text[start : min(end, start + max_chars)],))
        return Evidence(quotations=_joined(document.text, spans, sorted(chosen)))

    def _terms(self, text: str) -> set[str]:
        return {part for term in self._analyzer.keyword_terms(text) for part in term}


class LlmExtractor:
    """A model behind an endpoint reads the page and quotes what bears on the goal.

    Raises:
        ConfigError: see ``LlmClient``.
    """

    waits = True

    def __init__(self, cfg: EvidenceConfig) -> None:
        assert cfg.endpoint is not None
        self._cfg = cfg
        self._model = cfg.endpoint
        self._client = LlmClient(cfg.endpoint)

    @property
    def fingerprint(self) -> str:
        """Hash of model, prompt and how much of a page it reads."""
        read = self._cfg.max_page_chars
        return hash_of(["llm", self._model.base_url, self._model.model, PROMPT_VERSION, read])

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far."""
        return self._client.usage

    def extract(self, goal: str, document: Document, max_chars: int) -> Evidence:
        """See ``Extractor``.

        Raises:
            ToolError: the endpoint failed, or its answer is not the JSON that was asked for.
        """
        page = document.text[: self._cfg.max_page_chars]
        task = f"Goal: {goal}\n\nPage: {document.title}\n{document.url}\n\n{page}"
        messages = (Message(role="system", content=SYSTEM), Message(role="user", content=task))
        try:
            prompt = Prompt(messages=messages, max_tokens=self._cfg.max_tokens, temperature=0.0)
            reply = self._client.ask_blocking(prompt)
            quoted, summary = _parse(reply.text)
        except EndpointError as error:
            raise ToolError(f"visit: {error}") from error
        found, invented = [], 0
        room = max_chars - len(summary)
        for text in quoted:
            quotation = _in_page(text, document.text)
            if quotation is None:
                invented += 1
            elif len(quotation) < room:
                found.append(quotation)
                room -= len(quotation) + 1
        return Evidence(
            quotations=tuple(dict.fromkeys(found)),
            summary=summary[:max_chars],
            num_invented=invented,
        )


def make_extractor(cfg: EvidenceConfig) -> Extractor:
    """The extractor that the settings ask for."""
    return SentenceExtractor(cfg.language) if cfg.endpoint is None else LlmExtractor(cfg)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a text, without the space around them."""
    spans = []
    start = 0
    for end in (*(m.end() for m in _SENTENCE_END.finditer(text)), len(text)):
        piece = text[start:end]
        if piece.strip():
            left = len(piece) - len(piece.lstrip())
            spans.append((start + left, start + len(piece.rstrip())))
        start = end
    return spans


def _joined(text: str, spans: Sequence[tuple[int, int]], chosen: Sequence[int]) -> tuple[str, ...]:
    """Neighbouring sentences as one substring."""
    quotations: list[str] = []
    first = last = chosen[0]
    for number in (*chosen[1:], -1):
        if number == last + 1:
            last = number
            continue
        quotations.append(text[spans[first][0] : spans[last][1]])
        first = last = number
    return tuple(quotations)


def _parse(text: str) -> tuple[list[str], str]:
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1])
        quoted, summary = answer["evidence"], answer.get("summary", "")
        if isinstance(summary, str) and all(isinstance(q, str) for q in quoted):
            return list(quoted), summary.strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise EndpointError(f"the answer is not the JSON that was asked for: {text[:80]!r}")


def _in_page(quoted: str, text: str) -> str | None:
    """The page's own words for a quotation that differs in white space at most."""
    words = quoted.split()
    if not words:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.group() if found else None
