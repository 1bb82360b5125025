"""The query language: keywords, ``"exact phrases"`` and one ``site:``.

Everything else is literal text: ``AND``, ``-word``, ``title:x``, brackets and stars are words or
nothing. No string breaks the parser; a second ``site:`` is the only error, since guessing which
one was meant would silently search the wrong place.
"""

import re
from dataclasses import dataclass

from spaniel.errors import QueryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed query."""

    keywords: tuple[str, ...] = ()
    """Words outside quotes, as written: any of them may match."""
    phrases: tuple[str, ...] = ()
    """Texts inside quotes: a result holds all of them. A one-word phrase requires that word."""
    site: str | None = None
    """Host, lower case, without ``www.``, and the path's segments if one was given, as
    ``example.com/docs``: results are from there, from below, or so on a subdomain."""
    notes: tuple[str, ...] = ()
    """What was ignored, in words for the one who asked."""


# Lone surrogates cannot be encoded, and no control character is part of a word.
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CURLY_QUOTES = str.maketrans("“”„‟", '""""')
MAX_PATH_SEGMENTS = 6
"""Of a document's path that ``site:`` can tell apart."""
_SITE = re.compile(r"site:(\S+)", re.IGNORECASE)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://")
_SCHEME_ANY_CASE = re.compile(_SCHEME.pattern, re.IGNORECASE)


def parse_query(text: str) -> Query:
    """Keywords, phrases and site of a query.

    Straight and curly double quotes are the same. An odd last quote is ignored, an empty
    phrase is dropped; both leave a note.

    Raises:
        QueryError: there is more than one ``site:``.

    Example:
        >>> parse_query('launch year "Voyager 2" site:nasa.gov')
        Query(keywords=('launch', 'year'), phrases=('Voyager 2',), site='nasa.gov', notes=())
    """
    parts = _NOT_TEXT.sub(" ", text).translate(_CURLY_QUOTES).split('"')
    notes = []
    if len(parts) % 2 == 0:
        last = parts.pop()
        parts[-1] = f"{parts[-1]} {last}"
        notes.append("an unmatched quote was ignored")
    quoted = [" ".join(part.split()) for part in parts[1::2]]
    if not all(quoted):
        notes.append("an empty phrase was ignored")
    keywords: list[str] = []
    sites: list[str] = []
    for word in " ".join(parts[::2]).split():
        site, path = _site_of(word)
        if site:
            if len(path) > MAX_PATH_SEGMENTS:
                notes.append(f"site: was shortened to {MAX_PATH_SEGMENTS} parts of the path")
            sites.append("/".join([site, *path[:MAX_PATH_SEGMENTS]]))
        else:
            keywords.append(word)
    if len(sites) > 1:
        raise QueryError(f"a query can hold one site: filter, got {len(sites)}: {' '.join(sites)}")
    return Query(
        keywords=tuple(keywords),
        phrases=tuple(dict.fromkeys(filter(None, quoted))),
        site=sites[0] if sites else None,
        notes=tuple(notes),
    )


def plain_query(text: str) -> Query:
    """All words of a text as keywords; no quotes, no site."""
    return Query(keywords=tuple(_NOT_TEXT.sub(" ", text).split()))


def host_of(url: str) -> str:
    """The host of a URL or bare address: lower case, no port, no ``www.``; "" when there is none.

    Example:
        >>> host_of("https://www.Example.com:8080/a?b")
        'example.com'
    """
    rest = _SCHEME.sub("", url.strip().lower())
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    host = re.sub(r":\d*$", "", host).strip(".")
    return host.removeprefix("www.")


def path_of(url: str) -> list[str]:
    """The segments of a URL's path, without query and fragment; dots and empty ones left out.

    Example:
        >>> path_of("https://example.com//docs/./a.html?b#c")
        ['docs', 'a.html']
    """
    rest = _SCHEME_ANY_CASE.sub("", url.strip())
    path = re.split(r"[?#]", rest, maxsplit=1)[0].replace("\\", "/").partition("/")[2]
    return [segment for segment in path.split("/") if segment not in ("", ".", "..")]


def sites_of(url: str) -> list[str]:
    """Every ``site:`` a document belongs to: its host and the domains above, each alone and
    with the beginnings of its path.

    Example:
        >>> sites_of("https://a.org/docs/page")
        ['a.org', 'a.org/docs', 'a.org/docs/page', 'org', 'org/docs', 'org/docs/page']
    """
    labels = [label for label in host_of(url).split(".") if label]
    path = path_of(url)[:MAX_PATH_SEGMENTS]
    return [
        "/".join([".".join(labels[i:]), *path[:depth]])
        for i in range(len(labels))
        for depth in range(len(path) + 1)
    ]


def _site_of(word: str) -> tuple[str, list[str]]:
    match = _SITE.fullmatch(word)
    if not match:
        return "", []
    address = match[1].removeprefix("*.")
    return host_of(address), path_of(address)
