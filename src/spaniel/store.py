"""Files of a run: JSON lines of records, write-then-rename, manifests written last.

A directory with a ``manifest.json`` is complete; one without is the remains of a run that
died, and is made again. Lines are split on ``\\n`` only (model text holds every other line
separator there is), and NaN is refused.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from spaniel.errors import ArtifactError, DataError

T = TypeVar("T")
MANIFEST = "manifest.json"


# --- records <-> plain data ---------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Records, enums, paths and tuples as what ``json.dumps`` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def from_plain(cls: type[T], data: Any, *, where: str) -> T:
    """Build a record of class ``cls`` from a dict; inverse of ``to_plain``.

    Raises:
        DataError: a field is missing, unknown, or of the wrong type; the message names it.
    """
    if not isinstance(data, dict):
        raise DataError(f"{where}: must hold a JSON object, got {type(data).__name__}")
    hints = _hints(typing.cast(typing.Hashable, cls))
    values = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # cls is a dataclass by contract
        if f.name in data:
            values[f.name] = _coerce(hints[f.name], data[f.name], f"{where}: field {f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise DataError(f"{where}: field {f.name} is missing")
    unknown = sorted(set(data) - {f.name for f in dataclasses.fields(cls)})  # type: ignore[arg-type]
    if unknown:
        raise DataError(f"{where}: unknown field {unknown[0]}")
    return cls(**values)


@functools.cache
def _hints(cls: typing.Hashable) -> dict[str, Any]:
    # Resolving annotations costs more than the rest of reading a record.
    return typing.get_type_hints(cls)


def _coerce(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _coerce(next(a for a in args if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise DataError(f"{where} must be a list, got {type(value).__name__}")
        return tuple(_coerce(args[0], v, where) for v in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise DataError(f"{where} must be an object, got {type(value).__name__}")
        return value
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast(type, hint), value, where=where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            allowed = [e.value for e in hint]
            raise DataError(f"{where} must be one of {allowed}, got {value!r}") from None
    if hint is bytes and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise DataError(f"{where} must be base64, got {value[:40]!r}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise DataError(f"{where} must be {hint.__name__}, got {type(value).__name__}")
    return value


# --- JSON files ---------------------------------------------------------------------------


def dump_line(value: Any) -> str:
    """One JSON line without its newline. Raises ``ValueError`` on NaN or infinity."""
    return json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises ``ArtifactError`` when missing, ``DataError`` when broken."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def iter_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, parsed JSON) of each non-blank line.

    Raises:
        DataError: a line is not JSON; the message names file and line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}:{number}: not JSON: {error}") from None


def read_records(path: Path, cls: type[T]) -> Iterator[T]:
    """Records of one class from a JSON-lines file. Raises ``ArtifactError``, ``DataError``."""
    if not path.exists():
        raise ArtifactError(f"{path} is missing")
    for number, data in iter_lines(path):
        yield from_plain(cls, data, where=f"{path}:{number}")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Indented JSON, whole or not at all."""
    text = json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    write_text(path, text + "\n")


def write_records(path: Path, records: Iterable[Any]) -> int:
    """JSON lines, whole or not at all; returns how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for record in records:
                file.write(dump_line(record) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return count


class JsonlLog:
    """An append-only JSON-lines file that survives kill -9: a torn last line is cut on open."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def append(self, value: Any) -> None:
        """Write one record and flush it."""
        self._file.write(dump_line(value) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


# --- directories --------------------------------------------------------------------------


@contextmanager
def publish_directory(
    final: Path, manifest: dict[str, Any], *, keep_partial: bool = False
) -> Iterator[Path]:
    """Build a directory beside its place, then rename it there with its manifest in it.

    The body writes into the yielded directory and may add to ``manifest``. A body that
    raises leaves the old directory as it was. Readers see the old or the new, never half.

    Args:
        keep_partial: what a body wrote that was interrupted or raised is yielded to the next
            one, which has to know what of it can be used.
    """
    partial = final.with_name(f".{final.name}.partial")
    if not keep_partial:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        write_json(partial / MANIFEST, manifest)
    except BaseException:
        if not keep_partial:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def read_manifest(directory: Path, *, made_by: str) -> dict[str, Any]:
    """The manifest of a finished directory.

    Raises:
        ArtifactError: there is none; the message says which command makes it.
    """
    path = directory / MANIFEST
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `{made_by}` first")
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return manifest


# --- hashes -------------------------------------------------------------------------------


def hash_of(value: Any) -> str:
    """Hash of any plain data or record: 16 hex digits of SHA-256 over canonical JSON."""
    text = json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_records(records: Iterable[Any]) -> str:
    """Hash of a stream of records, in order: 16 hex digits."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(dump_line(record).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
