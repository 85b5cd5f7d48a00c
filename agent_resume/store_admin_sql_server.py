"""Reading a PostgreSQL store with SQL that a person typed. The server itself enforces that nothing is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from . import errors, migrate
from .schema import PG_SCHEMA
from .store_transaction_text import bare

if TYPE_CHECKING:
    from .store import Store

#: What a statement that reads begins with, after comments. COPY, say, could write files of the server.
_READING = re.compile(r"[\s(]*(?:select|with|values|table|explain|show)\b", re.IGNORECASE)
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
#: Types whose values Python cannot all hold (infinity, years BC, months); they are shown as the server writes them.
_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
NO_ROWS = "that is no statement that gives rows; write one SELECT"
_NOTHING_CHANGES = "this command only reads; change runs with agent-resume's other commands"
_TABLES = """
SELECT 'table', c.relname::text, 'CREATE TABLE ' || c.relname || E' (\\n    ' || string_agg(
    a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
    E',\\n    ' ORDER BY a.attnum) || E'\\n)'
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r' GROUP BY c.oid, c.relname ORDER BY c.oid
"""
_VIEWS = """
SELECT 'view', relname::text, 'CREATE VIEW ' || relname || E' AS\\n' || rtrim(pg_get_viewdef(oid), ';')
FROM pg_catalog.pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'v' ORDER BY oid
"""
_INDEXES = """
SELECT 'index', relname::text, pg_get_indexdef(oid)
FROM pg_catalog.pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'i' ORDER BY oid
"""


# What a database's message holds, and what to do about it.
_ADVICE = {
    "function json_extract(": "PostgreSQL reads JSON so: as_json(meta) -> 'tags' ->> 'NAME'",
    "no such function: as_json": "SQLite reads JSON so: json_extract(meta, '$.tags.NAME')",
    "You did not supply a value": "give its value with -p NAME=VALUE",
    "Binding ": "write each parameter as :NAME, and give its value with -p NAME=VALUE",
    'syntax error at or near ":"': "give the value of each :NAME with -p NAME=VALUE",
    "one statement at a time": "give each SELECT a call of its own",
    "multiple commands": "give each SELECT a call of its own",
}


def advised(said: str) -> str:
    """A database's message with what to do about it."""
    said = said.strip().rstrip(".")
    found = (advice for part, advice in _ADVICE.items() if part in said)
    return f"{said}; {next(found, 'agent-resume sql --schema shows the tables and views')}"


class Refused(Exception):
    """The statement cannot be run, or would change something; the text says why."""


@contextmanager
def asked(
    store: Store, text: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]]:
    """Run one statement in a transaction that cannot write: the names of its columns, and its rows.

    Raises:
        Refused: it does not read, or the server refuses it.
        StoreError: the store cannot be read.
    """
    if not bare(text).strip():
        raise Refused(NO_ROWS)
    if _READING.match(bare(text)) is None:
        raise Refused(_NOTHING_CHANGES)
    with closing(_connect(store)) as connection:
        try:
            # After its first query a transaction cannot be made one that writes.
            connection.execute("BEGIN READ ONLY")
            connection.execute("SELECT 1")
            cursor = connection.cursor()
            # Prepared: the server takes one statement only then, so that none after it can end the transaction.
            cursor.execute(*_with_values(text, parameters), prepare=True)
        except Exception as error:
            raise _refusal(store, error) from error
        columns = tuple(column.name for column in cursor.description or ())
        yield columns, _rows(store, cursor if columns else ())


def _rows(store: Store, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows as they can be shown.

    Raises:
        Refused: Python cannot hold a value.
    """
    rows = iter(found)
    while True:
        try:
            row = tuple(map(_plain, next(rows)))
        except StopIteration:
            return
        except Exception as error:
            raise _refusal(store, error) from error
        yield row


def schema_of(store: Store) -> list[tuple[str, str, str]]:
    """Kind, name and SQL text of each table, view and index of ours."""
    with closing(_connect(store)) as connection:
        found: list[tuple[str, str, str]] = []
        for text in (_TABLES, _VIEWS, _INDEXES):
            try:
                found += connection.execute(text, {"schema": PG_SCHEMA}).fetchall()
            except Exception as error:
                raise store.database.driver.translate(error) from error
    return found


def _connect(store: Store) -> Any:
    if not store.exists():
        raise errors.StoreUnavailable(
            store.display, "no such store", "run an agent first, or name another with db= (or --db)"
        )
    connection = migrate.open_for_reading(store.database.driver)
    from psycopg.types.string import TextLoader

    for kind in _TIMES:
        connection.adapters.register_loader(kind, TextLoader)
    return connection


def _with_values(text: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The statement with psycopg's marks where the values of ``:name`` go; a cast (``::``) is none."""
    if not parameters:
        return text, None

    def mark(found: re.Match[str]) -> str:
        return f"%({found[1]})s" if found[1] in parameters else found[0]

    return _PARAMETER.sub(mark, text.replace("%", "%%")), dict(parameters)


def _plain(value: Any) -> Any:
    """What JSON and a table can show."""
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _refusal(store: Store, error: Exception) -> Exception:
    translated: Exception = store.database.driver.translate(error)
    code = getattr(error, "sqlstate", None)
    if code == "25006":
        return Refused(_NOTHING_CHANGES)
    if translated is not error and (code is None or code[:2] in ("08", "53", "55", "57", "58", "XX")):
        return translated
    diagnosis = getattr(error, "diag", None)
    return Refused(advised(str((diagnosis and diagnosis.message_primary) or error)))
