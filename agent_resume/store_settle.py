"""How executions end: settling, letting go, cancelling. Each function is one transaction's work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import clock, errors
from .codec import Encoded
from .database_sql import Statement, Tx
from .models import RunRow
from .sql import bindparam, runs, select, steps, update
from .store_records import add_losses
from .store_runs import SETTLE
from .store_sql import RUN_BY_SEQ, Place, Skips, add_event, add_skips, look, raise_seq, run_row

_CANCEL = Statement(
    lambda: update(runs).where(runs.c.seq == bindparam("run")).values(status="cancelled", finished_at=bindparam("now"))
)
_SET_RESULT = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"))
        .values(result=bindparam("text"), result_format=bindparam("format"))
    )
)
_RUNNING = Statement(
    lambda: select(steps.c.key, steps.c.owner_token).where(
        steps.c.run_id == bindparam("run"), steps.c.status == "running", steps.c.owner_token.is_not(None)
    )
)
_SET_SUMMARY = Statement(lambda: update(runs).where(runs.c.seq == bindparam("run")).values(summary=bindparam("note")))
_RELEASE = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
        .where(runs.c.owner_token == bindparam("token"))
        .values(owner_token=None)
    )
)
_RELEASE = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
        .where(runs.c.owner_token == bindparam("token"))
        .values(owner_token=None)
    )
)


def release(tx: Tx, place: Place, token: str) -> None:
    """Let go of a run without changing its status (it is paused, or ended already)."""
    tx.execute(_RELEASE, {"run": place.seq, "old_epoch": place.epoch, "token": token})


Settled = Literal["completed", "failed", "interrupted", "paused"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How an execution ended.

    Attributes:
        result: the body's value, for ``completed``.
        failure: why, for ``failed`` and ``interrupted``.
        summary: tagged JSON that ``done()`` was given; None leaves what is stored.
        skips: the collected skips.
        lost: how many events could not be written.
        executes: whether a step stored as running is being executed (its key and owner are given); then the run does
            not end.
    """

    status: Settled
    result: Encoded | None = None
    failure: dict[str, Any] | None = None
    summary: str | None = None
    skips: Skips | None = None
    lost: int = 0
    executes: Callable[[Tx, int, str, str], bool] | None = None


_EVENT = {"completed": "completed", "failed": "failed", "interrupted": "run_interrupted", "paused": "released"}


def settle(tx: Tx, place: Place, settlement: Settlement, keep_owner: bool = False) -> None:
    """Store how the run ended, by compare-and-set on epoch and status, and let go of it.

    Args:
        keep_owner: the body goes on for a while (``done()`` inside ``agent_run``), so it stays the owner's.

    Raises:
        RunLost: somebody else owns the run.
        RunCancelled: it was cancelled meanwhile.
        InvalidTransition: it ended in another way meanwhile (``done`` against ``pause``).
    """
    found = look(tx, place)
    row = run_row(tx, RUN_BY_SEQ, {"run": place.seq})
    assert row is not None  # look() found it in this transaction
    if found.status == "cancelled":
        raise errors.RunCancelled(place.id)
    if found.status != "running":
        raise errors.InvalidTransition(
            place.id, status=found.status, action=f"make it {settlement.status}", hint="only a running run can end"
        )
    _refuse_beside_a_step(tx, place, settlement)
    if settlement.lost:
        add_losses(tx, place, settlement.lost)
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, settlement.skips) + 1
    result = settlement.result
    values = {
        "run": place.seq, "old_epoch": found.epoch, "outcome": settlement.status,
        "text": result.text if result else row.result, "format": result.format if result else row.result_format,
        "failure": json.dumps(settlement.failure) if settlement.failure else None,
        "note": settlement.summary if settlement.summary is not None else row.summary,
        "finished": None if settlement.status == "paused" else now,
        "owner": row.owner_token if keep_owner else None,
    }  # fmt: skip
    if tx.run(SETTLE, values) != 1:
        raise errors.RunLost(place.id)
    data = json.dumps({"error": settlement.failure}) if settlement.failure else None
    add_event(tx, place.seq, last, now, _EVENT[settlement.status], data=data)
    raise_seq(tx, place, found, last, now)


def _refuse_beside_a_step(tx: Tx, place: Place, settlement: Settlement) -> None:
    if settlement.executes is None:
        return
    for key, token in tx.all(_RUNNING, {"run": place.seq}):
        if settlement.executes(tx, place.seq, key, token):
            raise errors.InvalidTransition(
                place.id, status=f"executing step {key!r}", action="call done()", hint="wait until every step has ended"
            )


def cancel(tx: Tx, place: Place) -> RunRow:
    """Make a run ``cancelled``, whoever owns it; nothing when it is already.

    Raises:
        InvalidTransition: it is completed.
    """
    found = look(tx, place)
    if found.status == "completed":
        raise errors.InvalidTransition(place.id, status="completed", action="cancel it", hint="it has ended already")
    if found.status != "cancelled":
        now = clock.now_iso()
        tx.execute(_CANCEL, {"run": place.seq, "now": now})
        add_event(tx, place.seq, found.last_seq + 1, now, "cancelled")
        raise_seq(tx, place, found, found.last_seq + 1, now)
    row = run_row(tx, RUN_BY_SEQ, {"run": place.seq})
    assert row is not None  # look() found it in this transaction
    return row


def attach(tx: Tx, place: Place, result: Encoded | None, summary: str | None) -> None:
    """Give a completed run its body's result, or another summary; nothing else of it changes.

    Raises:
        InvalidTransition: it is not completed.
    """
    found = look(tx, place)
    if found.status != "completed":
        raise errors.InvalidTransition(place.id, status=found.status, action="complete it again", hint="start it again")
    now = clock.now_iso()
    if result is not None:
        tx.execute(_SET_RESULT, {"run": place.seq, "text": result.text, "format": result.format})
    if summary is not None:
        tx.execute(_SET_SUMMARY, {"run": place.seq, "note": summary})
    fields = json.dumps({"fields": ["result"] * (result is not None) + ["summary"] * (summary is not None)})
    add_event(tx, place.seq, found.last_seq + 1, now, "state", data=fields)
    raise_seq(tx, place, found, found.last_seq + 1, now)
