"""The web-search APIs: how each is asked, and what its answers hold.

Facts are from each provider's reference. Results come without scores that could be compared.
"""

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spaniel.errors import ToolError
from spaniel.index.query import Query


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResult:
    """One result of a web search."""

    url: str
    title: str = ""
    snippet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One HTTP request to an API."""

    method: str
    path: str
    params: dict[str, str] = field(default_factory=dict)
    json: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One API."""

    base_url: str | None
    """None when every instance has its own."""
    key_env: str | None
    """Environment variable of the key by default; None when no key is needed."""
    request: Callable[[Query, int, str], ApiRequest]
    """Query, results wanted, key -> what is sent."""
    results: Callable[[Mapping[str, Any]], list[WebResult]]
    """The answer's results, best first. Raises ``KeyError``, ``TypeError`` or ``ValueError``
    when the answer has another shape, ``ToolError`` when it says that the search failed."""


MAX_CHARS = 400
MAX_WORDS = 50
"""Of a query: what Brave takes, and Tavily."""
_OPERATORS = "-+!:?~|&*()<>="
"""What search engines read as operators at the start of a word; here it is literal, or nothing."""


def query_text(query: Query, *, with_site: bool = True) -> str:
    """A query in the syntax that web search engines share: words, quoted phrases, ``site:``.

    What engines would read as an operator but our language does not, is taken off: a leading
    ``-`` or ``!``, ``OR``, ``intitle:``. Constraints come first when the text must be cut, at
    ``MAX_WORDS`` words and ``MAX_CHARS`` characters.
    """
    site = f"site:{query.site}" if query.site and with_site else ""
    phrases = [f'"{phrase}"' for phrase in query.phrases]
    words = [w for w in (_literal(word) for word in query.keywords) if w]
    kept = _fitting([*phrases, *words], MAX_CHARS - len(site), MAX_WORDS - bool(site))
    # Words before phrases, as most people type them.
    count = min(len(phrases), len(kept))
    return " ".join([*kept[count:], *kept[:count], *([site] if site else [])])


def _fitting(parts: list[str], chars: int, words: int) -> list[str]:
    """The first parts that fit; of a phrase that does not, its first words."""
    kept: list[str] = []
    for part in parts:
        while part and (len(part) + 1 > chars or len(part.split()) > words):
            shorter = part.rpartition(" ")[0]
            part = f'{shorter}"' if shorter else ""
        if not part:
            break
        kept.append(part)
        chars -= len(part) + 1
        words -= len(part.split())
    return kept


def _literal(word: str) -> str:
    word = word.lstrip(_OPERATORS)
    if word in ("OR", "AND", "NOT", "AROUND"):
        return word.lower()
    head, colon, tail = word.partition(":")
    return f"{head} {tail}".strip() if colon and head.isalpha() else word


# --- Serper: Google's results, https://serper.dev ---------------------------------------------


def _serper(query: Query, count: int, key: str) -> ApiRequest:
    return ApiRequest(
        method="POST",
        path="/search",
        json={"q": query_text(query), "num": count},
        headers={"X-API-KEY": key},
    )


def _serper_results(answer: Mapping[str, Any]) -> list[WebResult]:
    return _rows(answer["organic"], url="link", snippet="snippet")


# --- Tavily, https://docs.tavily.com ----------------------------------------------------------


def _tavily(query: Query, count: int, key: str) -> ApiRequest:
    body: dict[str, Any] = {"query": query_text(query, with_site=False), "max_results": count}
    if query.site:
        # Its query is no query language: a site is a parameter.
        body["include_domains"] = [query.site.partition("/")[0]]
        body["query"] = body["query"] or query.site
    return ApiRequest(
        method="POST", path="/search", json=body, headers={"Authorization": f"Bearer {key}"}
    )


def _tavily_results(answer: Mapping[str, Any]) -> list[WebResult]:
    return _rows(answer["results"], url="url", snippet="content")


# --- Brave, https://api-dashboard.search.brave.com --------------------------------------------


def _brave(query: Query, count: int, key: str) -> ApiRequest:
    return ApiRequest(
        method="GET",
        path="/res/v1/web/search",
        params={"q": query_text(query), "count": str(count), "text_decorations": "false"},
        headers={"X-Subscription-Token": key, "Accept": "application/json"},
    )


def _brave_results(answer: Mapping[str, Any]) -> list[WebResult]:
    if "web" not in answer:
        if answer["type"] != "search":
            raise ValueError("no answer to a search")
        return []  # nothing found: the part is left out
    rows = _rows(answer["web"]["results"], url="url", snippet="description")
    return [
        WebResult(url=r.url, title=html.unescape(r.title), snippet=html.unescape(r.snippet))
        for r in rows
    ]


# --- SearXNG, https://docs.searxng.org --------------------------------------------------------


def _searxng(query: Query, count: int, key: str) -> ApiRequest:
    # It gives whole pages of results, some twenty, whatever is asked for.
    return ApiRequest(
        method="GET",
        path="/search",
        params={"q": query_text(query), "format": "json"},
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


def _searxng_results(answer: Mapping[str, Any]) -> list[WebResult]:
    rows = _rows(answer["results"], url="url", snippet="content")
    failed = answer.get("unresponsive_engines")
    if not rows and failed:
        # Nothing was found because nothing was searched.
        raise ToolError(f"no engine behind SearXNG answered: {str(failed)[:120]}")
    return rows


def _rows(rows: Any, *, url: str, snippet: str) -> list[WebResult]:
    if not isinstance(rows, list):
        raise TypeError("results are no list")
    found = [
        WebResult(
            url=row[url],
            title=" ".join(str(row.get("title") or "").split()),
            snippet=" ".join(str(row.get(snippet) or "").split()),
        )
        for row in rows
        if isinstance(row[url], str)
    ]
    if rows and not found:
        raise TypeError("no result has an address")
    return found


PROVIDERS = {
    "serper": Provider(
        base_url="https://google.serper.dev",
        key_env="SERPER_API_KEY",
        request=_serper,
        results=_serper_results,
    ),
    "tavily": Provider(
        base_url="https://api.tavily.com",
        key_env="TAVILY_API_KEY",
        request=_tavily,
        results=_tavily_results,
    ),
    "brave": Provider(
        base_url="https://api.search.brave.com",
        key_env="BRAVE_API_KEY",
        request=_brave,
        results=_brave_results,
    ),
    "searxng": Provider(base_url=None, key_env=None, request=_searxng, results=_searxng_results),
}
