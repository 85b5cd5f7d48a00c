"""The flow of one step: claim, call, finish. It decides; the driver performs.

begin   claim the step, or find its outcome stored, in doubt, or in somebody else's hands
call    the user's function, with no transaction open
finish  store its value or its failure, guarded by owner, attempt and epoch
"""

from __future__ import annotations

import json
from typing import Any

from . import (
    clock,
    errors,
    failure,
    faults,
    fingerprint,
    run_telling,
    run_usage,
    store_index,
    store_queries,
    store_runs,
    store_steps,
)
from .codec import Encoded
from .models import StepEvent
from .run_context import StepContext
from .run_core import ID, MISS, SEQ, RunCore
from .run_effects import Call, Do, Flow, Outcome, Raised, Read, Sleep, Watch, Write
from .run_options import StepSpec
from .run_retry import NOT_DONE, UNKNOWN, Verified
from .store_index import KEPT_ERROR
from .store_steps import Attempt, Claim, ClaimRequest

#: What ``object``'s own text has in it.
_ADDRESS = " object at 0x"


def step_flow(core: RunCore, spec: StepSpec) -> Flow:
    """Everything that happens when ``step`` is called and its outcome is not in memory."""
    core.refuse_if_stopped(f"start step {spec.key!r}")
    owner = core.owner
    if not core.belongs_to(owner):
        yield from enter(core)
        owner = core.owner
    in_flight, place, mine = owner.in_flight, (core.where.seq, spec.key), False
    work = _step(core, spec)
    try:
        mine = in_flight.take(place, work)
        if not mine:
            raise errors.StepInFlight(core.run_id, spec.key)
        return (yield from work)
    finally:
        if mine:
            in_flight.holders.pop(place, None)


def enter(core: RunCore) -> Flow:
    """What comes before the first write of an execution.

    A ``Checkpoint``'s run is created or set running; in a forked child this process becomes an owner of its own.
    """
    owner = core.owner
    if core.belongs_to(owner):
        return
    core.join(owner)
    if not owner.registered:
        # Who we are is read from /proc: in the door's thread, not on an event loop.
        yield Write(lambda tx: store_runs.register_owner(tx, owner.seed), (), full=False)
        owner.registered = True
    if not core.entered:
        row = yield Write(store_runs.enter, (core.run_id, core.new_run()))
        index = yield Read(store_index.load_index, (row.seq,))
        core.settle_in(row, index)
        core.entered = True


def _step(core: RunCore, spec: StepSpec) -> Flow:
    entry = core.index.get(spec.key)
    again = False
    if entry is not None:
        # Here only for what replay() could not answer from memory: other inputs to rerun, a large or kept outcome.
        again = spec.on_change == "rerun" and core.inputs_changed(spec, entry)
        if not again:
            return (yield from _stored(core, spec, entry))
    if _ADDRESS in spec.key:
        core.warn_once_plainly("address", errors.AgentResumeWarning, run_telling.address_text(core.run_id, spec.key))
    if spec.fingerprint is None:
        spec.fingerprint = fingerprint.fingerprint(spec.fn, spec.args, codec=core.codec)
    spec.code_hash = fingerprint.code_hash(spec.fn)
    claim = yield from _claim(core, spec, again=again)
    while True:
        if claim.kind == "stored":
            return (yield from _stored_elsewhere(core, spec))
        if claim.kind == "in_doubt":
            claim = yield from _decide(core, spec)
            if not isinstance(claim, Claim):
                return claim
        outcome = yield from (spec.how or _attempt)(core, spec, claim)
        if not isinstance(outcome, _Again):
            return outcome
        yield from _wait_for_retry(core, spec, outcome.until)
        claim = yield from _claim(core, spec, again=False)


# -- begin -----------------------------------------------------------------------------------------------------------


def _claim(core: RunCore, spec: StepSpec, *, again: bool, retry_doubt: bool = False) -> Flow:
    owner = core.owner
    if owner.heart.late and not (yield Do(owner.heart.beat)):
        raise errors.StoreUnavailable(
            core.store.display, "this process could not beat for a lease, so others may take its run",
            "look why the store cannot be written, then resume the run",
        )  # fmt: skip
    place = core.where
    meta = core.meta_text(spec.key, spec.meta) if spec.meta else None
    # A start mark survives the process, not the power; one of effect="once" must survive both, or a power cut would
    # hide that it had begun.
    full = spec.effect == "once"
    patient = spec.retry is not None and spec.failures == 0
    faults.at("before-claim")
    while True:
        skips = core.take_skips()
        request = ClaimRequest(
            spec.key, owner.token, spec.effect, spec.fingerprint, spec.code_hash, meta, owner.judge,
            again, retry_doubt, patient, skips,
        )  # fmt: skip
        try:
            claim = yield Write(store_steps.claim, (place, request), full)
        except (errors.AgentResumeError, errors.RunCancelled, GeneratorExit):
            core.return_skips(skips)
            raise
        except BaseException as interrupt:
            if (place.seq, spec.key) not in owner.unsettled:
                # Whether the claim stands is unknown, so it is given back if it does.
                yield from _once_more(Write(store_steps.give_back, (place, spec.key, owner.token), full), interrupt)
            raise
        if claim.kind == "claimed":
            faults.at("after-claim")
            return claim
        if claim.kind != "in_doubt":
            core.return_skips(skips)
        if claim.kind == "watch":
            yield from _watch(core, spec, claim)
        elif claim.kind == "wait":
            yield from _wait_for_retry(core, spec, claim.until)
            patient = False
        else:
            faults.at("after-claim")
            return claim


