"""What is bm25s's own; that the same documents match is in test_backends.py."""

import math
import shutil
import sys

import numpy as np
import pytest
from pydantic import ValidationError
from tests.index.conftest import FRUIT

from spaniel.config import IndexConfig, load_recipe
from spaniel.errors import ArtifactError, ConfigError
from spaniel.index.bm25s_build import bm25s_directory, build_bm25s, verify_bm25s
from spaniel.index.bm25s_views import holds, open_bm25s
from spaniel.index.build import build_index
from spaniel.index.query import parse_query
from spaniel.types import Document


def document(docid, text, title=""):
    return Document(docid=docid, title=title, text=text)


def config(**changes):
    return IndexConfig(**{"backend": "bm25s", "language": "none"} | changes)


@pytest.fixture
def engine_of(tmp_path):
    def make(documents, **changes):
        cfg = config(**changes)
        build_index(documents, tmp_path / "index", cfg)
        build_bm25s(tmp_path / "index", cfg)
        return open_bm25s(tmp_path / "index", cfg)

    return make


def bm25(texts, word, k1, b):
    """[num_texts] scores of one word by hand; texts are lists of words."""
    frequencies = [text.count(word) for text in texts]
    holding = sum(f > 0 for f in frequencies)
    idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
    mean = sum(map(len, texts)) / len(texts)
    return [
        idf * f / (f + k1 * (1 - b + b * len(text) / mean)) if f else 0.0
        for f, text in zip(frequencies, texts, strict=True)
    ]


TEXTS = ["sun sun moon", "sun", "moon star sea sky sand", "sea"]


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (2.0, 0.0), (0.0, 1.0), (5.0, 1.0)])
def test_scores_are_bm25_with_the_settings(engine_of, k1, b):
    engine = engine_of([document(f"{i}", text) for i, text in enumerate(TEXTS)], k1=k1, b=b)
    texts = [text.split() for text in TEXTS]
    sun, moon = bm25(texts, "sun", k1, b), bm25(texts, "moon", k1, b)
    expected = {i: s + m for i, (s, m) in enumerate(zip(sun, moon, strict=True)) if s + m > 0}
    for view in ("document", "passage"):
        found = dict(engine.views.rank(view, parse_query("moon sun"), 10))
        assert found == pytest.approx(expected, rel=1e-6)


def test_titles_have_statistics_of_their_own(engine_of):
    documents = [document("a", "x", "sun moon"), document("b", "sun", "sea"), document("c", "y")]
    engine = engine_of(documents, k1=0.5, b=0.5)
    (row, score), *others = engine.views.rank("title", parse_query("sun"), 5)
    assert (row, others) == (0, [])
    assert score == pytest.approx(bm25([["sun", "moon"], ["sea"], []], "sun", 0.5, 0.5)[0], 1e-6)


def test_neighbouring_characters_are_a_term_of_their_own(engine_of):
    texts = ["\u6771\u4eac tower", "\u4eac\u6771 \u6771\u4eac \u6771\u4eac", "tower"]
    engine = engine_of([document(f"{i}", text) for i, text in enumerate(texts)], k1=0.9, b=0.4)
    # As if the pair were one word of a text that is as long as it is in characters and words.
    words = [["P", "tower"], ["x", "P", "P"], ["tower"]]
    lengths = [["P", "tower", "."], ["P", "P", ".", ".", ".", "."], ["tower"]]
    assert [text.count("P") for text in words] == [text.count("P") for text in lengths]
    found = dict(engine.views.rank("document", parse_query("\u6771\u4eac"), 5))
    expected = bm25(lengths, "P", 0.9, 0.4)
    assert found == pytest.approx({0: expected[0], 1: expected[1]}, rel=1e-6)


def test_a_phrase_scores_as_the_sum_of_its_words(engine_of):
    engine = engine_of([document(f"{i}", text) for i, text in enumerate(TEXTS)], k1=0.9, b=0.4)
    texts = [text.split() for text in TEXTS]
    sun, moon = bm25(texts, "sun", 0.9, 0.4), bm25(texts, "moon", 0.9, 0.4)
    for view in ("document", "passage"):
        ((row, score),) = engine.views.rank(view, parse_query('"sun moon" sun'), 5)
        assert row == 0
        assert score == pytest.approx(2 * sun[0] + moon[0], rel=1e-6)


def test_a_document_ranks_by_its_best_passage_that_holds_the_phrase(engine_of):
    # The first eight words have both words of the phrase most often, but never side by side.
    text = "sun x moon x sun x moon x sun " + "and " * 7 + "here the sun moon shines " + "on " * 9
    documents = [document("a", text), document("b", "sea " * 8)]
    engine = engine_of(documents, passage_words=8, passage_stride_words=8, k1=0.9, b=0.4)
    (row, score), *others = engine.views.rank("passage", parse_query('"sun moon"'), 5)
    assert (row, others) == (0, [])
    best = engine.views.rank("passage", parse_query("sun moon"), 5)[0][1]
    assert 0 < score < best


def test_equal_scores_rank_by_row(engine_of):
    engine = engine_of([document(f"{n:02}", "same words") for n in range(40)], k1=1.0)
    for view in ("document", "passage"):
        rows = [row for row, _ in engine.views.rank(view, parse_query("same"), 7)]
        assert rows == list(range(7))


