"""Statements described once with SQLAlchemy Core, compiled once a dialect, executed on the driver's own cursor.

Core's execution layer costs more than SQLite does (about 45 µs a transaction); its compiler is free after the first
call. For SQLite they are compiled before the package ships, so that nobody waits for SQLAlchemy to be imported.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .database_texts import TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from sqlalchemy import Executable
    from sqlalchemy.engine.interfaces import Dialect as CoreDialect

Row = tuple[Any, ...]
#: What a driver gets for a statement's values: in its order, or by name.
Pick = Callable[[Mapping[str, Any]], Any]


class Dialect:
    """What a database speaks; ``name`` is ``"sqlite"`` or ``"postgresql"``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def core(self) -> CoreDialect:
        """SQLAlchemy's, with named parameters; needed when a statement has to be compiled."""
        if self.name == "sqlite":
            from sqlalchemy.dialects import sqlite

            return sqlite.dialect(paramstyle="named")
        from sqlalchemy.dialects.postgresql import psycopg

        return psycopg.dialect()  # type: ignore[no-untyped-call]


class Statement:
    """One Core statement, or a part of one; ``text`` compiles it the first time a dialect asks.

    Args:
        build: makes the Core element, with ``bindparam`` for every value that changes. Only called when its text is
            not known: what ``named_statements`` finds has its text for SQLite in ``database_texts``.
        columns: for an insert, the columns that its parameters name.
        suffix: SQL that both dialects understand alike, put at the end (``ON CONFLICT … DO NOTHING``).
        server: SQL put at the end on PostgreSQL alone.
    """

    __slots__ = ("_texts", "build", "columns", "server", "suffix")

    def __init__(
        self, build: Callable[[], Any], columns: tuple[str, ...] | None = None, suffix: str = "", server: str = ""
    ) -> None:
        self.build = build
        self.columns = columns
        self.suffix = suffix
        self.server = server
        self._texts: dict[str, str] = {}

    def text(self, dialect: Dialect) -> str:
        """The SQL text for ``dialect``, with its named parameter style."""
        known = self._texts.get(dialect.name)
        if known is None:
            known = self._shipped() if dialect.name == "sqlite" else None
            known = self._texts[dialect.name] = known or self.compiled(dialect)
        return known

    def _shipped(self) -> str | None:
        home = self.build.__module__
        names = (name for name, statement in named_statements(sys.modules[home]) if statement is self)
        return TEXTS.get(next(names, ""))

    def compiled(self, dialect: Dialect) -> str:
        """The same, compiled now."""
        # Inline: whether a new key is wanted back is said by Tx.insert, not by the dialect.
        element = self.build().inline() if self.columns is not None else self.build()
        compiled = element.compile(dialect=dialect.core, column_keys=self.columns)
        end = self.suffix if dialect.name == "sqlite" else f"{self.suffix} {self.server}"
        # A percent sign begins a parameter on PostgreSQL.
        end = end if dialect.name == "sqlite" else end.replace("%", "%%")
        return f"{_with_constants(compiled, dialect)} {end}".rstrip()


def named_statements(module: ModuleType) -> Iterator[tuple[str, Statement]]:
    """The statements that a module describes, each with its name: ``store_steps.OLD``, ``store_records._SET.meta``."""
    place = module.__name__.rpartition(".")[2]
    for name, value in list(vars(module).items()):
        several = list(value.items()) if isinstance(value, dict) else ()
        for full, one in ((name, value), *((f"{name}.{key}", one) for key, one in several)):
            if isinstance(one, Statement) and one.build.__module__ == module.__name__:
                yield f"{place}.{full}", one


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
        mark = f":{name}" if dialect.name == "sqlite" else f"%({name})s"
        text = re.sub(re.escape(mark) + r"(?!\w)", literal.replace("\\", r"\\"), text)
    return text


