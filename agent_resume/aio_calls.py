"""Performing a flow's effects from a coroutine. The event loop's thread never touches the database and never waits.

A write that was queued is always waited for, also by a cancelled task: only then is its outcome known, and the flow
can undo or confirm it; then the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors, run_calls, store_notify
from .database_batch import Queued, Way
from .database_helpers import fulfil
from .run_context import active
from .run_effects import Call, Do, Flow, News, Outcome, Raised, Read, Sleep, Watch, Write
from .threads import start_thread

if TYPE_CHECKING:
    from .run_context import StepContext
    from .run_isolation import Child
    from .run_options import StepSpec
    from .store import Store

T = TypeVar("T")
log = logging.getLogger("agent_resume")


#: Calls that one turn of a loop begins. A thousand steps begun at once would be a gap for everything else on it.
TURN = 32
#: After so long, in s, a turn that was to come has been lost to an interrupt.
LOST_TURN = 1.0


_ways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Way] = weakref.WeakKeyDictionary()


class _Turns:
    """Who may begin on one loop: a few in each of its turns, the others in the order they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._begun = 0
        self._since = 0.0
        self._chain = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """None: go on now; else what to await."""
        if self._begun and loop.time() - self._since > LOST_TURN:
            self._begun = 0  # Ctrl-C came in where the next turn should have begun
        if not self._begun:
            self._schedule(loop)
        if self._begun >= TURN:
            waiter = loop.create_future()
            self._waiting.append(waiter)
            return waiter
        self._begun += 1
        return None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._since = loop.time()
        self._chain += 1
        loop.call_soon(self._next, self._chain)

    def _next(self, chain: int) -> None:
        if chain != self._chain:
            return  # taken for lost, and begun anew
        self._begun = 0
        try:
            while self._waiting and self._begun < TURN:
                waiter = self._waiting[0]
                if not waiter.done():
                    waiter.set_result(None)
                    self._begun += 1
                self._waiting.popleft()
        finally:
            loop = self._loop()
            if (self._begun or self._waiting) and loop is not None:
                self._schedule(loop)


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = weakref.WeakKeyDictionary()


async def take_turn() -> None:
    """Go on now, or in a later turn of the loop when enough has been begun in this one."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns(loop)
    waiter = turns.take(loop)
    if waiter is not None:
        await waiter


async def drive(store: Store, flow: Flow) -> Any:
    """``run_calls.drive``, awaited: what arrives between two effects is thrown into the flow as well."""
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
                value = await (_write(store, effect) if type(effect) is Write else perform(store, effect))
            except StopIteration as stop:
                result = stop.value
                break
            except GeneratorExit:
                flow.close()  # this coroutine is being thrown away: nothing can be awaited any more
                raise
            except BaseException as caught:
                if flow.gi_frame is None:  # type: ignore[attr-defined]  # a flow is a generator; it ended with this
                    raise
                error = caught
    finally:
        error = None  # its traceback holds this frame
    if type(result) is Raised:
        raise result.error
    return result


async def perform(store: Store, effect: Any) -> Any:
    """Perform one effect."""
    if type(effect) is Call:
        return await _call(effect)
    if type(effect) is Sleep:
        return await asyncio.sleep(effect.seconds)
    if type(effect) is Read:
        return await in_thread(store, store.database.read, effect.operation, *effect.arguments)
    if type(effect) is Do:
        if effect.long:
            return await in_own_thread(effect.function, *effect.arguments)
        return await shielded(store, effect.function, *effect.arguments)
    if type(effect) is News:
        return await store_notify.wait_async(store.database, effect.run, effect.seen, effect.seconds)
    if type(effect) is Watch:
        return await in_own_thread(run_calls.watch, store, effect.owner, effect.what)
    raise AssertionError(effect)


async def _write(store: Store, effect: Write) -> Any:
    loop = asyncio.get_running_loop()
    way = _ways.get(loop)
    if way is None:
        way = _ways[loop] = Way(loop)
    outcome = _WriteOutcome(way, loop)
    store.database.batch.put(Queued(effect.operation, effect.arguments, effect.full, outcome.settle, way))
    try:
        return await outcome
    except asyncio.CancelledError as cancelled:
        return await outlast(outcome, cancelled)


class _WriteOutcome(asyncio.Future[Any]):
    """The outcome of a queued write. It cannot be cancelled: a cancelled task is told once it is there."""

    def __init__(self, way: Way, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._way = way

    def cancel(self, msg: Any | None = None) -> bool:
        """Nothing; ``Task.cancel`` then waits for the next time that the task wakes up."""
        self._way.again()  # after Ctrl-C, the outcome may lie there
        return False

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Called in the loop."""
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


