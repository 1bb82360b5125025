import numpy as np
import pytest
import tantivy
from tests.index.conftest import document

from spaniel.config import IndexConfig
from spaniel.index.analysis import Analyzer
from spaniel.index.query import parse_query
from spaniel.index.views import ROWS, Views, ViewsWriter

ANALYZER = Analyzer("none")


def test_ties_go_by_row_across_segments(tmp_path):
    # The second commit is a second segment and holds the lower rows.
    rows = [*range(50, 100), *range(50)]
    with ViewsWriter(tmp_path, IndexConfig(language="none")) as writer:
        for slot in range(100):
            writer.add(slot, document(str(slot), "same words"))
            if slot % 50 == 49:
                writer.commit()
    np.save(tmp_path / ROWS, np.array(rows))
    index = Views(tmp_path, ANALYZER)._documents
    assert index.searcher.num_segments == 2
    query = tantivy.Query.term_query(index.schema, "body", "same")
    assert [row for row, _ in index.top_rows(query, 7)] == list(range(7))
    assert [row for row, _ in index.top_rows(query, 200)] == list(range(100))


@pytest.mark.parametrize(
    ("query", "docids"),
    [
        ("site:shop.com apple", ["inc"]),
        ("site:com", ["inc", "who"]),
        ("site:nowhere.org", []),
        ('"is a fruit"', ["apple", "pear"]),
        ('"apple inc" site:shop.com', ["inc"]),
        ('"apple inc" site:fruit.org', []),
    ],
)
def test_allowed_rows_meet_phrases_and_site(fruit_engine, query, docids):
    rows = fruit_engine.views.allowed_rows(parse_query(query))
    assert rows == sorted(map(fruit_engine.texts.row, docids))


def test_without_a_constraint_all_rows_are_allowed(fruit_engine):
    assert fruit_engine.views.allowed_rows(parse_query('apple "..."')) is None


def test_a_built_index_is_one_segment(fruit_engine):
    assert fruit_engine.views._documents.searcher.num_segments == 1


def test_what_tantivy_cannot_write_is_said_in_one_line(tmp_path):
    class Broken:
        def add_document(self, entry):
            raise ValueError("An error occurred in a thread")

        commit = wait_merging_threads = lambda self: self.add_document(None)

    def write_with(write, directory):
        with ViewsWriter(directory, IndexConfig()) as writer:
            writer._whole.wait_merging_threads()
            writer._parts.wait_merging_threads()
            writer._whole = writer._parts = Broken()
            write(writer)

    writes = (lambda w: w.add(0, document("a", "b")), lambda w: w.commit(), lambda w: None)
    for number, write in enumerate(writes):
        with pytest.raises(OSError, match=r"cannot be written, with [\d,]+ MiB free"):
            write_with(write, tmp_path / str(number))
