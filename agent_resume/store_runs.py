"""Runs: creating, finding, taking and settling them. Each function is one transaction's work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal

from . import clock, errors, ownership
from .database_location import SUPERVISOR
from .database_sql import Statement, Tx
from .models import OwnerRow, RunRow
from .names import LONGEST, shortened
from .sql import bindparam, delete, insert, or_, owners, runs, select, server_now, steps, update
from .store_sql import NOBODY, RUN_BY_ID, RUN_BY_SEQ, Look, Place, add_event, owner_row, raise_seq, run_row

#: Statuses of runs that ``agent_run`` without ``run_id`` may go on with.
UNFINISHED = ("running", "paused", "failed", "interrupted")

_ADD_OWNER = Statement(
    lambda: insert(owners).values(beat_at=server_now(bindparam("now"))), ("token", "host", "pid", "started", "beats")
)
_HAS_OWNER = Statement(lambda: select(owners.c.token).where(owners.c.token == bindparam("wanted")))
_BEAT = Statement(
    lambda: (
        update(owners)
        .where(owners.c.token == bindparam("wanted"))
        .values(beats=owners.c.beats + 1, beat_at=server_now(bindparam("now")))
    )
)
_DROP_OWNER = Statement(lambda: delete(owners).where(owners.c.token == bindparam("wanted")))
_CREATE = Statement(
    lambda: insert(runs),
    (
        "id", "name", "status", "last_seq", "input", "input_digest", "meta", "parent_run_id", "forked_from", "command",
        "created_at", "updated_at", "owner_token", "epoch",
    ),
)  # fmt: skip
_ID_TAKEN = Statement(lambda: select(runs.c.seq).where(runs.c.id == bindparam("wanted")))
_CANDIDATES = Statement(
    lambda: (
        select(runs.c.seq)
        .where(runs.c.name == bindparam("wanted"), or_(*(runs.c.status == status for status in UNFINISHED)))
        .where(runs.c.input_digest.is_not_distinct_from(bindparam("digest")))
        .order_by(runs.c.seq.desc())
    )
)
_TAKE = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
        .values(
            owner_token=bindparam("token"),
            epoch=bindparam("new_epoch"),
            status="running",
            error=None,
            finished_at=None,
            updated_at=bindparam("now"),
        )
    )
)
_CLEAR_STEPS = Statement(
    lambda: (
        update(steps)
        .where(steps.c.run_id == bindparam("run"), steps.c.status == "running")
        .where(steps.c.owner_token == bindparam("old_token"))
        .values(owner_token=None)
    )
)
_CLEAR_ALL_STEPS = Statement(
    lambda: (
        update(steps).where(steps.c.run_id == bindparam("run"), steps.c.status == "running").values(owner_token=None)
    )
)
RUNNING_OWNERS = Statement(
    lambda: (
        select(steps.c.owner_token).where(steps.c.run_id == bindparam("run"), steps.c.status == "running").distinct()
    )
)
SETTLE = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
        .values(
            status=bindparam("outcome"),
            result=bindparam("text"),
            result_format=bindparam("format"),
            error=bindparam("failure"),
            summary=bindparam("note"),
            finished_at=bindparam("finished"),
            owner_token=bindparam("owner"),
        )
    )
)


@dataclass(frozen=True, slots=True)
class OwnerSeed:
    """What this process writes of itself when it first owns something."""

    token: str
    host: str
    pid: int
    started: int | None


def register_owner(tx: Tx, seed: OwnerSeed) -> None:
    """Insert this process's row; nothing when it is there."""
    if tx.one(_HAS_OWNER, {"wanted": seed.token}) is None:
        values = {"token": seed.token, "host": seed.host, "pid": seed.pid, "started": seed.started, "beats": 0}
        tx.execute(_ADD_OWNER, values | {"now": clock.now_iso()})


def beat(tx: Tx, token: str) -> bool:
    """Count one beat; False when the row is gone."""
    return tx.run(_BEAT, {"wanted": token, "now": clock.now_iso()}) == 1


def drop_owner(tx: Tx, token: str) -> None:
    """Take this process's row away: it owns nothing any more."""
    tx.execute(_DROP_OWNER, {"wanted": token})


@dataclass(frozen=True, slots=True)
class NewRun:
    """What a run is created with.

    Attributes:
        id: the wished id; None makes ``<name>-<ms>``, with the number raised until it is free.
        input: tagged JSON, or None.
        meta: JSON object text, or None.
        command: JSON ``{"argv", "cwd"}``, or None.
    """

    name: str
    id: str | None = None
    input: str | None = None
    input_digest: str | None = None
    meta: str | None = None
    parent_run_id: str | None = None
    forked_from: str | None = None
    command: str | None = None


