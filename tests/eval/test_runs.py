import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from spaniel.errors import ArtifactError, DataError
from spaniel.eval.metrics import ranked
from spaniel.eval.runs import read_qrels, read_run, write_qrels, write_run

ids = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6).filter(
    lambda text: text.split() == [text]
)


@given(st.dictionaries(ids, st.lists(ids, unique=True, min_size=1, max_size=6), max_size=4))
def test_a_run_read_back_has_the_same_order(tmp_path_factory, lists):
    path = tmp_path_factory.mktemp("runs") / "run.txt"
    assert write_run(path, lists, tag="t") == sum(len(docids) for docids in lists.values())
    assert {qid: ranked(scores) for qid, scores in read_run(path).items()} == lists


def test_run_lines_have_falling_scores_and_ranks_from_one(tmp_path):
    write_run(tmp_path / "run", {"q1": ["b", "a", "c"], "q2": []}, tag="bm25")
    assert (tmp_path / "run").read_text() == (
        "q1 Q0 b 1 3 bm25\nq1 Q0 a 2 2 bm25\nq1 Q0 c 3 1 bm25\n"
    )


def test_trec_eval_reads_what_is_written(tmp_path):
    write_run(tmp_path / "run", {"q1": ["b", "a"]}, tag="t")
    write_qrels(tmp_path / "qrels", {"q1": ["a", "a"]})
    run = pytrec_eval.parse_run((tmp_path / "run").read_text().splitlines())
    qrels = pytrec_eval.parse_qrel((tmp_path / "qrels").read_text().splitlines())
    assert (dict(run), dict(qrels)) == ({"q1": {"b": 2.0, "a": 1.0}}, {"q1": {"a": 1}})
    assert qrels == read_qrels(tmp_path / "qrels")


def test_tabs_and_runs_of_spaces_separate_columns(tmp_path):
    (tmp_path / "run").write_text("q1\tQ0\ta\t1\t0.5\tt\n\nq1  Q0 b   2 0.25 t\r\n")
    assert read_run(tmp_path / "run") == {"q1": {"a": 0.5, "b": 0.25}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 Q0 a 1 1 t\nq1 Q0 a b 2 1 t\n", "run:2: must have 6 columns, got 7"),
        ("q1 Q0 a 1 1\n", "run:1: must have 6 columns, got 5"),
        ("q1 Q0 a 1 high t\n", "run:1: score must be a finite number, got 'high'"),
        ("q1 Q0 a 1 nan t\n", "run:1: score must be a finite number, got 'nan'"),
        ("q1 Q0 a 1 2 t\nq1 Q0 a 2 1 t\n", "run:2: a occurs twice for question q1"),
    ],
)
def test_broken_run_lines_are_named(tmp_path, text, message):
    (tmp_path / "run").write_text(text)
    with pytest.raises(DataError, match=message):
        read_run(tmp_path / "run")


def test_a_run_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "run").write_bytes(b"q1 Q0 \xff 1 1 t\n")
    with pytest.raises(DataError, match="run:1: must be UTF-8"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("docid", ["a b", "a\tb", "a\u00a0b", "a\u2028b", " a"])
def test_ids_with_whitespace_are_escaped_alike_in_runs_and_qrels(tmp_path, docid):
    write_run(tmp_path / "run", {docid: [docid]}, tag="t")
    write_qrels(tmp_path / "qrels", {docid: [docid]})
    run, qrels = read_run(tmp_path / "run"), read_qrels(tmp_path / "qrels")
    assert list(run) == list(qrels)
    assert list(next(iter(run.values()))) == list(next(iter(qrels.values())))


def test_an_empty_id_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match="must not be empty"):
        write_run(tmp_path / "run", {"q": [""]}, tag="t")
    with pytest.raises(DataError, match="must not be empty"):
        write_qrels(tmp_path / "qrels", {"q": [""]})
    assert list(tmp_path.iterdir()) == []


def test_what_the_policy_made_up_is_escaped_and_keeps_its_place(tmp_path):
    write_run(tmp_path / "run", {"q": ["unknown:a b\n%20", "a"]}, tag="t")
    assert ranked(read_run(tmp_path / "run")["q"]) == ["unknown:a%20b%0A%2520", "a"]


def test_a_repeated_docid_is_refused(tmp_path):
    with pytest.raises(DataError, match="question q must list each docid once"):
        write_run(tmp_path / "run", {"q": ["a", "a"]}, tag="t")


def test_repeated_judgements_are_dropped_with_a_count(tmp_path, capsys):
    (tmp_path / "qrels").write_text("q 0 a 1\nq 0 b 0\nq 0 a 1\n")
    assert read_qrels(tmp_path / "qrels") == {"q": {"a": 1, "b": 0}}
    assert "1 repeated judgements dropped" in capsys.readouterr().err


def test_conflicting_grades_name_both_lines(tmp_path):
    (tmp_path / "qrels").write_text("q 0 a 1\nq 0 a 2\n")
    with pytest.raises(DataError, match="qrels:2: q a has another grade on line 1"):
        read_qrels(tmp_path / "qrels")


def test_a_grade_that_is_no_integer_is_named(tmp_path):
    (tmp_path / "qrels").write_text("q 0 a yes\n")
    with pytest.raises(DataError, match="qrels:1: grade must be an integer, got 'yes'"):
        read_qrels(tmp_path / "qrels")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ArtifactError, match="nowhere is missing"):
        read_run(tmp_path / "nowhere")