def test_a_corpus_without_words_is_searched(engine_of):
    engine = engine_of([document("a", "..."), document("b", "")], k1=1.0)
    assert engine.search("anything", 5) == []
    assert engine.search('"anything else"', 5) == []


def test_many_more_parents_than_asked_for_give_the_best(engine_of):
    documents = [document(f"{n:02}", "sun " * (n + 1) + "sea " * (30 - n)) for n in range(30)]
    engine = engine_of(documents, passage_words=8, passage_stride_words=4, b=0.0)
    ranked = engine.views.rank("document", parse_query("sun"), 3)
    assert [row for row, _ in ranked] == [29, 28, 27]
    assert len(engine.views.rank("passage", parse_query("sun"), 100)) == 30


@pytest.mark.parametrize(
    ("text", "phrase", "is_held"),
    [
        ([(0, "a"), (1, "b")], ((0, "a"), (1, "b")), True),
        ([(0, "b"), (1, "a")], ((0, "a"), (1, "b")), False),
        ([(3, "a"), (5, "b")], ((1, "a"), (3, "b")), True),
        ([(3, "a"), (4, "b")], ((1, "a"), (3, "b")), False),
        ([(0, "a"), (1, "a"), (2, "b")], ((0, "a"), (1, "b")), True),
        ([], ((0, "a"),), False),
    ],
)
def test_a_text_holds_a_phrase_at_its_distances(text, phrase, is_held):
    assert holds(text, phrase) is is_held


# --- files --------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path):
    build_index(FRUIT, tmp_path / "index", config())
    return tmp_path / "index"


def test_scores_are_made_once_for_each_setting(index):
    assert build_bm25s(index, config(k1=0.9))
    assert not build_bm25s(index, config(k1=0.9))
    before = open_bm25s(index, config(k1=0.9)).fingerprint
    assert build_bm25s(index, config(k1=0.8))
    assert open_bm25s(index, config(k1=0.8)).fingerprint != before


def test_arrays_are_mapped_from_disk(index):
    build_bm25s(index, config())
    views = open_bm25s(index, config()).views
    assert isinstance(views._terms["document"]._model.scores["data"], np.memmap)
    assert isinstance(views._term_ids._terms, np.memmap)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d), "manifest.json is missing: run `spaniel index build`"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: (d / "terms.npy").unlink(), "terms.npy is missing or of another size"),
        (
            lambda d: (d / "document" / "data.csc.index.npy").write_bytes(b"x"),
            "data.csc.index.npy is missing or of another size",
        ),
    ],
    ids=["none", "half", "missing", "cut"],
)
def test_what_is_not_whole_is_refused_and_made_again(index, spoil, message):
    build_bm25s(index, config())
    spoil(bm25s_directory(index))
    with pytest.raises(ArtifactError, match=message):
        open_bm25s(index, config())
    assert build_bm25s(index, config())
    assert open_bm25s(index, config()).search("apple", 3)


def test_other_settings_documents_and_versions_are_refused(index, monkeypatch):
    build_bm25s(index, config(k1=0.9))
    with pytest.raises(
        ArtifactError, match=r"built with index\.k1 0\.9 and index\.b 0\.75, wanted 1"
    ):
        open_bm25s(index, config(k1=1.0))
    build_index(FRUIT[:4], index, config())
    with pytest.raises(ArtifactError, match="of other documents"):
        open_bm25s(index, config(k1=0.9))
    assert build_bm25s(index, config(k1=0.9))
    monkeypatch.setattr("spaniel.index.bm25s_build.FORMAT", -1)
    with pytest.raises(ArtifactError, match="made by another version"):
        open_bm25s(index, config(k1=0.9))


def test_a_build_that_dies_leaves_the_old_scores(index, monkeypatch):
    build_bm25s(index, config(k1=0.9))
    monkeypatch.setattr("spaniel.index.bm25s_build._write_matrix", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_bm25s(index, config(k1=0.8))
    assert open_bm25s(index, config(k1=0.9)).search("apple", 3)


def test_verification_reads_every_byte(index):
    build_bm25s(index, config())
    assert verify_bm25s(index, config()) > 0
    path = bm25s_directory(index) / "passages.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    open_bm25s(index, config())
    with pytest.raises(ArtifactError, match=r"passages\.npy is not as it was built"):
        verify_bm25s(index, config())


def test_without_the_library_the_extra_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ConfigError, match=r"pip install 'spaniel\[bm25s\]'"):
        build_bm25s(index, config())


# --- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"k1": 0.9}, {"b": 0.4}])
def test_tantivy_refuses_other_settings_of_bm25(changes):
    with pytest.raises(ValidationError, match=r"tantivy fixes k1 at 1\.2 and b at 0\.75"):
        IndexConfig(**changes)


def test_the_refusal_is_one_line_that_says_what_to_do(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('name = "t"\n[index]\nk1 = 0.9\n')
    with pytest.raises(ConfigError, match=r"set index\.backend = 'bm25s'") as refused:
        load_recipe(recipe)
    assert "\n" not in str(refused.value)
    recipe.write_text('name = "t"\n[index]\nk1 = 0.9\nbackend = "bm25s"\n')
    assert load_recipe(recipe).index.k1 == 0.9
