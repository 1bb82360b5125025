"""Bad lines: what is reported, where, and what happens then."""

import json
from pathlib import Path
from typing import Any

import pytest

from spaniel.config import CorpusConfig, JsonlSource
from spaniel.corpus.read import OUTSIDE, read_corpus
from spaniel.corpus.records import Labelled
from spaniel.errors import ConfigError, DataError


def document(docid: str, text: str = "some text", **more: Any) -> dict[str, Any]:
    return {"docid": docid, "title": f"Title {docid}", "text": text, **more}


def lines(path: Path, *rows: Any) -> Path:
    """A file of JSON lines; bytes and strings are written as they are."""
    raw = [
        r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode()
        for r in rows
    ]
    path.write_bytes(b"".join(r + b"\n" for r in raw))
    return path


def read(corpus: Path, questions: Path | None = None, **more: Any) -> Labelled:
    return read_corpus(CorpusConfig(source=JsonlSource(corpus=corpus, questions=questions), **more))


BAD_LINES = {
    "not JSON": '{"docid": "b", "title": ',
    "not JSON: NaN": '{"docid": "b", "title": "", "text": "t", "metadata": {"x": NaN}}',
    "not JSON: 1e999": '{"docid": "b", "title": "", "text": "t", "metadata": {"x": 1e999}}',
    "not JSON: Extra data": json.dumps(document("b")) + json.dumps(document("c")),
    "not JSON: nested too deeply": "[" * 100_000,
    "must hold a JSON object": "[1, 2]",
    "field text is missing": {"docid": "b", "title": ""},
    "field text must be str": {"docid": "b", "title": "", "text": 7},
    "field links must be a list": document("b", links="a"),
    "unknown field body": document("b", body="x"),
    "field docid must not be empty": document(""),
    "field docid must have no tab": document("b\tc"),
    "field text must not be empty": document("b", " \n "),
    "not UTF-8 at byte 3": b'{"d\xff": 1}',
    "not Unicode: half of a surrogate pair": '{"docid": "b", "title": "", "text": "\\ud83d"}',
    "'a' already stands at": document("a", "another text"),
}


@pytest.mark.parametrize("message", BAD_LINES)
def test_a_bad_line_stops_with_file_line_and_reason(tmp_path: Path, message: str) -> None:
    path = lines(tmp_path / "c.jsonl", document("a"), BAD_LINES[message], document("z"))
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)
    assert "corpus.on_bad" in str(error.value)


@pytest.mark.parametrize("message", BAD_LINES)
def test_a_bad_line_is_skipped_and_counted(tmp_path: Path, message: str) -> None:
    path = lines(tmp_path / "c.jsonl", document("a"), BAD_LINES[message], document("z"))
    labelled = read(path, on_bad="skip")
    assert [d.docid for d in labelled.documents] == ["a", "z"]
    assert labelled.report.num_bad == 1
    assert message in labelled.report.bad[0]
    assert any(message in line for line in labelled.report.lines())


