"""HTML to text: what a reader sees, one line per block."""

import re
import warnings
from dataclasses import dataclass
from typing import Any

from spaniel.corpus.extras import import_extra
from spaniel.errors import DataError

_BLOCKS = """
address article aside blockquote caption dd details div dl dt fieldset figcaption figure footer
form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section summary table tbody tfoot thead tr
ul
"""
BLOCKS = _BLOCKS.split()
# Not ``head``: a page that forgets to close it has its body inside.
UNSEEN = frozenset(["script", "style", "noscript", "template", "iframe", "object", "svg", "title"])
_SEPARATORS = {
    **dict.fromkeys(BLOCKS, ("\n", "\n")),
    "br": ("\n", ""),
    # A space between the cells of a row keeps their words apart.
    "td": ("", " "),
    "th": ("", " "),
}
_KEPT = "\0"
"""Stands for a space of ``<pre>``; HTML text holds no NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlPage:
    """What one page says."""

    title: str
    """``<title>``, else the first heading; may be empty."""
    text: str
    hrefs: tuple[str, ...]
    """Addresses of ``<a href>``, as written, in text order."""


def declared_encoding(raw: bytes) -> str | None:
    """The encoding that the page's ``<meta>`` names, when Python knows it."""
    match = re.search(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]+)", raw[:4096], re.I)
    if match is None or raw.startswith(b"\xef\xbb\xbf"):
        return None
    name = match.group(1).decode("ascii", errors="replace")
    try:
        b"".decode(name)
    except (LookupError, UnicodeError):
        return None
    # Pages that say latin-1 are windows-1252 in practice, and the HTML standard reads them so.
    return "cp1252" if name.lower() in {"iso-8859-1", "latin-1", "ascii", "us-ascii"} else name


def parse_html(source: str, where: str) -> HtmlPage:
    """Title, text and addresses of a page.

    Raises:
        ConfigError: BeautifulSoup is not installed.
        DataError: the page cannot be parsed.
    """
    bs4 = import_extra("bs4", "corpus")
    try:
        with warnings.catch_warnings():
            # A short page that looks like a file name, or XHTML, is still a page here.
            warnings.simplefilter("ignore")
            soup = bs4.BeautifulSoup(source, "html.parser")
        text, hrefs = _walk(soup, bs4.NavigableString, bs4.element.PreformattedString)
        return HtmlPage(title=_title(soup), text=text, hrefs=hrefs)
    except (RecursionError, bs4.exceptions.ParserRejectedMarkup) as error:
        raise DataError(f"{where}: not readable as HTML: {type(error).__name__}") from None


def _title(soup: Any) -> str:
    for tag in (soup.title, soup.find(re.compile("^h[1-6]$"))):
        title = " ".join(tag.get_text(" ").split()) if tag is not None else ""
        if title:
            return title
    return ""


def _walk(soup: Any, string_class: type, unseen_class: type) -> tuple[str, tuple[str, ...]]:
    """Text and addresses of what is shown, in order.

    Blocks end lines, ``<pre>`` keeps its white space, all other white space is one space. A
    stack in place of recursion and of changes to the tree keeps deep nesting fast.
    """
    parts: list[str] = []
    hrefs: list[str] = []
    stack: list[tuple[Any, bool]] = [(soup, False)]
    while stack:
        node, in_pre = stack.pop()
        name = getattr(node, "name", None) or ""
        if isinstance(node, unseen_class) or name in UNSEEN:
            continue
        if isinstance(node, string_class):
            parts.append(_protected(str(node)) if in_pre else re.sub(r"\s+", " ", str(node)))
        elif isinstance(node, str):
            parts.append(node)
        else:
            before, after = _SEPARATORS.get(name, ("", ""))
            inside = in_pre or name == "pre"
            stack.append((after, False))
            stack.extend((child, inside) for child in reversed(node.contents))
            parts.append(before)
            if name == "a" and node.get("href"):
                hrefs.append(str(node["href"]))
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parts).split("\n"))
    text = "\n".join(line.replace(_KEPT, " ").rstrip() for line in lines if line)
    return text.strip("\n"), tuple(hrefs)


def _protected(text: str) -> str:
    """Text of ``<pre>``, its spaces out of reach of the collapsing."""
    return text.expandtabs().replace("\r", "").replace(" ", _KEPT)