def _once_more(write: Write, interrupt: BaseException) -> Flow:
    """The last write of a step that was interrupted; the interrupt goes on, whatever becomes of it."""
    try:
        yield write
    except Exception as trouble:  # noqa: BLE001 - told beside what is raised
        interrupt.add_note(f"agent-resume could not write after this: {trouble}")


def _watch(core: RunCore, spec: StepSpec, claim: Claim) -> Flow:
    assert claim.owner is not None  # a claim of kind "watch" always names whom
    verdict = yield Watch(claim.owner, f"step {spec.key!r} of run {core.run_id!r}")
    if verdict == "dead":
        core.owner.decided_dead.add(claim.owner.token)
        return
    raise errors.StepInFlight(core.run_id, spec.key, host=claim.owner.host, pid=claim.owner.pid)


def _wait_for_retry(core: RunCore, spec: StepSpec, until: str) -> Flow:
    left = (clock.parse_iso(until) - clock.now_ms()) / 1000
    if spec.retry is not None:
        left = min(left, spec.retry.max_wait)  # the clock may have been set back meanwhile
    end = clock.monotonic() + left
    while (left := end - clock.monotonic()) > 0:
        yield Sleep(min(left, 0.5))
        yield from refuse_if_cancelled(core)


def refuse_if_cancelled(core: RunCore) -> Flow:
    """Between waits: a cancelled run's agent is told within a second."""
    status = yield Read(store_queries.status_of, (core.where.seq,))
    if status == "cancelled":
        raise errors.RunCancelled(core.run_id)


# -- stored outcomes -------------------------------------------------------------------------------------------------


def _stored(core: RunCore, spec: StepSpec, entry: Any) -> Flow:
    """Hand out an outcome that the index knows but does not hold."""
    if core.code_changed(spec, entry):
        yield from note_code_change(core, spec.key)
    row = yield Read(store_index.load_output, (entry[ID],))
    format, text, error = row if row is not None else (None, None, None)
    if format == KEPT_ERROR:
        core.skipped(entry[SEQ], spec.key, None)
        return Raised(_kept_error(core, spec, error))
    if format is None or text is None:
        raise errors.RunLost(core.run_id, key=spec.key)  # discarded meanwhile, by rerun or prune
    value = core.decode(spec.key, format, text, spec.returns, spec.fn)
    core.skipped(entry[SEQ], spec.key, value)
    return value


def note_code_change(core: RunCore, key: str) -> Flow:
    """Mark in the store, and say once, that a step's code is not what its result came from."""
    core.tell_code_change(key)
    yield Write(store_steps.mark_code_change, (core.loose, key), full=False)


def _stored_elsewhere(core: RunCore, spec: StepSpec) -> Flow:
    """Another process completed it since the index was loaded."""
    entry = yield Read(store_index.load_index_entry, (core.where.seq, spec.key))
    if entry is None:
        raise errors.RunLost(core.run_id, key=spec.key)
    core.index[spec.key] = entry
    value = core.replay(spec, entry)
    if value is not MISS:
        return value
    core.forget_use(spec.key)
    return (yield from _step(core, spec))


def _kept_error(core: RunCore, spec: StepSpec, text: str | None) -> BaseException:
    described = json.loads(text) if text else {}
    rebuilt = failure.rebuild(described)
    if rebuilt is not None:
        return rebuilt
    return errors.StoredStepError(
        core.run_id, spec.key, type=str(described.get("type")), text=str(described.get("message"))
    )


