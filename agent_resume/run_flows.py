"""The flows of everything that is not a step: records, events, pauses, waits, loop state, the end of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import clock, errors, run_events, store_index, store_pauses, store_queries, store_records, store_settle
from .models import MISSING, PauseRow, StepEvent
from .run_context import active
from .run_core import FORMAT, ID, OUTPUT, RunCore, log
from .run_effects import Do, Flow, News, Read, Write
from .run_options import check_name
from .run_steps import enter, refuse_if_cancelled
from .store_index import KEPT_ERROR
from .store_notify import LOOK_ANYWAY, NOTHING_SEEN
from .store_sql import Place

# -- records and events ----------------------------------------------------------------------------------------------


def record_flow(core: RunCore, key: object, result: Any, meta: dict[str, Any] | None, *, replace: bool) -> Flow:
    """Store an already computed value; the one that counts comes back."""
    name = core.check_key(key)
    core.refuse_if_stopped(f"record {name!r}")
    encoded, fresh = core.codec.settle(result, key=name)
    text = core.meta_text(name, meta)
    yield from enter(core)
    if (core.where.seq, name) in core.owner.in_flight:
        raise errors.StepInFlight(core.run_id, name)
    skips = core.take_skips()
    try:
        found = yield Write(store_records.record, (core.loose, name, encoded, text, replace, skips), core.full)
    except BaseException:
        core.return_skips(skips)
        raise
    if not found.written:
        core.return_skips(skips)
    small = found.stored.text if len(found.stored.text) <= store_index.INDEX_OUTPUT_BYTES else None
    core.index[name] = (name, found.step, found.seq, None, None, found.stored.format, small)
    if found.conflict:
        stored = core.decode(name, found.stored.format, found.stored.text)
        # Other text may be an equal value: the order of a dict's keys says nothing.
        if core.codec.digest(stored) != core.codec.digest(result):
            core.mark("conflict", name)
            core.warn_once(
                errors.RecordConflictWarning,
                name,
                f"record {name!r} of run {core.run_id!r} holds another value already: the first one is kept and "
                "returned; replace=True overwrites it",
            )
        return stored
    if core.tells and found.written:
        core.tell(StepEvent("done", core.run_id, name, result=fresh))
    return fresh


def event_flow(core: RunCore, type: str, data: Any, fields: dict[str, Any]) -> Flow:
    """Append an event; trouble is logged and counted, never raised into the agent."""
    try:
        check_name("event type", type)
        if core.closed:
            core.refuse_if_stopped(f"write event {type!r}")
        payload = run_events.payload(data, fields)
        text = core.codec.encode_tagged(payload) if payload is not None else None
        if text is not None:
            text = json.dumps(core.store.redactor.value(json.loads(text)))
        yield from enter(core)
        context = active.get()
        inside = context if context is not None and context.run_id == core.run_id else None
        skips = core.take_skips()
        arguments = (
            core.loose, run_events.stored_type(type), text, inside.key if inside else None, inside.attempt if inside else None, skips,
        )  # fmt: skip
        try:
            yield Write(store_records.event, arguments, full=False)
        except BaseException:
            core.return_skips(skips)
            raise
        run_events.warn_unless_registered(core, type)
        yield from losses_flow(core)
    except (Exception, errors.RunCancelled) as error:  # noqa: BLE001 - an event is never worth more than the agent
        lose_event(core, type, error)


def lose_event(core: RunCore, type: str, error: BaseException) -> None:
    """Count an event that could not be written, and say so in the log."""
    core.lose_event()
    log.error(
        "event %r of run %r was not stored (%d lost so far)", type, core.run_id, core.lost_events, exc_info=error
    )  # fmt: skip


def losses_flow(core: RunCore) -> Flow:
    """Add the events lost so far to the run's ``meta``, where ``show`` finds the count."""
    lost = core.take_losses()
    if lost:
        try:
            yield Write(store_records.add_losses, (core.loose, lost), full=False)
        except BaseException:
            core.return_losses(lost)
            raise


def flush_log_flow(core: RunCore) -> Flow:
    """Store the collected skips and the count of lost events now."""
    skips = core.take_skips()
    if skips is not None:
        yield from enter(core)
        try:
            yield Write(store_records.store_skips, (core.loose, skips), full=False)
        except BaseException:
            core.return_skips(skips)
            raise
    if core.losses:
        yield from enter(core)
        yield from losses_flow(core)


def flush_flow(core: RunCore) -> Flow:
    """Everything written so far is on disk when this returns, in relaxed durability too: a full commit syncs the log."""
    yield from flush_log_flow(core)
    if core.entered:
        yield Write(store_records.touch, (core.loose,), True)


