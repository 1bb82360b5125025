"""A folder of text, Markdown and HTML files as a corpus."""

import re
from dataclasses import dataclass
from pathlib import Path

from spaniel.config import FolderSource
from spaniel.corpus.fields import checked_document
from spaniel.corpus.html import declared_encoding, parse_html
from spaniel.corpus.jsonl import read_question_file
from spaniel.corpus.links import resolve_links
from spaniel.corpus.records import Found, Reading
from spaniel.errors import ConfigError, DataError
from spaniel.progress import track
from spaniel.types import Document

SUFFIXES = (".txt", ".md", ".html", ".htm")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^\s)>]+)>?[^)\n]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """Contents of one file."""

    title: str
    """Empty when the file gives none."""
    text: str
    hrefs: tuple[str, ...] = ()


def read_folder(source: FolderSource, reading: Reading) -> Found:
    """One document per file, in order of path; files and folders named ``.x`` are passed over.

    The docid is the path inside the folder with ``/`` between parts. The title is
    ``<title>``, else the first heading, else the file's name. Links to files of the folder
    are kept as docids.

    Raises:
        ConfigError: there is no such folder.
        DataError: a file is not UTF-8 or holds no text, and bad files are not skipped.
    """
    if not source.path.is_dir():
        raise ConfigError(f"{source.path}: no such folder")
    paths = {p.relative_to(source.path).as_posix(): p for p in source.path.rglob("*")}
    docids = sorted(d for d, p in paths.items() if _is_page(d, p))
    known = frozenset(docids)
    rows = ((str(paths[docid]), docid) for docid in docids)

    def parse(docid: str, where: str) -> Document:
        return _read_document(docid, paths[docid], known)

    tracked = track(rows, "read corpus", len(docids), "files")
    found = Found(documents=[d for _, d in reading.parse_each(tracked, parse)])
    if source.questions is not None:
        found.questions, found.given_split = read_question_file(source.questions, reading)
    return found


def _is_page(docid: str, path: Path) -> bool:
    hidden = any(part.startswith(".") for part in docid.split("/"))
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()


def _read_document(docid: str, path: Path, known: frozenset[str]) -> Document:
    if not docid.isascii() and docid != docid.encode(errors="replace").decode():
        raise DataError(f"{docid!r}: the file name is not UTF-8")
    page = _read_page(path)
    document = Document(
        docid=docid,
        title=page.title or path.stem,
        text=page.text,
        links=resolve_links(docid, page.hrefs, known),
    )
    return checked_document(document, str(path))


def _read_page(path: Path) -> _Page:
    raw, suffix = path.read_bytes(), path.suffix.lower()
    encoding = "utf-8-sig"
    if suffix in (".html", ".htm"):
        encoding = declared_encoding(raw) or encoding
    try:
        text = raw.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not {encoding} at byte {error.start}") from None
    if suffix == ".md":
        return _parse_markdown(text)
    if suffix == ".txt":
        return _Page(title="", text=text.strip())
    page = parse_html(text, str(path))
    return _Page(title=page.title, text=page.text, hrefs=page.hrefs)


def _parse_markdown(text: str) -> _Page:
    """Markdown stays as it is written; headings and links in code blocks do not count."""
    prose = _FENCED.sub("", text)
    heading = _HEADING.search(prose)
    return _Page(
        title=heading.group(1).strip() if heading else "",
        text=text.strip(),
        hrefs=tuple(_MARKDOWN_LINK.findall(prose)),
    )
