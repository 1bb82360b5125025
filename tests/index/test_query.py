import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import QueryError
from spaniel.index.query import MAX_PATH_SEGMENTS, Query, host_of, parse_query, sites_of


def test_keywords_phrases_and_site_are_told_apart():
    query = parse_query('launch year "Voyager  2" site:NASA.gov probe')
    assert query == Query(
        keywords=("launch", "year", "probe"), phrases=("Voyager 2",), site="nasa.gov"
    )


@pytest.mark.parametrize(
    "text",
    ["what's AND (foo", "C++ [x]", "NOT", "bank:", "title:x", "-word", "agent*", "a\\b", "park."],
)
def test_everything_else_is_literal(text):
    assert parse_query(text) == Query(keywords=tuple(text.split()))


def test_an_odd_last_quote_is_ignored_and_empty_phrases_are_dropped():
    query = parse_query('portugal """moção de censura')
    assert query.keywords == ("portugal", "moção", "de", "censura")
    assert query.phrases == ()
    assert query.notes == ("an unmatched quote was ignored", "an empty phrase was ignored")


def test_curly_quotes_quote():
    assert parse_query("“exact phrase” x").phrases == ("exact phrase",)


def test_quotes_need_no_blanks_around_them():
    query = parse_query('a"b c"d')
    assert (query.keywords, query.phrases) == (("a", "d"), ("b c",))


def test_a_phrase_said_twice_counts_once():
    assert parse_query('"a b" "a  b"').phrases == ("a b",)


@pytest.mark.parametrize("text", ["", " ", "\x00", "\x00\x01\n", '""', '"', '""" '])
def test_nothing_asked_is_an_empty_query(text):
    query = parse_query(text)
    assert (query.keywords, query.phrases, query.site) == ((), (), None)


def test_a_second_site_is_an_error_that_names_both():
    with pytest.raises(QueryError, match=r"one site: filter, got 2: a\.com b\.org"):
        parse_query("site:a.com x site:b.org")


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("site:https://www.Example.com:80/?b", "example.com"),
        ("SITE:.example.com", "example.com"),
        ("site:*.example.com", "example.com"),
        ("site:user@example.com", "example.com"),
    ],
)
def test_a_site_is_reduced_to_its_host(text, site):
    assert parse_query(text) == Query(site=site)


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("site:https://www.Example.com:80/a/B?b", "example.com/a/B"),
        ("site:example.com/docs/", "example.com/docs"),
        ("site:example.com//docs/../api#x", "example.com/docs/api"),
    ],
)
def test_a_site_may_have_a_path(text, site):
    assert parse_query(text) == Query(site=site)


def test_a_deep_path_is_shortened_and_says_so():
    query = parse_query("site:a.com/" + "/".join("abcdefgh"))
    assert query.site == "a.com/" + "/".join("abcdefgh"[:MAX_PATH_SEGMENTS])
    assert query.notes == ("site: was shortened to 6 parts of the path",)


HOSTS = st.lists(st.sampled_from(["a", "b", "com", "org"]), min_size=1, max_size=3).map(".".join)
PATHS = st.lists(st.sampled_from(["x", "y", "X"]), max_size=4)


@given(HOSTS, PATHS, HOSTS, PATHS)
def test_a_document_belongs_to_a_site_exactly_when_it_lies_below_it(host, path, site, below):
    url = f"https://{host}/{'/'.join(path)}"
    asked = parse_query(f"site:{site}/{'/'.join(below)}").site
    inside = f".{host}".endswith(f".{site}") and path[: len(below)] == below
    assert (asked in sites_of(url)) == inside


@pytest.mark.parametrize("text", ["site:", "site:///", "-site:a.com", "website:a.com"])
def test_what_names_no_site_is_literal(text):
    assert parse_query(text) == Query(keywords=(text,))


def test_a_site_inside_quotes_is_text():
    assert parse_query('"site:a.com"') == Query(phrases=("site:a.com",))


@given(st.text(st.characters(), max_size=60))
def test_no_string_breaks_the_parser(text):
    query = parse_query(text)
    assert all(word and not word.isspace() for word in query.keywords + query.phrases)
    "".join(query.keywords + query.phrases).encode()


@given(st.lists(st.sampled_from(['"', "a", " ", "b c", "site:", "“", "\x00", ":", "-"])))
def test_no_arrangement_of_the_syntax_breaks_the_parser(parts):
    text = "".join(parts)
    try:
        query = parse_query(text)
    except QueryError:
        assert text.count("site:") > 1
        return
    assert "" not in query.phrases
    assert not any('"' in word for word in query.keywords)


def test_a_long_query_is_parsed():
    assert len(parse_query("word " * 2000).keywords) == 2000


@pytest.mark.parametrize(
    ("url", "suffixes"),
    [
        ("https://a.example.com?q=b.org", ["a.example.com", "example.com", "com"]),
        ("http://www.example.com", ["example.com", "com"]),
        ("example.com/x", ["example.com", "example.com/x", "com", "com/x"]),
        ("", []),
        ("https://", []),
    ],
)
def test_a_document_belongs_to_its_host_and_the_domains_above(url, suffixes):
    assert sites_of(url) == suffixes


@given(st.text(max_size=40))
def test_any_url_has_a_host_without_separators(url):
    assert not set(host_of(url)) & set("/?#")