# -- reading ---------------------------------------------------------------------------------------------------------


def locate(core: RunCore) -> Flow:
    """Find the run of a ``Checkpoint`` that has not written yet, changing nothing; False when there is none."""
    if core.place is not None:
        return True
    if not (yield Do(core.store.exists)):
        return False
    row = yield Read(store_queries.run_by_id, (core.run_id,))
    if row is None:
        return False
    index = yield Read(store_index.load_index, (row.seq,))
    core.settle_in(row, index)
    return True


def has_flow(core: RunCore, key: object) -> Flow:
    """Whether a step is completed, other processes' work included."""
    name = core.check_key(key)
    if not (yield from locate(core)):
        return False
    return (yield Read(store_queries.has_completed, (core.where.seq, name)))


def result_flow(core: RunCore, key: object, default: Any) -> Flow:
    """A completed step's value."""
    name = core.check_key(key)
    if not (yield from locate(core)):
        return default
    entry = core.index.get(name)
    if entry is None:
        entry = yield Read(store_index.load_index_entry, (core.where.seq, name))
        if entry is None:
            return default
        core.index[name] = entry
    if entry[FORMAT] == KEPT_ERROR:
        return default
    text = entry[OUTPUT]
    format = entry[FORMAT]
    if text is None:
        row = yield Read(store_index.load_output, (entry[ID],))
        if row is None or row[1] is None:
            return default
        format, text = row[0], row[1]
    return core.decode(name, format, text)


def count_flow(core: RunCore, prefix: str, digits_only: bool) -> Flow:
    """How many completed keys start with ``prefix``."""
    if not (yield from locate(core)):
        return 0
    keys = yield Read(store_queries.completed_keys_from, (core.where.seq, prefix))
    if digits_only:
        keys = [key for key in keys if key[len(prefix) :].isascii() and key[len(prefix) :].isdigit()]
    return len(keys)


def row_flow(core: RunCore) -> Flow:
    """The run's row as it is now, or None."""
    if not (yield Do(core.store.exists)):
        return None
    return (yield Read(store_queries.run_by_id, (core.run_id,)))


# -- pauses and waits ------------------------------------------------------------------------------------------------


def _decoded_answer(core: RunCore, pause: PauseRow, returns: Any) -> Any:
    return core.decode(None, "tagged", pause.value or "null", returns)


def _encoded(core: RunCore, value: Any, key: str, what: str) -> str:
    try:
        return core.codec.encode_tagged(value, key=key)
    except errors.OutputNotStorable as error:
        error.about(what)
        raise


def pause_flow(
    core: RunCore, reason: str, context: Any, name: str | None, returns: Any, signal: Callable[..., BaseException]
) -> Flow:
    """Answered: the answer. Else the question is stored and this execution stops."""
    if core.stopped != "paused":  # another thread's pause came first: both are asked
        core.refuse_if_stopped("pause")
    label = check_name("pause name", reason if name is None else name)
    if name is None:
        if label in core.unnamed_pauses:
            raise errors.InvalidTransition(
                core.run_id, status="at a second pause of the same reason", action="pause", hint="give each one a name="
            )
        core.unnamed_pauses.add(label)
    text = _encoded(core, context, label, f"the context of pause {label!r}") if context is not None else None
    yield from enter(core)
    skips = core.take_skips()
    question = store_pauses.Question(label, "pause", str(reason), text, skips=skips)
    try:
        pause = yield Write(store_pauses.ask, (core.where, question), True)
    except BaseException:
        core.return_skips(skips)
        raise
    if pause.answered_at is not None:
        core.return_skips(skips)
        return _decoded_answer(core, pause, returns)
    core.stopped = "paused"
    core.paused = (label, str(reason), context)
    raise signal(core.run_id, name=label, reason=str(reason), context=context)


def pause_context_flow(core: RunCore) -> Flow:
    """Context of the newest pause, ``{}`` when there is none."""
    if not (yield from locate(core)):
        return {}
    pauses = yield Read(store_pauses.pauses_of, (core.where.seq,))
    asked = [pause for pause in pauses if pause.kind == "pause" and pause.asked_at is not None]
    if not asked:
        return {}
    newest = max(asked, key=lambda pause: (pause.asked_at, pause.id))
    return core.decode(None, "tagged", newest.context) if newest.context is not None else {}


