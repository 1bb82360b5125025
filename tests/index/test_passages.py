import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ConfigError
from spaniel.index.passages import passages_of
from spaniel.types import Document


def passages(text, words, stride):
    document = Document(docid="d", title="", text=text)
    return [text[p.start : p.end] for p in passages_of(document, words=words, stride=stride)]


def test_passages_overlap_and_the_last_ends_with_the_text():
    assert passages("a b c  d e\nf g ", 4, 2) == ["a b c  d", "c  d e\nf", "e\nf g"]


def test_a_short_text_is_one_passage_and_an_empty_one_has_none():
    assert passages(" a b ", 4, 2) == ["a b"]
    assert passages(" \n", 4, 2) == []


def test_characters_are_the_words_of_unspaced_scripts():
    assert passages("東京都 Tokyo", 2, 2) == ["東京", "都 Tokyo"]


def test_a_stride_that_leaves_words_out_is_refused():
    with pytest.raises(ConfigError, match=r"must be <= index\.passage_words, got 5 > 4"):
        passages("a", 4, 5)


@given(st.lists(st.sampled_from(["a", "bb", "c.", "京"])), st.integers(1, 6), st.integers(1, 6))
def test_every_word_is_in_a_passage(words, size, stride):
    text = " ".join(words)
    stride = min(stride, size)
    found = passages(text, size, stride)
    assert all(len(p.split()) <= size for p in found)
    rebuilt = found[0].split() if found else []
    for passage in found[1:]:
        rebuilt += passage.split()[size - stride :]
    assert rebuilt == words