def _decide(core: RunCore, spec: StepSpec) -> Flow:
    """Somebody must say whether an ``effect="once"`` step happened: ``verify``, or else a person."""
    verdict: Any = UNKNOWN
    if spec.verify is not None:
        context = StepContext(core.run_id, spec.key, 0)
        outcome: Outcome = yield Call(StepSpec(spec.key, spec.verify), context)
        if outcome.error is not None:
            return Raised(outcome.error)
        verdict = outcome.value
    if isinstance(verdict, Verified):
        encoded, fresh = core.codec.settle(verdict.value, key=spec.key, returns=spec.returns, hint=spec.fn)
        settled = yield Write(store_steps.settle_doubt, (core.where, spec.key, encoded, "verify"))
        if not settled:
            raise errors.RunLost(core.run_id, key=spec.key, result=verdict.value)
        core.note_use(spec.key)
        return fresh
    if verdict is NOT_DONE:
        return (yield from _claim(core, spec, again=False, retry_doubt=True))
    if verdict is not UNKNOWN:
        raise TypeError(f"verify returns Verified(value), NOT_DONE or UNKNOWN, not {type(verdict).__name__}")
    raise errors.StepInDoubt(core.run_id, spec.key)


# -- call and finish -------------------------------------------------------------------------------------------------


class _Again:
    """A failure that ``retry`` wants to try again, not before ``until``."""

    def __init__(self, error: BaseException, until: str) -> None:
        self.error = error
        self.until = until


def _attempt(core: RunCore, spec: StepSpec, claim: Claim) -> Flow:
    if core.tells:
        core.tell(StepEvent("start", core.run_id, spec.key))
    owner, number = core.owner, claim.attempt
    attempt = Attempt(spec.key, claim.step, number, owner.token)
    faults.at("in-function")
    started = clock.monotonic()
    spec.attempt = number
    owner.unsettled.add((core.where.seq, spec.key))
    outcome: Outcome
    try:
        outcome = yield Call(spec, StepContext(core.run_id, spec.key, number))
    except GeneratorExit:
        raise  # nobody drives this flow any more
    except BaseException as interrupt:  # noqa: BLE001 - between the call and here
        outcome = Outcome(error=interrupt)
    ms = round((clock.monotonic() - started) * 1000)
    faults.at("after-return")
    if core.owner.token != attempt.token:
        # A child that the function forked came back here: the attempt is its parent's, who still executes it.
        return Raised(outcome.error or errors.RunLost(core.run_id, key=spec.key, result=outcome.value))
    if outcome.error is not None:
        return (yield from fail_flow(core, spec, claim, attempt, outcome.error, ms))
    try:
        encoded, fresh = core.codec.settle(outcome.value, key=spec.key, returns=spec.returns, hint=spec.fn)
    except (errors.OutputNotStorable, errors.StoredValueUnreadable) as error:
        error.result = outcome.value  # type: ignore[union-attr]  # set on both, so that a paid-for value can be kept
        return (yield from fail_flow(core, spec, claim, attempt, error, ms, reason="output not storable"))
    return (yield from store_result(core, spec, claim, attempt, encoded, fresh, ms, outcome.value))


def store_result(
    core: RunCore, spec: StepSpec, claim: Claim, attempt: Attempt, encoded: Encoded, fresh: Any, ms: int, value: Any
) -> Flow:
    """Complete a step; what ``step`` returns comes back."""
    merged = run_usage.merged(value, spec.meta)
    meta = core.meta_text(spec.key, merged) if merged else None
    place = core.where
    write = Write(store_steps.complete, (place, attempt, encoded, ms, meta), core.full)
    try:
        yield write
    except (errors.RunLost, errors.RunNotFound):  # taken over, or deleted
        raise errors.RunLost(core.run_id, key=attempt.key, result=value) from None
    except errors.StoreError as error:
        error.result = value
        error.add_note(f"the result of step {attempt.key!r} was not saved; it is in error.result")
        raise
    except GeneratorExit:
        raise
    except BaseException as interrupt:
        # Storing it again is harmless when the commit stands, and right when it does not.
        yield from _once_more(write, interrupt)
        raise
    core.owner.unsettled.discard((place.seq, attempt.key))
    core.remember(spec, claim, encoded)
    if core.tells:
        core.tell(StepEvent("done", core.run_id, spec.key, duration_ms=ms, result=fresh))
    return fresh


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
    kept = outcome == "failed" and reason is None and isinstance(error, spec.keep_errors)
    again: _Again | None = None
    spec.failures += 1
    retry = spec.retry if outcome == "failed" and not kept and reason is None else None
    if retry is not None and retry.wants(error) and spec.failures < retry.max_attempts:
        again = _Again(error, clock.iso(clock.now_ms() + round(retry.delay(spec.failures) * 1000)))
        described["retryAt"] = again.until
    meta = core.meta_text(spec.key, spec.meta)
    try:
        yield Write(store_steps.fail, (core.where, attempt, outcome, described, ms, meta, kept), core.full)
    except errors.AgentResumeError as trouble:
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
    left = not isinstance(error, Exception)
    if spec.effect == "once" and (left or reason is not None or isinstance(error, _UNKNOWN_OUTCOMES)):
        return "in_doubt"  # it may have taken effect
    return "interrupted" if left else "failed"
