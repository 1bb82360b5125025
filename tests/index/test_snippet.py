from itertools import pairwise

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spaniel.index.analysis import Analyzer
from spaniel.index.characters import fold
from spaniel.index.query import parse_query
from spaniel.index.snippet import Snippets, highlights

analyzer = Analyzer("english")
FILLER = "Nothing to be seen in this sentence at all. "


def excerpt(text, query, max_words=48, idf=lambda term: 1.0):
    return Snippets(analyzer, idf, max_words=max_words).of_query(parse_query(query))(text)


def test_a_short_text_is_shown_whole():
    assert excerpt("  Two words ", "other") == "Two words"


def test_whole_sentences_around_the_find_are_shown_while_they_fit():
    text = FILLER * 20 + "The zebra sleeps. " + FILLER * 20
    shown = excerpt(text, "zebras", max_words=14)
    assert shown == "The zebra sleeps. Nothing to be seen in this sentence at all."


def test_a_long_sentence_is_cut_from_its_start_if_the_find_is_near_it():
    text = FILLER * 9 + "A zebra " + "and more " * 60 + ". " + FILLER
    assert excerpt(text, "zebra", max_words=6) == "A zebra and more and more"


def test_a_find_deep_in_a_long_sentence_stands_in_the_middle():
    text = FILLER * 9 + "one two " * 40 + "zebra " + "three four " * 40 + ". " + FILLER
    assert excerpt(text, "zebra", max_words=5) == "one two zebra three four"


def test_a_find_at_the_end_of_a_long_sentence_shows_its_end():
    text = "one two " * 60 + "zebra. " + FILLER * 20
    assert excerpt(text, "zebra", max_words=5) == "one two one two zebra."


def test_abbreviations_do_not_end_sentences():
    text = FILLER * 9 + "It was J. R. Zebra of St. Louis, U.S. President. " + FILLER * 9
    assert excerpt(text, "zebra", 10) == "It was J. R. Zebra of St. Louis, U.S. President."


def test_the_window_with_the_rarer_words_wins():
    text = "The common word. " + FILLER * 30 + "The rare word. " + FILLER * 30
    idf = {"common": 1.0, "rare": 3.0}
    assert "rare" in excerpt(text, "common rare", 12, lambda term: idf.get(term, 0.1))


def test_two_different_words_beat_one_word_twice():
    text = "Zebra zebra. " + FILLER * 30 + "Zebra and lion. " + FILLER * 30
    assert "lion" in excerpt(text, "zebra lion", 12)


def test_the_earlier_of_equal_windows_is_shown():
    text = f"First zebra. {FILLER * 30}Second zebra. {FILLER * 30}"
    assert excerpt(text, "zebra", 12).startswith("First")


def test_a_quoted_phrase_comes_before_better_scored_words():
    text = (
        "The zebra and lion and zebra fight. " + FILLER * 30 + "A lion of zebra hue. " + FILLER * 30
    )
    assert "zebra hue" in excerpt(text, 'zebra lion "lion of zebra"', 12)


def test_a_phrase_longer_than_the_excerpt_is_cut():
    words = [f"w{i}" for i in range(30)]
    text = FILLER * 9 + " ".join(words) + ". " + FILLER * 9
    assert excerpt(text, f'"{" ".join(words)}"', 5) == "w0 w1 w2 w3 w4"


def test_finds_spread_wider_than_the_excerpt_are_narrowed_to_the_best():
    text = FILLER * 9 + "zebra " + "x " * 30 + "zebra lion zebra " + "x " * 80 + FILLER
    assert "zebra lion zebra" in excerpt(text, "zebra lion", 8)


def test_without_a_find_the_beginning_is_shown():
    text = "First sentence here. " + FILLER * 20
    assert excerpt(text, "zebra", 8) == "First sentence here."


@pytest.mark.parametrize(
    ("word", "query"),
    [
        ("dying", "die"),
        ("sensibility", "sensible"),
        ("skies", "sky"),
        ("Café", "cafe"),
        ("Straße", "strasse"),
        ("İstanbul", "istanbul"),
        ("Øresund", "oresund"),
        ("y\u0131ld\u0131z", "yildiz"),
        ("organisations", "organisation"),
        ("O’Brien", "brien"),  # noqa: RUF001
    ],
)
def test_every_form_of_a_query_word_is_found(word, query):
    text = FILLER * 30 + f"Here is {word} alone. " + FILLER * 30
    assert word in excerpt(text, query, 12)


def test_line_separators_and_paragraphs_end_sentences():
    text = FILLER * 9 + "\n\nA headline about zebras\n\n" + FILLER * 9
    assert excerpt(text, "zebra", 6) == "A headline about zebras"


def test_unspaced_scripts_count_characters_as_words():
    text = "これは関係ない文です。" * 20 + "東京は首都です。" + "これは関係ない文です。" * 20
    shown = excerpt(text, "東京", 12)
    assert "東京は首都です。" in shown
    assert len(shown) <= 12


