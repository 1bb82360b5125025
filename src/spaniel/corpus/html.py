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
UNSEEN = ["script", "style", "noscript", "template", "iframe", "object", "svg", "head"]
# A space between the cells of a row keeps their words apart.
CELLS = ["td", "th"]


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
        title = _title(soup)
        for tag in soup(UNSEEN):
            tag.decompose()
        hrefs = tuple(str(a["href"]) for a in soup("a", href=True))
        return HtmlPage(title=title, text=_text(soup, bs4), hrefs=hrefs)
    except (RecursionError, bs4.exceptions.ParserRejectedMarkup) as error:
        raise DataError(f"{where}: not readable as HTML: {type(error).__name__}") from None


def _title(soup: Any) -> str:
    for tag in (soup.title, soup.find(re.compile("^h[1-6]$"))):
        title = " ".join(tag.get_text(" ").split()) if tag is not None else ""
        if title:
            return title
    return ""


def _text(soup: Any, bs4: Any) -> str:
    """Blocks end lines, ``<pre>`` keeps its own, other white space is one space."""
    for string in soup.find_all(string=True):
        if string.find_parent("pre") is None:
            string.replace_with(type(string)(re.sub(r"\s+", " ", string)))
    for tag in soup(BLOCKS):
        tag.insert_before("\n")
        tag.insert_after("\n")
    for tag in soup("br"):
        tag.replace_with("\n")
    for tag in soup(CELLS):
        tag.insert_after(" ")
    lines = (line.rstrip() for line in soup.get_text().split("\n"))
    return "\n".join(line if line[:2].isspace() else line.lstrip() for line in lines if line)
