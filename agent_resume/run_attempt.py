"""One attempt of a step: call the function, then store its value or its failure."""

from __future__ import annotations

import functools
from typing import Any

from . import clock, errors, faults, run_usage, store_steps
from .codec import Encoded
from .models import StepEvent
from .run_context import StepContext
from .run_core import RunCore
from .run_effects import Call, Flow, Outcome, Raised, Write
from .run_options import StepSpec
from .store_claim import Claim
from .store_steps import Attempt


def once_more(write: Write, interrupt: BaseException) -> Flow:
    """The last write of a step that was interrupted; the interrupt goes on, whatever becomes of it."""
    try:
        yield write
    except Exception as trouble:  # noqa: BLE001 - told beside what is raised
        interrupt.add_note(f"agent-resume could not write after this: {trouble}")


class Again:
    """A failure that ``retry`` wants to try again, not before ``until``."""

    def __init__(self, error: BaseException, until: str) -> None:
        self.error = error
        self.until = until


def attempt_flow(core: RunCore, spec: StepSpec, claim: Claim) -> Flow:
    """Call the function and store how it ended; what ``step`` returns comes back, or ``Again``."""
    if core.tells:
        core.tell(StepEvent("start", core.run_id, spec.key))
    owner, key, number = core.owner, spec.key, claim.attempt
    attempt = Attempt(key, claim.step, number, owner.token)
    faults.at("in-function")
    started = clock.monotonic()
    spec.attempt = number
    context, used = StepContext(core.run_id, key, number), core.uses
    owner.unsettled.add((core.where.seq, key))
    outcome: Outcome
    try:
        outcome = yield Call(spec, context)
    except GeneratorExit:
        raise  # nobody drives this flow any more
    except BaseException as interrupt:  # noqa: BLE001 - between the call and here
        outcome = Outcome(error=interrupt)
    ms = round((clock.monotonic() - started) * 1000)
    faults.at("after-return")
    if core.owner.token != attempt.token:
        # A child that the function forked came back here: the attempt is its parent's, who still executes it.
        at = core.store.location.option
        return Raised(outcome.error or errors.RunLost(core.run_id, key=spec.key, result=outcome.value, at=at))
    if outcome.error is not None:
        core.note_failure(context, outcome.error, None if spec.fleeting else used)
        return (yield from fail_flow(core, spec, claim, attempt, outcome.error, ms))
    try:
        encoded, fresh = core.codec.settle(outcome.value, key=key, returns=spec.returns, hint=spec.fn)
    except (errors.OutputNotStorable, errors.StoredValueUnreadable) as error:
        error.result = outcome.value  # type: ignore[union-attr]  # set on both, so that a paid-for value can be kept
        return (yield from fail_flow(core, spec, claim, attempt, error, ms, reason="output not storable"))
    except BaseException as interrupt:  # noqa: BLE001 - Ctrl-C, while the result was taken apart
        return (yield from fail_flow(core, spec, claim, attempt, interrupt, ms))
    return (yield from store_result(core, spec, claim, attempt, encoded, fresh, ms, outcome.value))


def store_result(
    core: RunCore, spec: StepSpec, claim: Claim, attempt: Attempt, encoded: Encoded, fresh: Any, ms: int, value: Any
) -> Flow:
    """Complete a step; what ``step`` returns comes back."""
    key, place = attempt.key, core.where
    merged = run_usage.merged(value, spec.meta)
    meta = core.meta_text(key, merged) if merged else None
    write = Write(store_steps.complete, (place, attempt, encoded, ms, meta), core.lasting)
    try:
        yield write
    except BaseException as trouble:
        yield from _not_stored(core, attempt, write, value, trouble)
        raise
    core.owner.unsettled.discard((place.seq, key))
    core.remember(spec, claim, encoded)
    if core.tells:
        again = functools.partial(core.decode, key, encoded.format, encoded.text, spec.returns, spec.fn)
        core.tell_result("done", key, again, ms)
    return fresh


def _not_stored(core: RunCore, attempt: Attempt, write: Write, value: Any, trouble: BaseException) -> Flow:
    if isinstance(trouble, errors.RunLost | errors.RunNotFound):  # taken over, or deleted
        lost = errors.RunLost(core.run_id, key=attempt.key, result=value, at=core.store.location.option)
        # Others would wait for this process to end, which may be long after.
        yield from once_more(Write(store_steps.let_go, (attempt,), full=False), lost)
        raise lost from None
    if isinstance(trouble, errors.StoreError):
        trouble.result = value
        trouble.add_note(f"the result of step {attempt.key!r} was not saved; it is in error.result")
    elif not isinstance(trouble, GeneratorExit):
        # Storing it again is harmless when the commit stands, and right when it does not.
        yield from once_more(write, trouble)


def fail_flow(
    core: RunCore,
    spec: StepSpec,
    claim: Claim,
    attempt: Attempt,
    error: BaseException,
    ms: int,
    reason: str | None = None,
) -> Flow:
    """Store that an attempt failed; it is raised, or tried again."""
    described = core.failure_of(error)
    if reason is not None:
        described["reason"] = reason
    outcome = _outcome_of(spec, error, reason)
    kept = outcome == "failed" and reason is None and issubclass(type(error), spec.keep_errors)
    again: Again | None = None
    spec.failures += 1
    retry = spec.retry if outcome == "failed" and not kept and reason is None else None
    if retry is not None and retry.wants(error) and spec.failures < retry.max_attempts:
        again = Again(error, clock.iso(clock.now_ms() + round(retry.delay(spec.failures) * 1000)))
        described["retryAt"] = again.until
    meta = core.meta_text(spec.key, spec.meta)
    try:
        whole = core.whole(error) if kept else None
        yield Write(store_steps.fail, (core.where, attempt, outcome, described, ms, meta, kept, whole), core.lasting)
    except errors.AgentResumeError as trouble:
        if isinstance(trouble, errors.RunLost):
            yield from once_more(Write(store_steps.let_go, (attempt,), full=False), error)
        # The user's error is the one that counts; that it could not be stored is a note on it.
        error.add_note(f"agent-resume could not store this failure: {trouble}")
        again = None
    else:
        core.owner.unsettled.discard((core.where.seq, spec.key))
    if kept:
        core.remember_kept(spec, claim)
    if core.tells:
        core.tell(StepEvent("error", core.run_id, spec.key, duration_ms=ms, error=error))
    return again if again is not None else Raised(error)


# A call that was given up, and a child process (isolation="process") that died, may have done their work.
_UNKNOWN_OUTCOMES = (errors.StepTimeout, ChildProcessError)


def _outcome_of(spec: StepSpec, error: BaseException, reason: str | None) -> store_steps.Outcome:
    kind = type(error)  # isinstance asks the object for its __class__, and that may raise
    left = not issubclass(kind, Exception)
    if spec.effect == "once" and (left or reason is not None or issubclass(kind, _UNKNOWN_OUTCOMES)):
        return "in_doubt"  # it may have taken effect
    return "interrupted" if left else "failed"
