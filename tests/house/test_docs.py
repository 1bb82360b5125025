"""The pages say what the code does: commands, settings, files, messages and numbers exist."""

import ast
import re
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import typer

from spaniel.cli import app
from spaniel.config import Recipe, parse_recipe, settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "spaniel"
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("recipes/**/*.md")),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))

BASES = (ROOT, ROOT / "src", PACKAGE)
"""Where a path of a page may start."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE_ENDINGS = "py toml json jsonl md txt html tsv jinja css trec bin npy safetensors"


@cache
def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    return SPAN.findall(prose(page))


def commands(group: typer.core.TyperGroup, prefix: str = "spaniel") -> list[str]:
    """Every command that does something, as it is typed."""
    found = []
    for name, command in group.commands.items():
        typed = f"{prefix} {name}"
        inner = getattr(command, "commands", None)
        found += commands(command, typed) if inner else [typed]
    return found


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


KNOWN = {name for name, _ in settings()}
SECTIONS = {".".join(n.split(".")[:i]) for n in KNOWN for i in range(1, n.count(".") + 1)}


def is_setting(name: str) -> bool:
    return name in KNOWN | SECTIONS or any(fnmatch(known, name) for known in KNOWN)


def test_every_command_is_mentioned():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    root = typer.main.get_command(app)
    typed = commands(root)
    assert "spaniel index build" in typed
    assert [c for c in typed if not re.search(rf"{c}(?![\w-])", text)] == []


@each_page
def test_settings_exist(page):
    """``section.field`` in backticks, ``[section]`` and ``--section.field`` in commands."""
    named = re.findall(r"--([a-z]\w*(?:\.\w+)+)", page.read_text(encoding="utf-8"))
    for span in spans(page):
        name = re.match(r"\[?([a-z]\w*(?:\.[\w*]+)+|[a-z]+(?=\]))\]?(?: = .+)?$", span)
        if name is None or name[1].split(".")[0] not in Recipe.model_fields:
            continue
        if name[1].split(".")[-1] not in FILE_ENDINGS.split():
            named.append(name[1])
    assert [name for name in named if not is_setting(name)] == []


@each_page
def test_recipe_snippets_are_valid(page):
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "toml":
            parse_recipe({"name": "snippet", **tomllib.loads(body)}, where=str(page))


@each_page
def test_links_resolve(page):
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        known = anchors(target) if target.suffix == ".md" and target.exists() else set()
        if not target.exists() or (fragment and fragment not in known):
            broken.append(link)
    assert broken == []


@each_page
def test_files_exist(page):
    """Paths of code, from the root or from the package; patterns must match something."""
    text = page.read_text(encoding="utf-8")
    named = [s for s in spans(page) if re.fullmatch(r"[\w./*-]+\.(py|toml|jinja|css)", s)]
    named += [s for s in spans(page) if re.fullmatch(r"(src|tests|bench|dev)/[\w./-]+/", s)]
    named += re.findall(r"(?:python |recipes/)[\w./-]+\.(?:py|toml)", text)
    paths = [name.removeprefix("python ") for name in named if name != "recipe.toml"]
    assert [p for p in paths if not any(any(b.glob(p)) for b in BASES)] == []


def test_the_numbered_decisions_are_those_of_the_test():
    tested = re.findall(
        r"^def test_(\d\d)_", (ROOT / "tests/env/test_decisions.py").read_text(), re.MULTILINE
    )
    rows = re.findall(r"^\| (\d+) \| ", prose(ROOT / "docs/environment.md"), re.MULTILINE)
    assert tested
    assert [int(row) for row in rows] == [int(number) for number in tested]


@cache
def strings_of_the_code() -> tuple[str, ...]:
    """Every string of one line in the package; what is filled in at run time is a NUL."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(getattr(p, "value", "\0") for p in map(_literal, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(text for text in found if "\n" not in text.strip())


def _literal(part: ast.expr) -> ast.expr:
    return part if isinstance(part, ast.Constant) else ast.Constant(value="\0")


def test_quoted_messages_are_those_of_the_code():
    """First cells of the tables that hold messages; ``...`` stands for what is filled in."""
    rows = re.findall(r"^\| `([^`]+)` \| ", prose(ROOT / "docs/troubleshooting.md"), re.MULTILINE)
    assert len(rows) > 30
    unknown = []
    for row in rows:
        parts = [re.escape(part.strip()) for part in row.split("...")]
        pattern = re.compile(".*".join(parts))
        if not any(pattern.search(text) for text in strings_of_the_code()):
            unknown.append(row)
    assert unknown == []


def test_metrics_of_the_learning_page_are_logged():
    """Keys in the first column; ``problem/<name>`` stands for many."""
    table = prose(ROOT / "docs/learning.md").partition("## What to watch")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    keys = [key for cell in cells for key in SPAN.findall(cell)]
    strings = set(strings_of_the_code())

    def is_logged(key: str) -> bool:
        family, _, member = key.partition("/")
        return key in strings or (f"{family}/\0" in strings and member in strings | {"<name>"})

    assert len(keys) > 20
    assert [key for key in keys if not is_logged(key)] == []
