"""Query-focused excerpts: the best window of a text, grown to whole sentences.

1. Find the query's words and quoted phrases in the text. Only places where a word could start
   are looked at, and only words found there are stemmed.
2. Score the window of 64 words at each find: more distinct quoted phrases first, then the BM25
   sum of its words; the earlier window wins a tie. The same again, inside it, with the words an
   excerpt may have.
3. Cut there, growing to whole sentences while they fit.

An excerpt is a substring of the text; cuts fall between words, never inside a grapheme.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from spaniel.index.analysis import NO_SPACE, WORD, Analyzer
from spaniel.index.characters import fold, splits_grapheme
from spaniel.index.query import Query

WINDOW_WORDS = 64
_K1 = 1.2
_MAX_FINDS = 64
"""Finds of one term that are looked at, from the start of the text."""
_CHARS_PER_WORD = 12
"""Text looked at before and behind the finds, per word of the excerpt."""

_BETWEEN = re.compile(rf"[\s{NO_SPACE}]")
_MARKS = "\u0300-\u036f"
"""Accents behind their letter, which the analyzer joins to it."""
_TOKEN = re.compile(rf"[{NO_SPACE}]|[^\W_{NO_SPACE}](?:[^\W_{NO_SPACE}]|[{_MARKS}])*")
_IN_WORD = re.compile(rf"[^\W_]|[{_MARKS}]")
_UNSPACED = re.compile(f"[{NO_SPACE}]")
_SENTENCE_BREAK = re.compile(
    r"[.!?…][\"'”’»)\]]*\s+(?=\S)|[。！？][\"”」』）]*|\n\s*\n\s*"  # noqa: RUF001
)
_ABBREVIATION = re.compile(
    r"(?:[A-Z]|[A-Za-z](?:\.[A-Za-z])+|Mr|Mrs|Ms|Dr|St|Sr|Jr|Mt|No|vs|cf|ca|c)\."
)
_ABBREVIATION_CHARS = 12


@dataclass(frozen=True, slots=True)
class _Find:
    start: int
    end: int
    term: int
    """Number of the term; phrases count on behind the words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A piece of a text, with what was sought in it. Places are code points of the text."""

    start: int
    end: int
    highlights: tuple[tuple[int, int], ...]
    """(start, end) of the query's words and phrases inside the excerpt, in order; overlapping ones
    are one."""


class Snippets:
    """Makes excerpts.

    Args:
        analyzer: decides which words are the same.
        idf: BM25 weight of a term.
        max_words: longest excerpt; 0 makes empty ones.
    """

    def __init__(
        self, analyzer: Analyzer, idf: Callable[[str], float], *, max_words: int = 48
    ) -> None:
        self.analyzer = analyzer
        self.idf = idf
        self.max_words = max_words

    def of_query(self, query: Query) -> Callable[[str], str]:
        """What cuts the excerpt for this query from any text."""
        finder = _Finder(self.analyzer, self.idf, query)

        def excerpt(text: str) -> str:
            start, end = self._span(text, finder)
            return text[start:end]

        return excerpt

    def excerpt(self, query: Query, text: str) -> Excerpt:
        """The excerpt for a query with its place and what it shows of the query."""
        finder = _Finder(self.analyzer, self.idf, query)
        start, end = self._span(text, finder)
        return Excerpt(start=start, end=end, highlights=_merged(finder, text, start, end))

    def _span(self, text: str, finder: "_Finder") -> tuple[int, int]:
        if self.max_words == 0:
            return 0, 0
        if next(islice(WORD.finditer(text), self.max_words, None), None) is None:
            start = len(text) - len(text.lstrip())
            return start, max(start, len(text.rstrip()))
        folded = fold(text)
        finds = finder.finds(folded)
        if not finds:
            return _cut(text, 0, 0, self.max_words)
        numbers = _word_numbers(folded, [find.start for find in finds])
        for size in (WINDOW_WORDS, self.max_words):
            window = finder.best_window(finds, numbers, size)
            finds, numbers = finds[window], numbers[window]
        return _cut(text, finds[0].start, max(find.end for find in finds), self.max_words)


def highlights(analyzer: Analyzer, query: Query, text: str) -> tuple[tuple[int, int], ...]:
    """(start, end) in code points of the query's words and phrases in a text."""
    return _merged(_Finder(analyzer, lambda term: 1.0, query), text, 0, len(text))


def _merged(finder: "_Finder", text: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for find in finder.finds(fold(text)):
        if find.start < start or find.end > end:
            continue
        if spans and find.start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], find.end))
        else:
            spans.append((find.start, find.end))
    return tuple(spans)


