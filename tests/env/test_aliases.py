import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.env.aliases import Aliases, bare


@given(st.lists(st.text(), max_size=60), st.integers())
def test_shown_ids_are_a_bijection(docids, seed):
    aliases = Aliases(seed)
    shown = {docid: aliases.show(docid) for docid in docids}
    assert len(set(shown.values())) == len(shown)
    assert all(aliases.docid(alias) == docid for docid, alias in shown.items())
    assert all(aliases.show(docid) == alias for docid, alias in shown.items())


def test_ids_are_drawn_afresh_for_every_episode():
    docids = [f"d{i}" for i in range(50)]
    first, second = Aliases(1), Aliases(2)
    same = sum(first.show(d) == second.show(d) for d in docids)
    assert same <= 2  # chance of a coincidence is 1 in 2,888 for each


def test_ids_do_not_depend_on_the_document_only_on_the_order_of_showing():
    one, two = Aliases(5), Aliases(5)
    assert [one.show(d) for d in ("a", "b")] == [two.show(d) for d in ("x", "y")]


def test_ids_are_short_and_stay_unique_past_a_thousand_documents():
    aliases = Aliases(3)
    shown = [aliases.show(str(i)) for i in range(4000)]
    assert len(set(shown)) == 4000
    assert all(re.fullmatch(r"[a-z]\d[a-z](\d[a-z])?", alias) for alias in shown)


def test_an_id_never_shown_has_no_document():
    assert Aliases(1).docid("k7m") is None


@pytest.mark.parametrize(
    ("written", "alias"),
    [
        ("k7m", "k7m"),
        (" k7m\n", "k7m"),
        ("The Feast [k7m]", "k7m"),
        ("[k7m]", "k7m"),
        ("Names [II] of a [ k7m ] ", "k7m"),
        ("line\nbreak [k7m]", "k7m"),
        ("The Feast k7m", "The Feast k7m"),
        ("k7m [x", "k7m [x"),
        ("The Feast []", "The Feast []"),
    ],
)
def test_an_id_may_be_written_with_its_heading(written, alias):
    assert bare(written) == alias
    aliases = Aliases(1)
    shown = aliases.show("d")
    assert aliases.docid(f"Any title [{shown}]") == "d"
