"""Character-level facts that snippets need: folding in place, and where graphemes end."""

import re
import unicodedata

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_JOINS_LEFT = re.compile(
    # Joiners, Thai and Lao AM, half-width voicing marks, skin tones, tags, Hangul vowels and tails.
    "[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
    "\u1160-\u11ff\ud7b0-\ud7fb]"
)
_HANGUL_LEAD = re.compile("[\u1100-\u115f\ua960-\ua97c]")
_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97c\uac00-\ud7fb]")
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")
# Latin letters with a stroke, which Unicode does not take apart; the analyzer folds them too.
_STROKED = {ord(char): plain for char, plain in zip("øØłŁđĐħĦı", "oollddhhi", strict=True)}
_ZERO_WIDTH_JOINER = "\u200d"


class _Folds(dict[int, str]):
    """Lower case without marks, made as characters are met; always one character."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        parts = unicodedata.normalize("NFKD", char)
        alone = all(unicodedata.combining(mark) for mark in parts[1:])
        folded = " " if char.isspace() else (parts[0] if alone else char).lower()
        self[code] = folded if len(folded) == 1 else char
        return self[code]


_FOLDS = _Folds(_STROKED)


def fold(text: str) -> str:
    """Lower case, no accents, line ends and tabs as blanks; as long as ``text``, place by place."""
    if not text.isascii():
        # What has no one-character lower case is handled here, so that lowering keeps places.
        text = _NOT_ASCII.sub(lambda run: run[0].translate(_FOLDS), text)
    return text.lower().replace("\n", " ").replace("\t", " ").replace("\r", " ")


def splits_grapheme(text: str, place: int) -> bool:
    """True when a cut before ``text[place]`` would part one user-perceived character.

    Covers marks, joiners, emoji sequences, flags and Hangul; the rules of UAX 29 that can
    apply beside a word's end.
    """
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if after.isascii():
        return False
    if unicodedata.category(after).startswith("M") or _JOINS_LEFT.match(after):
        return True
    if before == _ZERO_WIDTH_JOINER:
        return unicodedata.category(after) == "So"
    if _HANGUL_LEAD.match(before):
        return bool(_HANGUL.match(after))
    return bool(_FLAG_LETTER.match(before) and _FLAG_LETTER.match(after))
