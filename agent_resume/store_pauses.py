"""Pauses, waits, sleeps, and the answers to them. One transaction each.

Answers go by name, the first one wins, early ones are kept, and they never need ownership.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from . import clock, errors
from .database_sql import Statement, Tx
from .models import PauseRow
from .sql import bindparam, insert, one_of, pauses, runs, select, update
from .store_sql import RUN_BY_ID, Look, Place, Skips, add_event, add_skips, look, raise_seq, run_row
from .store_steps import refuse_unless_running

_BY_NAME = Statement(
    lambda: select(pauses).where(pauses.c.run_id == bindparam("run"), pauses.c.name == bindparam("wanted"))
)
_OF_RUN = Statement(lambda: select(pauses).where(pauses.c.run_id == bindparam("run")).order_by(pauses.c.id))
_ADD = Statement(
    lambda: insert(pauses),
    ("run_id", "name", "kind", "reason", "context", "asked_at", "deadline", "value", "answered_at", "answered_by"),
)
_ASK_AGAIN = Statement(
    lambda: (
        update(pauses)
        .where(pauses.c.id == bindparam("pause"))
        .values(
            kind=bindparam("sort"),
            reason=bindparam("why"),
            context=bindparam("with"),
            asked_at=bindparam("now"),
            deadline=bindparam("until"),
        )
    )
)
_ANSWER = Statement(
    lambda: (
        update(pauses)
        .where(pauses.c.id == bindparam("pause"), pauses.c.answered_at.is_(None))
        .values(value=bindparam("text"), answered_at=bindparam("now"), answered_by=bindparam("who"))
    )
)
_ANSWERED = Statement(
    lambda: select(runs.c.id, runs.c.status).where(
        one_of(runs.c.id, bindparam("ids")),
        ~select(pauses.c.id)
        .where(
            pauses.c.run_id == runs.c.seq,
            pauses.c.asked_at.is_not(None),
            pauses.c.answered_at.is_(None),
            pauses.c.kind == "pause",
        )
        .exists(),
    )
)
_PAUSE_RUN = Statement(
    lambda: (
        update(runs)
        .where(runs.c.seq == bindparam("run"), runs.c.epoch == bindparam("old_epoch"), runs.c.status == "running")
        .values(status="paused")
    )
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        kind: ``pause`` stops the run; ``wait`` and ``sleep`` do not.
        context: tagged JSON, or None.
        deadline: ISO UTC, or None.
    """

    name: str
    kind: Literal["pause", "wait", "sleep"]
    reason: str | None
    context: str | None = None
    deadline: str | None = None


def pause_of(tx: Tx, run: int, name: str) -> PauseRow | None:
    """A pause by its name."""
    row = tx.one(_BY_NAME, {"run": run, "wanted": name})
    return None if row is None else PauseRow(*row)


def pauses_of(tx: Tx, run: int) -> list[PauseRow]:
    """Every pause of a run, in the order they were asked or answered first."""
    return [PauseRow(*row) for row in tx.all(_OF_RUN, {"run": run})]


def answered(tx: Tx, run_ids: list[str]) -> set[str]:
    """Those of some paused runs that have no open question left: they only have to be started."""
    # Asked for the status too, SQLite would go through all that are paused.
    return {run_id for run_id, status in tx.all(_ANSWERED, {"ids": json.dumps(run_ids)}) if status == "paused"}


def ask(tx: Tx, place: Place, question: Question, skips: Skips | None = None) -> PauseRow:
    """Answered: the answer. Else store the question and, for a ``pause``, stop the run.

    Raises:
        RunCancelled: the run was cancelled.
        InvalidTransition: the run is not running (two threads pause at once: the second finds it paused), or the name
            is that of a sleep, or of a wait that timed out.
    """
    found = look(tx, place)
    old = pause_of(tx, place.seq, question.name)
    if found.status == "cancelled":
        raise errors.RunCancelled(place.id)
    if old is not None:
        _refuse_other_kind(place, question, old)
    if old is not None and old.answered_at is not None:
        if old.asked_at is None:
            _store(tx, place, found, question, old, skips)
        return pause_of(tx, place.seq, question.name) or old
    # Two threads may pause at once; the second question is stored beside the first.
    if found.status != "paused" or question.kind != "pause":
        refuse_unless_running(found, place, f"pause at {question.name!r}")
    _store(tx, place, found, question, old, skips)
    asked = pause_of(tx, place.seq, question.name)
    assert asked is not None  # stored two lines up
    return asked


def _refuse_other_kind(place: Place, question: Question, old: PauseRow) -> None:
    # A person's answer is one to a pause and to a wait alike; what the clock answered, nobody was asked.
    by_clock = "sleep" in (old.kind, question.kind) or old.answered_by == "timeout"
    if old.kind != question.kind and by_clock:
        raise errors.InvalidTransition(
            place.id,
            status=f"past {f'a {old.kind}' if old.asked_at is not None else 'an answer'} named {question.name!r}",
            action=f"use that name for a {question.kind}",
            hint="pauses, waits and sleeps share their names; give each its own",
        )


