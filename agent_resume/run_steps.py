"""The flow of one step: claim, call, finish. It decides; the driver performs.

begin   claim the step, or find its outcome stored, in doubt, or in somebody else's hands
call    the user's function, with no transaction open
finish  store its value or its failure, guarded by owner, attempt and epoch
"""

from __future__ import annotations

import functools
import json
from types import FunctionType
from typing import TYPE_CHECKING, Any

from . import (
    clock,
    errors,
    failure,
    faults,
    fingerprint,
    run_telling,
    store_index,
    store_queries,
    store_runs,
    store_steps,
)
from .run_attempt import Again, attempt_flow, once_more
from .run_context import StepContext
from .run_core import ID, MISS, SEQ, RunCore
from .run_effects import Call, Do, Flow, Outcome, Raised, Read, Sleep, Watch, Write
from .run_options import StepSpec
from .run_retry import NOT_DONE, UNKNOWN, Verified
from .store_claim import Claim, ClaimRequest
from .store_index import KEPT_ERROR
from .store_sql import look

if TYPE_CHECKING:
    from .store_owner import Owner
    from .store_sql import Place

#: What ``object``'s own text has in it.
_ADDRESS = " object at 0x"
#: Time between two looks whether a call that nobody waits for any more has ended, in s.
LATE_LOOK = 0.02


def step_flow(core: RunCore, spec: StepSpec) -> Flow:
    """Everything that happens when ``step`` is called and its outcome is not in memory."""
    if core.stopped is not None:
        core.refuse_if_stopped(f"start step {spec.key!r}")
    if core.given_up:
        core.refuse_if_given_up(spec.key)
    owner = core.owner
    if not core.belongs_to(owner):
        yield from enter(core)
        owner = core.owner
    in_flight, place, mine = owner.in_flight, core.where, False
    held = (place.seq, spec.key)
    spec.over = False
    try:
        mine = in_flight.take(held, spec)
        if mine:
            return (yield from _step(core, spec, owner))
    finally:
        spec.over = True  # first, and no call: Ctrl-C comes in at calls
        if mine:
            in_flight.holders.pop(held, None)
            if owner.lingers:
                owner.step_ended()
    if core.given_up and core.outlasts_late_call():
        return (yield from _after_late_call(core, spec))
    raise errors.StepInFlight(core.run_id, spec.key)


def _after_late_call(core: RunCore, spec: StepSpec) -> Flow:
    """The outer attempt before was given up inside this step: that call cannot be ended, but its outcome counts."""
    while core.is_in_flight(spec.key):
        yield Sleep(LATE_LOOK)
        core.refuse_if_given_up(spec.key)
    entry = core.index.get(spec.key)
    value = MISS if entry is None else core.replay(spec, entry)
    return value if value is not MISS else (yield from step_flow(core, spec))


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
        if index:
            yield from sync_seen(core)
        core.settle_in(row, index)
        core.entered = True


def sync_seen(core: RunCore) -> Flow:
    """What another process committed may be seen before it is durable; what is handed out is durable."""
    if core.full:
        yield Do(core.store.database.driver.sync_seen)


def _step(core: RunCore, spec: StepSpec, owner: Owner) -> Flow:
    entry = core.index.get(spec.key)
    again = False
    if entry is not None:
        # Here only for what replay() could not answer from memory: other inputs to rerun, a large or kept outcome.
        again = spec.on_change == "rerun" and core.inputs_changed(spec, entry)
        if not again:
            return (yield from _stored(core, spec, entry))
    _look_at(core, spec)
    claim = yield from _claim(core, spec, owner, again=again)
    while True:
        if claim.kind == "stored":
            return (yield from _stored_elsewhere(core, spec, owner))
        if claim.kind == "in_doubt":
            claim = yield from _decide(core, spec, owner, claim)
            if not isinstance(claim, Claim):
                return claim
            continue  # another process may have decided, or tried, meanwhile
        outcome = yield from (spec.how or attempt_flow)(core, spec, claim)
        if type(outcome) is not Again:
            return outcome
        yield from _wait_for_retry(core, spec, outcome.until)
        claim = yield from _claim(core, spec, owner, again=False)


