"""Deleting old runs, and giving their space back to the file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import errors
from .database_sql import Statement, Tx
from .schema import RUN_STATUSES
from .sql import LargeBinary, and_, bindparam, cast, delete, events, func, or_, pauses, runs, select, steps, union
from .store_admin import Judge, live_owner
from .store_queries import owners_by_token
from .store_runs import drop_owner
from .store_sql import RUN_BY_SEQ, run_row
from .store_status import shown_status_of

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
        select(runs.c.owner_token, runs.c.seq).where(_unfinished(), runs.c.owner_token.is_not(None)),
        select(steps.c.owner_token, steps.c.run_id)
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
        statuses: statuses as they are shown.
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
        status: as it is shown.
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
    # What is stored as running may be shown as several things.
    stored = {status if status in RUN_STATUSES else "running" for status in wanted.statuses}
    stored |= {"running"} if "interrupted" in stored else set()
    conditions = [runs.c.status.in_(sorted(stored)), ranked.c.rank > wanted.keep_last]
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
        for seq, run_id, name, _, updated_at in rows
        if (status := _free_as(tx, judge, seq, wanted)) is not None
    ]


def _free_as(tx: Tx, judge: Judge, seq: int, wanted: PruneFilter) -> str | None:
    """How a run is shown that may go: it is there, is shown as one of the wanted statuses, and nobody alive has it."""
    row = run_row(tx, RUN_BY_SEQ, {"run": seq})
    if row is None or live_owner(tx, judge, row) is not None:
        return None
    status = shown_status_of(tx, judge, row)
    # Shown as running without an owner: a Checkpoint between two steps, whose process lives or not, nobody can tell.
    return status if status in wanted.statuses and status != "running" else None


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
        if row is None or row.updated_at != one.updated_at or _free_as(tx, judge, one.seq, wanted) is None:
            continue
        tx.execute(_DELETE, {"run": one.seq})
        tx.weight += one.bytes
        gone.append(one)
    return gone


def forget_owners(store: Store) -> int:
    """Delete the rows of dead processes that no unfinished run or running step names; how many.

    A process that was killed leaves its row. One that registers meanwhile is alive, and stays.
    """
    if not forgettable_owners(store, ()):
        return 0
    return store.direct(_forget, store.owner.judge)


def forgettable_owners(store: Store, doomed: Sequence[Doomed]) -> int:
    """How many such rows there are, or will be once some runs are deleted."""
    return len(store.ask(_forgettable, store.owner.judge, frozenset(run.seq for run in doomed)))


def _forgettable(tx: Tx, judge: Judge, doomed: frozenset[int] = frozenset()) -> list[str]:
    dead = [token for token, row in owners_by_token(tx).items() if judge(row) == "dead"]
    named = {token for token, run in tx.all(_NAMED_OWNERS, {}) if run not in doomed} if dead else set()
    return [token for token in dead if token not in named]


def _forget(tx: Tx, judge: Judge) -> int:
    gone = _forgettable(tx, judge)
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
