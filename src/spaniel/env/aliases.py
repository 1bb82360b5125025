"""Shown ids: what the policy calls documents, drawn afresh for every episode.

An id is a consonant, a digit and a consonant (``k7m``): short enough to copy, no word, and
drawn without looking at the document, so that nothing about a document can be read off it
and nothing learnt about an id carries over to the next episode.
"""

import random
import re

_HEADING = re.compile(r".*\[\s*([^\[\]]+?)\s*\]\s*", re.DOTALL)
_CONSONANTS = "bcdfghjkmnpqrstvwxz"
_DIGITS = "23456789"
UNKNOWN = "unknown:"
"""Prefix of a reported id that the episode never showed."""


def bare(alias: str) -> str:
    """The id in what a policy wrote: ``k7m``, or a heading as results show it, ``Title [k7m]``.

    Nothing else can be meant by a heading, so it is not held against the policy.
    """
    heading = _HEADING.fullmatch(alias)
    return heading[1] if heading else alias.strip()


class Aliases:
    """A bijection between the documents an episode has shown and their shown ids."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shown: dict[str, str] = {}
        self._docids: dict[str, str] = {}

    def show(self, docid: str) -> str:
        """The shown id of a document; drawn when first shown, the same ever after."""
        if docid not in self._shown:
            alias = self._draw()
            self._shown[docid] = alias
            self._docids[alias] = docid
        return self._shown[docid]

    def docid(self, alias: str) -> str | None:
        """The document behind a shown id; None when this episode never showed it."""
        return self._docids.get(bare(alias))

    def _draw(self) -> str:
        while True:
            letters = [self._random.choice(_CONSONANTS), self._random.choice(_DIGITS)]
            letters.append(self._random.choice(_CONSONANTS))
            # 2,888 three-character ids; an episode that shows thousands gets longer ones.
            if len(self._shown) > 1000:
                letters += [self._random.choice(_DIGITS), self._random.choice(_CONSONANTS)]
            alias = "".join(letters)
            if alias not in self._docids:
                return alias
