"""``agent_run``: find or create the run, own it, run the body, settle its status."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar, overload

from . import (
    agent_body,
    agent_exec,
    aio_calls,
    errors,
    faults,
    ownership,
    run_calls,
    run_telling,
    store_index,
    store_queries,
    store_runs,
    store_settle,
)
from .agent_pause import OnPause, after_pause, pause_in
from .aio import AsyncRun
from .database_sql import Tx
from .names import check_name
from .run import Run
from .run_command import recorded_command
from .run_core import Hook, Progress, RunCore
from .run_options import OnDuplicate
from .store import Durability, Store
from .store_runs import Opened, OpenRequest
from .store_settle import Settlement

T = TypeVar("T")
log = logging.getLogger("agent_resume")
# What says that a run is no longer this execution's to settle.
_ENDED = (errors.RunCancelled, errors.RunLost)


@overload
def agent_run(
    name: str,
    fn: Callable[[AsyncRun], Coroutine[Any, Any, T]],
    *,
    run_id: str | None = ...,
    input: Any = ...,
    db: str | os.PathLike[str] | Store | None = ...,
    state_dir: str | os.PathLike[str] | None = ...,
    on_step: Hook | None = ...,
    durability: Durability | None = ...,
    progress: Progress = ...,
    strict: bool = ...,
    on_pause: OnPause = ...,
    on_duplicate: OnDuplicate = ...,
) -> Coroutine[Any, Any, T]: ...
@overload
def agent_run(
    name: str,
    fn: Callable[[Run], T],
    *,
    run_id: str | None = ...,
    input: Any = ...,
    db: str | os.PathLike[str] | Store | None = ...,
    state_dir: str | os.PathLike[str] | None = ...,
    on_step: Hook | None = ...,
    durability: Durability | None = ...,
    progress: Progress = ...,
    strict: bool = ...,
    on_pause: OnPause = ...,
    on_duplicate: OnDuplicate = ...,
) -> T: ...
def agent_run(
    name: str,
    fn: Callable[[Any], Any],
    *,
    run_id: str | None = None,
    input: Any = None,
    db: str | os.PathLike[str] | Store | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    on_step: Hook | None = None,
    durability: Durability | None = None,
    progress: Progress = "auto",
    strict: bool = False,
    on_pause: OnPause = "exit",
    on_duplicate: OnDuplicate = "error",
) -> Any:
    """Run an agent's body as a durable run: start it, or go on with the one that was left unfinished.

    With ``run_id``: that run, created when missing; a completed one gives its stored result and ``fn`` is not called.
    Without: the newest unfinished run of this name with an equal ``input`` and no live owner, else a new one.

    Args:
        name: the agent's name.
        fn: the body. A plain function gets a ``Run``; a coroutine function gets an ``AsyncRun``, and the call is awaited.
        run_id: which run; where ``agent-resume resume FORK --exec`` started the program for a fork of it, the fork.
        input: any storable value; part of what makes two runs the same work.
        db: a path, a SQLAlchemy URL or a ``Store``.
        state_dir: a folder whose ``runs.db`` is the store when ``db`` is None.
        on_step: called with a ``StepEvent`` at each start, done, skip and error.
        durability: ``"full"`` or ``"relaxed"``; the store's when not given.
        progress: lines on stderr; ``"auto"`` means on a terminal only.
        strict: duplicates and changes are errors; ``AGENT_RESUME_STRICT=1`` does the same.
        on_pause: what an unanswered pause does: end the program with exit code 0 (``"exit"``), raise ``RunPaused``
            (``"raise"``), or return a ``Paused`` record (``"return"``).
        on_duplicate: what a step name used twice gives: ``"error"``, ``"return"`` (the stored value) or ``"number"``.

    Returns:
        What ``fn`` returned, decoded from the store.

    Raises:
        RunInUse: a live owner executes the run of that id.
        RunCancelled: it was cancelled.
        InvalidTransition: the run of that id has another name.
        StoreError: the store cannot be used; ``fn`` was not called.
        Exception: whatever ``fn`` raised; the run is ``failed`` then.
    """
    if on_pause not in ("exit", "raise", "return"):
        raise ValueError(f"on_pause is 'exit', 'raise' or 'return', not {on_pause!r}")
    if not callable(fn):
        raise TypeError(f"agent_run wants the agent's body, a function of a run, got a {type(fn).__name__}")
    agent_body.refuse_unless_it_takes_a_run(fn)
    agent_body.refuse_while_importing(name)
    wanted = functools.partial(
        _Wanted, name, run_id, input, db, state_dir, on_step, durability, progress, strict, on_duplicate
    )
    if agent_body.is_async(fn):
        return _run_async(wanted, fn, on_pause)
    return _run_sync(wanted(), fn, on_pause)


class _Wanted:
    """What ``agent_run`` was asked for, checked; nothing is opened yet."""

    def __init__(
        self,
        name: str,
        run_id: str | None,
        input: Any,
        db: str | os.PathLike[str] | Store | None,
        state_dir: str | os.PathLike[str] | None,
        on_step: Hook | None,
        durability: Durability | None,
        progress: Progress,
        strict: bool,
        on_duplicate: OnDuplicate,
    ) -> None:
        self.name = check_name("run name", name)
        self.run_id = None if run_id is None else check_name("run id", run_id)
        if durability not in (None, "full", "relaxed"):
            raise ValueError(f"durability is 'full' or 'relaxed', not {durability!r}")
        self.owns_store = not isinstance(db, Store)
        if db is None and state_dir is None:
            db = agent_exec.place_for(self.name)
        self.store = db if isinstance(db, Store) else Store(db, state_dir=state_dir)
        self.run_id = agent_exec.run_for(self.name, self.store, self.run_id)
        self.input = input
        self.core = RunCore(
            self.store,
            self.run_id or "",
            self.name,
            exclusive=True,
            on_step=on_step,
            progress=progress,
            strict=strict or os.environ.get("AGENT_RESUME_STRICT") == "1",
            on_duplicate=on_duplicate,
            full=(durability or self.store.durability) == "full",
        )


class _Execution:
    """Taking a run and settling it. The two drivers below differ only in how they call the body."""

    def __init__(self, wanted: _Wanted) -> None:
        self.core = wanted.core
        self.store = wanted.store
        self._wanted = wanted
        self._pid = os.getpid()
        self.stored: tuple[Any] | None = None
        self._mark = -1
        self.over = False

    def open(self) -> bool:
        """Find or create the run and take it; False when its stored result is all that is wanted (``stored``).

        Raises:
            RunInUse, RunCancelled, InvalidTransition, StoreError: it cannot be had.
        """
        wanted, core, store = self._wanted, self.core, self.store
        codec = store.codec
        try:
            text = None if wanted.input is None else codec.encode_tagged(wanted.input)
        except errors.OutputNotStorable as error:
            error.about("the input")
            raise
        digest = None if wanted.input is None else codec.digest(wanted.input)
        new = store_runs.NewRun(
            wanted.name, wanted.run_id, text, digest, command=recorded_command(store.redactor)
        )  # fmt: skip
        owner = core.owner
        core.join(owner)
        while True:
            request = OpenRequest(new, owner.seed, owner.judge, owner.executing, owner.in_flight)
            try:
                opened: Opened = store.direct(self._open_run, request)
            except errors.RunCancelled as error:
                run_telling.met(store, error.run_id)
                raise errors.RunCancelled(error.run_id, at=store.location.option) from None
            if opened.kind != "watch":
                break
            assert opened.owner is not None  # "watch" always names whom
            if run_calls.watch(store, opened.owner, f"run {opened.run.id!r}") == "dead":
                owner.decided_dead.add(opened.owner.token)
            elif wanted.run_id is not None:
                opened = Opened("in_use", opened.run, opened.owner)
                break
        return self._opened(opened, digest)

    def _open_run(self, tx: Tx, request: OpenRequest) -> Opened:
        opened = store_runs.open_run(tx, request)
        if opened.kind in ("created", "taken"):
            # Under the write lock, or another thread would find the run before it is known to be executed here.
            self._mark = opened.run.seq
            self.core.owner.executing.take(opened.run.seq, self)
        return opened

    def _opened(self, opened: Opened, digest: str | None) -> bool:
        core, row = self.core, opened.run
        run_telling.met(self.store, row.id)
        if opened.kind == "in_use":
            who = opened.owner
            raise errors.RunInUse(
                row.id,
                host=None if who is None else ownership.host_name(who.host),
                pid=None if who is None else who.pid,
                since=self.store.ask(store_queries.begun_at, row.seq),
                at=self.store.location.option,
            )
        if digest is not None and row.input_digest != digest:
            core.run_id = row.id
            core.warn_once(
                errors.StepInputChangedWarning,
                "",
                f"run {row.id!r} was created with another input; the stored one stays and is what run.input gives",
            )
        if opened.kind == "completed":
            core.run_id = row.id
            value = None
            if row.result is not None and row.result_format is not None:
                value = core.decode(None, row.result_format, row.result, hint=core.body)
            self.stored = (value,)
            return False
        if opened.live_twin is not None:
            core.warn_once_plainly(
                "twin", errors.AgentResumeWarning,
                f"run {opened.live_twin!r} of {row.name!r} with an equal input is being executed; {row.id!r} is a new run",
            )  # fmt: skip
        self._take(opened)
        return True

    def _take(self, opened: Opened) -> None:
        core, row = self.core, opened.run
        index = [] if opened.kind == "created" else self.store.database.read(store_index.load_index, row.seq)
        if index and core.full:
            self.store.database.driver.sync_seen()
        core.settle_in(row, index)
        core.entered = core.owner.registered = True

    # -- settling ------------------------------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Whether this is still the process that took the run; a forked child settles nothing."""
        return os.getpid() == self._pid

    def returned(self, value: Any) -> Any:
        """The body returned: complete the run; what ``agent_run`` returns comes back.

        Raises:
            RunPaused: the body swallowed the pause; the run waits all the same.
        """
        core = self.core
        if core.paused is not None:
            label, reason, context = core.paused
            at = self.store.location.option
            raise errors.RunPaused(core.run_id, name=label, reason=reason, context=context, at=at)
        if core.stopped == "cancelled":
            raise errors.RunCancelled(core.run_id, at=self.store.location.option)
        encoded, fresh = core.codec.settle(value, key=None, hint=core.body)
        if not self.here:
            return fresh
        faults.at("while-settling")
        if core.done_here:
            self.store.direct(store_settle.attach, core.where, encoded, None, full=core.full)
        else:
            settlement = Settlement("completed", result=encoded, skips=core.take_skips(), lost=core.take_losses())
            self.store.direct(store_settle.settle, core.where, settlement, full=core.full)
        return fresh

    def left_by(self, error: BaseException) -> errors.RunPaused | None:
        """An exception left the body: store how the run ended. The pause in it comes back, when it is one."""
        core = self.core
        pause = pause_in(error, core.run_id)
        if not self.here:
            return pause
        faults.at("while-settling")
        kind = type(error)
        ended = issubclass(kind, _ENDED) and error.run_id == core.run_id  # type: ignore[attr-defined]  # ours
        if ended and issubclass(kind, errors.RunCancelled):
            core.stopped = "cancelled"  # from outside: close() lets go of it
        if pause is not None or ended:
            return pause
        if core.done_here:
            return None
        status: Literal["failed", "interrupted"] = "failed" if issubclass(kind, Exception) else "interrupted"
        described = core.failure_of(error)
        settlement = Settlement(status, failure=described, skips=core.take_skips(), lost=core.take_losses())
        try:
            self.store.direct(store_settle.settle, core.where, settlement, full=core.full)
        except errors.RunCancelled:
            core.stopped = "cancelled"
            log.warning("run %r was cancelled while it failed", core.run_id)
        except errors.AgentResumeError as trouble:
            if isinstance(trouble, errors.InvalidTransition):
                core.stopped = trouble.status  # paused, by a call that was cancelled: close() lets go of it
            error.add_note(f"agent-resume could not store that the run is {status}: {trouble}")
        return None

    def close(self) -> None:
        """Let go of the run and of a store that was opened for it."""
        core = self.core
        if not self.here:
            return
        try:
            try:
                if core.place is not None and (core.stopped is not None or core.done_here):
                    self.store.direct(store_settle.release, core.place, core.owner.token, full=False)
            finally:
                core.owner.executing.holders.pop(self._mark, None)
                core.leave()
        except errors.AgentResumeError:
            log.warning("run %r could not be released; its owner ends with this process", core.run_id, exc_info=True)
        finally:
            if self._wanted.owns_store:
                self.store.close()


