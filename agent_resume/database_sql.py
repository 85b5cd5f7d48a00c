"""Statements described once with SQLAlchemy Core, compiled once a dialect, executed on the driver's own cursor.

Core's execution layer costs more than SQLite does (about 45 µs a transaction); its compiler is free after the first
call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Executable
    from sqlalchemy.engine.interfaces import Dialect

Row = tuple[Any, ...]


class Statement:
    """One Core statement; ``text`` compiles it the first time a dialect asks.

    Args:
        element: the Core statement, with ``bindparam`` for every value that changes.
        columns: for an insert, the columns that its parameters name.
    """

    __slots__ = ("_texts", "columns", "element")

    def __init__(self, element: Any, columns: tuple[str, ...] | None = None) -> None:
        self.element = element
        self.columns = columns
        self._texts: dict[str, str] = {}

    def text(self, dialect: Dialect) -> str:
        """The SQL text for ``dialect``, with its named parameter style."""
        known = self._texts.get(dialect.name)
        if known is None:
            compiled = self.element.compile(dialect=dialect, column_keys=self.columns)
            known = self._texts[dialect.name] = _with_constants(compiled, dialect)
        return known


def _with_constants(compiled: Any, dialect: Dialect) -> str:
    """The compiled text with the statement's own constants in it, so that callers only give what changes."""
    text = str(compiled)
    given = {name for name, bind in compiled.binds.items() if bind.required}
    for name, value in compiled.params.items():
        if name in given:
            continue
        if value is None:
            literal = "NULL"
        elif isinstance(value, int):
            literal = str(value)
        else:
            literal = "'" + str(value).replace("'", "''") + "'"
        mark = f":{name}" if dialect.paramstyle == "named" else f"%({name})s"
        text = re.sub(re.escape(mark) + r"(?!\w)", literal.replace("\\", r"\\"), text)
    return text


class Tx:
    """What a store operation sees: statements on one connection, inside one transaction.

    ``weight`` estimates the bytes that the transaction adds to the log, for the checkpoint rule.
    """

    __slots__ = ("_dialect", "_execute", "_texts", "connection", "cursor", "weight")

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self._execute = self.cursor.execute
        self._dialect = dialect
        self._texts: dict[Statement, str] = {}
        self.weight = 0

    @property
    def dialect(self) -> str:
        """``"sqlite"`` or ``"postgresql"``."""
        return self._dialect.name

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Run one statement."""
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = statement.text(self._dialect)
        self._execute(text, values)

    def run(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one statement; how many rows it touched."""
        self.execute(statement, values)
        return int(self.cursor.rowcount)

    def insert(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one insert into a table with an integer key; the new key.

        PostgreSQL needs RETURNING for that; SQLite's RETURNING builds a temporary table (about 20 µs), so it is
        added only where the driver has no ``lastrowid``.
        """
        if self._dialect.name == "sqlite":
            self.execute(statement, values)
            return int(self.cursor.lastrowid)
        text = self._texts.get(statement)
        if text is None:
            (key,) = statement.element.table.primary_key.columns
            text = self._texts[statement] = f"{statement.text(self._dialect)} RETURNING {key.name}"
        self._execute(text, values)
        return int(self.cursor.fetchone()[0])

    def one(self, statement: Statement, values: Mapping[str, Any]) -> Row | None:
        """The first row, or None."""
        self.execute(statement, values)
        return self.cursor.fetchone()  # type: ignore[no-any-return]  # the driver's cursor is untyped

    def all(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Every row."""
        self.execute(statement, values)
        return self.cursor.fetchall()  # type: ignore[no-any-return]

    def chunks(self, statement: Statement, values: Mapping[str, Any], size: int = 500) -> Iterator[list[Row]]:
        """Rows in lists of ``size``; only inside a snapshot, which keeps the transaction open."""
        cursor = self.connection.cursor()
        cursor.execute(statement.text(self._dialect), values)
        while rows := cursor.fetchmany(size):
            yield rows
        cursor.close()

    def dynamic(self, element: Executable) -> list[Row]:
        """Every row of a statement that is built for this one call; its values are bound, never pasted."""
        compiled = element.compile(  # type: ignore[attr-defined]
            dialect=self._dialect, compile_kwargs={"render_postcompile": True}
        )
        self._execute(str(compiled), compiled.params)
        return self.cursor.fetchall()  # type: ignore[no-any-return]
