"""Text -> terms: the one analysis that index, queries and snippets share.

What counts as the same word:

- Unicode forms: NFC, NFD and compatibility forms (full-width, ligatures) are equal; zero-width
  characters and soft hyphens inside words vanish.
- Case and Latin accents are folded: ``Café`` = ``cafe``, ``Straße`` = ``strasse``.
- Everything that is no letter or digit separates: ``Jean-Luc`` = ``Jean Luc``,
  ``O'Brien`` = ``O Brien``, ``C++`` = ``c``, ``3.14`` = ``3 14``.
- Scripts written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese): each character
  is a term; in a keyword, neighbouring characters are searched as pairs.
- Words are stemmed (Snowball). Words above 40 bytes are not indexed.

Stop words are indexed, so that phrases are exact, and dropped from keyword queries only.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

import tantivy

from spaniel.errors import ConfigError

ANALYSIS_VERSION = 1
"""Goes into every index fingerprint; raise it with any change of this module's results."""

LANGUAGES = (
    "arabic danish dutch english finnish french german greek hungarian italian norwegian "
    "portuguese romanian russian spanish swedish tamil turkish"
)
"""Snowball languages, between blanks."""

NO_SPACE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
)
"""Character class (without brackets) of the scripts that put no spaces between words."""

WORD = re.compile(rf"[{NO_SPACE}]|[^\s{NO_SPACE}]+")
"""A word as passages and snippets count them: between white space, or one such character."""

_NO_SPACE_CHAR = re.compile(rf"[{NO_SPACE}]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_MAX_WORD_BYTES = 40
_STOP_LANGUAGES = (
    "danish dutch finnish french german hungarian italian norwegian portuguese russian spanish "
    "swedish"
)
# The last line is what an apostrophe leaves behind: it's, don't, they're.
_ENGLISH_STOP_WORDS = (
    "a an and are as at be been but by can could did do does for from had has have he her his "
    "how i if in into is it its me my no not of on or our she should so such than that the their "
    "them then there these they this those to was we were what when where which who whom whose "
    "why will with would you your "
    "don ll re s t ve"
)


def normalize(text: str) -> str:
    """The text as it goes into the engine: compatibility forms merged, unspaced scripts spaced."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    return _NO_SPACE_CHAR.sub(r" \g<0> ", text)


class Analyzer:
    """Terms of one language. Safe to share between threads.

    Args:
        language: a Snowball language, or ``none`` for no stemming and no stop words.

    Raises:
        ConfigError: the language has no stemmer.
    """

    def __init__(self, language: str) -> None:
        if language != "none" and language not in LANGUAGES.split():
            raise ConfigError(
                f"index.language must be none or one of: {LANGUAGES}; got {language!r}"
            )
        self.language = language
        self.engine_analyzer = _chain(language, drop_stop_words=False)
        """For ``tantivy.Index.register_tokenizer``; expects normalized text."""
        self._keyword_analyzer = _chain(language, drop_stop_words=True)
        self.terms_of_word = lru_cache(maxsize=200_000)(self._terms_of_word)
        """Terms of one word, cached."""

    def positioned(self, text: str) -> list[tuple[int, str]]:
        """(position, term) of every word, stop words included: what a phrase is matched by."""
        tokens = self.engine_analyzer.pre_tokenize(normalize(text)).tokens
        return [(token.position, token.text) for token in tokens]

    def keyword_terms(self, keywords: str) -> list[tuple[str, ...]]:
        """What keywords search for, each once, in order.

        A term is one word, or two neighbouring characters of a script without spaces. Stop
        words are dropped unless there is nothing else.
        """
        unspaced = [] if keywords.isascii() else _unspaced_words(keywords)
        words = " ".join(w for w in keywords.split() if w not in unspaced) if unspaced else keywords
        text = normalize(words)
        found = self._keyword_analyzer.analyze(text)
        if not found and not unspaced:
            found = self.engine_analyzer.analyze(text)
        terms: list[tuple[str, ...]] = [(term,) for term in found]
        for word in unspaced:
            terms += _pairs([term for _, term in self.positioned(word)])
        return list(dict.fromkeys(terms))

    def _terms_of_word(self, word: str) -> tuple[str, ...]:
        return tuple(self.engine_analyzer.analyze(normalize(word)))


def _chain(language: str, *, drop_stop_words: bool) -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.remove_long(_MAX_WORD_BYTES))
    # Folding first makes the dotted capital I of Turkish a plain one before it is lowered.
    builder = builder.filter(tantivy.Filter.ascii_fold()).filter(tantivy.Filter.lowercase())
    if drop_stop_words and language == "english":
        builder = builder.filter(tantivy.Filter.custom_stopword(_ENGLISH_STOP_WORDS.split()))
    elif drop_stop_words and language in _STOP_LANGUAGES.split():
        builder = builder.filter(tantivy.Filter.stopword(language))
    if language != "none":
        builder = builder.filter(tantivy.Filter.stemmer(language))
    return builder.build()


def _unspaced_words(keywords: str) -> list[str]:
    return [word for word in keywords.split() if _NO_SPACE_CHAR.search(word)]


def _pairs(characters: list[str]) -> list[tuple[str, ...]]:
    if len(characters) < 2:
        return [(c,) for c in characters]
    return list(pairwise(characters))
