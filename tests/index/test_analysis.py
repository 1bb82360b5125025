import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ConfigError
from spaniel.index.analysis import LANGUAGES, Analyzer, normalize

english = Analyzer("english")


def terms(text, analyzer=english):
    return [" ".join(term) for term in analyzer.keyword_terms(text)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Café", "cafe"),
        ("Cafe\u0301", "Café"),
        ("Straße", "STRASSE"),
        ("İstanbul", "istanbul"),
        ("ﬁne", "fine"),
        ("Ｐａｒｉｓ", "paris"),  # noqa: RUF001
        ("Pa\u00adris", "paris"),
        ("Jean-Luc", "jean luc"),
        ("O’Brien", "o'brien"),  # noqa: RUF001
        ("snake_case", "snake case"),
        ("running", "runs"),
    ],
)
def test_spellings_of_one_word_are_one_term(one, other):
    assert terms(one) == terms(other) != []


def test_stop_words_are_dropped_from_keywords_unless_they_are_all_there_is():
    assert terms("The capital of France's north") == ["capit", "franc", "north"]
    assert terms("to be or not to be") == ["to", "be", "or", "not"]


def test_phrases_keep_stop_words_and_their_positions():
    assert english.positioned("the Bank of America") == [
        (0, "the"),
        (1, "bank"),
        (2, "of"),
        (3, "america"),
    ]


def test_a_word_too_long_to_be_indexed_leaves_a_gap():
    assert english.positioned(f"a {'x' * 41} b") == [(0, "a"), (2, "b")]


def test_unspaced_scripts_are_searched_by_pairs_of_characters():
    assert terms("東京都") == ["東 京", "京 都"]
    assert terms("京") == ["京"]
    assert terms("東京 tower") == ["tower", "東 京"]


def test_terms_come_once():
    assert terms("new New york news") == ["new", "york", "news"]


@pytest.mark.parametrize("text", ["", "?!", "\u200b", "—", "👍"])
def test_what_holds_no_word_has_no_terms(text):
    assert english.keyword_terms(text) == []


@pytest.mark.parametrize("language", [*LANGUAGES.split(), "none"])
def test_every_language_analyzes(language):
    assert Analyzer(language).keyword_terms("Zebra zebra") != []


def test_without_a_language_nothing_is_stemmed_or_dropped():
    assert terms("the runs", Analyzer("none")) == ["the", "runs"]


def test_an_unknown_language_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"none or one of: arabic .* got 'klingon'"):
        Analyzer("klingon")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_normalizing_twice_changes_no_term(text):
    once = english.engine_analyzer.analyze(normalize(text))
    assert english.engine_analyzer.analyze(normalize(normalize(text))) == once


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_the_cached_terms_of_a_word_are_its_terms(text):
    assert list(english.terms_of_word(text)) == [term for _, term in english.positioned(text)]


def test_one_analyzer_serves_many_threads():
    words = [f"word{i} running{i}" for i in range(300)]
    expected = [terms(word) for word in words]
    results = {}

    def work(number):
        results[number] = [terms(word) for word in words]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[i] == expected for i in range(4))
