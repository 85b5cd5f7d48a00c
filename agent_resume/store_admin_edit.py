"""Changing what is stored of a run: its name, its tags, and discarding results. One transaction each."""

from __future__ import annotations

import json
from typing import Any

from . import errors
from .database_sql import Statement, Tx
from .models import RunRow
from .sql import bindparam, delete, events, or_, pauses, runs, select, steps, update
from .store_admin import Judge, append, locked, refuse_if_live, step_of
from .store_index import KEPT_ERROR
from .store_pauses import pauses_of
from .store_sql import Place

_RENAME = Statement(lambda: update(runs).where(runs.c.seq == bindparam("run")).values(name=bindparam("wanted")))
_SET_META = Statement(lambda: update(runs).where(runs.c.seq == bindparam("run")).values(meta=bindparam("text")))
_AFTER = Statement(
    lambda: (
        select(steps.c.key)
        .where(
            steps.c.run_id == bindparam("run"),
            steps.c.seq > bindparam("after"),
            or_(steps.c.status == "completed", steps.c.output_format == KEPT_ERROR),
        )
        .order_by(steps.c.seq)
    )
)
_QUESTIONS = Statement(
    lambda: (
        select(events.c.data, events.c.seq)
        .where(
            events.c.run_id == bindparam("run"),
            or_(events.c.type == "paused", events.c.type == "wait", events.c.type == "sleep"),
        )
        .order_by(events.c.seq)
    )
)
_FORGET = Statement(lambda: delete(pauses).where(pauses.c.id == bindparam("pause")))
_DISCARD = Statement(
    lambda: update(steps)
    .where(steps.c.id == bindparam("step"))
    .values(
        status="interrupted", owner_token=None, finished_at=None, duration_ms=None, error=None, fingerprint=None,
        code_hash=None, output_format=None, output_bytes=None, output=None,
    )
)  # fmt: skip
_UNFINISH = Statement(
    lambda: update(runs)
    .where(runs.c.seq == bindparam("run"))
    .values(
        status="interrupted", owner_token=None, epoch=runs.c.epoch + 1, finished_at=None, result=None,
        result_format=None, error=None,
    )
)  # fmt: skip


def rename(tx: Tx, place: Place, name: str) -> RunRow:
    """Give a run another name; its id stays."""
    row = locked(tx, place)
    if row.name != name:
        tx.execute(_RENAME, {"run": row.seq, "wanted": name})
        append(tx, row, "renamed", {"from": row.name, "to": name}, changed=False)
    return locked(tx, place)


def tag(tx: Tx, place: Place, add: dict[str, Any], remove: tuple[str, ...]) -> dict[str, Any]:
    """Set and remove tags, kept in the run's ``meta`` under ``tags``; all tags as they are now."""
    row = locked(tx, place)
    meta = row.meta_dict
    old = meta.get("tags")
    before: dict[str, Any] = dict(old) if isinstance(old, dict) else {}
    tags = {name: value for name, value in (before | add).items() if name not in remove}
    if tags != before:
        meta = {**meta, "tags": tags} if tags else {name: value for name, value in meta.items() if name != "tags"}
        tx.execute(_SET_META, {"run": row.seq, "text": json.dumps(meta) if meta else None})
        append(tx, row, "state", {"fields": ["meta"]}, changed=False)
    return tags


def rerun(tx: Tx, judge: Judge, place: Place, key: str, downstream: bool) -> tuple[list[str], list[str]]:
    """Discard a step's stored outcome, so that the next resume runs it again.

    A completed run becomes resumable by it. Attempt numbers go on, and the events of the old attempts stay.

    Args:
        downstream: also whatever was first reached after it, answers included: what is asked may be another thing now.

    Returns:
        Keys of the steps, and names of the questions, whose results and answers were discarded.

    Raises:
        RunInUse: a live process executes the run.
        InvalidTransition: no such step, or nothing of it is stored; or the run is cancelled.
    """
    row = locked(tx, place)
    refuse_if_live(tx, judge, row)
    if row.status == "cancelled":
        raise errors.InvalidTransition(
            row.id,
            status="cancelled",
            action=f"run step {key!r} again",
            hint=f"to open it again: agent-resume resume --force -- {row.id!r}",
        )
    step = step_of(tx, row, key)
    later = [str(found) for (found,) in tx.all(_AFTER, {"run": row.seq, "after": step.seq})] if downstream else []
    answers = _forget_answers(tx, row, step.seq) if downstream else []
    stored = step.status == "completed" or step.output_format == KEPT_ERROR
    if not (stored or later or answers):
        raise errors.InvalidTransition(
            row.id,
            status=row.status,
            said=f"has no stored result of {key!r}",
            action="discard it",
            hint="the next resume runs it anyway",
        )
    if row.status == "completed":
        tx.execute(_UNFINISH, {"run": row.seq})
        append(tx, row, "reopened", {"from": row.status}, epoch=row.epoch + 1)
    discarded = ([key] if stored else []) + later
    for name in discarded:
        found = step_of(tx, row, name)
        tx.execute(_DISCARD, {"step": found.id})
        append(tx, locked(tx, place), "discarded", step=found)
    if answers:
        append(tx, locked(tx, place), "discarded", {"answers": answers})
    return discarded, answers


def _forget_answers(tx: Tx, row: RunRow, after: int) -> list[str]:
    """Delete the answers to what was first asked behind an event; their names."""
    first: dict[str, int] = {}
    for text, seq in tx.all(_QUESTIONS, {"run": row.seq}):
        said = json.loads(text) if text else None
        if isinstance(said, dict):
            first.setdefault(str(said.get("name")), int(seq))
    gone = [p for p in pauses_of(tx, row.seq) if p.answered_at is not None and first.get(p.name, after) > after]
    for pause in gone:
        tx.execute(_FORGET, {"pause": pause.id})
    return [pause.name for pause in gone]