def _store(tx: Tx, place: Place, found: Look, question: Question, old: PauseRow | None, skips: Skips | None) -> None:
    now = clock.now_iso()
    values = {
        "name": question.name, "reason": question.reason, "context": question.context, "deadline": question.deadline,
    }  # fmt: skip
    if old is None:
        tx.insert(
            _ADD,
            {
                "run_id": place.seq, "kind": question.kind, "asked_at": now, "value": None, "answered_at": None,
                "answered_by": None,
            }
            | values,
        )  # fmt: skip
    else:
        # A wait that goes on after a kill keeps the deadline it was first given.
        until = old.deadline if question.kind != "pause" and old.deadline is not None else question.deadline
        tx.run(
            _ASK_AGAIN,
            {
                "pause": old.id, "sort": question.kind, "why": question.reason, "with": question.context,
                "now": old.asked_at or now, "until": until,
            },
        )  # fmt: skip
        if question.kind != "pause":
            return
    answered = old is not None and old.answered_at is not None
    if question.kind == "pause" and not answered:
        tx.run(_PAUSE_RUN, {"run": place.seq, "old_epoch": found.epoch})
    last = add_skips(tx, place, found.last_seq, now, skips) + 1
    kind = "paused" if question.kind == "pause" else question.kind
    data = {"name": question.name, "reason": question.reason}
    if question.deadline is not None:
        data["deadline"] = question.deadline
    add_event(tx, place.seq, last, now, kind, data=json.dumps(data))
    raise_seq(tx, place, found, last, now)


def answer(tx: Tx, run_id: str, name: str | None, value: str, by: str) -> tuple[PauseRow, bool]:
    """Deliver a value; the pause as it is now, and whether this answer is the one that counts.

    Args:
        name: None means the only open question.
        value: tagged JSON.

    Raises:
        RunNotFound: no such run.
        InvalidTransition: no name was given and there is not exactly one open question, or the run has ended.
    """
    run = run_row(tx, RUN_BY_ID, {"wanted": run_id})
    if run is None:
        raise errors.RunNotFound(run_id)
    if run.status in ("completed", "cancelled"):
        raise errors.InvalidTransition(run.id, status=run.status, action="answer", hint="it asks nothing any more")
    place = Place(run.seq, run.id)
    if name is None:
        name = _only_open(tx, place, run.status)
    now = clock.now_iso()
    old = pause_of(tx, run.seq, name)
    if old is not None and old.kind == "sleep":
        raise errors.InvalidTransition(
            run.id, status=f"sleeping at {name!r}", action="answer", hint="a sleep asks nothing and ends by itself"
        )
    if old is not None and old.answered_at is not None:
        return old, False
    if old is None:
        tx.insert(
            _ADD,
            {
                "run_id": run.seq, "name": name, "kind": "pause", "reason": None, "context": None, "asked_at": None,
                "deadline": None, "value": value, "answered_at": now, "answered_by": by,
            },
        )  # fmt: skip
    else:
        tx.run(_ANSWER, {"pause": old.id, "text": value, "now": now, "who": by})
    add_event(tx, run.seq, run.last_seq + 1, now, "answered", data=json.dumps({"name": name, "by": by}))
    raise_seq(tx, place, Look(run.last_seq, run.status, run.epoch), run.last_seq + 1, now)
    answered = pause_of(tx, run.seq, name)
    assert answered is not None  # stored above
    return answered, True


def _only_open(tx: Tx, place: Place, status: str) -> str:
    asked = [pause for pause in pauses_of(tx, place.seq) if pause.kind != "sleep" and pause.asked_at is not None]
    waiting = [pause.name for pause in asked if pause.is_open and not pause.is_over]
    if len(waiting) == 1:
        return waiting[0]
    what = f"waiting for {', '.join(map(repr, waiting))}" if waiting else "waiting for nothing"
    hint = "give the name: --name NAME" if waiting else _why_nothing_is_open(asked, place.id)
    raise errors.InvalidTransition(
        place.id, status=status, said=f"is {what}", action="answer", hint=hint, asked_wrongly=bool(waiting)
    )


def _why_nothing_is_open(asked: list[PauseRow], run_id: str) -> str:
    answered = ", ".join(repr(pause.name) for pause in asked if pause.answered_by not in (None, "timeout"))
    over = ", ".join(repr(pause.name) for pause in asked if pause.is_over)
    said = [f"answered already, and the first answer counts: {answered}"] if answered else []
    said += [f"its time is over, a late answer must name it (--name NAME): {over}"] if over else []
    said += [] if said else ["an answer before it asks must give the name: --name NAME"]
    return "; ".join([*said, f"agent-resume resume -- {run_id!r} says how to go on"])


def end_wait(tx: Tx, place: Place, name: str, value: str, by: str) -> PauseRow:
    """A wait's timeout, or a sleep's end: stored like an answer, so that every later execution sees the same.

    Returns:
        The pause as it is now; somebody's answer may have come first.
    """
    found = look(tx, place)
    old = pause_of(tx, place.seq, name)
    assert old is not None  # the caller asked it
    now = clock.now_iso()
    if tx.run(_ANSWER, {"pause": old.id, "text": value, "now": now, "who": by}) == 1:
        last = found.last_seq + 1
        add_event(tx, place.seq, last, now, "answered", data=json.dumps({"name": name, "by": by}))
        raise_seq(tx, place, found, last, now)
    ended = pause_of(tx, place.seq, name)
    assert ended is not None  # it was there, and pauses are never deleted alone
    return ended