class _Finder:
    """The words and phrases of one query: where they are, and what they are worth."""

    def __init__(self, analyzer: Analyzer, idf: Callable[[str], float], query: Query) -> None:
        self._terms_of_word = analyzer.terms_of_word
        terms = analyzer.keyword_terms(" ".join((*query.keywords, *query.phrases)))
        self._gains = [_marginal_gains(idf(term[0])) for term in terms]
        self._words = {term[0]: i for i, term in enumerate(terms) if len(term) == 1}
        self._needles = dict.fromkeys(n for word in self._words for n in _needles(word))
        # Neighbouring characters of a script without spaces are found as they are.
        self._pairs = {fold("".join(term)): i for i, term in enumerate(terms) if len(term) == 2}
        positioned = (analyzer.positioned(phrase) for phrase in query.phrases)
        phrases = [tuple(term for _, term in tokens) for tokens in positioned if tokens]
        self._phrases = [(phrase, _phrase_pattern(phrase)) for phrase in phrases]

    def finds(self, folded: str) -> list[_Find]:
        """Where the terms stand, in text order; each place and term once."""
        finds = {find for needle in self._needles for find in self._find_words(folded, needle)}
        for pair, number in self._pairs.items():
            matches = islice(re.finditer(re.escape(pair), folded), _MAX_FINDS)
            finds.update(_Find(*match.span(), number) for match in matches)
        for number, (phrase, pattern) in enumerate(self._phrases, start=len(self._gains)):
            finds.update(_Find(*span, number) for span in self._places(folded, phrase, pattern))
        if not finds:
            # Some stems of some languages do not begin as the word does: look at every word.
            finds.update(self._find_everywhere(folded))
        return sorted(finds, key=lambda find: (find.start, find.term))

    def best_window(self, finds: list[_Find], numbers: list[int], size: int) -> slice:
        """The finds of the best window of ``size`` words; ``numbers`` are their word numbers."""
        best, best_worth = slice(0, 1), (-1, 0.0)
        counts = [0] * (len(self._gains) + len(self._phrases))
        phrases, score, last = 0, 0.0, 0
        for first in range(len(finds)):
            while last < len(finds) and numbers[last] - numbers[first] < size:
                phrases, score = self._count(finds[last].term, +1, counts, phrases, score)
                last += 1
            # Sums drift by an ulp; a window must be really better to beat an earlier one.
            if (phrases, score - 1e-9) > best_worth:
                best, best_worth = slice(first, last), (phrases, score)
            phrases, score = self._count(finds[first].term, -1, counts, phrases, score)
        return best

    def _count(
        self, term: int, change: int, counts: list[int], phrases: int, score: float
    ) -> tuple[int, float]:
        before = counts[term]
        counts[term] += change
        if term >= len(self._gains):
            return phrases + int(counts[term] > 0) - int(before > 0), score
        gain = self._gains[term][min(before, counts[term], _MAX_FINDS - 1)]
        return phrases, score + change * gain

    def _find_words(self, folded: str, needle: str) -> Iterator[_Find]:
        found, place = 0, folded.find(needle)
        while place >= 0 and found < _MAX_FINDS:
            token = _TOKEN.match(folded, place)
            end = token.end() if token else place + 1
            if token and not (place and _IN_WORD.match(folded, place - 1)):
                for term in self._terms_of_word(token[0]):
                    if term in self._words:
                        yield _Find(place, end, self._words[term])
                        found += 1
            place = folded.find(needle, end)

    def _find_everywhere(self, folded: str) -> Iterator[_Find]:
        tokens = [
            (term, *match.span())
            for match in _TOKEN.finditer(folded)
            for term in self._terms_of_word(match[0])
        ]
        for term, start, end in tokens:
            if term in self._words:
                yield _Find(start, end, self._words[term])
        terms = [term for term, _, _ in tokens]
        for number, (phrase, _) in enumerate(self._phrases, start=len(self._gains)):
            for place, term in enumerate(terms):
                last = place + len(phrase)
                if term == phrase[0] and tuple(terms[place:last]) == phrase:
                    yield _Find(tokens[place][1], tokens[last - 1][2], number)

    def _places(
        self, folded: str, phrase: tuple[str, ...], pattern: re.Pattern[str]
    ) -> Iterator[tuple[int, int]]:
        """Spans of a phrase whose words begin as their stems do."""
        place, match = 0, pattern.search(folded)
        while match:
            end = self._end_of(folded, match.start(), phrase)
            if end:
                yield match.start(), end
            place = end or match.start() + 1
            match = pattern.search(folded, place)

    def _end_of(self, folded: str, start: int, phrase: tuple[str, ...]) -> int:
        """Where the phrase that begins at a place ends; 0 when it is another one."""
        found: list[str] = []
        for token in _TOKEN.finditer(folded, start):
            found += self._terms_of_word(token[0])
            if tuple(found) == phrase:
                return token.end()
            if len(found) >= len(phrase):
                break
        return 0


