"""What people decide about a run from outside: taking it over, reopening it, settling doubts, who may execute it.

Each function is one transaction's work, and each numbers its event through ``store_sql``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import clock, errors, ownership
from .codec import Encoded
from .database_sql import Statement, Tx
from .models import OwnerRow, RunRow, StepRow
from .sql import bindparam, events, func, or_, runs, select, steps, update
from .store_queries import STEP_COLUMNS, begun_at
from .store_runs import RUNNING_OWNERS, OwnerSeed
from .store_sql import RUN_BY_SEQ, Look, Place, add_event, owner_row, raise_seq, run_row

Judge = Callable[[OwnerRow], ownership.Verdict]

_REOPEN = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"))
        .values(
            status="interrupted",
            owner_token=None,
            epoch=runs.c.epoch + 1,
            finished_at=bindparam("now"),
            result=None,
            result_format=None,
        )
    )
)
_CLEAR_STEPS = Statement(
    lambda: (
        update(steps).where(steps.c.run_id == bindparam("run"), steps.c.status == "running").values(owner_token=None)
    )
)
_STEP = Statement(
    lambda: select(*(steps.c[name] for name in STEP_COLUMNS)).where(
        steps.c.run_id == bindparam("run"), steps.c.key == bindparam("wanted")
    )
)
_SET_DONE = Statement(
    lambda: (
        update(steps)
        .where(steps.c.id == bindparam("step"))
        .values(
            status="completed",
            finished_at=bindparam("now"),
            error=None,
            owner_token=None,
            output_format=bindparam("format"),
            output_bytes=bindparam("bytes"),
            output=bindparam("text"),
        )
    )
)
_SET_AGAIN = Statement(
    lambda: update(steps).where(steps.c.id == bindparam("step")).values(status="interrupted", owner_token=None)
)
_NEWEST_EXEC = Statement(
    lambda: (
        select(events.c.ts, events.c.data)
        .where(events.c.run_id == bindparam("run"), events.c.type == "exec")
        .order_by(events.c.seq.desc())
        .limit(1)
    )
)


def locked(tx: Tx, place: Place) -> RunRow:
    """The run's row under the write lock.

    Raises:
        RunNotFound: it was deleted.
    """
    row = run_row(tx, RUN_BY_SEQ, {"run": place.seq})
    if row is None:
        raise errors.RunNotFound(place.id)
    return row


def append(
    tx: Tx,
    row: RunRow,
    type: str,
    data: dict[str, Any] | None = None,
    *,
    step: StepRow | None = None,
    epoch: int | None = None,
    changed: bool = True,
) -> None:
    """Number and store one event of a run whose row was just read.

    Args:
        epoch: when this transaction raised it.
        changed: False for what only names the run: how long an unfinished one took is told by its last change.
    """
    now = clock.now_iso()
    seq = row.last_seq + 1
    text = None if data is None else json.dumps(data)
    add_event(
        tx, row.seq, seq, now, type, None if step is None else step.key, None if step is None else step.attempts, text
    )
    last_change = now if changed else row.updated_at
    raise_seq(tx, Place(row.seq, row.id), Look(row.last_seq, row.status, epoch or row.epoch), seq, last_change)


def live_owner(tx: Tx, judge: Judge, row: RunRow) -> OwnerRow | None:
    """Whoever may be executing the run, or a step of it, right now."""
    # A cancelled run's process is told at its next step, and may be inside one until then.
    tokens = [row.owner_token] if row.status in ("running", "paused", "cancelled") else []
    tokens += [token for (token,) in tx.all(RUNNING_OWNERS, {"run": row.seq})]
    for token in tokens:
        owner = None if token is None else owner_row(tx, token)
        if owner is not None and judge(owner) != "dead":
            return owner
    return None


def refuse_if_live(tx: Tx, judge: Judge, row: RunRow, option: str = "--take-over") -> None:
    """Nobody else may be executing the run.

    Args:
        option: of ``resume``, what takes it from its owner all the same.

    Raises:
        RunInUse: somebody does, or may.
    """
    owner = live_owner(tx, judge, row)
    if owner is not None:
        host = ownership.host_name(owner.host)
        raise errors.RunInUse(row.id, host=host, pid=owner.pid, since=begun_at(tx, row.seq), option=option)


# -- taking over -----------------------------------------------------------------------------------------------------


def take_over(tx: Tx, place: Place) -> RunRow:
    """Take a run from its owner, alive or not: the epoch fences it, and a resume may go on.

    Raises:
        InvalidTransition: nobody has it.
    """
    row = locked(tx, place)
    if row.status not in ("running", "paused") or (row.status == "paused" and row.owner_token is None):
        hint = (
            "--force reopens it"
            if row.status == "cancelled"
            else "nobody executes it, so there is nothing to take over"
        )
        raise errors.InvalidTransition(row.id, status=row.status, action="take it over", hint=hint)
    return _reopen(tx, row)


def reopen(tx: Tx, place: Place, judge: Judge | None = None) -> RunRow:
    """Make a cancelled run resumable again.

    Args:
        judge: None also takes it from a process that is still in it.

    Raises:
        InvalidTransition: it is not cancelled.
        RunInUse: a live process is still in it.
    """
    row = locked(tx, place)
    if row.status != "cancelled":
        raise errors.InvalidTransition(
            row.id, status=row.status, action="reopen it", hint="--force is for cancelled runs; resume it as it is"
        )
    if judge is not None:
        refuse_if_live(tx, judge, row, "--take-over --force")
    return _reopen(tx, row)


def _reopen(tx: Tx, row: RunRow) -> RunRow:
    owner = None if row.owner_token is None else owner_row(tx, row.owner_token)
    tx.execute(_REOPEN, {"run": row.seq, "now": clock.now_iso()})
    tx.execute(_CLEAR_STEPS, {"run": row.seq})
    data: dict[str, Any] = {"from": row.status}
    if owner is not None:
        data |= {"host": ownership.host_name(owner.host), "pid": owner.pid}
    append(tx, row, "taken_over", data, epoch=row.epoch + 1)
    return locked(tx, Place(row.seq, row.id))


# -- doubts ----------------------------------------------------------------------------------------------------------


def mark_done(tx: Tx, judge: Judge, place: Place, key: str, encoded: Encoded, by: str) -> None:
    """Complete a step with a value that somebody vouches for.

    Raises:
        RunNotFound, InvalidTransition: no such step; it is completed already, or the run has ended.
        StepInFlight: a live process executes it.
    """
    row = locked(tx, place)
    step = _open_step(tx, judge, row, key, "mark it done")
    size = len(encoded.text.encode())
    values = {"step": step.id, "now": clock.now_iso(), "format": encoded.format, "bytes": size, "text": encoded.text}
    tx.execute(_SET_DONE, values)
    append(tx, row, "done", {"by": by}, step=step)


def retry(tx: Tx, judge: Judge, place: Place, key: str, by: str) -> None:
    """Decide that a step did not take effect: a resume runs it again.

    Raises:
        RunNotFound, InvalidTransition, StepInFlight: as for ``mark_done``.
    """
    row = locked(tx, place)
    step = _open_step(tx, judge, row, key, "run it again")
    if step.status == "running":  # no claim will meet it so and say it
        append(tx, row, "unknown", step=step)
        row = locked(tx, place)
    tx.execute(_SET_AGAIN, {"step": step.id})
    append(tx, row, "retry", {"by": by}, step=step)


def step_of(tx: Tx, row: RunRow, key: str) -> StepRow:
    """A step by its key.

    Raises:
        InvalidTransition: the run has none of that key.
    """
    found = tx.one(_STEP, {"run": row.seq, "wanted": key})
    if found is None:
        raise errors.InvalidTransition(
            row.id,
            status=row.status,
            said=f"has no step {key!r}",
            action="find it",
            hint=f"agent-resume show -- {row.id!r} lists its steps",
            asked_wrongly=True,
        )
    return StepRow(*found)


def _open_step(tx: Tx, judge: Judge, row: RunRow, key: str, action: str) -> StepRow:
    step = step_of(tx, row, key)
    if row.status in ("completed", "cancelled"):
        raise errors.InvalidTransition(
            row.id, status=row.status, action=action, hint="only an unfinished run has doubts"
        )
    if step.status == "completed":
        raise errors.InvalidTransition(
            row.id, status=row.status, said=f"has completed step {key!r} already", action=action,
            hint=f"to discard its stored result: agent-resume rerun -- {row.id!r} {key!r}",
        )  # fmt: skip
    owner = None if step.owner_token is None or step.status != "running" else owner_row(tx, step.owner_token)
    if owner is not None and judge(owner) != "dead":
        raise errors.StepInFlight(row.id, key, host=ownership.host_name(owner.host), pid=owner.pid)
    return step


# -- who may execute -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecClaim:
    """Who wants to start a run's command."""

    seed: OwnerSeed
    judge: Judge


