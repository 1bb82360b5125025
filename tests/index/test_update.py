import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.index.conftest import document

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError, DataError
from spaniel.index.build import build_index, open_index, verify_index
from spaniel.index.update import update_index
from spaniel.index.views import ViewsWriter

CFG = IndexConfig()
WORDS = ("apple", "pear", "plum", "cherry", "stone")
OLD = [document(f"d{i}", f"{WORDS[i % 5]} {WORDS[i % 3]} tree", WORDS[i % 4]) for i in range(12)]
QUERIES = ("apple tree", "plum", '"pear apple"', "cherry stone", "tree")


def docids(engine, query):
    return sorted(hit.docid for hit in engine.search(query, 100))


def assert_finds_what_a_new_build_finds(directory, documents, tmp_path):
    build_index(documents, tmp_path / "new", CFG)
    new, changed = open_index(tmp_path / "new"), open_index(directory)
    assert list(changed.texts) == sorted(documents, key=lambda d: d.docid)
    for query in QUERIES:
        assert docids(changed, query) == docids(new, query)
    verify_index(directory)
    return new, changed


def test_after_additions_an_index_is_as_if_built_at_once(tmp_path):
    build_index(OLD[:5], tmp_path / "i", CFG)
    change = update_index(tmp_path / "i", CFG, add=OLD[8:])
    assert (change.num_added, change.num_replaced, change.num_deleted) == (4, 0, 0)
    update_index(tmp_path / "i", CFG, add=OLD[5:8])
    new, changed = assert_finds_what_a_new_build_finds(tmp_path / "i", OLD, tmp_path)
    assert changed.fingerprint == new.fingerprint
    for query in QUERIES:
        assert changed.search(query, 7) == new.search(query, 7)


def test_after_deletions_the_documents_are_gone_and_the_fingerprint_is_another(tmp_path):
    build_index(OLD, tmp_path / "i", CFG)
    change = update_index(tmp_path / "i", CFG, delete=["d0", "d11"])
    assert (change.num_added, change.num_replaced, change.num_deleted) == (0, 0, 2)
    new, changed = assert_finds_what_a_new_build_finds(tmp_path / "i", OLD[1:11], tmp_path)
    # BM25's statistics remember them.
    assert changed.fingerprint != new.fingerprint
    with pytest.raises(KeyError):
        changed.read("d0")


def test_a_document_takes_the_place_of_one_only_if_asked(tmp_path):
    build_index(OLD, tmp_path / "i", CFG)
    other = replace(OLD[3], text="quince")
    with pytest.raises(DataError, match=r"'d3' is in the index already.*--replace"):
        update_index(tmp_path / "i", CFG, add=[other])
    assert open_index(tmp_path / "i").read("d3") == OLD[3]
    change = update_index(tmp_path / "i", CFG, add=[other], replace=True)
    assert (change.num_added, change.num_replaced, change.num_deleted) == (0, 1, 0)
    engine = open_index(tmp_path / "i")
    assert docids(engine, "quince") == ["d3"]
    assert engine.read("d3") == other


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_changes_end_at_what_is_left(data, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("changes")
    have = {d.docid: d for d in OLD[:4]}
    build_index(have.values(), tmp_path / "i", CFG)
    texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
    for _ in range(data.draw(st.integers(1, 3))):
        delete = data.draw(st.lists(st.sampled_from(sorted(have)), unique=True, max_size=3))
        names = st.sampled_from([f"d{i}" for i in range(8)] + ["a", "z"])
        add = [
            document(name, data.draw(texts), data.draw(texts))
            for name in data.draw(st.lists(names, unique=True, max_size=3))
        ]
        after = {k: v for k, v in have.items() if k not in delete} | {d.docid: d for d in add}
        if after:
            change = update_index(tmp_path / "i", CFG, add=add, delete=delete, replace=True)
            assert change.num_added - change.num_deleted == len(after) - len(have)
            have = after
    assert_finds_what_a_new_build_finds(tmp_path / "i", list(have.values()), tmp_path)


def snapshot(directory):
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delete": ["d0", "nowhere"]}, "'nowhere' is not in the index: nothing was changed"),
        ({"delete": [d.docid for d in OLD]}, "no documents"),
        ({"add": [document("x", "a"), document("x", "b")]}, "'x' comes twice"),
        ({"add": [document("", "a")]}, "empty docid"),
        ({"add": [document("x", "\ud800")]}, "'x' cannot be stored"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(tmp_path, changes, message):
    build_index(OLD, tmp_path / "i", CFG)
    before = snapshot(tmp_path)
    with pytest.raises(DataError, match=message):
        update_index(tmp_path / "i", CFG, **changes)
    assert snapshot(tmp_path) == before


def test_a_change_that_dies_changes_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    build_index(OLD, tmp_path / "i", CFG)
    before = snapshot(tmp_path)
    monkeypatch.setattr(ViewsWriter, "commit", full)
    with pytest.raises(OSError, match="No space"):
        update_index(tmp_path / "i", CFG, add=[document("x", "a")], delete=["d1"])
    assert snapshot(tmp_path) == before


def test_an_open_index_is_not_disturbed(tmp_path):
    build_index(OLD, tmp_path / "i", CFG)
    old = open_index(tmp_path / "i")
    found = [old.search(query, 10) for query in QUERIES]
    for number in range(12):
        update_index(tmp_path / "i", CFG, add=[document(f"x{number}", "apple tree")])
    update_index(tmp_path / "i", CFG, delete=["d1", "d2", "d3"])
    assert [old.search(query, 10) for query in QUERIES] == found
    assert old.read("d1") == OLD[1]


def test_a_change_links_what_stays(tmp_path):
    build_index(OLD, tmp_path / "i", CFG)
    before = {p.stat().st_ino for p in (tmp_path / "i").rglob("*.*") if p.is_file()}
    update_index(tmp_path / "i", CFG, add=[document("x", "a")])
    assert (tmp_path / "i/texts/texts-0.bin").stat().st_ino in before


def test_without_hard_links_files_are_copied(tmp_path, monkeypatch):
    def refused(*args):
        raise OSError("Operation not permitted")

    build_index(OLD, tmp_path / "i", CFG)
    monkeypatch.setattr(os, "link", refused)
    update_index(tmp_path / "i", CFG, add=[document("x", "apple")], delete=["d1"])
    assert_finds_what_a_new_build_finds(
        tmp_path / "i", [OLD[0], *OLD[2:], document("x", "apple")], tmp_path
    )


def test_an_index_of_other_settings_is_not_changed(tmp_path):
    build_index(OLD, tmp_path / "i", CFG)
    with pytest.raises(ArtifactError, match=r"index\.passage_words"):
        update_index(tmp_path / "i", IndexConfig(passage_words=90), add=[document("x", "a")])
