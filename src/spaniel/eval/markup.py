"""HTML that cannot be broken by the text in it.

Corpus and model text is hostile: everything that is not ``Markup`` is escaped, there is no
way to write a link or a script, and control characters are shown instead of sent.
"""

from collections.abc import Iterable, Mapping
from html import escape

VOID = frozenset({"meta", "br"})
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
# Characters that reorder the text around them could move a hit's mark to another line.
_VISIBLE |= dict.fromkeys([0x202A, 0x202B, 0x202C, 0x202D, 0x202E, *range(0x2066, 0x206A)], 0xFFFD)


class Markup(str):
    """HTML made by ``el``: the only text that is not escaped."""

    __slots__ = ()


def el(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element: ``el("p", text, cls="note")``; ``_`` in attribute names becomes ``-``.

    Children are escaped unless they are ``Markup``. ``cls`` is the class.
    """
    parts = [name]
    for key, value in attributes.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        key = "class" if key == "cls" else key.replace("_", "-")
        parts.append(f'{key}="{escape(clean(text), quote=True)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening) if name in VOID else Markup(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Children one after the other, escaped unless they are ``Markup``."""
    return Markup("".join(c if isinstance(c, Markup) else escape(clean(c)) for c in children))


def clean(text: str) -> str:
    """Text that UTF-8 can hold, control and reordering characters made visible."""
    return text.translate(_VISIBLE).encode("utf-8", "replace").decode("utf-8")


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters, with a note of how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit:,} more characters]"


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str) -> Markup:
    """A table that scrolls inside its box, its caption above; a row's first cell is its heading."""
    head = el("tr", *[el("th", cell, scope="col") for cell in header])
    body = []
    for first, *rest in rows:
        body.append(el("tr", el("th", first, scope="row"), *[el("td", cell) for cell in rest]))
    content = el("table", el("thead", head), el("tbody", *body), aria_label=caption)
    box = el("div", content, cls="scroll", tabindex=0, role="region", aria_label=caption)
    return join([el("p", caption, cls="caption"), box])


def facts(mapping: Mapping[str, object]) -> Markup:
    """Nested plain data as a list of names and values."""
    items: list[str] = []
    for key, value in mapping.items():
        items.append(el("dt", str(key).replace("_", " ")))
        items.append(el("dd", _fact(value)))
    return el("dl", *items)


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        return facts(value) if value else "none"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (Mapping, list, tuple)) for item in value):
            return el("ul", *[el("li", _fact(item)) for item in value])
        return ", ".join(_fact(item) for item in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else shortened(str(value), 4000)
