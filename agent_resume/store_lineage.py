"""Where a run comes from: what it was forked from, and how it was called before."""

from __future__ import annotations

import json
from typing import Any

from .database_sql import Statement, Tx
from .models import RunRow
from .sql import bindparam, events, select
from .store_queries import run_by_id

_OF_TYPE = Statement(
    lambda: (
        select(events.c.data)
        .where(events.c.run_id == bindparam("run"), events.c.type == bindparam("type"))
        .order_by(events.c.seq)
    )
)


def ancestors(tx: Tx, run_id: str) -> list[str]:
    """The runs that a run was forked from, the nearest first, those that were deleted since as well."""
    found: list[str] = []
    row = run_by_id(tx, run_id)
    while row is not None and row.forked_from is not None and row.forked_from not in found:
        # Forks of earlier versions know their source alone.
        told = next((_texts(data.get("ancestors")) for data in _data(tx, row, "forked")), [])
        found += [other for other in dict.fromkeys([row.forked_from, *told]) if other not in found]
        row = run_by_id(tx, found[-1])
    return found


def former_names(tx: Tx, run_id: str) -> list[str]:
    """Names that a run, or one it was forked from, had and that it has no more."""
    rows = [row for other in (*ancestors(tx, run_id), run_id) if (row := run_by_id(tx, other)) is not None]
    told = (data.get("from") for row in rows for data in _data(tx, row, "renamed"))
    return [name for name in dict.fromkeys(told) if isinstance(name, str) and name != rows[-1].name]


def _data(tx: Tx, row: RunRow, type: str) -> list[dict[str, Any]]:
    found = (json.loads(text) for (text,) in tx.all(_OF_TYPE, {"run": row.seq, "type": type}) if text is not None)
    return [data for data in found if isinstance(data, dict)]


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