def create(
    tx: Tx, new: NewRun, *, owner: str | None, status: str = "running", data: dict[str, str] | None = None
) -> RunRow:
    """Insert a run with its ``created`` event, which gets ``data``.

    Raises:
        InvalidTransition: the wished id is taken (callers look first; this is for a race that cannot happen).
    """
    ms = clock.now_ms()
    stem = shortened(new.name, LONGEST - 20)  # an id, too, can be given back to us
    run_id = new.id if new.id is not None else f"{stem}-{ms}"
    number = ms
    while tx.one(_ID_TAKEN, {"wanted": run_id}) is not None:
        if new.id is not None:
            raise errors.InvalidTransition(
                run_id, status="there already", action="create the run", hint="choose another id", asked_wrongly=True
            )
        number += 1
        run_id = f"{stem}-{number}"
    now = clock.iso(ms)
    seq = tx.insert(
        _CREATE,
        {
            "id": run_id, "name": new.name, "status": status, "last_seq": 1, "input": new.input,
            "input_digest": new.input_digest, "meta": new.meta, "parent_run_id": new.parent_run_id,
            "forked_from": new.forked_from, "command": new.command, "created_at": now, "updated_at": now,
            "owner_token": owner, "epoch": 1,
        },
    )  # fmt: skip
    add_event(tx, seq, 1, now, "created", data=json.dumps(data) if data else None)
    made = run_row(tx, RUN_BY_SEQ, {"run": seq})
    assert made is not None  # inserted three lines up, in this transaction
    return made


def _supervised() -> dict[str, str]:
    """What the event says by which ``agent-resume run`` finds the run of its command."""
    supervisor = os.environ.get(SUPERVISOR)
    return {"supervisor": supervisor} if supervisor else {}