def _look_at(core: RunCore, spec: StepSpec) -> None:
    if _ADDRESS in spec.key:
        core.warn_once_plainly("address", errors.AgentResumeWarning, run_telling.address_text(core.run_id, spec.key))
    fn = spec.fn
    if spec.fingerprint is None and (spec.args or type(fn) is not FunctionType):
        spec.fingerprint = fingerprint.fingerprint(fn, spec.args, codec=core.codec)
    spec.code_hash = fingerprint.code_hash(fn)


# -- begin -----------------------------------------------------------------------------------------------------------


def _not_claimed(
    core: RunCore, place: Place, request: ClaimRequest, owner: Owner, trouble: BaseException, *, full: bool = False
) -> Flow:
    if isinstance(trouble, errors.AgentResumeError | errors.RunCancelled | GeneratorExit):
        core.return_skips(request.skips)
    elif (place.seq, request.key) not in owner.unsettled:
        # Whether the claim stands is unknown, so it is given back if it does.
        yield from once_more(Write(store_steps.give_back, (place, request.key, owner.token), full), trouble)


def _claim(core: RunCore, spec: StepSpec, owner: Owner, *, again: bool, retry_doubt: int | None = None) -> Flow:
    place = core.where
    if owner.heart.late and not (yield Do(owner.heart.beat)):
        raise errors.StoreUnavailable(
            core.store.display, "this process could not beat for a lease, so others may take its run",
            "look why the store cannot be written, then resume the run",
        )  # fmt: skip
    meta = core.meta_text(spec.key, spec.meta) if spec.meta else None
    # A start mark survives the process, not the power; one of effect="once" must survive both, or a power cut would
    # hide that it had begun.
    full = spec.effect == "once"
    patient = spec.retry is not None and spec.failures == 0
    faults.at("before-claim")
    while True:
        skips = core.take_skips()
        request = ClaimRequest(
            spec.key, owner.token, owner.judge, spec.effect, spec.fingerprint, spec.code_hash, meta,
            again, retry_doubt, patient, skips,
        )  # fmt: skip
        try:
            claim = yield Write(store_steps.claim, (place, request), full)
        except BaseException as trouble:
            yield from _not_claimed(core, place, request, owner, trouble, full=full)
            raise
        if claim.kind == "claimed":
            faults.at("after-claim")
            return claim
        if not claim.unknown:  # nothing was written
            core.return_skips(skips)
        if claim.kind == "watch":
            yield from watch(core, spec.key, claim)
        elif claim.kind == "wait":
            yield from _wait_for_retry(core, spec, claim.until)
            patient = False
        else:
            faults.at("after-claim")
            return claim


def watch(core: RunCore, key: str, claim: Claim) -> Flow:
    """Watch the owner of a running step that cannot be seen from here.

    Raises:
        StepInFlight: it lives.
    """
    assert claim.owner is not None  # a claim of kind "watch" always names whom
    verdict = yield Watch(claim.owner, f"step {key!r} of run {core.run_id!r}")
    if verdict == "dead":
        core.owner.decided_dead.add(claim.owner.token)
        return
    raise errors.StepInFlight(core.run_id, key, host=claim.owner.host, pid=claim.owner.pid)


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
        raise errors.RunCancelled(core.run_id, at=core.store.location.option)


# -- stored outcomes -------------------------------------------------------------------------------------------------


