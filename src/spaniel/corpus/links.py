"""Links between documents: from what a page writes to docids, and away from what is not there."""

import posixpath
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

NO_MERGES: Mapping[str, str] = {}


def resolve_links(docid: str, hrefs: Iterable[str], known: frozenset[str]) -> tuple[str, ...]:
    """docids that a page's relative addresses point at, each once, in text order.

    ``/x`` counts from the folder's root; a folder stands for its ``index.html``, and a name
    without suffix for the page of that name. Addresses elsewhere are left out.
    """
    found = (_resolve(docid, href, known) for href in hrefs)
    return tuple(dict.fromkeys(d for d in found if d is not None and d != docid))


def clean_links(
    docid: str,
    links: Iterable[str],
    known: frozenset[str],
    canonical: Mapping[str, str] = NO_MERGES,
) -> tuple[str, ...]:
    """Links after merging: canonical, each once, none to the document itself or to nowhere."""
    mapped = (canonical.get(link, link) for link in links)
    return tuple(dict.fromkeys(d for d in mapped if d != docid and d in known))


def _resolve(docid: str, href: str, known: frozenset[str]) -> str | None:
    try:
        parts = urlsplit(href.strip())
    except ValueError:  # such as an unclosed bracket of an IPv6 host
        return None
    if parts.scheme or parts.netloc or not parts.path:
        return None
    path = unquote(parts.path)
    base = "" if path.startswith("/") else posixpath.dirname(docid)
    target = posixpath.normpath(posixpath.join(base, path.lstrip("/")))
    choices = (target, f"{target}.html", f"{target}.md", posixpath.join(target, "index.html"))
    return next((posixpath.normpath(c) for c in choices if posixpath.normpath(c) in known), None)