def _run_sync(wanted: _Wanted, fn: Callable[[Run], Any], on_pause: OnPause) -> Any:
    execution = _Execution(wanted)
    execution.core.body = fn
    try:
        if not execution.open():
            assert execution.stored is not None  # open() said so
            return execution.stored[0]
        try:
            return execution.returned(agent_body.call(fn, Run(execution.core)))
        except BaseException as error:
            pause = execution.left_by(error)
            if pause is None:
                raise
    finally:
        execution.over = True  # before anything that a second Ctrl-C could cut short
        execution.close()
    return after_pause(pause, on_pause, execution.store.redactor)


async def _run_async(wanted: Callable[[], _Wanted], fn: Callable[[AsyncRun], Any], on_pause: OnPause) -> Any:
    # Finding the file and knowing who we are asks the file system: not on the loop.
    execution = await aio_calls.in_own_thread(lambda: _Execution(wanted()))
    store, core = execution.store, execution.core
    core.body = fn
    left: BaseException | None = None
    opened = threading.Event()
    try:
        # Waited for although cancelled: the run may be taken by then, and must be let go of.
        if not await aio_calls.shielded(store, agent_body.opened, execution.open, opened):
            assert execution.stored is not None  # open() said so
            return execution.stored[0]
        value = await agent_body.call_async(fn, AsyncRun(core))
        return await aio_calls.shielded(store, execution.returned, value)
    except BaseException as error:
        left = error
        if isinstance(error, GeneratorExit):
            opened.wait(agent_body.OPENING)  # thrown away: the thread that opens it cannot be awaited any more
        if core.place is None:
            raise
        pause = await agent_body.end(store, error, execution.left_by, error)
        if pause is None:
            raise
    finally:
        execution.over = True
        await agent_body.end(store, left, execution.close)
        left = None
    return after_pause(pause, on_pause, store.redactor)


_run_async.__qualname__ = "agent_run"  # what Python says was never awaited
