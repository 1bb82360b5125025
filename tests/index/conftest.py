"""A corpus small enough to rank by hand, and a way to index any list of documents."""

import pytest

from spaniel.config import IndexConfig
from spaniel.index.build import build_index, open_index
from spaniel.types import Document


@pytest.fixture
def engine_of(tmp_path):
    """Build and open an index: ``engine_of(documents, language="none")``."""

    def make(documents, *, snippet_words=48, name="index", **settings):
        directory = tmp_path / name
        build_index(documents, directory, IndexConfig(**settings))
        return open_index(directory, snippet_words=snippet_words)

    return make


def document(docid, text, title="", url=""):
    return Document(docid=docid, title=title, text=text, url=url)
