"""The corpus stage: what it publishes and reads back."""

import json
from pathlib import Path
from typing import Any

import pytest

from spaniel.config import CorpusConfig, DedupConfig, JsonlSource
from spaniel.corpus.extras import import_extra
from spaniel.corpus.prepare import load_corpus, load_questions, prepare_corpus
from spaniel.errors import ArtifactError, ConfigError, DataError

DOCUMENTS = [
    {"docid": "a", "title": "A", "text": "The same text.", "links": ["c"]},
    {"docid": "b", "title": "B", "text": "the SAME  text.", "links": ["a"]},
    {"docid": "c", "title": "C", "text": "Another.\u2028Line.", "links": ["b", "a"]},
]
QUESTIONS = [
    {"qid": "q1", "text": "same?", "targets": ["b"], "split": "train"},
    {"qid": "q2", "text": "both?", "targets": ["a", "b", "c"], "split": "test"},
]


def config(tmp_path: Path, documents: list[Any], questions: list[Any] | None) -> CorpusConfig:
    paths = {}
    for name, rows in (("corpus", documents), ("questions", questions)):
        if rows is not None:
            paths[name] = tmp_path / f"{name}_in.jsonl"
            paths[name].write_text("".join(json.dumps(r) + "\n" for r in rows))
    return CorpusConfig(source=JsonlSource(**paths))


def test_a_corpus_is_published_clean_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "run" / "corpus"
    manifest = prepare_corpus(config(tmp_path, DOCUMENTS, QUESTIONS), out)
    documents, (questions, given) = list(load_corpus(out)), load_questions(out)
    assert [(d.docid, d.links) for d in documents] == [("a", ("c",)), ("c", ("a",))]
    assert documents[1].text == "Another.\u2028Line."
    assert [q.targets for q in questions] == [("a",), ("a", "c")]
    assert given == {"q1": "train", "q2": "test"}
    assert manifest == json.loads((out / "manifest.json").read_text())
    assert (manifest["num_documents"], manifest["num_merged_away"]) == (2, 1)
    assert json.loads((out / "merges.jsonl").read_text()) == {
        "kind": "exact",
        "first": "a",
        "second": "b",
        "similarity": 1.0,
        "title_differs": True,
    }
    report = json.loads((out / "report.json").read_text())
    assert report["read"]["num_documents"] == 3
    assert report["merged"]["exact_pairs"] == 1


def test_the_hash_follows_documents_questions_and_split(tmp_path: Path) -> None:
    def hash_of(documents: list[Any], questions: list[Any] | None) -> str:
        made = prepare_corpus(config(tmp_path, documents, questions), tmp_path / "out")
        return str(made["hash"])

    first = hash_of(DOCUMENTS, QUESTIONS)
    swapped = [{**q, "split": "train"} for q in QUESTIONS]
    others = [
        hash_of(DOCUMENTS[::-1], QUESTIONS),
        hash_of(DOCUMENTS, QUESTIONS[:1]),
        hash_of(DOCUMENTS, swapped),
        hash_of(DOCUMENTS, None),
    ]
    assert hash_of(DOCUMENTS, QUESTIONS) == first
    assert len({first, *others}) == 5


def test_a_corpus_without_a_split_reads_back_none(tmp_path: Path) -> None:
    questions = [{"qid": "q1", "text": "t", "targets": ["a"]}]
    prepare_corpus(config(tmp_path, DOCUMENTS, questions), tmp_path / "out")
    assert load_questions(tmp_path / "out")[1] is None


def test_a_failed_run_leaves_the_old_corpus_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = prepare_corpus(config(tmp_path, DOCUMENTS, QUESTIONS), out)
    with pytest.raises(DataError):
        prepare_corpus(config(tmp_path, [*DOCUMENTS, {"docid": "x"}], QUESTIONS), out)
    assert json.loads((out / "manifest.json").read_text()) == before
    assert len(list(load_corpus(out))) == 2


@pytest.mark.parametrize("name", ["documents.jsonl", "questions.jsonl", "given_split.json"])
def test_an_edited_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    prepare_corpus(config(tmp_path, DOCUMENTS, QUESTIONS), out)
    load = load_corpus if name == "documents.jsonl" else load_questions
    text = (out / name).read_text()
    (out / name).write_text(text.replace("q1", "q9").replace("same", "some"))
    if (out / name).read_text() == text:
        (out / name).write_text(text + "\n")
    with pytest.raises(ArtifactError, match="was changed after it was made"):
        load(out)
    (out / name).unlink()
    with pytest.raises(ArtifactError, match="is missing: run `spaniel corpus`"):
        load(out)


def test_what_was_never_made_names_its_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run `spaniel corpus` first"):
        load_corpus(tmp_path)


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(ConfigError, match=r"pip install 'spaniel\[corpus\]'"):
        import_extra("datasketch", "corpus")


def test_concept_merging_uses_the_encoder_it_is_given(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    documents = [
        {"docid": "a", "title": "", "text": "Ada was born in 1815."},
        {"docid": "b", "title": "", "text": "In 1815 Ada was born."},
        {"docid": "c", "title": "", "text": "In 1816 Ada was born."},
    ]
    cfg = config(tmp_path, documents, None).model_copy(update={"dedup": DedupConfig(concept=0.9)})
    made = prepare_corpus(cfg, tmp_path / "out", lambda texts: np.ones((len(texts), 2)))
    assert made["num_merged_away"] == 1
    assert [d.docid for d in load_corpus(tmp_path / "out")] == ["a", "c"]
