"""The flows of everything that is not a step: records, events, pauses, waits, loop state, the end of a run."""

from __future__ import annotations

import json
from typing import Any

from . import (
    errors,
    run_events,
    run_telling,
    run_usage,
    store_index,
    store_queries,
    store_records,
    store_settle,
)
from .names import check_name, check_text
from .run_context import active
from .run_core import FORMAT, ID, OUTPUT, RunCore, log
from .run_effects import Do, Flow, Read, Write
from .run_options import check_meta
from .run_steps import enter, sync_seen, watch
from .store_claim import Claim
from .store_index import KEPT_ERROR

# -- records and events ----------------------------------------------------------------------------------------------


def record_flow(core: RunCore, key: object, result: Any, meta: dict[str, Any] | None, *, replace: bool) -> Flow:
    """Store an already computed value; the one that counts comes back."""
    name = core.check_key(key)
    core.refuse_if_stopped(f"record {name!r}")
    check_meta(meta)
    encoded, fresh = core.codec.settle(result, key=name)
    text = core.meta_text(name, run_usage.merged(result, meta))
    yield from enter(core)
    while True:
        owner = core.owner
        if (core.where.seq, name) in owner.in_flight:
            raise errors.StepInFlight(core.run_id, name)
        skips = core.take_skips()
        request = store_records.RecordRequest(name, owner.token, owner.judge, encoded, text, replace, skips)
        try:
            found = yield Write(store_records.record, (core.loose, request), core.lasting)
        except BaseException:
            core.return_skips(skips)
            raise
        if not isinstance(found, Claim):
            break
        core.return_skips(skips)
        yield from watch(core, name, found)
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
        core.tell_result("done", name, lambda: core.decode(name, encoded.format, encoded.text))
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
    if index:
        yield from sync_seen(core)
    core.settle_in(row, index)
    yield Do(run_telling.met, (core.store, row.id))
    return True


def has_flow(core: RunCore, key: object) -> Flow:
    """Whether a step is completed, other processes' work included."""
    name = core.check_key(key)
    if not (yield from locate(core)):
        return False
    found = yield Read(store_queries.has_completed, (core.where.seq, name))
    if found:
        yield from sync_seen(core)
    return found


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
        yield from sync_seen(core)
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
    prefix = check_text("prefix", prefix)
    if not (yield from locate(core)):
        return 0
    keys = yield Read(store_queries.completed_keys_from, (core.where.seq, prefix))
    if any(key not in core.index for key in keys):
        yield from sync_seen(core)
    if digits_only:
        keys = [key for key in keys if key[len(prefix) :].isascii() and key[len(prefix) :].isdigit()]
    return len(keys)


def row_flow(core: RunCore) -> Flow:
    """The run's row as it is now, or None."""
    if not (yield Do(core.store.exists)):
        return None
    return (yield Read(store_queries.run_by_id, (core.run_id,)))


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
    yield Write(store_settle.cancel, (core.loose,), True)
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