def test_no_words_are_shown_when_none_are_wanted():
    assert excerpt("zebra", "zebra", 0) == ""


GRAPHEMES = ["e\u0301", "👩‍👩‍👧", "🇩🇪", "👍🏽", "ก็", "กำ", "\u1100\u1161", "が", "か\u3099", "\r\n"]
pieces = st.lists(
    st.sampled_from(
        [
            *GRAPHEMES,
            *["zebra", "Lion", "the", "of", "東", "京", "。"],
            ". ",
            " ",
            " ",
            "\n",
            "\n\n",
            "St. ",
        ]
    ),
    max_size=120,
)
queries = st.sampled_from(["zebra", "lion zebra", '"the zebra" lion', "東京", '"東 京"', "of", ""])


@settings(max_examples=400, deadline=None)
@given(st.one_of(pieces.map("".join), st.text(max_size=80)), queries, st.integers(1, 12))
@example("zebra" * 2000, "zebra", 3)
@example("x" * 5000 + " zebra " + "y" * 5000, "zebra", 1)
def test_an_excerpt_is_a_substring_within_the_budget_that_splits_no_grapheme(text, query, budget):
    shown = excerpt(text, query, budget)
    assert shown in text
    assert len(shown.split()) <= budget
    ends = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    starts = [i for i in range(len(text) - len(shown) + 1) if text.startswith(shown, i)]
    assert any(i in ends and i + len(shown) in ends for i in starts)


@settings(max_examples=300, deadline=None)
@given(pieces.map("".join), queries, st.integers(1, 12))
@example("zebrae\u0301St. zebra", "zebra", 1)
@example("e\u0301zebra. zebra", "zebra", 1)
def test_an_excerpt_holds_a_query_word_if_the_text_does(text, query, budget):
    parsed = parse_query(query)
    terms = analyzer.keyword_terms(" ".join(parsed.keywords + parsed.phrases))

    def holds(words):
        found = [term for _, term in analyzer.positioned(words)]
        pairs = set(pairwise(found)) | {(term,) for term in found}
        return any(term in pairs for term in terms)

    if holds(text) and "東" not in query:
        assert holds(excerpt(text, query, budget))


@given(st.text(st.characters(), max_size=60))
def test_folding_keeps_places(text):
    assert len(fold(text)) == len(text)


# --- places -------------------------------------------------------------------------------


def shown(text, query, max_words=48):
    """(excerpt, highlighted pieces)."""
    found = Snippets(analyzer, lambda term: 1.0, max_words=max_words).excerpt(
        parse_query(query), text
    )
    return text[found.start : found.end], [text[a:b] for a, b in found.highlights]


def test_highlights_are_the_words_and_phrases_of_the_query():
    text = FILLER * 20 + "The Apples of 東京 grow; an apple tree, a red apple. " + FILLER * 20
    excerpt_text, pieces = shown(text, 'apple "red apple" 東京', 20)
    assert pieces == ["Apples", "東京", "apple", "red apple"]
    assert all(piece in excerpt_text for piece in pieces)


@pytest.mark.parametrize("phrase", ["dying wish", "die wish", "of the apple", "the apple of"])
def test_a_phrase_is_found_deep_in_a_long_text(phrase):
    place = {"die wish": "dying wishes"}.get(phrase, phrase)
    text = "The wish of an apple. " + FILLER * 200 + f"Here: {place}. " + FILLER * 20
    assert place in shown(text, f'"{phrase}"', 12)[0]


def test_overlapping_finds_are_one_highlight():
    assert shown("the big red apple", '"big red" "red apple"')[1] == ["big red apple"]


def test_places_are_code_points_of_the_text():
    text = "  \U0001f34e\U0001f34e Äpfel\u0301 apple "
    found = Snippets(analyzer, lambda term: 1.0).excerpt(parse_query("apple"), text)
    assert text[found.start : found.end] == text.strip()
    assert [text[a:b] for a, b in found.highlights] == ["apple"]


def test_a_text_alone_can_be_highlighted():
    spans = highlights(analyzer, parse_query("growing tree"), "Trees grow.")
    assert spans == ((0, 5), (6, 10))


@settings(max_examples=200, deadline=None)
@given(st.one_of(pieces.map("".join), st.text(max_size=80)), queries, st.integers(0, 12))
def test_the_span_is_the_excerpt_and_highlights_lie_inside_in_order(text, query, budget):
    snippets = Snippets(analyzer, lambda term: 1.0, max_words=budget)
    found = snippets.excerpt(parse_query(query), text)
    assert text[found.start : found.end] == snippets.of_query(parse_query(query))(text)
    edges = [found.start, *(edge for span in found.highlights for edge in span), found.end]
    assert edges == sorted(edges)
    assert all(start < end for start, end in found.highlights)
