"""The one comparison key of texts: what two texts must share to count as the same.

Only keys are normalised; the text that is indexed and shown stays as it was read.
"""

import unicodedata

KEY_VERSION = 1
"""Raise it when ``text_key`` changes: merges made under another version do not compare."""


def _invisible() -> dict[int, None]:
    """A ``str.translate`` table that drops characters which print nothing and are no space."""
    # Format characters stand in the first two planes and among the tags of plane 14.
    scanned = [*range(0x20000), *range(0xE0000, 0xE0080)]
    points = [
        p for p in scanned if unicodedata.category(chr(p)) in {"Cf", "Cc"} and not chr(p).isspace()
    ]
    # Variation selectors, the grapheme joiner and Hangul fillers are marks or letters on paper.
    points += [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0]
    points += [*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
    return dict.fromkeys(points)


_INVISIBLE = _invisible()


def text_key(text: str) -> str:
    """Normalised form for comparison: NFKC, visible characters only, single spaces, casefolded.

    ``"Cafe\\u0301  Noir"`` and ``"CAF\\u00c9 noir"`` share a key. Empty for a text without a
    visible character; an empty key says nothing, so callers never merge on it.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = text.translate(_INVISIBLE).casefold()
    if not text.isascii():
        # Casefolding and dropping joiners can leave sequences that compose again.
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split())
