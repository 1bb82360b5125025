import tantivy

from spaniel.index import views
from spaniel.index.analysis import Analyzer

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


def test_rows_of_a_site_are_its_documents_and_those_of_subdomains(fruit_engine):
    texts = fruit_engine.texts
    rows = fruit_engine.views.rows_of_site("shop.com")
    assert [texts.docid(row) for row in rows] == ["inc"]
    assert fruit_engine.views.rows_of_site("com") == sorted(map(texts.row, ("inc", "who")))
    assert fruit_engine.views.rows_of_site("nowhere.org") == []


def test_a_built_index_is_one_segment(fruit_engine):
    assert fruit_engine.views._documents.searcher.num_segments == 1