def _stored(core: RunCore, spec: StepSpec, entry: Any) -> Flow:
    """Hand out an outcome that the index knows but does not hold."""
    if core.code_changed(spec, entry):
        yield from note_code_change(core, spec.key)
    row = yield Read(store_index.load_output, (entry[ID],))
    format, text, error = row if row is not None else (None, None, None)
    if format is not None and text is None and format != KEPT_ERROR:
        raise errors.StoredValueUnreadable(
            type="value", reason="its text is missing", hint="run the step again: agent-resume rerun"
        ).located(core.run_id, spec.key)
    if format == KEPT_ERROR:
        core.skipped(entry[SEQ], spec.key, None)
        return Raised(_kept_error(core, spec, error))
    if format is None or text is None:  # discarded meanwhile, by rerun or prune
        raise errors.RunLost(core.run_id, key=spec.key, at=core.store.location.option)
    decode = functools.partial(core.decode, spec.key, format, text, spec.returns, spec.fn)
    value = decode()
    core.skipped(entry[SEQ], spec.key, decode)
    return value


def note_code_change(core: RunCore, key: str) -> Flow:
    """Mark in the store, and say once, that a step's code is not what its result came from."""
    core.tell_code_change(key)
    yield Write(store_steps.mark_code_change, (core.loose, key), full=False)


def _stored_elsewhere(core: RunCore, spec: StepSpec, owner: Owner) -> Flow:
    """Another process completed it since the index was loaded."""
    entry = yield Read(store_index.load_index_entry, (core.where.seq, spec.key))
    if entry is None:
        raise errors.RunLost(core.run_id, key=spec.key, at=core.store.location.option)
    yield from sync_seen(core)
    core.index[spec.key] = entry
    value = core.replay(spec, entry)
    if value is not MISS:
        return value
    core.forget_use(spec.key)
    return (yield from _step(core, spec, owner))


def _whole(core: RunCore, text: Any) -> BaseException | None:
    """The exception itself, where it was kept and its class is there."""
    from .codec_exceptions import StoredException

    if not isinstance(text, str):
        return None
    try:
        value = core.codec.decode("tagged", text)
    except errors.StoredValueUnreadable:
        return None
    return value if isinstance(value, BaseException) and not isinstance(value, StoredException) else None


def _kept_error(core: RunCore, spec: StepSpec, text: str | None) -> BaseException:
    described = json.loads(text) if text else {}
    rebuilt = _whole(core, described.get("exception")) or failure.rebuild(described)
    if rebuilt is not None:
        return rebuilt
    kind, message = str(described.get("type")), str(described.get("message"))
    return errors.StoredStepError(core.run_id, spec.key, type=kind, text=message, at=core.store.location.option)


def _decide(core: RunCore, spec: StepSpec, owner: Owner, doubt: Claim) -> Flow:
    """Somebody must say whether an ``effect="once"`` step happened: ``verify``, or else a person.

    What ``verify`` says holds for the attempt it was asked about; another process may have made one since.
    """
    verdict: Any = UNKNOWN
    if spec.verify is not None:
        context = StepContext(core.run_id, spec.key, 0)
        outcome: Outcome = yield Call(StepSpec(spec.key, spec.verify), context)
        if outcome.error is not None:
            return Raised(outcome.error)
        verdict = outcome.value
    if isinstance(verdict, Verified):
        encoded, fresh = core.codec.settle(verdict.value, key=spec.key, returns=spec.returns, hint=spec.fn)
        settled = yield Write(store_steps.settle_doubt, (core.where, spec.key, encoded, "verify", doubt.attempt))
        if not settled:
            raise errors.RunLost(core.run_id, key=spec.key, result=verdict.value, at=core.store.location.option)
        core.note_use(spec.key)
        return fresh
    if verdict is NOT_DONE:
        return (yield from _claim(core, spec, owner, again=False, retry_doubt=doubt.attempt))
    if verdict is not UNKNOWN:
        raise TypeError(f"verify returns Verified(value), NOT_DONE or UNKNOWN, not {type(verdict).__name__}")
    if run_telling.is_followed():
        found = yield Read(look, (core.where,))
        run_telling.met_doubt(core.store, core.run_id, found.last_seq)
    raise errors.StepInDoubt(core.run_id, spec.key, at=core.store.location.option)