def _by_name(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values


class Tx:
    """What a store operation sees: statements on one connection, inside one transaction. This is its form on a server.

    ``weight`` estimates the bytes that the transaction adds to the log, for the checkpoint rule. ``mark`` is what the
    transaction can be recognised by when nobody knows whether its COMMIT happened; see ``append``.

    ``later`` is for many operations in one transaction: under a key of the operations' own, a statement that each of
    them would run with other values, to be run once. None where there is one operation.
    """

    __slots__ = (
        "_begin",
        "_dialect",
        "_execute",
        "_texts",
        "connection",
        "cursor",
        "later",
        "mark",
        "reading",
        "relaxed",
        "weight",
    )

    def __init__(self, connection: Any, dialect: Dialect, *, reading: bool = False) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self._execute: Callable[..., Any] = self.cursor.execute
        self._begin: str | None = None
        self.relaxed = False
        self.reading = reading
        self._dialect = dialect
        self._texts: dict[Statement, tuple[str, Pick]] = {}
        self.weight = 0
        self.mark: tuple[int, int, int, str] | None = None
        self.later: dict[object, tuple[Statement, dict[str, Any]]] | None = None

    @property
    def dialect(self) -> str:
        """``"sqlite"`` or ``"postgresql"``."""
        return self._dialect.name

    @property
    def begun(self) -> bool:
        """Whether BEGIN has been said; see ``begin_later``."""
        return self._begin is None

    @property
    def may_be_alone(self) -> bool:
        """Whether a statement could be a transaction of its own now: ``one_alone``."""
        return self._begin == "BEGIN"

    def may_be_lost(self) -> None:
        """Called first by an operation that can do without its disk, when its caller can.

        Others cannot on a server: that may crash and lose what a living process goes on to rely on, a claim say.
        """
        if self._begin is not None and self.relaxed:
            # Two commands in one message, for the price of one.
            self._begin = "BEGIN; SET LOCAL synchronous_commit TO off"

    def begin_later(self, text: str, *, relaxed: bool) -> None:
        """Say this BEGIN before the first statement; when there is none, there is no transaction."""
        self._begin = text
        self.relaxed = relaxed
        self._execute = self._execute_first

    def begin_now(self) -> None:
        """Say it."""
        if self._begin is not None:
            self.cursor.execute(self._begin, prepare=False)
            self._begin = None
            self._execute = self.cursor.execute

    def _execute_first(self, text: str, values: Any) -> None:
        self.begin_now()
        self._execute(text, values)

    def one_alone(self, statement: Statement, values: Mapping[str, Any]) -> Row | None:
        """The first row of a statement that is a transaction of its own; only where ``may_be_alone``."""
        self.cursor.execute(statement.text(self._dialect), values)
        return self.cursor.fetchone()  # type: ignore[no-any-return]

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Run one statement."""
        text, pick = self._texts.get(statement) or self._prepared(statement)
        self._execute(text, pick(values))

    def _prepared(self, statement: Statement) -> tuple[str, Pick]:
        text = statement.text(self._dialect)
        if self.reading:
            text = text.removesuffix(" FOR UPDATE")  # a reader takes no locks, and waits for none
        known = self._texts[statement] = self._in_drivers_form(text)
        return known

    def _in_drivers_form(self, text: str) -> tuple[str, Pick]:
        return text, _by_name

    def run(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one statement; how many rows it touched."""
        self.execute(statement, values)
        return int(self.cursor.rowcount)

    def insert(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run one insert into a table with an integer key; the new key, 0 when a conflict made it do nothing.

        A server's driver has no ``lastrowid``: that takes RETURNING.
        """
        known = self._texts.get(statement)
        if known is None:
            (key,) = statement.build().table.primary_key.columns
            known = self._texts[statement] = f"{statement.text(self._dialect)} RETURNING {key.name}", _by_name
        self._execute(known[0], values)
        row = self.cursor.fetchone()
        return 0 if row is None else int(row[0])

    def run_later(self) -> None:
        """Run what was put off, before something relies on it."""
        if self.later:
            put_off, self.later = self.later, {}
            for statement, values in put_off.values():
                if self.run(statement, values) != 1:
                    raise AssertionError(f"{values} came too late")

    def many(self, statement: Statement, rows: list[dict[str, Any]]) -> None:
        """Run one statement once a row; a server gets them all in one go."""
        if rows:
            self.begin_now()
            self.cursor.executemany(statement.text(self._dialect), rows)

    def append(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Insert an event; on a server, note it as the mark of this transaction."""
        self.mark = (self.insert(statement, values), values["run_id"], values["seq"], values["ts"])

    def lock(self, what: str) -> None:
        """Let one transaction at a time go on from here with ``what``; SQLite's writers are alone anyway."""
        number = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), signed=True)
        self._execute("SELECT pg_advisory_xact_lock(%(number)s::BIGINT)", {"number": number})

    def one(self, statement: Statement, values: Mapping[str, Any]) -> Row | None:
        """The first row, or None."""
        self.execute(statement, values)
        return self.cursor.fetchone()  # type: ignore[no-any-return]  # the driver's cursor is untyped

    def all(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Every row."""
        self.execute(statement, values)
        return self.cursor.fetchall()  # type: ignore[no-any-return]

    def each(self, statement: Statement, values: Mapping[str, Any]) -> Iterator[Row]:
        """Row by row; nothing else may be executed before the last one was taken."""
        self.execute(statement, values)
        return self.cursor  # type: ignore[no-any-return]

    def chunks(self, statement: Statement, values: Mapping[str, Any], size: int = 500) -> Iterator[list[Row]]:
        """Rows in lists of ``size``; only inside a snapshot, which keeps the transaction open."""
        self.begin_now()
        cursor = self.connection.cursor()
        # A server's rows would come all at once otherwise; its line is busy until the last of them was taken.
        stream = cursor.stream(statement.text(self._dialect), values)
        try:
            while rows := list(itertools.islice(stream, size)):
                yield rows
        finally:
            stream.close()
            cursor.close()

    def listed(
        self,
        rows: Statement,
        where: list[Statement],
        order: list[Statement],
        end: list[Statement],
        values: dict[str, Any],
    ) -> list[Row]:
        """Every row of a query that is put together from parts, each of them a statement of its own."""
        conditions, terms, last = ([one.text(self._dialect) for one in parts] for parts in (where, order, end))
        begin = [rows.text(self._dialect), *(["WHERE", " AND ".join(conditions)] if conditions else ())]
        self._execute(" ".join([*begin, "ORDER BY", ", ".join(terms), *last]), values)
        return self.cursor.fetchall()  # type: ignore[no-any-return]

    def dynamic(self, element: Executable) -> list[Row]:
        """Every row of a statement that is built for this one call; its values are bound, never pasted."""
        compiled = element.compile(  # type: ignore[attr-defined]
            dialect=self._dialect.core, compile_kwargs={"render_postcompile": True}
        )
        self._execute(str(compiled), compiled.params)
        return self.cursor.fetchall()  # type: ignore[no-any-return]
