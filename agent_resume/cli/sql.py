"""``agent-resume sql``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen, session, tables
from .exits import Usage
from .options import Db, Format, Json
from .show import Unmasked

if TYPE_CHECKING:
    from agent_resume.redact import Redactor
    from agent_resume.store import Store
    from agent_resume.store_admin_sql import Answer

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?")


def sql_command(
    statement: Annotated[str | None, typer.Argument(metavar="SELECT", help="One statement that reads.")] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--param",
            metavar="NAME=VALUE",
            help="Value of :NAME; may be repeated. 7 and -2.5 are numbers, else it is text.",
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the tables and views, with what they are for.")
    ] = False,
    unmasked: Unmasked = False,
    format: Format = None,
    json: Json = False,
    db: Db = None,
) -> None:
    """Ask the store with SQL; nothing can be changed by it."""
    from agent_resume import store_admin_sql

    if (statement is None) != schema:
        raise Usage("give one SELECT, or --schema")
    tables.check(format, json=json)
    if schema and format is not None:
        raise Usage("--schema prints statements, or --json; leave out --format")
    with session.opened(db) as store:
        try:
            if statement is None:
                _print_schema(store, json=json)
                return
            with store_admin_sql.asked(store, statement, dict(map(_parameter, parameters or ()))) as answer:
                _print(answer, None if unmasked else store.redactor, json=json, format=format)
        except store_admin_sql.SqlRefused as error:
            raise Usage(str(error)) from None


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Usage(f"-p: {text!r} is not NAME=VALUE")
    if _NUMBER.fullmatch(value):
        return name, float(value) if "." in value else int(value)
    return name, value


def _print(answer: Answer, redactor: Redactor | None, *, json: bool, format: str | None) -> None:
    rows = ([_value(value, redactor) for value in row] for row in answer.rows)
    names = _distinct(answer.columns)
    if json:
        screen.array(dict(zip(names, row, strict=True)) for row in rows)
    elif format in tables.LINE_FORMATS:
        tables.print_records(names, rows, format)
    else:
        shown = [["" if value is None else screen.fit(value) for value in row] for row in rows]
        tables.print_table([screen.fit(name) for name in names], shown, format)
        if not shown:
            screen.note("no rows")


def _value(value: Any, redactor: Redactor | None) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return redactor.text(value) if redactor is not None and isinstance(value, str) else value


def _distinct(columns: tuple[str, ...]) -> list[str]:
    """Column names; one that comes again gets a number, since a JSON object holds each name once."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _print_schema(store: Store, *, json: bool) -> None:
    from agent_resume import store_admin_sql

    found = store_admin_sql.schema_of(store)
    comments = store_admin_sql.COMMENTS
    if json:
        screen.document(
            [{"type": kind, "name": name, "comment": comments.get(name), "sql": text} for kind, name, text in found]
        )
        return
    for kind, name, text in found:
        if kind != "index":
            screen.line(f"-- {comments.get(name, name)}")
        for row in f"{text};".split("\n"):
            screen.line(screen.fit(row.expandtabs(4)))
        screen.line()
