"""JSON from files made elsewhere, each value with the place it stands at.

Lines end at ``\\n`` alone: texts hold U+2028, U+0085 and every other separator there is.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from spaniel.corpus.records import Reading
from spaniel.errors import ConfigError, DataError


def text_lines(path: Path, reading: Reading) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of each line that is not blank; ``\\r`` and a first BOM removed.

    Raises:
        ConfigError: there is no such file.
        DataError: a line is not UTF-8, unless bad lines are skipped.
    """
    with open_file(path) as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                reading.bad(DataError(f"{where}: not UTF-8 at byte {error.start} of the line"))
                continue
            line = line.rstrip("\r\n")
            if line.strip():
                yield where, line


def json_lines(path: Path, reading: Reading) -> Iterator[tuple[str, Any]]:
    """(``file:line``, value) of each line; lines that are not JSON are reported."""
    yield from reading.parse_each(text_lines(path, reading), parse_json)


def json_items(path: Path, reading: Reading) -> Iterator[tuple[str, Any]]:
    """(place, value) of a JSON array's items, or of the lines of a JSON-lines file.

    Raises:
        ConfigError: there is no such file.
        DataError: an array file is not JSON as a whole, whatever ``on_bad`` says.
    """
    with open_file(path) as file:
        is_array = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if not is_array:
        yield from json_lines(path, reading)
        return
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
    for number, item in enumerate(parse_json(text, str(path)), start=1):
        yield f"{path}: item {number}", item


def open_file(path: Path) -> BinaryIO:
    """The file, open for bytes. Raises ``ConfigError`` when there is none."""
    try:
        return path.open("rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file") from None


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text. Raises ``DataError`` on what JSON or UTF-8 cannot hold."""
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            # Half a surrogate pair parses, but no file can store it again.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: not Unicode: half of a surrogate pair") from None
    except RecursionError:
        raise DataError(f"{where}: not JSON: nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
