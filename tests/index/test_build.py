import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.index.conftest import document

from spaniel.config import IndexConfig
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.index import build, ingest
from spaniel.index.build import build_index, open_index, verify_index
from spaniel.index.texts import encode
from spaniel.index.views import ViewsWriter

ROOT = Path(__file__).parents[2]

DOCS = [document("a", "red apples"), document("b", "green pears " * 60), document("c", "", "Empty")]


def test_the_manifest_counts_documents_and_passages(tmp_path):
    manifest = build_index(DOCS, tmp_path / "i", IndexConfig())
    # 120 words are a passage of 100 and, from word 50 on, one of 70; an empty text has none.
    assert (manifest["num_documents"], manifest["num_passages"]) == (3, 3)
    assert manifest == json.loads((tmp_path / "i/manifest.json").read_text())


def test_documents_are_streamed(tmp_path):
    assert build_index(iter(DOCS), tmp_path / "i", IndexConfig())["num_documents"] == 3


def test_a_build_that_dies_leaves_the_old_index(tmp_path):
    def dying():
        yield document("x", "new apples")
        raise OSError("disk")

    build_index(DOCS, tmp_path / "i", IndexConfig())
    with pytest.raises(OSError, match="disk"):
        build_index(dying(), tmp_path / "i", IndexConfig())
    assert [hit.docid for hit in open_index(tmp_path / "i").search("apples", 5)] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_a_build_that_dies_while_indexing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ViewsWriter, "add", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_index(DOCS, tmp_path / "i", IndexConfig())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArtifactError, match="run `spaniel index build` first"):
        open_index(tmp_path / "i")