def test_only_the_first_messages_are_kept(tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", document("a"), *["{"] * 50)
    report = read(path, on_bad="skip").report
    assert report.num_bad == 50
    assert len(report.bad) == 20
    assert report.bad[0].startswith(f"{path}:2: ")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\u000b", "\u001c", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    text = f"one{separator}two"
    raw = json.dumps(document("a", text), ensure_ascii=False)
    labelled = read(lines(tmp_path / "c.jsonl", raw, document("b")))
    assert [d.text for d in labelled.documents] == [text, "some text"]


def test_windows_line_ends_blank_lines_and_a_byte_order_mark_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    row = json.dumps(document("a")).encode()
    path.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n\r\n" + row.replace(b"a", b"a"))
    assert read(path).report.num_documents == 1


def test_an_identical_repeat_is_dropped_with_a_count(tmp_path: Path) -> None:
    labelled = read(lines(tmp_path / "c.jsonl", document("a"), document("a")))
    assert len(labelled.documents) == 1
    assert labelled.report.dropped == {"repeats of a docid": 1}


def test_missing_files_and_empty_corpora_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.jsonl: no such file"):
        read(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="no usable document"):
        read(lines(tmp_path / "c.jsonl"))


def test_links_outside_the_corpus_are_dropped_with_a_count(tmp_path: Path) -> None:
    rows = [document("a", links=["b", "nowhere", "a", "b"]), document("b", links=["a"])]
    labelled = read(lines(tmp_path / "c.jsonl", *rows))
    assert [d.links for d in labelled.documents] == [("b",), ("a",)]
    assert labelled.report.dropped == {"links outside the corpus": 1}


# --- questions and labels -----------------------------------------------------------------


def question(qid: str, *targets: str, **more: Any) -> dict[str, Any]:
    return {"qid": qid, "text": f"question {qid}?", "targets": list(targets), **more}


def test_targets_outside_the_corpus_are_set_aside_and_cap_the_recall(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "c.jsonl", document("a"), document("b"))
    asked = lines(
        tmp_path / "q.jsonl",
        question("q1", "a", "gone", "a"),
        question("q2", "a", "b"),
        question("q3"),
    )
    labelled = read(corpus, asked)
    assert [q.targets for q in labelled.questions] == [("a",), ("a", "b"), ()]
    assert labelled.questions[0].metadata[OUTSIDE] == ["gone"]
    # q1 can reach 1 of 2, q2 2 of 2; q3 has no labels and does not count.
    assert labelled.report.max_recall == pytest.approx(0.75)
    assert labelled.report.num_unlabelled_questions == 1
    assert labelled.report.dropped == {"labels outside the corpus": 1}


def test_labels_mostly_outside_the_corpus_are_of_another_version(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "c.jsonl", document("a"))
    half = lines(tmp_path / "half.jsonl", question("q1", "a", "x"))
    more = lines(tmp_path / "more.jsonl", question("q1", "a", "x", "y"))
    assert read(corpus, half).report.max_recall == 0.5
    with pytest.raises(DataError, match=r"2 of 3 labels point outside .*'x'.*versions"):
        read(corpus, more)


def test_a_split_field_is_read(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "c.jsonl", document("a"))
    rows = [question("q1", "a", split="train"), question("q2", "a", split="test")]
    labelled = read(corpus, lines(tmp_path / "q.jsonl", *rows))
    assert labelled.given_split == {"q1": "train", "q2": "test"}
    rows = [question("q1", "a"), question("q2", "a")]
    assert read(corpus, lines(tmp_path / "q.jsonl", *rows)).given_split is None


def test_a_split_for_some_questions_only_is_refused(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "c.jsonl", document("a"))
    rows = [question("q1", "a", split="train"), question("q2", "a")]
    with pytest.raises(DataError, match=r"1 questions have no split field .*'q2'"):
        read(corpus, lines(tmp_path / "q.jsonl", *rows), on_bad="skip")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question("q1", split="dev"), "field split must be 'train' or 'test'"),
        ({"qid": "q1", "text": ""}, "field text must not be empty"),
        ({"qid": " q1", "text": "t"}, "field qid must have no tab, line break or outer space"),
        ({"qid": "q1", "text": "t", "hops": True}, "field hops must be int"),
        ({"qid": "q1", "text": "t", "targets": ["a", 1]}, "field targets must be str"),
        ({"qid": "q0", "text": "another"}, "field qid: 'q0' already stands at"),
    ],
)
def test_a_bad_question_is_reported(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    corpus = lines(tmp_path / "c.jsonl", document("a"))
    path = lines(tmp_path / "q.jsonl", question("q0", "a"), row)
    with pytest.raises(DataError) as error:
        read(corpus, path)
    assert f"{path}:2: " in str(error.value)
    assert message in str(error.value)