def _phrase_pattern(phrase: tuple[str, ...]) -> re.Pattern[str]:
    """What a text looks like where the phrase may stand."""
    words = [f"(?:{'|'.join(map(re.escape, _needles(term)))})" for term in phrase]
    if not _UNSPACED.match(phrase[0]):
        words[0] = r"(?<![^\W_])" + words[0]
    return re.compile(r"[^\W_]*[\W_]*".join(words))


def _needles(term: str) -> tuple[str, ...]:
    """What the regular forms of a stem begin with: stemming rewrites the last letters."""
    term = fold(term)
    if len(term) > 4:
        return (term[: max(4, len(term) - 2)],)
    if len(term) == 3 and term.endswith("ie"):
        return (term[:2], term[0] + "y")  # die, dying
    return (term[:-1] if len(term) > 1 and term[-1] in "iey" else term,)


def _marginal_gains(idf: float) -> list[float]:
    """[_MAX_FINDS] what the (i+1)-th occurrence of a term adds to BM25; windows have one length."""
    saturation = [idf * n * (_K1 + 1) / (n + _K1) for n in range(_MAX_FINDS + 1)]
    return [more - less for less, more in pairwise(saturation)]


def _word_numbers(folded: str, places: list[int]) -> list[int]:
    """How many words stand before each place; places ascend."""
    if _UNSPACED.search(folded):
        starts = [match.start() for match in WORD.finditer(folded)]
        return [bisect_right(starts, place) for place in places]
    numbers, number, before = [], 0, 0
    for place in places:
        number += folded.count(" ", before, place)
        numbers.append(number)
        before = place
    return numbers


def _cut(text: str, start: int, end: int, max_words: int) -> tuple[int, int]:
    """The span of at most ``max_words`` words of the text with ``start:end`` in them."""
    reach = max_words * _CHARS_PER_WORD
    low, high = _between_words(text, start - reach, end + reach)
    starts = [match.start() for match in WORD.finditer(text, low, high)]
    first = max(0, bisect_right(starts, start) - 1)
    last = max(bisect_left(starts, end), first + 1)
    sentences = [bisect_left(starts, place) for place in _sentence_starts(text, low, high)]
    first, last = _grow(first, min(last, first + max_words), sentences, len(starts), max_words)
    begin, stop = starts[first], _word_end(text, starts[last - 1])
    while splits_grapheme(text, begin):
        begin -= 1
    while splits_grapheme(text, stop):
        stop += 1
    return begin, stop


def _word_end(text: str, start: int) -> int:
    word = WORD.match(text, start)
    assert word is not None
    return word.end()


def _between_words(text: str, low: int, high: int) -> tuple[int, int]:
    """The range, inside the text, widened until its ends cut no word."""
    low, high = max(low, 0), min(high, len(text))
    while low > 0 and not _BETWEEN.search(text, low - 1, low + 1):
        low -= 1
    while high < len(text) and not _BETWEEN.search(text, high - 1, high + 1):
        high += 1
    return low, high


def _sentence_starts(text: str, low: int, high: int) -> list[int]:
    """Where sentences of the range begin; its own ends count where they are the text's."""
    places = [0] if low == 0 else []
    for match in _SENTENCE_BREAK.finditer(text, low, high):
        lower = match.end() < high and text[match.end()].islower()
        if not lower and not _ends_in_abbreviation(text, match.start() + 1):
            places.append(match.end())
    return [*places, high] if high == len(text) else places


def _ends_in_abbreviation(text: str, end: int) -> bool:
    word = text.rfind(" ", max(0, end - _ABBREVIATION_CHARS), end) + 1
    opening = "(\"'“‘"  # noqa: RUF001
    return _ABBREVIATION.fullmatch(text[word:end].lstrip(opening)) is not None


def _grow(first: int, last: int, sentences: list[int], size: int, budget: int) -> tuple[int, int]:
    """Widen the words ``first:last`` of ``size`` to whole sentences, within a budget of words."""
    low = max((s for s in sentences if s <= first), default=0)
    high = min((s for s in sentences if s >= last), default=size)
    if high - low > budget:
        if last - low <= budget:
            return low, low + budget
        if high - first <= budget:
            return high - budget, high
        low = max(low, first - (budget - (last - first)) // 2)
        return low, min(high, low + budget)
    while True:
        behind = min((s for s in sentences if s > high), default=None)
        before = max((s for s in sentences if s < low), default=None)
        if behind is not None and behind - low <= budget:
            high = behind
        elif before is not None and high - before <= budget:
            low = before
        else:
            return low, high


def bm25_idf(num_with_term: int, num_documents: int) -> float:
    """BM25's weight of a term: ``ln(1 + (N - n + 0.5) / (n + 0.5))``, above 0."""
    return math.log1p((num_documents - num_with_term + 0.5) / (num_with_term + 0.5))
