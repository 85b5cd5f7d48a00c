"""Deleting old runs, and giving their space back to the file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import errors
from .database_sql import Statement, Tx
from .sql import LargeBinary, and_, bindparam, cast, delete, events, func, or_, pauses, runs, select, steps, union
from .store_admin import Judge, live_owner
from .store_queries import owners_by_token
from .store_runs import drop_owner
from .store_sql import RUN_BY_SEQ, run_row

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from .database import Database
    from .store import Store

#: What is pruned when no status is named: runs that have ended.
ENDED = ("completed", "failed", "cancelled")
_AT_ONCE = 20
_DELETE = Statement(lambda: delete(runs).where(runs.c.seq == bindparam("run")))


def _unfinished() -> ColumnElement[bool]:
    # Runs that have ended name no owner, and a search by status keeps away from their steps.
    return or_(*(runs.c.status == status for status in ("running", "paused", "interrupted", "failed")))


_NAMED_OWNERS = Statement(
    lambda: union(
        select(runs.c.owner_token).where(_unfinished(), runs.c.owner_token.is_not(None)),
        select(steps.c.owner_token)
        .join(runs, runs.c.seq == steps.c.run_id)
        .where(_unfinished(), steps.c.status == "running", steps.c.owner_token.is_not(None)),
    )
)


@dataclass(frozen=True, slots=True)
class PruneFilter:
    """Which runs may go.

    Attributes:
        before: last changed before this ISO time; None for any.
        keep_last: of each agent name, its newest runs stay, so many.
        statuses: stored statuses.
        name: only runs of this name.
    """

    before: str | None
    keep_last: int
    statuses: tuple[str, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Doomed:
    """A run that goes.

    Attributes:
        bytes: of its rows' contents.
    """

    seq: int
    id: str
    name: str
    status: str
    updated_at: str
    bytes: int


def candidates(tx: Tx, judge: Judge, wanted: PruneFilter) -> list[Doomed]:
    """The runs that ``prune`` deletes, oldest first, with the size of what is stored of each."""
    rank = func.row_number().over(partition_by=runs.c.name, order_by=runs.c.seq.desc()).label("rank")
    ranked = select(runs.c.seq, rank).subquery()
    conditions = [runs.c.status.in_(wanted.statuses), ranked.c.rank > wanted.keep_last]
    if wanted.before is not None:
        conditions.append(runs.c.updated_at < wanted.before)
    if wanted.name is not None:
        conditions.append(runs.c.name == wanted.name)
    query = (
        select(runs.c.seq, runs.c.id, runs.c.name, runs.c.status, runs.c.updated_at)
        .join(ranked, ranked.c.seq == runs.c.seq)
        .where(and_(True, *conditions))
        .order_by(runs.c.seq)
    )
    rows = tx.dynamic(query)
    sizes = _sizes(tx, [row[0] for row in rows])
    return [
        Doomed(seq, run_id, name, status, updated_at, sizes.get(seq, 0))
        for seq, run_id, name, status, updated_at in rows
        if not _is_live(tx, judge, seq)
    ]


def _is_live(tx: Tx, judge: Judge, seq: int) -> bool:
    row = run_row(tx, RUN_BY_SEQ, {"run": seq})
    return row is None or live_owner(tx, judge, row) is not None


def _bytes(column: object) -> object:
    return func.coalesce(func.length(cast(column, LargeBinary)), 0)


def _sizes(tx: Tx, seqs: list[int]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    parts = (
        (runs.c.seq, (runs.c.input, runs.c.result, runs.c.error, runs.c.summary, runs.c.meta)),
        (steps.c.run_id, (steps.c.key, steps.c.error, steps.c.meta)),
        (events.c.run_id, (events.c.step_key, events.c.data, events.c.ts)),
        (pauses.c.run_id, (pauses.c.context, pauses.c.value, pauses.c.reason)),
    )
    for start in range(0, len(seqs), 500):
        chunk = seqs[start : start + 500]
        for owner, columns in parts:
            total = sum((_bytes(column) for column in columns), start=_nothing(owner))  # type: ignore[call-overload]
            for seq, size in tx.dynamic(select(owner, func.sum(total)).where(owner.in_(chunk)).group_by(owner)):
                sizes[seq] = sizes.get(seq, 0) + int(size or 0)
    return sizes


def _nothing(owner: object) -> object:
    # Outputs are not read for it: their size stands beside them.
    return func.coalesce(steps.c.output_bytes, 0) if owner is steps.c.run_id else func.length("")


def delete_runs(store: Store, doomed: list[Doomed], wanted: PruneFilter) -> Iterator[Doomed]:
    """Delete runs, a few in each transaction; each is looked at again first, and one that lives by now stays."""
    for start in range(0, len(doomed), _AT_ONCE):
        yield from store.direct(_delete, store.owner.judge, doomed[start : start + _AT_ONCE], wanted)


def _delete(tx: Tx, judge: Judge, doomed: list[Doomed], wanted: PruneFilter) -> list[Doomed]:
    gone = []
    for one in doomed:
        row = run_row(tx, RUN_BY_SEQ, {"run": one.seq})
        if row is None or row.status not in wanted.statuses or row.updated_at != one.updated_at:
            continue
        if live_owner(tx, judge, row) is None:
            tx.execute(_DELETE, {"run": one.seq})
            tx.weight += one.bytes
            gone.append(one)
    return gone


def forget_owners(store: Store) -> int:
    """Delete the rows of dead processes that no unfinished run or running step names; how many.

    A process that was killed leaves its row. One that registers meanwhile is alive, and stays.
    """
    if not store.ask(_dead_owners, store.owner.judge):
        return 0
    return store.direct(_forget, store.owner.judge)


def _dead_owners(tx: Tx, judge: Judge) -> list[str]:
    return [token for token, row in owners_by_token(tx).items() if judge(row) == "dead"]


def _forget(tx: Tx, judge: Judge) -> int:
    named = {token for (token,) in tx.all(_NAMED_OWNERS, {})}
    gone = [token for token in _dead_owners(tx, judge) if token not in named]
    for token in gone:
        drop_owner(tx, token)
    return len(gone)


def file_bytes(database: Database) -> int:
    """How large the database and its log are, in bytes; 0 where that cannot be seen."""
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            total += os.stat(database.location.target + suffix).st_size
    return total


def reclaim(database: Database) -> str | None:
    """Give freed pages back to the file system; why not, when that cannot be done now.

    The deleted rows are gone either way; SQLite uses their pages again.
    """
    driver = database.driver
    if driver.name != "sqlite":
        return "the server reclaims space by itself"
    connection = driver.prepare(driver.plain())
    try:
        # One statement each, outside any transaction. The checkpoint holds the writer lock, as everywhere here.
        driver.retry_busy(lambda: connection.execute("VACUUM").close(), "others are writing")
        connection.execute("PRAGMA busy_timeout=2000").close()
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return "others are reading; the file shrinks when they have ended" if busy else None
    except errors.StoreBusy as error:
        return str(error)
    except Exception as error:
        translated = driver.translate(error)
        if translated is error:
            raise
        return str(translated)
    finally:
        connection.close()
