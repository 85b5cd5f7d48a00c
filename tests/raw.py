"""A look at a store's rows past agent-resume, the same for both databases: plain SQL, ``?`` for values."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Any


def connect(db: Any) -> Any:
    """A connection to the store: sqlite3's own, or one that takes the same calls."""
    return Connection(str(db)) if "://" in str(db) else sqlite3.connect(db)


class Connection:
    """A psycopg connection that looks like sqlite3's: ``?`` for values, committed by ``with`` and by ``commit``."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=False)
        self._connection.execute("SET search_path TO agent_resume")

    def execute(self, sql: str, values: Any = ()) -> Any:
        return self._connection.execute(sql.replace("%", "%%").replace("?", "%s").encode(), values)

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._connection.commit()
        else:
            self._connection.rollback()
