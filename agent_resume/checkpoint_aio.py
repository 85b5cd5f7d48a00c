"""``AsyncCheckpoint``: ``Checkpoint``, awaited."""

from __future__ import annotations

import functools
import os
from contextvars import Token
from types import TracebackType
from typing import Any

from . import aio_calls, errors, run_context, run_flows
from .aio import AsyncRun
from .checkpoint import check_options, close_core, open_core
from .run_core import Hook, Progress, RunCore
from .run_options import OnDuplicate
from .store import Durability, Store


class AsyncCheckpoint(AsyncRun):
    """A run by id, for coroutines. Arguments and rules are those of ``Checkpoint``.

    An asynchronous context manager; decorated functions inside ``async with`` belong to its run. Without ``async with``
    it is opened by the first call, and ``await close()`` ends it. Opening and reading change nothing: the run is
    created, or set running again, by the first call that writes.

    Raises:
        InvalidName, ValueError: an id or option that cannot be one.
    """

    def __init__(
        self,
        run_id: str,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        db: str | os.PathLike[str] | Store | None = None,
        on_step: Hook | None = None,
        durability: Durability | None = None,
        progress: Progress = "auto",
        strict: bool = False,
        on_duplicate: OnDuplicate = "return",
    ) -> None:
        check_options(run_id, durability, on_duplicate)
        super().__init__(None)
        self._open = functools.partial(
            open_core, run_id, state_dir, db, on_step=on_step, durability=durability, progress=progress, strict=strict,
            on_duplicate=on_duplicate,
        )  # fmt: skip
        self._token: Token[Any] | None = None

    @property
    def _core(self) -> RunCore:
        # Finding the file asks the file system, so ``async with`` does it in a thread.
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    async def close(self) -> None:
        """Store the collected skips and give the store back; nothing when done before."""
        core = self._core
        if core.closed:
            return
        try:
            await self.flush_log()
        finally:
            await aio_calls.shielded(core.store, close_core, core)

    async def __aenter__(self) -> AsyncCheckpoint:
        await aio_calls.in_own_thread(lambda: self._core)
        await self._drive(run_flows.locate(self._core))
        self._token = run_context.current_run.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            run_context.leave_run(self._token)
        try:
            await self.close()
        except errors.StoreError as trouble:
            if error is None:
                raise
            error.add_note(f"agent-resume could not store what was pending: {trouble}")
