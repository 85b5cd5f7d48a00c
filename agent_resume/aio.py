"""``AsyncRun``: ``Run``, awaited. The same flows, driven on an event loop whose thread never touches the database.

Writes go through the batch door, so that concurrent steps share their syncs. A write that was queued is always waited
for, also by a cancelled task: only then is its outcome known, and the flow can undo or confirm it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn, TypeVar, overload

from . import errors, report, run_calls, run_flows, run_steps, store_status
from .codec import json_value
from .database_batch import Queued
from .models import MISSING, AgentRunState, RecordedStep
from .run_context import active
from .run_core import MISS, RunCore
from .run_effects import Call, Flow, Outcome, Raised, Read, Sleep, Watch, Write
from .run_options import Effect, OnChange, StepSpec
from .run_retry import Retry

T = TypeVar("T")
D = TypeVar("D")


class AsyncRun:
    """One run, in this execution, for coroutines. Methods and parameters are those of ``Run``; every call is awaited.

    Nothing here is bound to an event loop: one run may be used from several, one after another or in threads.
    """

    def __init__(self, core: RunCore) -> None:
        self._core = core

    # -- driving -------------------------------------------------------------------------------------------------

    async def _drive(self, flow: Flow) -> Any:
        try:
            effect = next(flow)
            while True:
                try:
                    value = await self._perform(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as stop:
            result = stop.value
        if type(result) is Raised:
            raise result.error
        return result

    async def _perform(self, effect: Any) -> Any:
        if type(effect) is Write:
            return await self._write(effect)
        if type(effect) is Call:
            return await _call(effect)
        if type(effect) is Read:
            database = self._core.store.database
            return await self._in_thread(database.read, effect.operation, *effect.arguments)
        if type(effect) is Sleep:
            return await asyncio.sleep(effect.seconds)
        if type(effect) is Watch:
            return await self._in_thread(run_calls.watch, self._core.store, effect.owner, effect.what)
        raise AssertionError(effect)

    async def _write(self, effect: Write) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self._core.store.database.batch.put(Queued(effect.operation, effect.arguments, effect.full, settle, loop))
        return await _outlast(future)

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._core.store.database.helpers, functools.partial(fn, *args))

    async def _shielded(self, fn: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._core.store.database.helpers, functools.partial(fn, *args))
        result: T = await _outlast(future)
        return result

    # -- steps ---------------------------------------------------------------------------------------------------

    @overload
    async def step(self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[..., T], /, *args: Any, **options: Any) -> T: ...
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        returns: Any = None,
        on_change: OnChange = "warn",
        repeat: bool = False,
        effect: Effect = "repeatable",
        verify: Callable[[], Any] | None = None,
        keep_errors: tuple[type[BaseException], ...] | type[BaseException] = (),
        isolation: Literal["process"] | None = None,
    ) -> Any:
        """``Run.step``; ``fn`` may be a coroutine function, a plain function, or a lambda that returns an awaitable."""
        core = self._core
        key = core.key_for(name, repeat=repeat)
        spec = StepSpec(
            key, fn, args, meta, timeout, retry, returns, on_change, effect, verify, keep_errors, isolation
        )  # fmt: skip
        spec.check()
        entry = core.index.get(key)
        if entry is not None:
            core.refuse_if_stopped(f"start step {key!r}")
            value = core.replay(spec, entry)
            if value is not MISS:
                return value
        return await self._drive(run_steps.step_flow(core, spec))

    async def record(self, key: str, result: T, meta: dict[str, Any] | None = None, *, replace: bool = False) -> T:
        """``Run.record``."""
        return await self._drive(run_flows.record_flow(self._core, key, result, meta, replace=replace))  # type: ignore[no-any-return]

    async def has(self, key: str) -> bool:
        """``Run.has``."""
        return bool(await self._drive(run_flows.has_flow(self._core, key)))

    async def get_step_result(self, key: str, default: Any = None) -> Any:
        """``Run.get_step_result``."""
        return await self._drive(run_flows.result_flow(self._core, key, default))

    async def event(self, type: str, data: Any = None, /, **fields: Any) -> None:
        """``Run.event``."""
        await self._drive(run_flows.event_flow(self._core, type, data, fields))

    # -- pausing and waiting -------------------------------------------------------------------------------------

    async def pause(self, reason: str, context: Any = None, *, name: str | None = None, returns: Any = None) -> Any:
        """``Run.pause``."""
        return await self._drive(
            run_flows.pause_flow(self._core, reason, context, name, returns, errors.RunPaused)
        )

    async def get_pause_context(self) -> Any:
        """``Run.get_pause_context``."""
        return await self._drive(run_flows.pause_context_flow(self._core))

    async def wait(
        self,
        name: str,
        *,
        timeout: float | None = None,
        prompt: str | None = None,
        default: Any = MISSING,
        returns: Any = None,
    ) -> Any:
        """``Run.wait``; other tasks go on meanwhile."""
        return await self._drive(run_flows.wait_flow(self._core, name, timeout, prompt, default, returns))

    async def sleep(self, name: str, seconds: float) -> None:
        """``Run.sleep``; other tasks go on meanwhile."""
        await self._drive(run_flows.sleep_flow(self._core, name, seconds))

    async def done(self, summary: Any = None) -> None:
        """``Run.done``."""
        await self._drive(run_flows.done_flow(self._core, summary))

    async def cancel(self) -> NoReturn:
        """``Run.cancel``."""
        await self._drive(run_steps.enter(self._core))
        await self._shielded(self._core.store.cancel, self._core.run_id)
        self._core.stopped = "cancelled"
        raise errors.RunCancelled(self._core.run_id)

    # -- loop state and counters ---------------------------------------------------------------------------------

    async def get_loop_state(self) -> dict[str, Any]:
        """``Run.get_loop_state``."""
        found: dict[str, Any] = await self._drive(run_flows.loop_state_flow(self._core))
        return found

    async def set_loop_state(
        self, *, verdict: Any = MISSING, status: Any = MISSING, turns: Any = MISSING, reason: Any = MISSING
    ) -> None:
        """``Run.set_loop_state``."""
        given = {"verdict": verdict, "status": status, "turns": turns, "reason": reason}
        encode = self._core.codec.encode_tagged
        values = {f"loop_{name}": encode(value) for name, value in given.items() if value is not MISSING}
        if values:
            await self._drive(run_flows.set_fields_flow(self._core, values))

    async def set_expect_max_ms(self, ms: float) -> None:
        """``Run.set_expect_max_ms``."""
        if isinstance(ms, int | float) and not isinstance(ms, bool) and 0 < ms < 2**53:
            await self._drive(run_flows.set_fields_flow(self._core, {"expect_max_ms": round(ms) or 1}))

    async def count_completed_keys_with_prefix(self, prefix: str, *, digits_only: bool = False) -> int:
        """``Run.count_completed_keys_with_prefix``."""
        return int(await self._drive(run_flows.count_flow(self._core, prefix, digits_only)))

    async def count_completed_turns(self) -> int:
        """``Run.count_completed_turns``; deprecated."""
        warnings.warn(
            "count_completed_turns() is deprecated; use count_completed_keys_with_prefix('turn-', digits_only=True)",
            DeprecationWarning,
            stacklevel=2,
        )
        return await self.count_completed_keys_with_prefix("turn-", digits_only=True)

    # -- durability ----------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """``Run.flush``."""
        await self._drive(run_flows.flush_flow(self._core))

    async def flush_log(self) -> None:
        """``Run.flush_log``."""
        await self._drive(run_flows.flush_log_flow(self._core))

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's id."""
        return self._core.run_id

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._core.name

    @property
    def input(self) -> Any:
        """The input that the run was created with; None when there was none."""
        row = self._core.row
        return None if row is None or row.input is None else self._core.decode(None, "tagged", row.input)

    async def status(self) -> str:
        """``Run.status``; a method here, since it looks at the database."""
        row = await self._drive(run_flows.row_flow(self._core))
        return "running" if row is None else str(row.status)

    async def state(self) -> AgentRunState:
        """``Run.state``."""
        return await self._in_thread(self._core.store.load_run, self._core.run_id)

    async def timeline(self) -> tuple[RecordedStep, ...]:
        """``Run.timeline``."""
        return (await self.state()).steps

    async def report(self) -> str:
        """``Run.report``."""
        return await self._in_thread(report_of, self._core)


