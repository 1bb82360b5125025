"""What a text states and whom it is about, as far as its words show it.

A fact that differs mostly differs in a number or a name, so two texts with the same numbers
and the same names are taken to state the same facts. The test errs towards "not the same": a
text that adds one name, or writes "three" for "3", differs. What it cannot see is a fact that
differs in plain words only ("won" and "lost"). A script without capital letters has no names
here: its numbers decide alone.

Articles of one pattern about two things (two villages of one municipality, two species of one
genus) can share nearly all words and even all names; ``same_subject`` tells them apart by
their titles.
"""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from spaniel.corpus.normalise import text_key
from spaniel.types import Document

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ANY_WORD = re.compile(r"\w+")
_WORD = re.compile(r"[^\W\d_]+")
_OPENING = re.compile(r"[.!?:;\n][\"')\]\u201d\u2019]*\s+[\"'(\[\u201c\u2018]*$|^\W*$")
"""What stands before a word that opens a sentence."""
# Capitalised at the start of a sentence or in a title, these say nothing about the facts.
# "may" is not among them: it is a month.
_FUNCTION_WORDS = """
a about after all also although an and are as at be because been before both but by can could did
do does during each for from had has have he her here him his how however if in into is it its
many most no nor not of on one or other our she since so some such than that the their them then
there these they this those though through to under until upon was we were what when where which
while who whose why will with within would you
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a text states, as far as numbers and capital letters show it."""

    numbers: frozenset[str]
    """Without thousands separators: ``1,200`` is ``1200``; ``3.50`` is not ``3.5``."""
    names: frozenset[str]
    """Casefolded words with a capital inside a sentence, function words left out."""
    openers: frozenset[str]
    """Casefolded words with a capital where every word has one: a sentence's start, a title."""
    plain: frozenset[str]
    """Words in lower case."""


def same_facts(a: Facts, b: Facts) -> bool:
    """True when numbers agree, names agree, and there is at least one of either.

    A word that only opens sentences or stands in a title is a name unless one of the two
    texts writes it in lower case.
    """
    plain = a.plain | b.plain
    names_a = a.names | (a.openers - plain)
    names_b = b.names | (b.openers - plain)
    return a.numbers == b.numbers and names_a == names_b and bool(a.numbers or names_a)


def same_subject(a: Document, b: Document) -> bool:
    """True when the titles agree, or the texts do not care about their difference.

    Each word that only one of the two titles has must occur equally often in both texts:
    "Brod" and "Krum" do not in "Brod is a village ..." and "Krum is a village ...", while
    "List of" and "discography" do in two copies of one introduction. Function words and the
    order of words do not count; a missing title has no words.
    """
    apart = (_words(a.title) ^ _words(b.title)) - FUNCTION_WORDS
    if not apart:
        return True
    counts = [Counter(w for w in _ANY_WORD.findall(text_key(d.text)) if w in apart) for d in (a, b)]
    return counts[0] == counts[1]


def _words(text: str) -> frozenset[str]:
    return frozenset(_ANY_WORD.findall(text_key(text)))


def facts(title: str, text: str) -> Facts:
    """Numbers and names of a document."""
    title, text = (unicodedata.normalize("NFKC", part) for part in (title, text))
    names: set[str] = set()
    openers = {w.group().casefold() for w in _WORD.finditer(title) if _capital(w.group())}
    plain: set[str] = set()
    for word in _WORD.finditer(text):
        if not _capital(word.group()):
            plain.add(word.group().casefold())
        elif _OPENING.search(text[max(word.start() - 6, 0) : word.start()]):
            openers.add(word.group().casefold())
        else:
            names.add(word.group().casefold())
    return Facts(
        numbers=frozenset(_number(n) for n in _NUMBER.findall(f"{title}\n{text}")),
        names=frozenset(names - FUNCTION_WORDS),
        openers=frozenset(openers - FUNCTION_WORDS),
        plain=frozenset(plain),
    )


def _capital(word: str) -> bool:
    return word[0].isupper() or word[0].istitle()


def _number(text: str) -> str:
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        return text.replace(",", "")
    return text
