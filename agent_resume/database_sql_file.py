"""``Tx`` on SQLite, where statements are so cheap that each call of ours around them counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .database_sql import Statement, Tx


class FileTx(Tx):
    """A ``Tx`` on one SQLite file: values go in by position, and a new key is the driver's ``lastrowid``."""

    __slots__ = ()

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Run one statement."""
        text, pick = self._texts.get(statement) or self._prepared(statement)
        self.cursor.execute(text, pick(values))

    def run(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one statement; how many rows it touched."""
        text, pick = self._texts.get(statement) or self._prepared(statement)
        cursor = self.cursor
        cursor.execute(text, pick(values))
        return cursor.rowcount  # type: ignore[no-any-return]  # the driver's cursor is untyped

    def insert(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one insert into a table with an integer key; the new key, 0 when a conflict made it do nothing.

        Without RETURNING, which builds a temporary table here (about 20 µs).
        """
        text, pick = self._texts.get(statement) or self._prepared(statement)
        cursor = self.cursor
        cursor.execute(text, pick(values))
        return cursor.lastrowid if cursor.rowcount == 1 else 0

    append = execute
