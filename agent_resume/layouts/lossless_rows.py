"""Rows of a lossless export on their way in: every column known, of its type, and allowed to be what it is."""

from __future__ import annotations

import json
from typing import Any

from agent_resume import clock, codec_plain, schema, schema_tables
from agent_resume.layouts.flowcast_names import is_storable
from agent_resume.layouts.flowcast_read import is_time
from agent_resume.layouts.lossless import JSON_COLUMNS, canonical
from agent_resume.layouts.outcomes import Refused

_TABLES: dict[str, Any] = {
    "run": schema_tables.runs,
    "step": schema_tables.steps,
    "event": schema_tables.events,
    "pause": schema_tables.pauses,
}
_NEVER = frozenset({"seq", "owner_token"}), frozenset({"id", "run_id", "owner_token"})
_COLUMNS = {
    kind: {column.name: column for column in table.columns if column.name not in _NEVER[kind != "run"]}
    for kind, table in _TABLES.items()
}
_ALLOWED: dict[tuple[str, str], tuple[str, ...]] = {
    ("run", "status"): schema.RUN_STATUSES,
    ("step", "status"): schema.STEP_STATUSES,
    ("step", "effect"): schema.EFFECTS,
    ("pause", "kind"): schema.PAUSE_KINDS,
}
_TIMES = frozenset(
    {"created_at", "updated_at", "finished_at", "started_at", "ts", "asked_at", "deadline", "answered_at"}
)
# Events of flowcast may have an empty name.
_MAY_BE_EMPTY = frozenset({("event", "type")})
_NAMES = frozenset({("run", "id"), ("run", "name"), ("event", "type"), ("pause", "name")})


def read_row(kind: str, given: Any, place: str) -> dict[str, Any]:
    """The row that an object of a file stands for.

    Raises:
        Refused: it is not one that agent-resume writes.
    """
    if not isinstance(given, dict):
        raise Refused(f"{place}: not an object")
    row: dict[str, Any] = dict.fromkeys(_COLUMNS[kind])
    for name, value in given.items():
        column, text = _stored(kind, name, value, place)
        if row.get(column, "") is not None:
            why = "given twice" if column in row else "not known to this version; upgrade agent-resume"
            raise Refused(f"{place}: the column {name!r} is {why}")
        row[column] = text
    for name, column in _COLUMNS[kind].items():
        _check(kind, name, column, row, f"{place}.{name}")
    if kind == "step" and row["output"] is not None:
        row["output_bytes"] = len(row["output"].encode())
    return row


def _stored(kind: str, name: str, value: Any, place: str) -> tuple[str, Any]:
    if name in JSON_COLUMNS[kind]:
        try:
            return name, canonical(value)
        except (ValueError, RecursionError):
            raise Refused(f"{place}.{name}: a value that JSON cannot hold") from None
    bare = name.removesuffix("_text")
    if bare != name and bare in JSON_COLUMNS[kind]:
        if not isinstance(value, str):
            raise Refused(f"{place}.{name}: not text")
        try:
            codec_plain.loads(value)
        except (ValueError, RecursionError):
            raise Refused(f"{place}.{name}: not the text of any JSON") from None
        return bare, value
    return name, value


def _check(kind: str, name: str, column: Any, row: dict[str, Any], place: str) -> None:
    value = row[name]
    if value is None:
        if column.server_default is not None:
            row[name] = _default(column)
        elif not column.nullable:
            raise Refused(f"{place}: missing")
        return
    expected = column.type.python_type
    if type(value) is not expected:
        raise Refused(f"{place}: {json.dumps(value)[:40]} is no {'text' if expected is str else 'integer'}")
    if expected is int and not -(2**63) <= value < 2**63:
        raise Refused(f"{place}: beyond 64 bits")
    if expected is str:
        _check_text(kind, name, value, place)
    if name in _TIMES:
        row[name] = _time(value, place)


def _check_text(kind: str, name: str, value: str, place: str) -> None:
    if not is_storable(value):
        _refuse_unstorable(kind, name, value, place)
    if value == "" and (kind, name) in _NAMES - _MAY_BE_EMPTY:
        raise Refused(f"{place}: empty")
    allowed = _ALLOWED.get((kind, name))
    if allowed is not None and value not in allowed:
        raise Refused(f"{place}: {value[:40]!r} is none of {', '.join(allowed)}")


def _refuse_unstorable(kind: str, name: str, value: str, place: str) -> None:
    # Texts such as a pause's reason may hold a NUL; names may not, and nothing can hold half a character.
    if (kind, name) in _NAMES or name in ("key", "step_key") or not is_storable(value.replace("\0", "")):
        raise Refused(f"{place}: a NUL or a lone surrogate in it")


def _default(column: Any) -> Any:
    text = str(column.server_default.arg)
    return int(text) if column.type.python_type is int else text


def _time(text: str, place: str) -> str:
    # Stored times are compared as texts: they are all UTC, and of one form.
    if is_time(text):
        return text
    try:
        return clock.iso(clock.parse_iso(text))
    except ValueError:
        raise Refused(f"{place}: {text[:40]!r} is no time") from None
