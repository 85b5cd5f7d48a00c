"""The statements that several store modules share, and the one guarded way to number events.

``last_seq`` is raised by the same UPDATE that checks the run's epoch, so a number is never given twice and a writer
that lost its run cannot write.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field, fields
from typing import Any

from . import clock, errors
from .database_listen import TELL
from .database_sql import Statement, Tx
from .models import EventRow, OwnerRow, RunRow
from .sql import bindparam, events, insert, owners, runs, select, update


def columns_of(record: type, left_out: Container[str] = ()) -> tuple[str, ...]:
    """The columns of the table whose rows a record holds: its fields; a test holds the two equal."""
    return tuple(field.name for field in fields(record) if field.name not in left_out)


EVENT_COLUMNS = columns_of(EventRow)
#: The ``owner_token`` of a run that was stored as running by an import or a copy: no owner has it, so it is dead.
NOBODY = "imported"

# FOR UPDATE says nothing on SQLite, whose writers already hold the whole file.
_LOOK = Statement(
    lambda: select(runs.c.last_seq, runs.c.status, runs.c.epoch).where(runs.c.seq == bindparam("run")).with_for_update()
)
_RAISE_SEQ = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
        .values(last_seq=bindparam("last"), updated_at=bindparam("now"))
    ),
    server=TELL,
)
_ADVANCE = Statement(
    lambda: (
        update(runs)
        .where(
            runs.c.seq == bindparam("run"),
            runs.c.last_seq == bindparam("old"),
            runs.c.epoch == bindparam("old_epoch"),
            runs.c.status == "running",
        )
        .values(last_seq=bindparam("last"), updated_at=bindparam("now"))
    ),
    server=TELL,
)
_ADD_EVENT = Statement(
    lambda: insert(events),
    ("run_id", "seq", "ts", "type", "step_key", "attempt", "data"),
)
RUN_BY_ID = Statement(lambda: select(runs).where(runs.c.id == bindparam("wanted")).with_for_update())
RUN_BY_SEQ = Statement(lambda: select(runs).where(runs.c.seq == bindparam("run")).with_for_update())
OWNER_BY_TOKEN = Statement(lambda: select(owners).where(owners.c.token == bindparam("wanted")))


class Known:
    """What this process last saw of a run's numbering; touched under the write lock only.

    It saves the look before a write. It may be wrong (others write too, transactions roll back): the UPDATE that
    relies on it names what it believes in its WHERE, and finds no row then.
    """

    __slots__ = ("epoch", "last")

    def __init__(self) -> None:
        self.epoch = -1
        self.last = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Which run an operation writes to, and on what footing.

    Attributes:
        seq: the run's number.
        id: its id, for messages.
        epoch: the fencing number that must still hold; None for writers that own nothing.
        known: what was last seen of its numbering, shared by everything that writes to the run here.
    """

    seq: int
    id: str
    epoch: int | None = None
    known: Known | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Look:
    """What a write sees of its run before it writes."""

    last_seq: int
    status: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Skips:
    """What an execution kept in memory for its next write.

    Attributes:
        ranges: first and last number of the steps it skipped.
        marks: event type and step key of what it warned about.
    """

    ranges: list[list[int]]
    marks: tuple[tuple[str, str], ...] = ()


def look(tx: Tx, place: Place) -> Look:
    """Read the run under the write lock and check its epoch.

    Raises:
        RunNotFound: it was deleted.
        RunLost: its epoch moved.
    """
    tx.run_later()
    row = tx.one(_LOOK, {"run": place.seq})
    if row is None:
        raise errors.RunNotFound(place.id)
    found = Look(*row)
    if place.epoch is not None and found.epoch != place.epoch:
        raise errors.RunLost(place.id)
    return found


def raise_seq(tx: Tx, place: Place, found: Look, last: int, now: str) -> None:
    """Store the highest event number given, guarded by the epoch that was seen."""
    tx.run_later()
    touched = tx.run(_RAISE_SEQ, {"run": place.seq, "old_epoch": found.epoch, "last": last, "now": now})
    if touched != 1:
        raise errors.RunLost(place.id)
    if place.known is not None:
        place.known.epoch = found.epoch
        place.known.last = last


def next_seq(tx: Tx, place: Place, now: str) -> int | None:
    """The next event number, taken without a look when nothing has changed since the last write of this process.

    None means look first: somebody else wrote, the epoch moved, or the run is not running.
    """
    known = place.known
    if known is None or known.last < 0 or (place.epoch is not None and place.epoch != known.epoch):
        return None
    last, later = known.last + 1, tx.later
    if later is not None and (put_off := later.get(known)) is not None:
        # Checked by the first of this transaction, and nobody else writes meanwhile: the last one is stored for all.
        put_off[1]["last"], put_off[1]["now"] = last, now
        known.last = last
        return last
    values = {"run": place.seq, "old": known.last, "old_epoch": known.epoch, "last": last, "now": now}
    if tx.run(_ADVANCE, values) != 1:
        known.last = -1
        return None
    if later is not None:
        later[known] = _ADVANCE, values | {"old": last}
    known.last = last
    return last


def give_seq_back(tx: Tx, place: Place, seq: int, now: str) -> None:
    """The number from ``next_seq`` was not used after all."""
    assert place.known is not None  # next_seq() gave the number
    tx.run_later()
    values = {"run": place.seq, "old": seq, "old_epoch": place.known.epoch, "last": seq - 1, "now": now}
    tx.run(_ADVANCE, values)
    place.known.last = seq - 1


def add_event(
    tx: Tx,
    run: int,
    seq: int,
    now: str,
    type: str,
    step_key: str | None = None,
    attempt: int | None = None,
    data: str | None = None,
) -> None:
    """Insert one event row under a number that ``raise_seq`` stores."""
    values = {
        "run_id": run, "seq": seq, "ts": now, "type": type, "step_key": step_key, "attempt": attempt, "data": data,
    }  # fmt: skip
    tx.append(_ADD_EVENT, values)
    if data is not None:
        tx.weight += len(data)


def note(tx: Tx, place: Place, found: Look, type: str, data: str | None, skips: Skips | None) -> int:
    """Append one event of the run itself; its number."""
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, skips) + 1
    add_event(tx, place.seq, last, now, type, data=data)
    raise_seq(tx, place, found, last, now)
    return last


def add_skips(tx: Tx, place: Place, last: int, now: str, skips: Skips | None) -> int:
    """Insert the events of the collected ``skips``, when there are any; the highest number given so far."""
    if skips is None:
        return last
    for type, key in skips.marks:
        last += 1
        add_event(tx, place.seq, last, now, type, key)
    if skips.ranges:
        last += 1
        add_event(tx, place.seq, last, now, "skips", data=json.dumps({"ranges": skips.ranges}))
    return last


def run_row(tx: Tx, statement: Statement, values: dict[str, Any]) -> RunRow | None:
    """The run that a statement over all run columns finds."""
    row = tx.one(statement, values)
    return None if row is None else RunRow(*row)


def owner_row(tx: Tx, token: str) -> OwnerRow | None:
    """An owner by its token."""
    row = tx.one(OWNER_BY_TOKEN, {"wanted": token})
    return None if row is None else OwnerRow(*row)
