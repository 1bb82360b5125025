"""The corpus stage: read, clean, publish; and the way back from disk.

<directory>/documents.jsonl     one ``Document`` a line, merged copies gone
            questions.jsonl     one ``Question`` a line, labels on canonical docids
            given_split.json    {qid: "train" | "test"}, where the source brings a split
            merges.jsonl        one ``MergedPair`` a line: what was merged, and why
            report.json         the read report, and counts of merges by kind
            manifest.json       counts and hashes; written last
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spaniel.config import CorpusConfig, FolderSource, JsonlSource
from spaniel.corpus.dedup import find_merges
from spaniel.corpus.encoder import Encode
from spaniel.corpus.merges import Merges, remap
from spaniel.corpus.normalise import KEY_VERSION
from spaniel.corpus.read import read_corpus
from spaniel.corpus.records import GivenSplit, Labelled
from spaniel.errors import ArtifactError
from spaniel.progress import say
from spaniel.store import (
    hash_of,
    publish_directory,
    read_json,
    read_manifest,
    read_records,
    to_plain,
    write_json,
    write_records,
)
from spaniel.types import Document, Question

DOCUMENTS, QUESTIONS, GIVEN_SPLIT = "documents.jsonl", "questions.jsonl", "given_split.json"
MERGES, REPORT = "merges.jsonl", "report.json"


def prepare_corpus(
    cfg: CorpusConfig, directory: Path, encode: Encode | None = None
) -> dict[str, Any]:
    """Read and clean a corpus into ``directory``, whole or not at all; returns its manifest.

    The manifest's ``hash`` stands for documents, questions and given split together.

    Args:
        encode: embeds texts for concept merging; all-MiniLM-L6-v2 when None.

    Raises:
        ConfigError: a file, data set or library is missing.
        DataError: the source is not what it claims to be; see ``read_corpus``.
    """
    labelled = read_corpus(cfg)
    merges = find_merges(labelled.documents, cfg.dedup, encode)
    cleaned = remap(labelled, merges.canonical)
    for line in [*labelled.report.lines(), _merge_line(merges)]:
        say(line)
    manifest: dict[str, Any] = {
        "num_documents": len(cleaned.documents),
        "num_questions": len(cleaned.questions),
        "num_merged_away": len(merges.canonical),
        "key_version": KEY_VERSION,
    }
    with publish_directory(directory, manifest) as partial:
        _write(partial, cleaned, merges)
        names = [n for n in (DOCUMENTS, QUESTIONS, GIVEN_SPLIT) if (partial / n).exists()]
        manifest["files"] = {name: _hash_file(partial / name) for name in names}
        manifest["hash"] = hash_of(manifest["files"])
    return manifest


def load_corpus(directory: Path) -> Iterator[Document]:
    """The documents of a prepared corpus, one at a time.

    Raises:
        ArtifactError: the corpus is missing, incomplete, or was edited afterwards.
    """
    return read_records(_verified(directory, DOCUMENTS), Document)


def read_documents(path: Path) -> Sequence[Document]:
    """Documents to add to an index: a JSON-lines file, or a folder of texts.

    Raises:
        ConfigError: there is no such file or folder.
        DataError: a line or file is bad, or there are none.
    """
    source = FolderSource(path=path) if path.is_dir() else JsonlSource(corpus=path)
    return read_corpus(CorpusConfig(source=source)).documents


def load_questions(directory: Path) -> tuple[list[Question], GivenSplit | None]:
    """The questions of a prepared corpus, and the split that its source brought, if any.

    Raises:
        ArtifactError: the corpus is missing, incomplete, or was edited afterwards.
    """
    questions = list(read_records(_verified(directory, QUESTIONS), Question))
    if GIVEN_SPLIT not in _manifest(directory)["files"]:
        return questions, None
    given: GivenSplit = read_json(_verified(directory, GIVEN_SPLIT))
    return questions, given


def _write(directory: Path, labelled: Labelled, merges: Merges) -> None:
    write_records(directory / DOCUMENTS, labelled.documents)
    write_records(directory / QUESTIONS, labelled.questions)
    write_records(directory / MERGES, merges.pairs)
    if labelled.given_split is not None:
        write_json(directory / GIVEN_SPLIT, labelled.given_split)
    report = {"read": to_plain(labelled.report), "merged": merges.summary()}
    write_json(directory / REPORT, report)


def _merge_line(merges: Merges) -> str:
    counts = merges.summary()
    return (
        f"merged {counts['documents_merged_away']:,} documents away "
        f"({counts['exact_pairs']:,} exact, {counts['near_pairs']:,} near, "
        f"{counts['concept_pairs']:,} concept; {counts['pairs_with_different_titles']:,} pairs "
        f"with different titles, see {MERGES})"
    )


def _manifest(directory: Path) -> dict[str, Any]:
    return read_manifest(directory, made_by="spaniel corpus")


def _verified(directory: Path, name: str) -> Path:
    """The file, if it is the one that the manifest describes."""
    path, expected = directory / name, _manifest(directory)["files"][name]
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `spaniel corpus` again")
    if _hash_file(path) != expected:
        raise ArtifactError(f"{path} was changed after it was made: run `spaniel corpus` again")
    return path


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
