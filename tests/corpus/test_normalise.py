"""The comparison key of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.corpus.normalise import text_key


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Cafe\u0301", "Caf\u00e9"),  # composed and decomposed
        ("The  Book", "The\u00a0Book\n"),
        ("STRASSE", "Stra\u00dfe"),
        ("zero\u200bwidth", "zerowidth"),
        ("e\u2060\u0301", "\u00e9"),  # composes only once the joiner is gone
        ("soft\u00adhyphen", "softhyphen"),
        ("\ufeffbyte order", "byte order"),
        ("\u202eright to left", "right to left"),
        ("\ufb01ne", "fine"),  # the ligature
        ("\uff11\uff19\uff15\uff10", "1950"),  # full-width digits
        ("heart \u2764\ufe0f", "heart \u2764"),  # a variation selector
    ],
)
def test_texts_that_read_the_same_share_a_key(a: str, b: str) -> None:
    assert text_key(a) == text_key(b)


@pytest.mark.parametrize(
    ("a", "b"), [("born 1913", "born 1931"), ("resume", "r\u00e9sum\u00e9"), ("a b", "ab")]
)
def test_texts_that_read_differently_do_not(a: str, b: str) -> None:
    assert text_key(a) != text_key(b)


def test_the_key_of_nothing_visible_is_empty() -> None:
    assert text_key(" \u200b\u2060\n\u3164\ufeff") == ""


@given(st.text())
def test_the_key_of_a_key_is_itself(text: str) -> None:
    assert text_key(text_key(text)) == text_key(text)


@given(st.text(), st.sampled_from(["\u200b", "\u200d", "\ufeff", "\u00ad", "\u2060"]))
def test_invisible_characters_never_change_the_key(text: str, invisible: str) -> None:
    assert text_key(invisible + text + invisible) == text_key(text)