def report_of(core: RunCore) -> str:
    """The run as a Markdown report."""
    row = core.store.find_run(core.run_id)
    summary = None if row.summary is None else json_value("tagged", row.summary)
    return report.markdown(core.store.load_run(row.id), summary, store_status.duration_ms(row))


async def _outlast(future: asyncio.Future[Any]) -> Any:
    """Await ``future`` to its end, however often this task is cancelled; then the cancellation goes on."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 - the future holds it; it is raised below
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain that nobody did
        raise cancelled
    return future.result()


async def _call(effect: Call) -> Outcome:
    spec = effect.spec
    token = active.set(effect.context)
    try:
        if spec.isolation is not None:
            return await asyncio.to_thread(run_calls.call, spec, effect.context)
        if spec.timeout is None:
            return Outcome(await _value(spec))
        try:
            async with asyncio.timeout(spec.timeout) as limit:
                return Outcome(await _value(spec))
        except TimeoutError as error:
            if not limit.expired():
                return Outcome(error=error)
            return Outcome(error=errors.StepTimeout(effect.context.run_id, spec.key, spec.timeout))
    except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
        return Outcome(error=error)
    finally:
        active.reset(token)


async def _value(spec: StepSpec) -> Any:
    value = spec.fn(*spec.args)
    return await value if inspect.isawaitable(value) else value
