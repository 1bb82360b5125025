"""Folders of text, Markdown and HTML."""

import json
from pathlib import Path

import pytest

from spaniel.config import CorpusConfig, FolderSource
from spaniel.corpus.html import parse_html
from spaniel.corpus.links import resolve_links
from spaniel.corpus.read import read_corpus
from spaniel.corpus.records import Labelled
from spaniel.errors import ConfigError, DataError

pytest.importorskip("bs4")


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read(folder: Path, questions: Path | None = None, on_bad: str = "stop") -> Labelled:
    source = FolderSource(path=folder, questions=questions)
    return read_corpus(CorpusConfig(source=source, on_bad=on_bad))


def test_docids_are_relative_paths_in_sorted_order(tmp_path: Path) -> None:
    files = {"b/z.txt": "z", "a.txt": "a", "b/C.MD": "c", ".git/x.txt": "x", "b/.y.md": "y"}
    labelled = read(write(tmp_path, {**files, "picture.png": b"\x89PNG", "b/page.HTM": "p"}))
    assert [d.docid for d in labelled.documents] == ["a.txt", "b/C.MD", "b/page.HTM", "b/z.txt"]


@pytest.mark.parametrize(
    ("name", "content", "title"),
    [
        ("a.txt", "# not a heading\ntext", "a"),
        ("a.md", "intro\n\n## The *Title* ##\n# Second", "The *Title*"),
        ("a.md", "```\n# comment in code\n```\n# Title", "Title"),
        ("a.md", "#hashtag only", "a"),
        ("a.html", "<title> The\n title </title><h1>Heading</h1>x", "The title"),
        ("a.html", "<title></title><p>x</p><h2>Heading <b>bold</b></h2>", "Heading bold"),
        ("a.html", "<p>only text</p>", "a"),
    ],
)
def test_titles_come_from_title_heading_or_name(
    tmp_path: Path, name: str, content: str, title: str
) -> None:
    assert read(write(tmp_path, {name: content})).documents[0].title == title


def test_html_becomes_what_a_reader_sees() -> None:
    page = parse_html(
        """<html><head><title>T</title><style>p {}</style></head><body>
        <script>var x = "<p>no</p>";</script><!-- no comment -->
        <h1>Port
           Blair</h1><p>The <b>capi</b>tal&nbsp;of<br>the islands.</p>
        <ul><li>One</li><li>Two</li></ul>
        <table><tr><td>a</td><td>b</td></tr></table>
        <pre>if x:
    y</pre></body></html>""",
        "a.html",
    )
    assert page.text.split("\n") == [
        "Port Blair",
        "The capital of",
        "the islands.",
        "One",
        "Two",
        "a b",
        "if x:",
        "    y",
    ]
    assert page.title == "T"


def test_white_space_between_inline_tags_is_one_space() -> None:
    assert parse_html("<p>a <b> b</b>\t<i>c </i> d</p>", "a.html").text == "a b c d"


def test_a_head_that_is_never_closed_does_not_swallow_the_page() -> None:
    page = parse_html("<head><title>T</title><body><p>text", "a.html")
    assert (page.title, page.text) == ("T", "text")


def test_links_inside_the_folder_become_docids(tmp_path: Path) -> None:
    html = (
        '<a href="b.html#part">b</a> <a href="../top.md?x=1">top</a> <a href="/sub/b.html">b</a>'
        '<a href="https://example.org/sub/b.html">away</a> <a href="mailto:a@b">m</a> <a>none</a>'
        '<a href="nowhere.html">n</a> <a href="a.html">itself</a> <a href="#x">here</a>'
    )
    markdown = "[a](sub/a.html) ![image](sub/b.html) [b](<sub/b%2Ehtml> 'title') `x` [s](sub/c)"
    files = {"sub/a.html": html, "sub/b.html": "b", "top.md": markdown, "sub/c.md": "c"}
    links = {d.docid: d.links for d in read(write(tmp_path, files)).documents}
    assert links["sub/a.html"] == ("sub/b.html", "top.md")
    assert links["top.md"] == ("sub/a.html", "sub/b.html", "sub/c.md")


@pytest.mark.parametrize(
    ("href", "docid"),
    [("wiki/", "wiki/index.html"), (".", "index.html"), ("../../a", None), ("http://[", None)],
)
def test_addresses_resolve_as_on_a_web_server(href: str, docid: str | None) -> None:
    known = frozenset({"index.html", "wiki/index.html"})
    assert resolve_links("page.html", [href], known) == ((docid,) if docid else ())


def test_a_page_in_its_declared_encoding_is_read(tmp_path: Path) -> None:
    latin = '<meta charset="iso-8859-1"><p>Caf\u00e9 \u2019</p>'.encode("cp1252")
    japanese = '<meta charset="shift_jis"><p>\u65e5\u672c</p>'.encode("shift_jis")
    labelled = read(write(tmp_path, {"a.html": latin, "b.html": japanese}))
    assert [d.text for d in labelled.documents] == ["Caf\u00e9 \u2019", "\u65e5\u672c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"one\ntwo\xff\n", "a.txt:2: not utf-8"),
        ("a.html", b'<meta charset="utf-8"><p>\xff', "a.html:1: not utf-8"),
        ("a.md", b" \n\n", "a.md: field text must not be empty"),
        ("a.html", b"<script>only code</script>", "a.html: field text must not be empty"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write(tmp_path, {name: content, "z.txt": "fine"})
    with pytest.raises(DataError, match=message):
        read(folder)
    skipped = read(folder, on_bad="skip")
    assert [d.docid for d in skipped.documents] == ["z.txt"]
    assert message in skipped.report.bad[0]


def test_deeply_nested_html_is_a_bad_file_at_worst(tmp_path: Path) -> None:
    deep = "<div>" * 3_000 + "inside" + "</div>" * 3_000
    labelled = read(write(tmp_path, {"a.html": deep, "z.txt": "fine"}), on_bad="skip")
    assert labelled.documents[-1].docid == "z.txt"
    assert len(labelled.documents) + labelled.report.num_bad == 2


def test_questions_name_targets_by_path(tmp_path: Path) -> None:
    write(tmp_path / "docs", {"a/b.txt": "text"})
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"qid": "q1", "text": "what?", "targets": ["a/b.txt"]}) + "\n")
    assert read(tmp_path / "docs", path).questions[0].targets == ("a/b.txt",)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read(tmp_path / "nowhere")