def test_an_open_index_answers_while_a_new_one_takes_its_place(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    old = open_index(tmp_path / "i")
    build_index([document("z", "apples")], tmp_path / "i", IndexConfig())
    assert [hit.docid for hit in old.search("apples", 5)] == ["a"]
    assert [hit.docid for hit in open_index(tmp_path / "i").search("apples", 5)] == ["z"]


def test_the_fingerprint_changes_with_content_and_settings_only(tmp_path):
    def fingerprint(docs, **settings):
        return build_index(docs, tmp_path / "i", IndexConfig(**settings))["fingerprint"]

    first = fingerprint(DOCS)
    assert fingerprint(DOCS[::-1]) == first
    assert fingerprint(DOCS, encoder="other") == first
    changed = {
        fingerprint(DOCS[:2]),
        fingerprint([*DOCS[:2], document("c", "", "empty")]),
        fingerprint(DOCS, language="none"),
        fingerprint(DOCS, passage_words=90),
        fingerprint(DOCS, weight_title=0.5),
    }
    assert len(changed | {first}) == 6


def test_the_engine_has_its_own_fingerprint_with_the_snippet_length(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    prints = [open_index(tmp_path / "i", snippet_words=n).fingerprint for n in (48, 48, 10)]
    assert prints[0] == prints[1] != prints[2]


def test_fusion_can_be_chosen_at_opening_but_not_the_analysis(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    engine = open_index(tmp_path / "i", IndexConfig(rank_constant=60))
    assert engine.search("apples", 1)[0].score == pytest.approx(1.75 / 61)
    with pytest.raises(ArtifactError, match=r"built with index\.language english, wanted none"):
        open_index(tmp_path / "i", IndexConfig(language="none"))


@pytest.mark.parametrize("name", ["format", "analysis", "tantivy"])
def test_an_index_of_another_version_is_refused(tmp_path, name):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    path = tmp_path / "i/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"][name] = "old"
    path.write_text(json.dumps(manifest))
    with pytest.raises(
        ArtifactError, match=rf"made with {name} old.*run `spaniel index build` again"
    ):
        open_index(tmp_path / "i")


def test_counts_that_differ_from_the_manifest_are_refused(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    path = tmp_path / "i/manifest.json"
    path.write_text(path.read_text().replace('"num_passages": 3', '"num_passages": 4'))
    with pytest.raises(ArtifactError, match="must number"):
        open_index(tmp_path / "i")


def test_a_damaged_engine_directory_is_an_artifact_error(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    meta = tmp_path / "i/passages/meta.json"
    meta.write_bytes(b"?" * meta.stat().st_size)
    with pytest.raises(ArtifactError, match="passages is no readable index"):
        open_index(tmp_path / "i")


def dying_at(call, method):
    """A method that raises at its n-th call."""
    calls = itertools.count(1)

    def dying(*args):
        if next(calls) == call:
            raise OSError("No space left on device")
        return method(*args)

    return dying


def test_nothing_is_written_into_a_directory_after_its_build_failed(tmp_path, monkeypatch):
    docs = [document(f"{i:04}", f"word{i} " * 50) for i in range(300)]
    add = ViewsWriter.add
    for _ in range(5):
        monkeypatch.setattr(ViewsWriter, "add", dying_at(300, add))
        with pytest.raises(OSError, match="No space left"):
            build_index(docs, tmp_path / "i", IndexConfig())
        assert list(tmp_path.iterdir()) == []


# --- going on after an interruption -------------------------------------------------------

MANY = [document(f"{i:04}", f"word{i} common{i % 7} apples " * (i % 5)) for i in range(120)]


def built_whole(tmp_path):
    build_index(MANY, tmp_path / "whole", IndexConfig())
    return open_index(tmp_path / "whole")


def assert_same_index(directory, whole):
    engine = open_index(directory)
    assert engine.fingerprint == whole.fingerprint
    assert list(engine.texts) == list(whole.texts)
    for query in ("common3 apples", "word17", '"word8 common1" apples'):
        assert engine.search(query, 50) == whole.search(query, 50)
    verify_index(directory)


def counted(documents, seen):
    for doc in documents:
        seen.append(doc.docid)
        yield doc


def test_reading_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "COMMIT_DOCUMENTS", 10)
    monkeypatch.setattr(ingest, "DICTIONARY_SAMPLES", 5)
    encoded = []
    monkeypatch.setattr(ingest, "encode", lambda d: encoded.append(d.docid) or encode(d))

    def dying():
        yield from MANY[:47]
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        build_index(dying(), tmp_path / "i", IndexConfig(), documents_id="x")
    encoded.clear()
    build_index(MANY, tmp_path / "i", IndexConfig(), documents_id="x")
    assert encoded == [d.docid for d in MANY[40:]]
    assert_same_index(tmp_path / "i", built_whole(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i", "whole"]


@pytest.mark.parametrize("failing_at", [1, 2, 40, 119])
def test_indexing_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, failing_at):
    monkeypatch.setattr(build, "COMMIT_CHARS", 600)
    add = ViewsWriter.add
    with monkeypatch.context() as patch:
        patch.setattr(ViewsWriter, "add", dying_at(failing_at, add))
        with pytest.raises(OSError, match="No space left"):
            build_index(MANY, tmp_path / "i", IndexConfig(), documents_id="x")
    added = []
    with monkeypatch.context() as patch:
        patch.setattr(ViewsWriter, "add", lambda *args: added.append(args[1]) or add(*args))
        build_index(iter(()), tmp_path / "i", IndexConfig(), documents_id="x")
    assert added == list(range(added[0], 120))
    assert failing_at - 1 - added[0] < 30
    assert_same_index(tmp_path / "i", built_whole(tmp_path))


def test_a_commit_of_one_index_without_the_other_is_taken_back(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "COMMIT_CHARS", 600)

    def half(writer):
        writer._whole.commit()
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ViewsWriter, "commit", half)
        with pytest.raises(OSError, match="No space left"):
            build_index(MANY, tmp_path / "i", IndexConfig(), documents_id="x")
    build_index(MANY, tmp_path / "i", IndexConfig(), documents_id="x")
    assert_same_index(tmp_path / "i", built_whole(tmp_path))


def test_other_documents_or_settings_start_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ViewsWriter, "add", dying_at(50, ViewsWriter.add))
        with pytest.raises(OSError, match="No space left"):
            build_index(MANY, tmp_path / "i", IndexConfig(), documents_id="x")
    build_index(DOCS, tmp_path / "i", IndexConfig(), documents_id="y")
    assert list(open_index(tmp_path / "i").texts) == DOCS


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.index.test_build import MANY
from spaniel.config import IndexConfig
from spaniel.index import build, ingest, views
build.COMMIT_CHARS, ingest.COMMIT_DOCUMENTS, ingest.DICTIONARY_SAMPLES = 600, 10, 5
steps, stop = 0, int(sys.argv[2])
def hook(frame, event, arg):
    global steps
    steps += event == "call"
    if steps == stop:
        os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(hook)
build.build_index(MANY, Path(sys.argv[1]), IndexConfig(), documents_id="x")
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing(tmp_path):
    whole = built_whole(tmp_path)
    rng = random.Random(1)
    for number in range(6):
        directory = tmp_path / str(number)
        codes = []
        while not codes or codes[-1]:
            stop = str(rng.randrange(100, 16_000)) if len(codes) < 3 else "-1"
            command = [sys.executable, "-c", KILLED, str(directory), stop]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            codes.append(done.returncode)
            assert codes[-1] in (0, -9), done.stderr
        assert_same_index(directory, whole)


def test_wrong_documents_and_settings_are_refused(tmp_path):
    with pytest.raises(DataError, match="'a' comes twice"):
        build_index([*DOCS, DOCS[0]], tmp_path / "i", IndexConfig())
    with pytest.raises(ConfigError, match="passage_stride_words must be <="):
        build_index(DOCS, tmp_path / "i", IndexConfig(passage_words=10))
    assert list(tmp_path.iterdir()) == []


def test_a_sound_index_is_verified_and_counted(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    found = verify_index(tmp_path / "i", IndexConfig())
    assert (found["documents"], found["passages"]) == (3, 3)
    files = [f for f in (tmp_path / "i").rglob("*") if f.is_file() and f.suffix != ".lock"]
    sizes = [f.stat().st_size for f in files if f.name != "manifest.json"]
    assert (found["files"], found["bytes"]) == (len(sizes), sum(sizes))


def damaged_files(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    files = json.loads((tmp_path / "i/manifest.json").read_text())["files"]
    return {name: tmp_path / "i" / name for name, facts in files.items() if facts["bytes"]}


def test_one_flipped_bit_anywhere_is_found(tmp_path):
    for path in damaged_files(tmp_path).values():
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError):
            verify_index(tmp_path / "i")
        path.write_bytes(whole)
    verify_index(tmp_path / "i")


def test_a_file_cut_short_or_missing_is_refused_at_opening(tmp_path):
    for path in damaged_files(tmp_path).values():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(ArtifactError, match="bytes, was built with"):
            open_index(tmp_path / "i")
        path.unlink()
        with pytest.raises(ArtifactError, match="is missing"):
            open_index(tmp_path / "i")
        path.write_bytes(whole)
    open_index(tmp_path / "i")


def test_rows_that_are_not_the_documents_are_found(tmp_path):
    build_index(DOCS, tmp_path / "i", IndexConfig())
    views = open_index(tmp_path / "i").views
    views.check_rows(3)
    with pytest.raises(ArtifactError, match="the document view holds 3 rows"):
        views.check_rows(4)
