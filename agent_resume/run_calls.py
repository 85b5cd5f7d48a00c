"""Performing the effects that take time, in the calling thread: the user's function, sleeps, watching an owner."""

from __future__ import annotations

import contextvars
import logging
import threading
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from . import clock, errors, ownership, store_notify, store_sql
from .run_context import StepContext, active
from .run_effects import Call, Do, Flow, News, Outcome, Raised, Read, Sleep, Watch, Write
from .run_options import StepSpec
from .threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from .models import OwnerRow
    from .store import Store

log = logging.getLogger("agent_resume")


def drive(flow: Flow, store: Store, write: Callable[[Callable[..., Any], tuple[Any, ...], bool], Any]) -> Any:
    """Perform a flow's effects in the calling thread until it ends; what it ends with is returned or raised.

    An interrupt that arrives between two effects is thrown into the flow like one that arrives in an effect, so that
    the flow always has the last word on what it has begun.

    Args:
        write: performs a write; ``Database.transact`` is the direct door.
    """
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                if error is None:
                    effect = flow.send(value)
                else:
                    effect = flow.throw(error)
                    error = None
                kind = type(effect)
                if kind is Write:
                    value = write(effect.operation, effect.arguments, effect.full)
                elif kind is Call:
                    value = call(effect.spec, effect.context)
                else:
                    value = perform(store, effect)
            except StopIteration as stop:
                result = stop.value
                break
            except BaseException as caught:
                if flow.gi_frame is None:  # type: ignore[attr-defined]  # a flow is a generator; it ended with this
                    raise
                error = caught
    finally:
        error = None  # its traceback holds this frame
        if flow.gi_frame is not None:  # type: ignore[attr-defined]  # a second interrupt, while the first was handled
            flow.close()
    if type(result) is Raised:
        # The user's own exception object with its own traceback, raised outside the flow and every handler of ours.
        raise result.error
    return result


def advance(flow: Flow, store: Store, value: Any, error: BaseException | None) -> tuple[Write | None, Any]:
    """Perform a flow's effects up to its next write, which is left to the caller; at its end None, and its value.

    For threads that no signal interrupts. What the flow ends with is raised as by ``drive``.

    Args:
        value: outcome of the write before, None at the beginning.
        error: its error instead.
    """
    while True:
        try:
            effect = flow.send(value) if error is None else flow.throw(error)
            error = None
            if type(effect) is Write:
                return effect, None
            value = call(effect.spec, effect.context) if type(effect) is Call else perform(store, effect)
        except StopIteration as stop:
            result = stop.value
            break
        except BaseException as caught:
            if flow.gi_frame is None:  # type: ignore[attr-defined]  # a flow is a generator; it ended with this
                raise
            error = caught
    if type(result) is Raised:
        raise result.error
    return None, result


def perform(store: Store, effect: Any) -> Any:
    """Perform one of the rarer effects in the calling thread."""
    if type(effect) is Read:
        return store.database.read(effect.operation, *effect.arguments)
    if type(effect) is Do:
        return effect.function(*effect.arguments)
    if type(effect) is Sleep:
        return sleep(effect.seconds)
    if type(effect) is News:
        return store_notify.wait(store.database, effect.run, effect.seen, effect.seconds)
    if type(effect) is Watch:
        return watch(store, effect.owner, effect.what)
    raise AssertionError(effect)


def call(spec: StepSpec, context: StepContext) -> Outcome:
    """Call the step's function; its exception comes back as an outcome."""
    if spec.isolation is not None:
        from . import run_isolation

        isolated: Outcome = run_isolation.call(spec, context)
        return isolated
    if spec.timeout is not None:
        return _call_with_timeout(spec, context)
    before = active.get()
    try:
        active.set(context)
        value = spec.fn(*spec.args)
        if type(value) is CoroutineType:
            value.close()
            raise TypeError(
                f"step {spec.key!r} returned a coroutine, which nobody awaits here; make the agent's body a coroutine "
                "function, which gets an AsyncRun, and await its steps"
            )
        return Outcome(value)
    except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
        return Outcome(error=_without_our_frame(error))
    finally:
        active.set(before)  # not reset by its token: Ctrl-C may come in before that is had


def _without_our_frame(error: BaseException) -> BaseException:
    # By way of the base class: the error's own may raise whatever it is asked for.
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    return error if trace is None else BaseException.with_traceback(error, trace.tb_next)


def _call_with_timeout(spec: StepSpec, context: StepContext) -> Outcome:
    """A synchronous call cannot be pre-empted: it goes on in its thread, and its late outcome is dropped."""
    outcome: list[Outcome] = []
    ended = threading.Event()
    late = threading.Event()

    def work() -> None:
        made = call(StepSpec(spec.key, spec.fn, spec.args), context)
        outcome.append(made)
        ended.set()
        if late.is_set():
            log.warning("step %r of run %r ended after its timeout; its outcome is dropped", spec.key, context.run_id)

    inherited = contextvars.copy_context()
    start_thread(inherited.run, f"agent-resume-{spec.key}", work)
    if not ended.wait(min(spec.timeout or 0.0, threading.TIMEOUT_MAX)):
        late.set()
        return Outcome(error=errors.StepTimeout(context.run_id, spec.key, spec.timeout or 0.0))
    return outcome[0]


def sleep(seconds: float) -> None:
    """Let time pass."""
    clock.sleep(seconds)


def watch(store: Store, owner: OwnerRow, what: str) -> ownership.Verdict:
    """Watch an owner of another host until it is known to live or not; said on one line, since it takes a while."""

    def announce() -> None:
        log.warning(
            "%s is held by process %d on %s, which cannot be seen from here: watching its beats for up to %d s",
            what, owner.pid, ownership.host_name(owner.host), round(ownership.LEASE),
        )  # fmt: skip

    def read() -> dict[str, Any] | None:
        row = store.database.read(store_sql.owner_row, owner.token)
        return None if row is None else row.to_mapping()

    from .models import OwnerRow as Row

    return ownership.wait_until_decided(read, lambda mapping: store.owner.judge(Row(**mapping)), announce=announce)
