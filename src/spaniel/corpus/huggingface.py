"""Data sets of the Hugging Face hub, or local copies of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spaniel.config import HuggingFaceSource
from spaniel.corpus.extras import import_extra
from spaniel.corpus.fields import checked_document, checked_question, string_at, strings_at
from spaniel.corpus.records import Found, Reading
from spaniel.errors import ConfigError, DataError
from spaniel.progress import track
from spaniel.types import Document, Question

BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}


def read_huggingface(source: HuggingFaceSource, reading: Reading) -> Found:
    """Documents and questions from the named columns. Whole-number ids become strings.

    Raises:
        ConfigError: ``datasets`` is missing, the data set cannot be loaded, or a named column
            is not in it.
        DataError: a row is bad and bad rows are not skipped.
    """
    dataset = load_split(source.corpus, source.corpus_config, source.corpus_split, source.revision)
    _need_columns(dataset, [source.docid_field, source.text_field], source.corpus)
    rows = track(_rows(dataset, source.corpus), "read corpus", len(dataset), "documents")

    def parse_document(row: Any, where: str) -> Document:
        document = Document(
            docid=_id_at(row, source.docid_field, where),
            title=string_at(row, source.title_field, where, default=""),
            text=string_at(row, source.text_field, where),
        )
        return checked_document(document, where, source.docid_field)

    found = Found(documents=reading.unique_documents(reading.parse_each(rows, parse_document)))
    if source.questions is not None:
        _read_questions(source, source.questions, reading, found)
    return found


def load_split(name: str, config: str | None, split: str, revision: str | None) -> Any:
    """One split of a data set: a ``save_to_disk`` folder, a file, a folder of files, or a name.

    Raises:
        ConfigError: ``datasets`` is missing, or it cannot load this.
    """
    datasets = import_extra("datasets", "hub")
    path = Path(name)
    try:
        if (path / "dataset_dict.json").exists():
            return datasets.load_from_disk(name)[split]
        if (path / "state.json").exists():
            return datasets.load_from_disk(name)
        if path.is_file():
            builder = BUILDERS.get(path.suffix.lower())
            if builder is None:
                raise ConfigError(f"{name}: must be one of {', '.join(BUILDERS)}")
            # A single file has one split, which the builder calls train.
            return datasets.load_dataset(builder, data_files=name, split="train")
        return datasets.load_dataset(name, config, split=split, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"cannot load data set {name!r}, split {split!r}: {type(error).__name__}: {reason}"
        ) from error


def _read_questions(source: HuggingFaceSource, name: str, reading: Reading, found: Found) -> None:
    splits = {"train": source.questions_split, "test": source.questions_test_split}
    parsed: list[tuple[str, Question]] = []
    given: dict[str, str] = {}
    for side, split in splits.items():
        if split is None:
            continue
        dataset = load_split(name, source.questions_config, split, source.revision)
        _need_columns(dataset, [source.qid_field, source.question_field], name)

        def parse(row: Any, where: str) -> Question:
            return _parse_question(row, where, source)

        new = list(reading.parse_each(_rows(dataset, f"{name}[{split}]"), parse))
        parsed += new
        given.update((q.qid, side) for _, q in new)
    found.questions = reading.unique_questions(parsed)
    found.given_split = given if source.questions_test_split is not None else None


def _parse_question(row: dict[str, Any], where: str, source: HuggingFaceSource) -> Question:
    targets = row.get(source.targets_field)
    if targets is not None and not isinstance(targets, list):
        raise DataError(f"{where}: field {source.targets_field} must be a list of docids")
    place = f"{where}: field {source.targets_field}"
    question = Question(
        qid=_id_at(row, source.qid_field, where),
        text=string_at(row, source.question_field, where),
        targets=tuple(_as_id(t, place) for t in targets or ()),
        answers=strings_at(row, source.answers_field, where),
    )
    return checked_question(question, where, source.qid_field)


def _rows(dataset: Iterable[Any], name: str) -> Iterator[tuple[str, Any]]:
    return ((f"{name} row {number}", row) for number, row in enumerate(dataset))


def _need_columns(dataset: Any, names: list[str], where: str) -> None:
    missing = [n for n in names if n not in dataset.column_names]
    if missing:
        raise ConfigError(
            f"{where}: there is no column {missing[0]!r}; columns are "
            f"{', '.join(dataset.column_names)}"
        )


def _id_at(row: dict[str, Any], name: str, where: str) -> str:
    return _as_id(row.get(name), f"{where}: field {name}")


def _as_id(value: Any, place: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{place} must be a string or a whole number, got {type(value).__name__}")
    return value
