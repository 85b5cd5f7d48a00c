"""``Checkpoint``: a run opened by its id, without exclusivity; many processes may work on one at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType

from . import agent_exec, errors, run_context, run_flows
from .names import check_name
from .run import Run
from .run_command import recorded_command
from .run_core import Hook, Progress, RunCore
from .run_options import OnDuplicate
from .store import Durability, Store


class Checkpoint(Run):
    """A run by id. Its steps are claimed one by one, so several processes may share it.

    Opening and reading change nothing: the run is created, or set running again, by the first call that writes.

    Args:
        run_id: the run's id, and its name when it is created here. Where ``agent-resume resume FORK --exec`` started the
            program for a fork of that run, the fork is meant.
        state_dir: a folder whose ``runs.db`` is the store when ``db`` is None.
        db: a path, a URL or a ``Store``.
        on_step: called with a ``StepEvent`` at each start, done, skip and error.
        durability: ``"full"`` or ``"relaxed"``; the store's when not given.
        progress: lines on stderr; ``"auto"`` means on a terminal only.
        strict: duplicates and changes are errors; ``AGENT_RESUME_STRICT=1`` does the same.
        on_duplicate: what a step name used twice in one execution gives.

    Raises:
        InvalidName, ValueError: an id or option that cannot be one.
        StoreError: the store is there and cannot be read.
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
        super().__init__(
            open_core(
                run_id,
                state_dir,
                db,
                on_step=on_step,
                durability=durability,
                progress=progress,
                strict=strict,
                on_duplicate=on_duplicate,
            )  # fmt: skip
        )
        self._drive(run_flows.locate(self._core))

    def _pause_signal(self) -> Callable[..., BaseException]:
        # In a task, SystemExit would stop the whole loop with a traceback.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return errors._ExitingRunPaused
        return errors.RunPaused

    def close(self) -> None:
        """Store the collected skips and give the store back; nothing when done before."""
        if self._core.closed:
            return
        try:
            self.flush_log()
        finally:
            close_core(self._core)

    def __enter__(self) -> Checkpoint:
        self._token = run_context.current_run.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_context.leave_run(self._token)
        try:
            self.close()
        except errors.StoreError as trouble:
            if error is None:
                raise
            error.add_note(f"agent-resume could not store what was pending: {trouble}")


def open_core(
    run_id: str,
    state_dir: str | os.PathLike[str] | None,
    db: str | os.PathLike[str] | Store | None,
    *,
    on_step: Hook | None,
    durability: Durability | None,
    progress: Progress,
    strict: bool,
    on_duplicate: OnDuplicate,
) -> RunCore:
    """The core of a ``Checkpoint`` of either kind."""
    name = check_options(run_id, durability, on_duplicate)
    mine = not isinstance(db, Store)
    if db is None and state_dir is None:
        db = agent_exec.place_for(name)
    store = Store(db, state_dir=state_dir) if not isinstance(db, Store) else db
    core = RunCore(
        store,
        agent_exec.joined_run(store, name),
        name,
        exclusive=False,
        on_step=on_step,
        progress=progress,
        strict=strict or os.environ.get("AGENT_RESUME_STRICT") == "1",
        on_duplicate=on_duplicate,
        full=(durability or store.durability) == "full",
    )
    core.owns_store = mine
    core.command = recorded_command(store.redactor)
    return core


def check_options(run_id: str, durability: Durability | None, on_duplicate: OnDuplicate) -> str:
    """The run id, when it and the options can be meant.

    Raises:
        InvalidName, ValueError: they cannot.
    """
    if durability not in (None, "full", "relaxed"):
        raise ValueError(f"durability is 'full' or 'relaxed', not {durability!r}")
    if on_duplicate not in ("error", "return", "number"):
        raise ValueError(f"on_duplicate is 'error', 'return' or 'number', not {on_duplicate!r}")
    return check_name("run id", run_id)


def close_core(core: RunCore) -> None:
    """End an execution: beat no more, give back a store that was opened for it."""
    core.closed = True
    core.stopped = core.stopped or "closed"
    try:
        core.leave()
    finally:
        if core.owns_store:
            core.store.close()
