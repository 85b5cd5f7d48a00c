"""The flows of pauses, waits and sleeps: questions of a run, and the time it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import clock, errors, store_pauses, store_queries
from .models import MISSING, PauseRow
from .names import check_name, check_text, shortened
from .run_core import RunCore
from .run_effects import Flow, News, Read, Write
from .run_flows import locate
from .run_options import check_seconds
from .run_steps import enter, refuse_if_cancelled
from .store_notify import LOOK_ANYWAY, NOTHING_SEEN


def _decoded_answer(core: RunCore, pause: PauseRow, returns: Any) -> Any:
    try:
        return core.codec.decode_tagged(pause.value or "null", returns=returns)
    except errors.StoredValueUnreadable as error:
        kind, reason, _ = error._parts
        hint = "the first answer counts: take it without returns=, or ask again under another name"
        raise errors.StoredValueUnreadable(
            type=kind, reason=f"the answer to {pause.name!r}: {reason}", hint=hint
        ).located(core.run_id, None) from error


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
    label = check_name("pause name", shortened(check_text("pause name", reason)) if name is None else name)
    why = check_text("pause reason", str(reason))
    if core.asked.setdefault(label, why) != why:
        raise errors.InvalidTransition(
            core.run_id, status=f"past another question named {label!r}", action="pause", hint="name each its own way"
        )
    if name is None:
        if label in core.unnamed_pauses:
            raise errors.InvalidTransition(
                core.run_id, status="at a second pause of the same reason", action="pause", hint="give each one a name="
            )
        core.unnamed_pauses.add(label)
    try:
        text = _encoded(core, context, label, f"the context of pause {label!r}") if context is not None else None
        yield from enter(core)
        pause = yield from _ask(core, store_pauses.Question(label, "pause", why, text))
    except BaseException:
        if name is None:
            core.unnamed_pauses.discard(label)  # it was not asked, so the next one is no second one
        raise
    if pause.answered_at is not None:
        return _decoded_answer(core, pause, returns)
    core.stopped = "paused"
    core.paused = (label, why, context)
    raise signal(core.run_id, name=label, reason=why, context=context, at=core.store.location.option)


def _ask(core: RunCore, question: store_pauses.Question) -> Flow:
    skips = core.take_skips()
    try:
        pause = yield Write(store_pauses.ask, (core.where, question, skips), True)
    except BaseException:
        core.return_skips(skips)
        raise
    if pause.answered_at is not None:
        core.return_skips(skips)
    return pause


def pause_context_flow(core: RunCore) -> Flow:
    """Context of the newest pause, ``{}`` when there is none."""
    if not (yield from locate(core)):
        return {}
    pauses = yield Read(store_pauses.pauses_of, (core.where.seq,))
    asked = [pause for pause in pauses if pause.kind == "pause" and pause.asked_at is not None]
    if not asked:
        return {}
    # Order is an integer: the clock may have been set back between two of them.
    last = yield Read(store_queries.last_paused, (core.where.seq,))
    newest = next((pause for pause in asked if pause.name == last), asked[-1])
    return core.decode(None, "tagged", newest.context) if newest.context is not None else {}


def wait_flow(core: RunCore, name: str, timeout: float | None, prompt: str | None, default: Any, returns: Any) -> Flow:
    """Wait in the live process for an answer; the deadline is the one that was stored first."""
    core.refuse_if_stopped("wait")
    label = check_name("wait name", name)
    if prompt is not None:
        check_text("wait prompt", prompt)
    if timeout is not None:
        check_seconds("timeout", timeout)
    yield from enter(core)
    deadline = None if timeout is None else clock.iso(clock.now_ms() + round(timeout * 1000))
    question = store_pauses.Question(label, "wait", prompt, None, deadline)
    pause = yield Write(store_pauses.ask, (core.where, question), True)
    seen = NOTHING_SEEN
    rest = clock.Rest(pause.deadline, timeout)
    while pause.answered_at is None:
        if rest.left() <= 0:
            if default is MISSING:
                raise errors.WaitTimeout(core.run_id, label, pause.deadline)
            text = _encoded(core, default, label, f"the default of wait {label!r}")
            pause = yield Write(store_pauses.end_wait, (core.where, label, text, "timeout"), True)
            break
        seen = yield News(core.where.seq, seen, min(LOOK_ANYWAY, rest.left()))
        yield from refuse_if_cancelled(core)
        pause = yield Read(store_pauses.pause_of, (core.where.seq, label))
    return _decoded_answer(core, pause, returns)


def sleep_flow(core: RunCore, name: str, seconds: float) -> Flow:
    """Sleep durably: after a resume only the rest."""
    core.refuse_if_stopped("sleep")
    label = check_name("sleep name", name)
    check_seconds("seconds", seconds)
    used = f"\0{label}"  # no step has a NUL in its key
    if core.was_used(used):
        raise errors.InvalidTransition(
            core.run_id, status=f"past a sleep named {label!r}", action="sleep under that name again",
            hint="its time is over; give each sleep a name of its own",
        )  # fmt: skip
    core.use(used)
    try:
        yield from _sleep(core, label, seconds)
    except BaseException:
        core.forget_use(used)  # its rest may be slept yet
        raise


def _sleep(core: RunCore, label: str, seconds: float) -> Flow:
    yield from enter(core)
    until = clock.iso(clock.now_ms() + round(max(0.0, seconds) * 1000))
    pause = yield Write(store_pauses.ask, (core.where, store_pauses.Question(label, "sleep", None, None, until)), True)
    if pause.answered_at is not None:
        return
    seen = NOTHING_SEEN
    rest = clock.Rest(pause.deadline, seconds)
    while (left := rest.left()) > 0:
        seen = yield News(core.where.seq, seen, left)
        yield from refuse_if_cancelled(core)
    yield Write(store_pauses.end_wait, (core.where, label, "null", "sleep"), core.full)
