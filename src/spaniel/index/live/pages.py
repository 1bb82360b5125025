"""A web page as a reader sees it: title and text."""

import logging
import re
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urljoin

from spaniel.config import LiveConfig
from spaniel.corpus.extras import import_extra
from spaniel.corpus.html import declared_encoding
from spaniel.index.live.fetch import Fetched, Fetcher, Unreadable
from spaniel.index.live.guard import Refused
from spaniel.index.live.robots import Robots
from spaniel.index.live.urls import normalised_url

MAX_REDIRECTS = 10
_HTML = ("text/html", "application/xhtml+xml")
_BODY = re.compile(r"<body\b", re.IGNORECASE)
_FIRST_BLOCK = re.compile(
    r"<(?:article|aside|blockquote|center|div|dl|figure|footer|form|h[1-6]|header|main|nav|ol|p|pre"
    r"|section|table|ul)\b",
    re.IGNORECASE,
)
_PASSING = (408, 425, 429)
"""Failures of a request, not of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one page says."""

    title: str
    text: str


class PageReader:
    """Reads pages. Safe to use from several threads.

    Raises:
        ConfigError: a library of the extra ``live`` is missing.
    """

    def __init__(self, cfg: LiveConfig) -> None:
        self._fetcher = Fetcher(cfg, import_extra("httpx", "live"))
        protego = import_extra("protego", "live")
        self._robots = Robots(self._fetcher, cfg.user_agent, protego)
        self._trafilatura = import_extra("trafilatura", "live")
        # It reports what it could not extract; that is said in the page's own text here.
        logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

    def read(self, url: str) -> Page:
        """The page at an address, behind its redirects.

        Raises:
            Unreadable: there is no text to be had there, by the page's or its host's own doing.
            Unanswered: a host on the way does not answer.
        """
        answer = self._follow(url)
        kind, charset = _content_type(answer)
        if kind == "application/pdf" or answer.content.startswith(b"%PDF-"):
            raise Unreadable("it is a PDF file")
        if kind not in ("text/plain", *_HTML):
            raise Unreadable(f"it is of type {kind}")
        text = _decoded(answer.content, charset)
        page = Page(title="", text=text.strip()) if kind == "text/plain" else self._parsed(text)
        if not page.text:
            raise Unreadable("it holds no text")
        return page

    def close(self) -> None:
        """Close the connections."""
        self._fetcher.close()

    def _follow(self, url: str) -> Fetched:
        seen: set[str] = set()
        while url not in seen:
            if len(seen) > MAX_REDIRECTS:
                raise Unreadable(f"it is behind more than {MAX_REDIRECTS} redirects")
            seen.add(url)
            try:
                answer = self._fetcher.get(url, delay_s=self._robots.delay_s(url))
            except Refused:
                raise Unreadable("its address is not on the public internet") from None
            if 200 <= answer.status_code < 300:
                return answer
            if not (300 <= answer.status_code < 400 and "location" in answer.headers):
                lasting = answer.status_code not in _PASSING and answer.status_code < 500
                raise Unreadable(f"its server says {answer.status_code}", lasting=lasting)
            url = _target(url, answer.headers["location"])
        raise Unreadable("its redirects lead in a circle")

    def _parsed(self, source: str) -> Page:
        source = _with_body(source)
        found: Any = self._trafilatura.bare_extraction(
            source, include_comments=False, with_metadata=True
        )
        title = " ".join(((found.title if found else None) or "").split())
        text = (found.text if found else None) or self._trafilatura.html2txt(source)
        return Page(title=title, text=text.strip())


def _target(url: str, location: str) -> str:
    try:
        target = normalised_url(urljoin(url, location))
    except ValueError:
        target = ""
    if not target:
        raise Unreadable("it redirects to what is no web address")
    return target


def _with_body(source: str) -> str:
    """The page with the tags ``<html>`` and ``<body>``: HTML lets them be left out, but the parser
    then takes elements younger than itself for a part of the head, which is not read."""
    if _BODY.search(source):
        return source
    block = _FIRST_BLOCK.search(source)
    place = block.start() if block else len(source)
    return f"<html>{source[:place]}<body>{source[place:]}"


def _content_type(answer: Fetched) -> tuple[str, str | None]:
    header = Message()
    header["content-type"] = answer.headers.get("content-type") or "text/html"
    return header.get_content_type(), header.get_content_charset()


def _decoded(raw: bytes, charset: str | None) -> str:
    """By the header, else the page's own word, else UTF-8, else what old pages are written in."""
    for name in (charset, declared_encoding(raw), "utf-8"):
        try:
            text = raw.decode(name) if name else ""
        except (LookupError, UnicodeError):
            continue
        if name:
            return text.removeprefix("\ufeff").replace("\0", "")
    return raw.decode("cp1252", errors="replace").replace("\0", "")
