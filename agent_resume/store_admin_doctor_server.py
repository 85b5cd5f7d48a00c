"""Looking a PostgreSQL store over: the driver, the server, the schema, what is missing in it. Nothing is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from . import clock, errors, schema

if TYPE_CHECKING:
    from .store import Store

#: Topic, level, text, and what mends it, as ``store_admin_doctor.Finding`` has them.
Found: TypeAlias = tuple[str, Literal["ok", "note", "warning", "problem"], str, str | None]

_RESTORE = "restore it from a back-up of the schema"
_SKEW_MS = 10_000
_COLUMNS = """
SELECT c.relname, array_agg(a.attname::text)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'v') GROUP BY c.relname
"""
#: What this user may not write: tables, and the sequences (S) that give their keys.
_RIGHTS = """
SELECT relname FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(%s) AND relname <> %s AND CASE relkind
  WHEN 'r' THEN NOT (has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE')
    AND has_table_privilege(oid, 'DELETE'))
  WHEN 'S' THEN NOT has_sequence_privilege(oid, 'USAGE') ELSE false END
ORDER BY relkind DESC, relname
"""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
"""


def examine(store: Store) -> Iterator[Found]:
    """What there is to say before the runs are looked at.

    Raises:
        StoreError: there are none to be looked at; what is wrong has been said.
    """
    driver = store.database.driver
    yield "driver", "ok", f"{driver.library()}, for {store.display}", None
    try:
        connection = driver.plain("ro")
    except errors.StoreError as error:
        yield "server", "problem", str(error), None
        raise
    with contextlib.closing(connection):
        try:
            yield from _server(connection)
            yield from _clock(connection)
            yield from _inside(store, connection)
        except errors.StoreError:
            raise
        except Exception as error:
            translated = driver.translate(error)
            if translated is error:
                raise
            yield "store", "problem", str(translated), None
            raise translated from error


def _ask(connection: Any, text: str, *values: object) -> Any:
    return connection.execute(text, values).fetchone()[0]


def _server(connection: Any) -> Iterator[Found]:
    version = connection.info.parameter_status("server_version")
    encoding = connection.info.parameter_status("server_encoding")
    if _ask(connection, "SELECT pg_is_in_recovery()"):
        yield "server", "note", f"PostgreSQL {version}, a standby: runs can be read there, not resumed", None
    else:
        yield "server", "ok", f"PostgreSQL {version}", None
    if encoding != "UTF8":
        yield (
            "encoding", "problem", f"the database's encoding is {encoding}, which cannot hold every text",
            "make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )  # fmt: skip


def _clock(connection: Any) -> Iterator[Found]:
    theirs = int(_ask(connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"))
    ahead = theirs - clock.now_ms()
    if abs(ahead) > _SKEW_MS:
        yield (
            "clocks", "warning", f"the server's clock is {abs(ahead) // 1000} s {'ahead of' if ahead > 0 else 'behind'} "
            "this machine's", "set the clocks (order and ownership do not depend on them, ages do)",
        )  # fmt: skip
    else:
        yield "clocks", "ok", "the server's clock and this machine's agree", None


def _inside(store: Store, connection: Any) -> Iterator[Found]:
    try:
        revision = store.database.driver.revision(connection)
    except errors.StoreError as error:
        yield "schema", "problem", str(error), None
        raise
    if revision is None:
        yield "store", "note", f"no store at {store.display}; the first agent run makes it", None
        raise errors.StoreUnavailable(store.display, "no store there")
    if revision == schema.HEAD:
        yield "schema", "ok", f"revision {revision}", None
    else:
        yield (
            "schema", "note", f"revision {revision}, this version writes {schema.HEAD}",
            "the next agent run upgrades it",
        )  # fmt: skip
    missing = _missing(connection)
    for what in missing:
        yield "tables", "problem", f"{what} is missing", _RESTORE
    if missing:
        raise errors.StoreMoved(store.display)
    yield "tables", "ok", "every table, column and view is there", None
    closed = [row[0] for row in connection.execute(_RIGHTS, (schema.PG_SCHEMA, schema.VERSION_TABLE))]
    if closed:
        yield (
            "permissions", "note", f"this user may not write {', '.join(closed)}: runs can be read, not resumed",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema.PG_SCHEMA} TO it, and "
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema.PG_SCHEMA} TO it",
        )  # fmt: skip
    yield "size", "ok", f"{int(_ask(connection, _SIZE, schema.PG_SCHEMA)):,} bytes", None


def _missing(connection: Any) -> list[str]:
    from . import schema_tables

    there = {name: set(columns) for name, columns in connection.execute(_COLUMNS, (schema.PG_SCHEMA,))}
    found = [f"view {name}" for name in schema.VIEW_NAMES if name not in there]
    for table in schema_tables.metadata.sorted_tables:
        if table.name not in there:
            found.append(f"table {table.name}")
            continue
        found += [f"column {table.name}.{column}" for column in table.columns.keys() if column not in there[table.name]]  # noqa: SIM118 - a collection of columns
    return found
