"""What a query asks of one view, in terms: the same for every backend.

Phrases and the site are constraints on the document; in the passage view a phrase has to stand
in the passage. Where no scored phrase is required, a keyword has to match, so that a constraint
alone does not fill a view with documents that the keywords do not touch.
"""

from dataclasses import dataclass
from functools import lru_cache

from spaniel.index.analysis import Analyzer
from spaniel.index.backend import View
from spaniel.index.query import Query

MAX_QUERY_TERMS = 64
"""Keyword terms behind these are not searched."""

Phrase = tuple[tuple[int, str], ...]
"""(position, term); a word that is not indexed leaves a place that anything fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one view looks for."""

    phrases: tuple[Phrase, ...]
    """Required, and found in the body even by the title view."""
    terms: tuple[tuple[str, ...], ...]
    """Keywords: a term, or neighbours that have to stand side by side."""
    site: str | None
    needs_term: bool
    """Whether at least one of ``terms`` has to match."""


def wanted(analyzer: Analyzer, view: View, query: Query) -> Wanted:
    """What a view looks for; without phrases, terms and site it finds nothing."""
    return _wanted(analyzer, view == "title", query)


@lru_cache(maxsize=1024)  # the views of one search ask for the same
def _wanted(analyzer: Analyzer, in_title: bool, query: Query) -> Wanted:
    positioned = [analyzer.positioned(text) for text in query.phrases]
    phrases = tuple(tuple(phrase) for phrase in positioned if phrase)
    # A title is ranked by the words of phrases too: the phrase itself is sought in the body.
    words = query.keywords + query.phrases if in_title else query.keywords
    terms = tuple(analyzer.keyword_terms(" ".join(words))[:MAX_QUERY_TERMS])
    needs_term = bool(terms) and (in_title or not phrases)
    return Wanted(phrases=phrases, terms=terms, site=query.site, needs_term=needs_term)
