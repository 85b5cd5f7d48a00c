"""Reading with SQL that a person typed. The database itself enforces that nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors, migrate, store_admin_sql_server

if TYPE_CHECKING:
    from .store import Store

#: What a table or view is for, as ``sql --schema`` prints it.
COMMENTS: Mapping[str, str] = {
    "owners": "live processes: who executes runs, and when they beat last",
    "runs": "one row a run; seq orders them",
    "steps": "one row a step and run, with its result (output, JSON)",
    "events": "everything that happened, in order of run_id, seq; never changed",
    "pauses": "questions, waits and sleeps, and the answers to them",
    "run_overview": "one line a run: steps by status, duration, tokens, its owner",
    "step_timeline": "one line a step: status, attempts, duration, model, tokens, error",
    "step_attempts": "one line an attempt of a step: start, end, outcome, error",
    "agent_resume_schema": "the schema revision",
}
_CHUNK = 500


class SqlRefused(Exception):
    """The statement cannot be run, or would change something; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gives: the names of its columns, and its rows while they are read."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def asked(store: Store, text: str, parameters: Mapping[str, Any]) -> Iterator[Answer]:
    """Run one SELECT on a connection that cannot write.

    Raises:
        SqlRefused: the database refuses the statement.
        StoreError: the store cannot be read.
        KeyboardInterrupt: Ctrl-C, also in the middle of the statement.
    """
    if store.location.kind != "sqlite":
        try:
            with store_admin_sql_server.asked(store, text, parameters) as found:
                yield Answer(*found)
        except store_admin_sql_server.Refused as error:
            raise SqlRefused(str(error)) from error
        return
    connection = _connect(store)
    try:
        cursor = connection.execute(text, dict(parameters))
        if cursor.description is None:
            raise SqlRefused(store_admin_sql_server.NO_ROWS)
        yield Answer(tuple(column[0] for column in cursor.description), _rows(cursor))
    except (sqlite3.Error, sqlite3.Warning) as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from None  # it came in _look_at_signals, where SQLite swallows it
        raise _refusal(store, error) from error
    finally:
        connection.close()


def schema_of(store: Store) -> list[tuple[str, str, str]]:
    """Kind, name and SQL text of each table, view and index of ours."""
    if store.location.kind != "sqlite":
        return store_admin_sql_server.schema_of(store)
    connection = _connect(store)
    try:
        rows = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            "ORDER BY CASE type WHEN 'table' THEN 1 WHEN 'view' THEN 2 ELSE 3 END, rowid"
        ).fetchall()
    except sqlite3.Error as error:
        raise store.database.driver.translate(error) from error
    finally:
        connection.close()
    return [(str(kind), str(name), str(text).strip()) for kind, name, text in rows]


def _connect(store: Store) -> sqlite3.Connection:
    if not store.exists():
        raise errors.StoreUnavailable(
            store.display, "no such store", "run an agent first, or name another with db= (or --db)"
        )
    # A connection of its own, opened read-only: no statement can lift that.
    connection: sqlite3.Connection = migrate.open_for_reading(store.database.driver)
    # SQLite 3.40 counts its own json_type(), which our views use, as unsafe otherwise. No other functions are registered
    # on this connection, so there is nothing to trust a schema with.
    connection.execute("PRAGMA trusted_schema=ON").close()
    connection.set_authorizer(_allow)
    connection.set_progress_handler(_look_at_signals, 100_000)
    return connection


def _look_at_signals() -> int:
    """Nothing: that Python runs at all, in the middle of a long statement, lets Ctrl-C in."""
    return 0


def _allow(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Reading is allowed; attaching (and with it VACUUM INTO) could write other files."""
    denied = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    changes = action == sqlite3.SQLITE_PRAGMA and second is not None and first not in _READING_PRAGMAS
    return sqlite3.SQLITE_DENY if action in denied or changes else sqlite3.SQLITE_OK


_READING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)


def _rows(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_CHUNK):
        yield from rows


def _refusal(store: Store, error: Exception) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH):
        return SqlRefused("this command only reads; change runs with agent-resume's other commands")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY):
        translated: Exception = store.database.driver.translate(error)
        return translated
    return SqlRefused(store_admin_sql_server.advised(str(error)))
