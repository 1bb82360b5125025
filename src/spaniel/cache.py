"""Answers of other machines by the hash of what was asked: paid once, replayed without them."""

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

from spaniel.errors import ConfigError


class TextCache:
    """Texts by key, in one SQLite file that several threads and processes may share.

    Args:
        path: the file, made when it is not there; None keeps the texts in memory.

    Raises:
        ConfigError: the file is no such cache.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=60)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"
            )
            self._db.commit()
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path} is no cache of answers: {error}") from None

    def get(self, key: str) -> str | None:
        """The text, if it is there."""
        with self._lock:
            row = self._db.execute("SELECT reply FROM answers WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def put(self, texts: Mapping[str, str]) -> None:
        """Keep texts by their keys; on disk when this returns."""
        with self._lock, self._db:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", texts.items())

    def close(self) -> None:
        """Close the file."""
        self._db.close()