def wait_flow(core: RunCore, name: str, timeout: float | None, prompt: str | None, default: Any, returns: Any) -> Flow:
    """Wait in the live process for an answer; the deadline is the one that was stored first."""
    core.refuse_if_stopped("wait")
    label = check_name("wait name", name)
    yield from enter(core)
    deadline = None if timeout is None else clock.iso(clock.now_ms() + round(timeout * 1000))
    question = store_pauses.Question(label, "wait", prompt, None, deadline)
    pause = yield Write(store_pauses.ask, (core.where, question), True)
    seen = NOTHING_SEEN
    while pause.answered_at is None:
        if pause.deadline is not None and pause.deadline <= clock.now_iso():
            if default is MISSING:
                raise errors.WaitTimeout(core.run_id, label, pause.deadline)
            text = _encoded(core, default, label, f"the default of wait {label!r}")
            pause = yield Write(store_pauses.end_wait, (core.where, label, text, "timeout"), True)
            break
        left = LOOK_ANYWAY if pause.deadline is None else (clock.parse_iso(pause.deadline) - clock.now_ms()) / 1000
        seen = yield News(core.where.seq, seen, max(0.001, left))
        yield from refuse_if_cancelled(core)
        pause = yield Read(store_pauses.pause_of, (core.where.seq, label))
    return _decoded_answer(core, pause, returns)


def sleep_flow(core: RunCore, name: str, seconds: float) -> Flow:
    """Sleep durably: after a resume only the rest."""
    core.refuse_if_stopped("sleep")
    label = check_name("sleep name", name)
    yield from enter(core)
    until = clock.iso(clock.now_ms() + round(max(0.0, seconds) * 1000))
    pause = yield Write(store_pauses.ask, (core.where, store_pauses.Question(label, "sleep", None, None, until)), True)
    if pause.answered_at is not None:
        return
    seen = NOTHING_SEEN
    while (left := (clock.parse_iso(pause.deadline) - clock.now_ms()) / 1000) > 0:
        seen = yield News(core.where.seq, seen, left)
        yield from refuse_if_cancelled(core)
    yield Write(store_pauses.end_wait, (core.where, label, "null", "sleep"), core.full)


# -- the end ---------------------------------------------------------------------------------------------------------


def done_flow(core: RunCore, summary: Any) -> Flow:
    """Complete the run, or update the summary of one completed by an earlier execution."""
    core.refuse_if_stopped("call done()")
    with core.lock:
        again, core.ending = core.ending or core.done_here, True
    if again:
        raise errors.InvalidTransition(core.run_id, status="completed", action="call done() again", hint="call it once")
    try:
        yield from _done(core, summary)
    except BaseException:
        core.ending = core.done_here
        raise


def _done(core: RunCore, summary: Any) -> Flow:
    text = core.codec.encode_tagged(summary if summary is not None else {})
    yield from enter(core)
    if any(run == core.where.seq for run, _ in core.owner.in_flight):
        raise errors.InvalidTransition(
            core.run_id, status="executing a step", action="call done()", hint="wait until every step has ended"
        )
    row = yield Read(store_queries.run_by_id, (core.run_id,))
    if row is not None and row.status == "completed" and not core.exclusive:
        return (yield from _done_again(core, summary, text))
    skips, lost = core.take_skips(), core.take_losses()
    settlement = store_settle.Settlement(
        "completed", summary=text, skips=skips, lost=lost, executes=core.owner.executes
    )  # fmt: skip
    try:
        yield Write(store_settle.settle, (core.where, settlement, core.exclusive), True)
    except BaseException as error:
        core.return_skips(skips)
        core.return_losses(lost)
        if not isinstance(error, errors.InvalidTransition) or error.status != "completed" or core.exclusive:
            raise
        # Another process that shares the run was done between the look and here.
        return (yield from _done_again(core, summary, text))
    core.done_here = True
    core.stopped = "completed"


def _done_again(core: RunCore, summary: Any, text: str) -> Flow:
    if summary is not None:
        yield Write(store_settle.attach, (core.loose, None, text), True)
    core.done_here = True


def cancel_flow(core: RunCore) -> Flow:
    """Cancel this very run; what is in flight is still stored."""
    yield from enter(core)
    yield Write(store_settle.cancel, (Place(core.where.seq, core.run_id),), True)
    core.stopped = "cancelled"


def set_fields_flow(core: RunCore, values: dict[str, Any]) -> Flow:
    """Set loop state or the expected duration; durable when this returns."""
    yield from enter(core)
    yield Write(store_records.set_fields, (core.loose, values), core.full)


def loop_state_flow(core: RunCore) -> Flow:
    """The loop fields that are set."""
    row = yield from row_flow(core)
    if row is None:
        return {}
    names = ("verdict", "status", "turns", "reason")
    values = {name: getattr(row, f"loop_{name}") for name in names}
    return {name: core.decode(None, "tagged", text) for name, text in values.items() if text is not None}
