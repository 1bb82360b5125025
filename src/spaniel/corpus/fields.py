"""Checked access to the fields of one parsed line; every complaint names place and field."""

from typing import Any

from spaniel.errors import DataError
from spaniel.types import Document, Question


def object_at(data: Any, where: str) -> dict[str, Any]:
    """The data, which must be a JSON object."""
    if not isinstance(data, dict):
        raise DataError(f"{where}: must hold a JSON object, got {type(data).__name__}")
    return data


def string_at(data: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    """A string field; ``default`` stands for a missing or null one, None makes it required."""
    value = data.get(name)
    if value is None:
        if default is None:
            raise DataError(f"{where}: field {name} is missing")
        return default
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name} must be a string, got {type(value).__name__}")
    return value


def list_at(data: dict[str, Any], name: str, where: str) -> list[Any]:
    """A required list field."""
    if name not in data:
        raise DataError(f"{where}: field {name} is missing")
    value = data[name]
    if not isinstance(value, list):
        raise DataError(f"{where}: field {name} must be a list, got {type(value).__name__}")
    return value


def strings_at(data: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    """A field that holds one string or a list of them; null, alone or in the list, is none."""
    value = data.get(name)
    values = value if isinstance(value, list) else [value]
    values = [v for v in values if v is not None]
    if not all(isinstance(v, str) for v in values):
        raise DataError(f"{where}: field {name} must be a string or a list of strings")
    return tuple(values)


def whole_at(data: dict[str, Any], name: str, where: str) -> int:
    """A whole number of at least 0; 0 when missing or null."""
    value = data.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DataError(f"{where}: field {name} must be a whole number >= 0, got {value!r}")
    return value


def checked_document(document: Document, where: str, id_field: str = "docid") -> Document:
    """The document, if its id and text can be used."""
    _check_id(document.docid, where, id_field)
    if not document.text.strip():
        raise DataError(f"{where}: field text must not be empty (document {document.docid!r})")
    return document


def checked_question(question: Question, where: str, id_field: str = "qid") -> Question:
    """The question, if its id, text and targets can be used."""
    _check_id(question.qid, where, id_field)
    if not question.text.strip():
        raise DataError(f"{where}: field text must not be empty (question {question.qid!r})")
    return question


def _check_id(value: str, where: str, name: str) -> None:
    if not value:
        raise DataError(f"{where}: field {name} must not be empty")
    # Ids stand in tab-separated label files, where these could not be told from separators.
    if value != value.strip() or any(c in value for c in "\t\n\r"):
        raise DataError(
            f"{where}: field {name} must have no tab, line break or outer space, got {value!r}"
        )
