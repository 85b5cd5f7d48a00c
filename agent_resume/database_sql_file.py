"""``Tx`` on SQLite, where statements are so cheap that each call of ours around them counts."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .database_sql import Pick, Row, Statement, Tx


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

    def lock(self, what: str) -> None:
        """Nothing: writers to one file are alone anyway."""

    def chunks(self, statement: Statement, values: Mapping[str, Any], size: int = 500) -> Iterator[list[Row]]:
        """Rows in lists of ``size``; only inside a snapshot, which keeps the transaction open."""
        cursor = self.connection.cursor()
        cursor.execute(statement.text(self._dialect), values)
        while rows := cursor.fetchmany(size):
            yield rows
        cursor.close()

    def _in_drivers_form(self, text: str) -> tuple[str, Pick]:
        return _in_order(text)


def _in_order(text: str) -> tuple[str, Pick]:
    """The text with ``?`` for each named parameter, and what takes their values from a mapping, in that order.

    SQLite's driver looks every named one up again at each execution, which costs more than running a small statement.
    """
    names = _NAMED.findall(text)
    if len(names) == 1:
        (only,) = names
        return _NAMED.sub("?", text), lambda values: (values[only],)
    return _NAMED.sub("?", text), operator.itemgetter(*names) if names else lambda values: ()


# No text of ours has a colon in a literal.
_NAMED = re.compile(r":(\w+)")
