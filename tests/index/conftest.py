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


@pytest.fixture(scope="session")
def fruit_engine(tmp_path_factory):
    """An engine over ``FRUIT``; tests only read it."""
    directory = tmp_path_factory.mktemp("fruit") / "index"
    build_index(FRUIT, directory, IndexConfig())
    return open_index(directory)


def document(docid, text, title="", url=""):
    return Document(docid=docid, title=title, text=text, url=url)


FRUIT = [
    document("apple", "The apple is a fruit. It grows on trees.", "Apple", "https://fruit.org/a"),
    document("pear", "A pear is a fruit too, like the apple.", "Pear", "https://www.fruit.org/p"),
    document("inc", "Apple makes phones. Who founded it?", "Apple Inc.", "http://eu.shop.com/1"),
    document("who", "The Who are a band from London.", "The Who", "http://notshop.com/"),
    document("bank", "He worked at the bank of America until 1990.", "", ""),
    document("river", "The bank, in America, is near a river bank.", "River", ""),
]
