import pytest
import tantivy

from spaniel.index import views
from spaniel.index.analysis import Analyzer
from spaniel.index.query import parse_query

ANALYZER = Analyzer("none")


def test_ties_go_by_row_across_segments(tmp_path):
    writer = views._create(tmp_path / "documents", ("body",), ANALYZER)
    # The second commit is a second segment and holds the lower rows.
    for rows in (range(50, 100), range(50)):
        for row in rows:
            writer.add_document(views._entry(row, [("body", "same words")]))
        writer.commit()
    writer.wait_merging_threads()
    index = views._OpenIndex(tmp_path / "documents", ANALYZER)
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
