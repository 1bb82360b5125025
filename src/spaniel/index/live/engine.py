"""The engine of the live web: searches go to a web-search API, reads to the pages themselves."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from weakref import WeakValueDictionary

from spaniel.cache import TextCache
from spaniel.config import LiveConfig
from spaniel.errors import ConfigError, ToolError
from spaniel.index.live.api import SearchApi, base_url
from spaniel.index.live.fetch import Unreadable
from spaniel.index.live.pages import PageReader
from spaniel.index.live.providers import WebResult, query_text
from spaniel.index.live.urls import normalised_url
from spaniel.index.query import Query, parse_query, sites_of
from spaniel.index.remote.retry import Unanswered
from spaniel.store import hash_of
from spaniel.types import Document, Hit

COUNTS = (10, 20)
"""Results that are asked for, the fewest that are enough: a search for 5 and one for 10 are one
request. 20 is the most that every API gives."""
TRY_AGAIN_S = 3600.0
"""When a page is fetched again whose host did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a page was, in the cache."""

    title: str = ""
    text: str = ""
    unreadable: str = ""
    """Why, if it was."""
    until: float | None = None
    """Unix time after which it is tried again; None is never."""


class LiveEngine:
    """A ``SearchEngine`` over the web. A docid is the normalised address of a result.

    The query language is ours: phrases and ``site:`` go to the API in its syntax, results outside
    the site are dropped, operators that our language does not have are taken off. Scores are
    1 / rank, since APIs give none.

    What an episode must not be failed by is a page that is gone: ``read`` gives a document whose
    text is one line that says why it could not be read (``metadata["unreadable"]`` as well). That
    is so for a page that its server, its robots.txt or its type does not let us read, and for a
    host that does not answer while the API's does. When neither answers, the network is down:
    ``ToolError``.

    Args:
        cfg: whose API, limits, cache.

    Raises:
        ConfigError: there is no key, a library is missing, or the cache is none.
    """

    waits = True

    def __init__(self, cfg: LiveConfig) -> None:
        self._cfg = cfg
        self._base = base_url(cfg)
        self._api = None if cfg.replay else SearchApi(cfg)
        self._pages = None if cfg.replay else PageReader(cfg)
        self._cache = TextCache(cfg.cache)
        self._lock = threading.Lock()
        self._busy: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    @property
    def fingerprint(self) -> str:
        """Hash of the API and how it is asked. The web behind it changes all the same."""
        return hash_of(["live", self._cfg.provider, self._base, COUNTS])

    @property
    def num_requests(self) -> int:
        """Requests sent to the API so far."""
        return 0 if self._api is None else self._api.num_requests

    def search(self, query: str, k: int) -> list[Hit]:
        """At most ``k`` hits, and at most 20, in the API's order.

        Raises:
            QueryError: the query breaks the query language.
            ConfigError: the key is refused.
            ToolError: the API failed, the budget is spent, or replay does not have the search.
        """
        if k < 1:
            raise ConfigError(f"k must be >= 1, got {k}")
        parsed = parse_query(query)
        if not query_text(parsed):
            return []
        results = self._results(parsed, COUNTS[0] if k <= COUNTS[0] else COUNTS[-1])
        if parsed.site:
            results = [result for result in results if parsed.site in sites_of(result.url)]
        return [
            Hit(docid=result.url, score=1 / rank, rank=rank, snippet=result.snippet)
            for rank, result in enumerate(results[:k], start=1)
        ]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """``search`` for each query, in order."""
        return [self.search(query, k) for query in queries]

    def headings(self, docids: Sequence[str]) -> list[Document]:
        """Title and address of hits, without fetching their pages. Raises ``KeyError``."""
        known = [self._known(docid) for docid in docids]
        return [Document(docid=r.url, title=r.title, text="", url=r.url) for r in known]

    def read(self, docid: str) -> Document:
        """The page behind a hit; of an unreadable one, a line that says why.

        Raises:
            KeyError: no search has found this address.
            ToolError: the network is down, or replay does not have the page.
        """
        result = self._known(docid)
        kept = self._page(docid)
        title = kept.title or result.title
        if kept.unreadable:
            text = f"This page could not be read: {kept.unreadable}."
            reason = {"unreadable": kept.unreadable}
            return Document(docid=docid, title=title, text=text, url=docid, metadata=reason)
        return Document(docid=docid, title=title, text=kept.text, url=docid)

    def read_batch(self, docids: Sequence[str]) -> list[Document]:
        """``read`` for each docid, in order."""
        return [self.read(docid) for docid in docids]

    def close(self) -> None:
        """Close connections and cache."""
        for part in (self._api, self._pages, self._cache):
            if part is not None:
                part.close()

    # -- searches ------------------------------------------------------------------------------

    def _results(self, query: Query, count: int) -> list[WebResult]:
        """Results under their normalised addresses, each once."""
        text = query_text(query)
        keys = {c: self._key("search", text, c) for c in COUNTS if c >= count}
        with self._alone(keys[count]):
            for key in keys.values():
                known = self._cache.get(key)
                if known is not None:
                    return [WebResult(**row) for row in json.loads(known)][:count]
            if self._api is None:
                raise ToolError(f"replay: {self._cfg.cache} has no search for {text!r}")
            found: dict[str, WebResult] = {}
            for row in self._api.search(query, count):
                url = normalised_url(row.url)
                if url:
                    title = row.title or url
                    found.setdefault(url, WebResult(url=url, title=title, snippet=row.snippet))
            results = list(found.values())
            rows = [asdict(result) for result in results]
            texts = {self._key("result", row["url"]): json.dumps(row) for row in rows}
            self._cache.put(texts | {keys[count]: json.dumps(rows)})
        return results[:count]

    def _known(self, docid: str) -> WebResult:
        text = self._cache.get(self._key("result", docid))
        if text is None:
            raise KeyError(docid)
        return WebResult(**json.loads(text))

    # -- pages ---------------------------------------------------------------------------------

    def _page(self, url: str) -> _Kept:
        key = self._key("page", url)
        with self._alone(key):
            text = self._cache.get(key)
            if text is not None:
                kept = _Kept(**json.loads(text))
                if self._pages is None or kept.until is None or kept.until > time.time():
                    return kept
            if self._pages is None:
                raise ToolError(f"replay: {self._cfg.cache} has no page {url}")
            kept = self._fetched(url, self._pages)
            self._cache.put({key: json.dumps(asdict(kept))})
        return kept

    def _fetched(self, url: str, pages: PageReader) -> _Kept:
        try:
            page = pages.read(url)
        except Unreadable as error:
            until = None if error.lasting else time.time() + TRY_AGAIN_S
            return _Kept(unreadable=str(error), until=until)
        except Unanswered as error:
            if not error.reached and self._api is not None and not self._api.can_be_reached():
                raise ToolError(
                    f"page {url}: {error}; {self._base} cannot be reached, either"
                ) from error
            reason = (
                "its server is busy or broken" if error.reached else "its server does not answer"
            )
            return _Kept(unreadable=reason, until=time.time() + TRY_AGAIN_S)
        return _Kept(title=page.title, text=page.text)

    # -- both ----------------------------------------------------------------------------------

    def _key(self, kind: str, *what: str | int) -> str:
        api = [self._cfg.provider, self._base] if kind == "search" else []
        return hash_of(["live", kind, *api, *what])

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """One at a time for each key: rollouts of a group begin with the same search."""
        with self._lock:
            lock = self._busy.setdefault(key, threading.Lock())
        with lock:
            yield
