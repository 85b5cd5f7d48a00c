"""Elements of our own in statements: what SQLite and PostgreSQL spell differently."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class server_now(FunctionElement[str]):
    """The server's own time where there is a server, since hosts differ; else the argument."""

    inherit_cache = True
    type = Text()


@compiles(server_now)
def _given_now(element: server_now, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(server_now, "postgresql")
def _postgres_now(element: server_now, compiler: Any, **options: Any) -> str:
    return "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"


class one_of(FunctionElement[bool]):
    """Whether a column's value is in a JSON array, the second argument: one text for any number of values."""

    inherit_cache = True
    type = Boolean()

    def self_group(self, against: Any = None) -> one_of:
        """Itself: a comparison with 1, which SQLite's dialect would add, keeps away from indexes."""
        return self


@compiles(one_of)
def _in_array(element: one_of, compiler: Any, **options: Any) -> str:
    column, array = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({array}))"  # noqa: S608 - a column of ours and a parameter


@compiles(one_of, "postgresql")
def _in_postgres_array(element: one_of, compiler: Any, **options: Any) -> str:
    column, array = (compiler.process(clause, **options) for clause in element.clauses)
    kind = "BIGINT" if next(iter(element.clauses)).type.python_type is int else "TEXT"
    # An array that is made once, so that it can be looked up in an index like a list.
    return f"{column} = ANY (ARRAY(SELECT CAST(json_array_elements_text(CAST({array} AS JSON)) AS {kind})))"