async def in_thread(store: Store, fn: Callable[..., T], *args: Any) -> T:
    """Call what may block and may be given up."""
    return await asyncio.wrap_future(store.database.helpers.submit(functools.partial(fn, *args)))


async def shielded(store: Store, fn: Callable[..., T], *args: Any) -> T:
    """Call what may block and must be waited for, whatever becomes of this task."""
    future = asyncio.wrap_future(store.database.helpers.submit(functools.partial(fn, *args)))
    result: T = await outlast(future)
    return result


async def in_own_thread(fn: Callable[..., T], *args: Any) -> T:
    """Call what may take long, in a thread of its own and in a copy of this context; it is always waited for."""
    result: T = await outlast(_begin_in_own_thread(fn, *args))
    return result


def _begin_in_own_thread(fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    future: Future[Any] = Future()
    context = contextvars.copy_context()
    start_thread(functools.partial(fulfil, future, functools.partial(context.run, fn, *args)), "agent-resume-call")
    return asyncio.wrap_future(future)


async def outlast(future: asyncio.Future[Any], cancelled: asyncio.CancelledError | None = None) -> Any:
    """Await ``future`` to its end, however often this task is cancelled; then the cancellation goes on."""
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except GeneratorExit:
            raise
        except BaseException:  # noqa: BLE001 - the future holds it; it is raised below
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain that nobody did
        raise cancelled
    return future.result()


async def _call(effect: Call) -> Outcome:
    spec, task = effect.spec, _current_task()
    before, token = active.get(), None
    try:
        token = active.set(effect.context)
        if spec.isolation is not None:
            return await _call_isolated(effect)
        if spec.timeout is None:
            return Outcome(await _value(spec))
        return await _call_with_timeout(spec, effect.context, spec.timeout)
    except BaseException as error:
        if isinstance(error, GeneratorExit) and _current_task() is not task:
            raise  # this coroutine is being thrown away: nothing can be awaited any more
        return Outcome(error=error)
    finally:
        # A coroutine that is thrown away may be closed in another context than it ran in.
        with contextlib.suppress(ValueError):
            if token is not None:
                active.reset(token)
            else:  # Ctrl-C came in before it was had
                active.set(before)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


async def _call_with_timeout(spec: StepSpec, context: StepContext, seconds: float) -> Outcome:
    """What ignores its cancellation, or never awaits, cannot be ended: its late outcome is dropped, as elsewhere."""
    raised: Exception | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            outcome = Outcome(await _value(spec))
    except Exception as error:  # noqa: BLE001 - the flow decides what becomes of it
        outcome, raised = Outcome(error=error), error
    end = limit.when()
    if not limit.expired() and (end is None or asyncio.get_running_loop().time() < end):
        return outcome
    late = errors.StepTimeout(context.run_id, spec.key, seconds)
    if not isinstance(raised, TimeoutError):
        late.__cause__ = raised
        log.warning("step %r of run %r ended after its timeout; its outcome is dropped", spec.key, context.run_id)
    return Outcome(error=late)


async def _value(spec: StepSpec) -> Any:
    value = spec.fn(*spec.args)
    return await value if inspect.isawaitable(value) else value


async def _call_isolated(effect: Call) -> Outcome:
    child = await in_own_thread(_child, effect.spec, effect.context)
    future = _begin_in_own_thread(child.run)
    try:
        outcome: Outcome = await asyncio.shield(future)
    except asyncio.CancelledError:
        child.stop()
        await outlast(future)
        raise
    return outcome


def _child(spec: StepSpec, context: StepContext) -> Child:
    from . import run_isolation  # reads files, so not on the loop

    return run_isolation.Child(spec, context)