def claim_exec(tx: Tx, place: Place, claim: ExecClaim) -> RunRow:
    """Note that this process starts the run's command now; of several that try at once, one gets through.

    Between the start of a command and its first call of ``agent_run`` nobody owns the run; this closes that gap.

    Raises:
        RunInUse: a live process executes it, or has just started its command.
        RunCancelled: it is cancelled.
    """
    row = locked(tx, place)
    if row.status == "cancelled":
        raise errors.RunCancelled(row.id)
    refuse_if_live(tx, claim.judge, row)
    newest = tx.one(_NEWEST_EXEC, {"run": row.seq})
    if newest is not None:
        since, text = newest
        data = json.loads(text)
        starter = OwnerRow("", str(data["host"]), int(data["pid"]), data["started"], 0, since)
        mine = (claim.seed.pid, claim.seed.started) == (starter.pid, starter.started)
        if not mine and "ended" not in data and claim.judge(starter) == "alive":
            raise errors.RunInUse(row.id, host=ownership.host_name(starter.host), pid=starter.pid, since=since)
    seed = claim.seed
    append(tx, row, "exec", {"host": seed.host, "pid": seed.pid, "started": seed.started})
    return locked(tx, place)


# -- which run a command executes -------------------------------------------------------------------------------------

_NEWEST_EVENT = Statement(lambda: select(func.max(events.c.id)))
_BEGUN_UNDER = Statement(
    lambda: (
        select(runs.c.id)
        .join(events, events.c.run_id == runs.c.seq)
        .where(events.c.id > bindparam("after"), or_(events.c.type == "created", events.c.type == "resumed"))
        .where(events.c.data.like(bindparam("mark")))
        .order_by(events.c.id)
        .limit(1)
    )
)


def newest_event(tx: Tx) -> int:
    """The id of the newest event of the store; 0 when there is none."""
    row = tx.one(_NEWEST_EVENT, {})
    return 0 if row is None or row[0] is None else int(row[0])


def run_begun_under(tx: Tx, supervisor: str, after: int) -> str | None:
    """The first run that a process under this ``agent-resume run`` began or resumed since event ``after``.

    Not asked of the process' number: the command may be a shell, and another program's run must never be taken for it.
    """
    row = tx.one(_BEGUN_UNDER, {"after": after, "mark": f'%"supervisor": "{supervisor}"%'})
    return None if row is None else str(row[0])
