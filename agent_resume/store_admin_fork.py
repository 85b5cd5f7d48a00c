"""A new run that shares completed steps with another one. The source is only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from . import errors
from .codec import Encoded
from .database_sql import Statement, Tx
from .models import RunRow
from .sql import bindparam, insert, one_of, pauses, runs, select, steps, update
from .store_admin import locked, step_of
from .store_lineage import ancestors
from .store_records import record_new
from .store_runs import NewRun, create
from .store_sql import Look, Place, add_event, look, raise_seq

_KEPT = (
    "key", "status", "attempts", "effect", "fingerprint", "code_hash", "meta", "started_at", "finished_at",
    "duration_ms", "output_format", "output_bytes", "output",
)  # fmt: skip
_STEPS = Statement(
    lambda: (
        select(steps.c.id, steps.c.key, steps.c.seq, steps.c.status, steps.c.effect)
        .where(steps.c.run_id == bindparam("run"))
        .order_by(steps.c.seq)
    )
)
# Inside the database: an output of any size is copied without passing through this process.
_COPY = Statement(
    lambda: insert(steps).from_select(
        ["run_id", "seq", *_KEPT],
        select(bindparam("target"), bindparam("number"), *(steps.c[name] for name in _KEPT)).where(
            steps.c.id == bindparam("source")
        ),
    )
)
_COPY_ANSWERS = Statement(
    lambda: insert(pauses).from_select(
        ["run_id", "name", "kind", "reason", "context", "asked_at", "deadline", "value", "answered_at", "answered_by"],
        select(
            bindparam("target"), pauses.c.name, pauses.c.kind, pauses.c.reason, pauses.c.context, pauses.c.asked_at,
            pauses.c.deadline, pauses.c.value, pauses.c.answered_at, pauses.c.answered_by,
        ).where(pauses.c.run_id == bindparam("source"), pauses.c.answered_at.is_not(None)),
    )
)  # fmt: skip
_FORKS = Statement(
    lambda: select(runs.c.id, runs.c.status, runs.c.epoch).where(
        one_of(runs.c.id, bindparam("ids")), runs.c.forked_from.is_not(None)
    )
)
_ANSWERS = Statement(
    lambda: select(pauses.c.name).where(pauses.c.run_id == bindparam("run"), pauses.c.answered_at.is_not(None))
)
_INTERRUPT = Statement(lambda: update(runs).where(runs.c.seq == bindparam("run")).values(status="interrupted"))


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What to fork.

    Attributes:
        before: the step from which on nothing is shared; None shares every completed step.
        values: results that replace those of shared steps, or stand for steps that were not reached.
        answers: copy the source's answers too.
        run_id: the new run's id; None makes one.
    """

    before: str | None
    values: Mapping[str, Encoded]
    answers: bool
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork.

    Attributes:
        run: the new run.
        shared: keys of the steps that it shares.
        answers: names of the source's answers, copied or not.
        ahead: keys of values for steps that the source has not reached, if it has them at all.
        again: keys of steps with ``effect="once"`` that took effect in the source, or may have, and are not shared.
    """

    run: RunRow
    shared: tuple[str, ...]
    answers: tuple[str, ...]
    ahead: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


def fork(tx: Tx, place: Place, request: ForkRequest) -> Forked:
    """Make a run that goes on from the completed steps of another; it is stored as ``interrupted``, to be resumed.

    A value of ``request`` stands where its step was first reached; one of a step that was not reached, behind all.

    Raises:
        InvalidTransition: the source has no such step.
    """
    source = locked(tx, place)
    before = source.last_seq + 1 if request.before is None else step_of(tx, source, request.before).seq
    new = NewRun(
        source.name, request.run_id, source.input, source.input_digest, source.meta, source.parent_run_id, source.id,
        source.command,
    )  # fmt: skip
    made = create(tx, new, owner=None, status="running")
    target = Place(made.seq, made.id)
    shared, ahead, again = _share(tx, source, target, before, request)
    answers = tuple(str(name) for (name,) in tx.all(_ANSWERS, {"run": source.seq}))
    if request.answers:
        tx.execute(_COPY_ANSWERS, {"target": made.seq, "source": source.seq})
    _settle(tx, target)
    return Forked(locked(tx, target), tuple(shared), answers, tuple(ahead), tuple(again))


def is_fresh(run: RunRow) -> bool:
    """Whether nobody has executed a fork yet: an execution raises the epoch, or sets a run running."""
    return run.forked_from is not None and run.status == "interrupted" and run.epoch == 1


def fresh(tx: Tx, run_ids: list[str]) -> set[str]:
    """Those of some runs that are forks which nobody has executed yet."""
    found = tx.all(_FORKS, {"ids": json.dumps(run_ids)})
    return {run_id for run_id, status, epoch in found if status == "interrupted" and epoch == 1}


def _share(
    tx: Tx, source: RunRow, target: Place, before: int, request: ForkRequest
) -> tuple[list[str], list[str], list[str]]:
    now = locked(tx, target).created_at
    last = look(tx, target).last_seq + 1
    data = {"from": source.id, "before": request.before, "ancestors": ancestors(tx, source.id)}
    add_event(tx, target.seq, last, now, "forked", data=json.dumps(data))
    shared: list[str] = []
    again: list[str] = []
    unset = dict(request.values)
    for step, key, seq, status, effect in tx.all(_STEPS, {"run": source.seq}):
        if key in unset:
            last = _set(tx, target, last, key, unset.pop(key))
        elif seq < before and status == "completed":
            last += 1
            tx.execute(_COPY, {"target": target.seq, "number": last, "source": step})
            add_event(tx, target.seq, last, now, "copied", key)
            shared.append(str(key))
        elif effect == "once" and status != "failed":
            again.append(str(key))
    for key, encoded in unset.items():
        last = _set(tx, target, last, key, encoded)
    raise_seq(tx, target, look(tx, target), last, now)
    return shared, list(unset), again


def _set(tx: Tx, target: Place, last: int, key: str, encoded: Encoded) -> int:
    """Store a decided value behind event ``last``; the number of its own."""
    found = look(tx, target)
    return record_new(tx, target, Look(last, found.status, found.epoch), key, encoded, None, None).seq


def _settle(tx: Tx, target: Place) -> None:
    found: Look = look(tx, target)
    if tx.run(_INTERRUPT, {"run": target.seq}) != 1:
        raise errors.RunLost(target.id)
    now = locked(tx, target).updated_at
    add_event(tx, target.seq, found.last_seq + 1, now, "run_interrupted")
    raise_seq(tx, target, found, found.last_seq + 1, now)
