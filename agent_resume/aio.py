"""``AsyncRun``: ``Run``, awaited. The same flows, driven on an event loop whose thread never touches the database.

Writes go through the batch door, so that concurrent steps share their syncs (``aio_calls.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, TypeVar, overload

from . import (
    aio_calls,
    errors,
    report,
    run_context,
    run_flows,
    run_map,
    run_map_aio,
    run_pauses,
    run_steps,
    run_transaction,
    store_status,
)
from .codec import json_value
from .models import MISSING, AgentRunState, RecordedStep
from .run_core import MISS, RunCore
from .run_effects import Flow
from .run_loop import AsyncLoop
from .run_map import MapOutcome, OnError
from .run_options import Effect, OnChange, StepSpec, unknown_keywords
from .run_retry import Retry

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
D = TypeVar("D")


class AsyncRun:
    """One run, in this execution, for coroutines. Methods and parameters are those of ``Run``; every call is awaited.

    Nothing here is bound to an event loop: one run may be used from several, one after another or in threads.
    """

    def __init__(self, core: RunCore | None) -> None:
        self._opened = core

    @property
    def _core(self) -> RunCore:
        assert self._opened is not None  # only AsyncCheckpoint begins without one, and overrides this
        return self._opened

    # -- driving -------------------------------------------------------------------------------------------------

    async def _drive(self, flow: Flow) -> Any:
        core = self._core
        run_context.refuse_inside_transaction(core.store.database, core.run_id)
        if not core.has_owner:
            # Who we are is read from files, and once a process.
            await aio_calls.in_thread(core.store, lambda: core.owner)
        await aio_calls.take_turn()
        return await aio_calls.drive(core.store, flow)

    # -- steps ---------------------------------------------------------------------------------------------------

    @overload
    def step(
        self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, **options: Any
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[..., T], /, *args: Any, **options: Any) -> Coroutine[Any, Any, T]: ...
    def step(
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
        **unknown: Never,
    ) -> Coroutine[Any, Any, Any]:
        """``Run.step``; ``fn`` may be a coroutine function, a plain function, or a lambda that returns an awaitable.

        A plain function is called on the event loop, as anywhere in asyncio: ``timeout`` cannot end it (it cancels what
        is awaited), but raises ``StepTimeout`` and drops the late result once it has ended; ``asyncio.to_thread`` or
        ``isolation="process"`` keep the loop free. The number that ``repeat``
        gives is fixed when this is called, not when it is awaited.
        """
        if unknown:
            raise unknown_keywords(fn, unknown)
        core = self._core
        key = core.key_for(name, repeat=repeat)
        spec = StepSpec(
            key, fn, args, meta, timeout, retry, returns, on_change, effect, verify, keep_errors, isolation
        )  # fmt: skip
        spec.check()
        return self._step(spec)

    async def _step(self, spec: StepSpec) -> Any:
        core = self._core
        if core.place is None:
            await self._drive(run_flows.locate(core))
        entry = core.index.get(spec.key)
        if entry is not None:
            core.refuse_if_stopped(f"start step {spec.key!r}")
            value = core.replay(spec, entry)
            if value is not MISS:
                return value
        return await self._drive(run_steps.step_flow(core, spec))

    def map(
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        concurrency: int = 8,
        on_error: OnError = "raise",
        returns: Any = None,
    ) -> AsyncIterator[MapOutcome]:
        """``Run.map``, for ``async for``: a task an item. ``items`` may be an asynchronous iterable as well.

        Leave the loop early through ``contextlib.aclosing``, or the items in flight are only waited for when Python
        throws the iterator away.
        """
        wanted = run_map.Wanted(name, fn, key, concurrency, on_error, returns)
        return run_map_aio.outcomes(self._core, wanted, items)

    async def transaction(self, key: str, fn: Callable[[Connection], T], engine: Engine | None = None) -> T:
        """``Run.transaction``; ``fn`` is a plain function, called in a thread of its own."""
        spec = run_transaction.checked(self._core, key, fn, engine)
        return await self._step(spec)  # type: ignore[no-any-return]  # what fn returned, decoded

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
        try:
            await self._drive(run_flows.event_flow(self._core, type, data, fields))
        except errors.InvalidTransition as error:  # inside run.transaction
            run_flows.lose_event(self._core, type, error)

    # -- pausing and waiting -------------------------------------------------------------------------------------

    async def pause(self, reason: str, context: Any = None, *, name: str | None = None, returns: Any = None) -> Any:
        """``Run.pause``."""
        return await self._drive(run_pauses.pause_flow(self._core, reason, context, name, returns, errors.RunPaused))

    async def get_pause_context(self) -> Any:
        """``Run.get_pause_context``."""
        return await self._drive(run_pauses.pause_context_flow(self._core))

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
        return await self._drive(run_pauses.wait_flow(self._core, name, timeout, prompt, default, returns))

    async def sleep(self, name: str, seconds: float) -> None:
        """``Run.sleep``; other tasks go on meanwhile."""
        await self._drive(run_pauses.sleep_flow(self._core, name, seconds))

    async def done(self, summary: Any = None) -> None:
        """``Run.done``."""
        await self._drive(run_flows.done_flow(self._core, summary))

    async def cancel(self) -> NoReturn:
        """``Run.cancel``."""
        await self._drive(run_flows.cancel_flow(self._core))
        raise errors.RunCancelled(self._core.run_id, at=self._core.store.location.option)

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

    def loop(self, name: str, *, max_turns: int | None = None, max_seconds: float | None = None) -> AsyncLoop:
        """``Run.loop``, for ``async for``; the turns' methods are awaited."""
        return AsyncLoop(self, self._core, name, max_turns, max_seconds)

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

    @property
    def status(self) -> Coroutine[Any, Any, str]:
        """``Run.status``, awaited like everything that looks at the database: ``await run.status``."""
        return self._status()

    async def _status(self) -> str:
        row = await self._drive(run_flows.row_flow(self._core))
        return "running" if row is None else str(row.status)

    async def state(self) -> AgentRunState:
        """``Run.state``."""
        return await aio_calls.in_thread(self._core.store, self._core.store.load_run, self._core.run_id)

    async def timeline(self) -> tuple[RecordedStep, ...]:
        """``Run.timeline``."""
        return (await self.state()).steps

    async def report(self) -> str:
        """``Run.report``."""
        return await aio_calls.in_thread(self._core.store, report_of, self._core)


def report_of(core: RunCore) -> str:
    """The run as a Markdown report."""
    row = core.store.run_row(core.run_id)
    summary = None if row.summary is None else json_value("tagged", row.summary)
    return report.markdown(core.store.load_run(row.id), summary, store_status.duration_ms(row))