Judge = Callable[[OwnerRow], ownership.Verdict]


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What ``agent_run`` asks of the store.

    Attributes:
        seed: who asks.
        judge: verdict on an owner's row.
        executing: numbers of the runs that this process executes right now.
        in_flight: run and key of the steps that it is inside of.
    """

    new: NewRun
    seed: OwnerSeed
    judge: Judge
    executing: Container[int]
    in_flight: Iterable[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """What ``agent_run`` got.

    Attributes:
        kind: ``created``, ``taken`` (resumed), ``completed`` (nothing to do), ``in_use`` or ``watch``.
        run: the row as it is now.
        owner: who has it, for ``in_use`` and ``watch``.
        live_twin: id of a live run of equal name and input that was left alone.
        paused: it was paused when it was taken.
    """

    kind: Literal["created", "taken", "completed", "in_use", "watch"]
    run: RunRow
    owner: OwnerRow | None = None
    live_twin: str | None = None
    was: str = "running"


def open_run(tx: Tx, request: OpenRequest) -> Opened:
    """Find or create the run that ``agent_run`` means, and take it.

    Raises:
        RunCancelled: the run of that id is cancelled.
        InvalidTransition: the run of that id has another name.
    """
    new = request.new
    if new.id is not None:
        row = _find(tx, new.id)
        if row is None:
            return _create_owned(tx, request, None)
        if row.name != new.name:
            raise errors.InvalidTransition(
                row.id, status=f"a run of {row.name!r}", action=f"continue it as {new.name!r}", hint="use its own name"
            )
        if row.status == "completed":
            return Opened("completed", row)
        if row.status == "cancelled":
            raise errors.RunCancelled(row.id)
        return _take_if_free(tx, request, row)
    live_twin: str | None = None
    # Two that look for the same run at once: the second must see what the first did.
    tx.lock(f"open a run of {new.name}")
    for (seq,) in tx.all(_CANDIDATES, {"wanted": new.name, "digest": new.input_digest}):
        # Once more under its lock: on a server it may have changed since the list was made.
        row = run_row(tx, RUN_BY_SEQ, {"run": seq})
        if row is None or row.status not in UNFINISHED:
            continue
        opened = _take_if_free(tx, request, row)
        if opened.kind != "in_use":
            return opened
        live_twin = live_twin or row.id
    return _create_owned(tx, request, live_twin)


def _find(tx: Tx, run_id: str) -> RunRow | None:
    """A run by its id, locked; None when there is none, and then nobody else is creating it."""
    row = run_row(tx, RUN_BY_ID, {"wanted": run_id})
    if row is None:
        tx.lock(f"create run {run_id}")
        row = run_row(tx, RUN_BY_ID, {"wanted": run_id})
    return row


def _create_owned(tx: Tx, request: OpenRequest, live_twin: str | None) -> Opened:
    register_owner(tx, request.seed)
    return Opened("created", create(tx, request.new, owner=request.seed.token, data=_supervised()), live_twin=live_twin)


def _take_if_free(tx: Tx, request: OpenRequest, row: RunRow) -> Opened:
    if row.seq in request.executing:
        return Opened("in_use", row, owner_row(tx, row.owner_token) if row.owner_token else None)
    owner = owner_row(tx, row.owner_token) if row.owner_token is not None else None
    if owner is not None and row.status in ("running", "paused"):  # paused: its process is still on the way out
        verdict = "dead" if owner.token == request.seed.token else request.judge(owner)
        if verdict == "alive":
            return Opened("in_use", row, owner)
        if verdict == "unknown":
            return Opened("watch", row, owner)
    elif row.status == "running" and row.owner_token is None:
        # A Checkpoint's: whoever is inside one of its steps has it.
        for (token,) in tx.all(RUNNING_OWNERS, {"run": row.seq}):
            other = owner_row(tx, token) if token is not None else None
            if other is None or (token == request.seed.token and row.seq not in {run for run, _ in request.in_flight}):
                continue
            verdict = request.judge(other)
            if verdict != "dead":
                return Opened("in_use" if verdict == "alive" else "watch", row, other)
    register_owner(tx, request.seed)
    return Opened("taken", take(tx, row, request.seed.token, owner), was=row.status)


def take(tx: Tx, row: RunRow, token: str, old: OwnerRow | None) -> RunRow:
    """Make ``token`` the owner: epoch + 1, and the old owner's running steps are nobody's."""
    now = clock.now_iso()
    values = {"run": row.seq, "old_epoch": row.epoch, "new_epoch": row.epoch + 1, "token": token, "now": now}
    if tx.run(_TAKE, values) != 1:
        raise errors.RunLost(row.id)
    if row.owner_token is not None:
        tx.execute(_CLEAR_STEPS, {"run": row.seq, "old_token": row.owner_token})
    data = {"from": row.status} | _supervised()
    if old is not None and row.status == "running":  # it died, or was thrown out
        data |= {"host": ownership.host_name(old.host), "pid": str(old.pid)}
    place = Place(row.seq, row.id, row.epoch + 1)
    add_event(tx, row.seq, row.last_seq + 1, now, "resumed", data=json.dumps(data))
    raise_seq(tx, place, Look(row.last_seq, "running", row.epoch + 1), row.last_seq + 1, now)
    taken = run_row(tx, RUN_BY_SEQ, {"run": row.seq})
    assert taken is not None  # read and updated in this transaction
    return taken


def enter(tx: Tx, run_id: str, new: NewRun) -> RunRow:
    """What a ``Checkpoint``'s first writing call does: create the run, or set an unfinished one running.

    Raises:
        RunCancelled: it is cancelled.
    """
    row = _find(tx, run_id)
    if row is None:
        return create(tx, new, owner=None, data=_supervised())
    if row.status == "cancelled":
        raise errors.RunCancelled(row.id)
    supervised = _supervised()
    left_behind = row.status != "running" or row.owner_token == NOBODY
    if row.status == "completed" or not (left_behind or supervised):
        return row
    place = Place(row.seq, row.id, row.epoch)
    now = clock.now_iso()
    if left_behind:
        _set_status(tx, row, "running", owner=None)
    data = {"from": row.status} | supervised
    add_event(tx, row.seq, row.last_seq + 1, now, "resumed", data=json.dumps(data))
    raise_seq(tx, place, Look(row.last_seq, "running", row.epoch), row.last_seq + 1, now)
    entered = run_row(tx, RUN_BY_SEQ, {"run": row.seq})
    assert entered is not None  # read and updated in this transaction
    return entered


def _set_status(tx: Tx, row: RunRow, status: str, *, owner: str | None) -> None:
    settle = {
        "run": row.seq, "old_epoch": row.epoch, "outcome": status, "text": row.result, "format": row.result_format,
        "failure": None, "note": row.summary, "finished": None, "owner": owner,
    }  # fmt: skip
    if tx.run(SETTLE, settle) != 1:
        raise errors.RunLost(row.id)
