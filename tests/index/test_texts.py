import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaniel.errors import ArtifactError, DataError
from spaniel.index.ingest import ingest, write_order
from spaniel.index.texts import TextStore
from spaniel.types import Document

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
documents = st.builds(
    Document,
    docid=text.filter(bool),
    title=text,
    text=text,
    url=text,
    links=st.lists(text, max_size=3).map(tuple),
    metadata=st.dictionaries(text, st.none() | st.integers() | text | st.lists(text), max_size=2),
)


def write_texts(docs, directory):
    content = ingest(docs, directory)
    write_order(directory)
    return str(content)


def store_of(tmp_path, *docs):
    write_texts(docs, tmp_path / "texts")
    return TextStore(tmp_path / "texts")


@settings(max_examples=60, deadline=None)
@given(docs=st.lists(documents, min_size=1, max_size=8, unique_by=lambda d: d.docid))
def test_documents_come_back_as_they_went_in(docs, tmp_path_factory):
    store = store_of(tmp_path_factory.mktemp("texts"), *docs)
    assert [store.read(d.docid) for d in docs] == docs
    assert list(store) == sorted(docs, key=lambda d: d.docid)
    assert [store.row(store.docid(row)) for row in range(len(store))] == list(range(len(docs)))


def test_line_separators_and_empty_titles_survive(tmp_path):
    odd = Document(docid="a/ü.md", title="", text="a\u2028b\u0085c\r\nd\x00e\n", url="x")
    assert store_of(tmp_path, odd).read("a/ü.md") == odd


@pytest.mark.parametrize("docid", ["", "a", "bb", "c", "\ud800", "b\n"])
def test_an_unknown_docid_is_a_key_error(tmp_path, docid):
    store = store_of(tmp_path, Document(docid="b", title="", text=""))
    with pytest.raises(KeyError):
        store.read(docid)


def test_the_content_hash_sees_every_field_but_not_the_order(tmp_path):
    a, b = (Document(docid=d, title="t", text="x", metadata={"p": 1, "q": 2}) for d in "ab")
    turned = Document(docid="b", title="t", text="x", metadata={"q": 2, "p": 1})
    changed = Document(docid="b", title="t", text="y", metadata={"p": 1, "q": 2})
    hashes = [
        write_texts(docs, tmp_path / str(i))
        for i, docs in enumerate([(a, b), (turned, a), (a, changed)])
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([], "no documents"),
        ([Document(docid="", title="", text="")], "document 1 has an empty docid"),
        ([Document(docid="a", title="", text="")] * 2, "'a' comes twice"),
        ([Document(docid="a", title="", text="\ud800")], "'a' cannot be stored"),
        ([Document(docid="a", title="", text="", metadata={"x": float("nan")})], "cannot be"),
        ([Document(docid="a", title="", text="", metadata={"x": object()})], "cannot be"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, docs, message):
    with pytest.raises(DataError, match=message):
        write_texts(docs, tmp_path)


def test_a_missing_or_cut_file_is_an_artifact_error(tmp_path):
    write_texts([Document(docid="a", title="", text="long enough")], tmp_path)
    (tmp_path / "texts-0.bin").write_bytes((tmp_path / "texts-0.bin").read_bytes()[:-3])
    with pytest.raises(ArtifactError, match="texts and offsets differ"):
        TextStore(tmp_path)
    (tmp_path / "docids.npy").unlink()
    with pytest.raises(ArtifactError, match=r"docids\.npy is missing"):
        TextStore(tmp_path)


def test_offsets_are_64_bit(tmp_path):
    write_texts([Document(docid="a", title="", text="x")], tmp_path)
    assert np.load(tmp_path / "spans.npy").dtype == np.int64
