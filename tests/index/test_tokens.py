import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.index.analysis import LANGUAGES, Analyzer
from spaniel.index.remote.opensearch_load import GAP
from spaniel.index.remote.tokens import in_place, plain_token


def test_plain_tokens_are_plain_and_different():
    terms = ["town", "caf\u00e9", "\u6771", "zzz1", "c++", "x" * 40, "1820", "a_b"]
    tokens = [plain_token(term) for term in terms]
    assert all(token.isascii() and token.isalnum() and len(token) <= 40 for token in tokens)
    assert len(set(tokens)) == len(terms)
    assert plain_token("town") == "town"


@pytest.mark.parametrize(
    ("positioned", "first", "tokens"),
    [
        ([], 0, []),
        ([(0, "a"), (1, "b")], 0, ["a", "b"]),
        ([(2, "a"), (4, "b")], 0, ["*", "*", "a", "*", "b"]),
        ([(2, "a"), (4, "b")], 2, ["a", "*", "b"]),
    ],
)
def test_tokens_keep_their_distances(positioned, first, tokens):
    assert in_place(positioned, "*", first=first) == tokens


@given(st.text(max_size=60), st.sampled_from([*LANGUAGES.split(), "none"]))
def test_no_term_holds_white_space_or_the_gap(text, language):
    for _, term in Analyzer(language).positioned(text):
        assert term.split() == [term]
        assert GAP not in term
