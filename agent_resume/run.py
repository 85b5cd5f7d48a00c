"""``Run``: one run as an agent's synchronous code sees it. Decisions live in the flows; this class drives them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, TypeVar, overload

from . import (
    codec,
    errors,
    report,
    run_calls,
    run_context,
    run_flows,
    run_map,
    run_pauses,
    run_steps,
    run_transaction,
    store_status,
)
from .models import MISSING, AgentRunState, RecordedStep
from .run_core import MISS, RunCore
from .run_effects import Flow
from .run_loop import Loop
from .run_map import MapOutcome, OnError
from .run_options import Effect, OnChange, StepSpec, unknown_keywords
from .run_retry import Retry

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
D = TypeVar("D")


class Run:
    """One run, in this execution. ``agent_run`` hands it to the agent's body; ``Checkpoint`` is one opened by id.

    Every method may be called from any thread. None needs an event loop, and all of them block while they write.
    """

    def __init__(self, core: RunCore) -> None:
        self._core = core
        self._store = core.store
        self._write = core.store.database.transact

    # -- driving -------------------------------------------------------------------------------------------------

    def _drive(self, flow: Flow) -> Any:
        core = self._core
        run_context.refuse_inside_transaction(core.store.database, core.run_id)
        return run_calls.drive(flow, self._store, self._write)

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(
        self,
        name: str,
        fn: Callable[..., T],
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
    ) -> T:
        """Call ``fn(*args)`` once in this run's life and keep what it returns; from then on return that.

        The result is committed and synced before this returns, and what is returned is the decoded stored value, a
        fresh object, on the first run as on a resumed one.

        Args:
            name: the step's identity within the run.
            fn: a function; keywords for it go through ``functools.partial``.
            *args: its arguments; their fingerprint is stored, and other ones are noticed on a resume.
            meta: JSON to store beside the result (``cli``, ``model``, ``inputTokens``, ``outputTokens`` are summed).
            timeout: seconds. A synchronous function cannot be pre-empted: it runs on in a thread, begins no further
                step, and its late result is dropped; ``isolation="process"`` really ends it.
            retry: try a failure again within this execution.
            returns: the result's class, where it cannot be found by its stored name.
            on_change: what to do when ``args`` are not those recorded: ``"warn"``, ``"error"`` or ``"rerun"``.
            repeat: number the uses of this name: ``turn``, ``turn#2``, …; inside a step ``outer/turn``, … for each
                outer step by itself.
            effect: ``"once"`` for what must not be repeated blindly; see ``verify``.
            verify: asked when an earlier attempt's outcome is unknown: ``Verified(value)``, ``NOT_DONE`` or ``UNKNOWN``.
            keep_errors: failures of these types are the step's outcome, raised again from the store; so ``retry`` does
                not try them again.
            isolation: ``"process"`` runs ``fn`` in a child process, which ``timeout`` can kill.

        Raises:
            DuplicateStep, StepInFlight, StepInputChanged, StepInDoubt, StepTimeout: see their texts.
            OutputNotStorable: the result cannot be kept faithfully; ``error.result`` holds it.
            RunLost, RunCancelled, InvalidTransition: the run is not this execution's to go on with.
            StoreError: the store could not be used; once the function was called, ``error.result`` holds its value.
        """
        if unknown:
            raise unknown_keywords(fn, unknown)
        core = self._core
        key = core.key_for(name, repeat=repeat)
        spec = StepSpec(
            key, fn, args, meta, timeout, retry, returns, on_change, effect, verify, keep_errors, isolation
        )  # fmt: skip
        spec.check()
        return self._step(spec)  # type: ignore[no-any-return]  # what fn returned, decoded

    def _step(self, spec: StepSpec) -> Any:
        core = self._core
        entry = core.index.get(spec.key)
        if entry is not None:
            if core.stopped is not None:
                core.refuse_if_stopped(f"start step {spec.key!r}")
            value = core.replay(spec, entry)
            if value is not MISS:
                return value
        return self._drive(run_steps.step_flow(core, spec))

    def map(
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        concurrency: int = 8,
        on_error: OnError = "raise",
        returns: Any = None,
    ) -> Iterator[MapOutcome]:
        """Do ``fn(item)`` for each item, in threads: the steps ``name[key]``.

        Outcomes come in the order of the items. Work begins with the first ``next`` and stays a few items ahead, so
        ``items`` may be an endless generator. A finished item is skipped on a resume, whatever the order. Workers run
        in copies of the caller's context.

        Args:
            key: an item's own key, a str or an int. Without it a str or int is its own key, and any other item goes by
                the digest of its encoded value.
            concurrency: how many items are worked on at once.
            on_error: ``"raise"``: begin no more, let those in flight end, raise the first failure in the order of the
                items. ``"collect"``: a failure is an outcome.
            returns: the results' class, where it cannot be found by its stored name.

        Raises:
            DuplicateStep: two items have the same key.
            TypeError, ValueError: at once, for an option that cannot be meant.
        """
        wanted = run_map.Wanted(name, fn, key, concurrency, on_error, returns)
        return run_map.outcomes(self._core, wanted, items, self._drive)

    def transaction(self, key: str, fn: Callable[[Connection], T], engine: Engine | None = None) -> T:
        """A step whose writes and whose completion are one commit: it takes effect exactly once.

        ``fn`` gets a SQLAlchemy connection on the run's own database and is called with the store's write lock held:
        every other writer waits, so be quick (10 s at most, then ``StepTimeout`` and everything is rolled back), and
        call nothing of the store in it. Its own commit and rollback act on what it wrote alone.

        Args:
            engine: a database of your own instead. There the table ``agent_resume_completions`` tells which steps
                are complete, so that a kill between the two commits is no second call.

        Raises:
            InvalidTransition: a call on the store from inside; in another database, a commit or rollback of its own;
                here, a statement that ended the transaction.
            StepTimeout: it held the lock for too long.
            ValueError: ``engine`` commits each statement by itself (AUTOCOMMIT), or did not undo an earlier attempt.
        """
        spec = run_transaction.checked(self._core, key, fn, engine)
        return self._step(spec)  # type: ignore[no-any-return]  # what fn returned, decoded

    def record(self, key: str, result: T, meta: dict[str, Any] | None = None, *, replace: bool = False) -> T:
        """Store an already computed value; the first value wins and is returned.

        Raises:
            RecordConflictWarning: under ``strict``, when another value is stored; else it is only warned about.
            OutputNotStorable, StepInFlight, InvalidTransition, StoreError: as for ``step``.
        """
        return self._drive(run_flows.record_flow(self._core, key, result, meta, replace=replace))  # type: ignore[no-any-return]

    def has(self, key: str) -> bool:
        """Whether the step is completed, by whichever process."""
        return bool(self._drive(run_flows.has_flow(self._core, key)))

    @overload
    def get_step_result(self, key: str) -> Any: ...
    @overload
    def get_step_result(self, key: str, default: D) -> Any | D: ...
    def get_step_result(self, key: str, default: Any = None) -> Any:
        """A completed step's value, else ``default``; ``has`` tells a stored None from nothing."""
        return self._drive(run_flows.result_flow(self._core, key, default))

    def event(self, type: str, data: Any = None, /, **fields: Any) -> None:
        """Append an event. Never raises into the agent: what cannot be written is logged and counted."""
        try:
            self._drive(run_flows.event_flow(self._core, type, data, fields))
        except errors.InvalidTransition as error:  # inside run.transaction
            run_flows.lose_event(self._core, type, error)

    # -- pausing and waiting -------------------------------------------------------------------------------------

    def pause(self, reason: str, context: Any = None, *, name: str | None = None, returns: Any = None) -> Any:
        """The answer, when there is one; else store the question and stop this execution.

        Args:
            reason: what is asked.
            context: anything that helps whoever answers.
            name: what the answer goes by; the reason when not given.
            returns: class of the answer.

        Raises:
            RunPaused: a BaseException. ``agent_run`` handles it as ``on_pause`` says.
            InvalidTransition: a second unnamed pause of the same reason; the name is that of a sleep, or of a wait
                that timed out; paused or ended already.
        """
        return self._drive(run_pauses.pause_flow(self._core, reason, context, name, returns, self._pause_signal()))

    def _pause_signal(self) -> Callable[..., BaseException]:
        return errors.RunPaused

    def get_pause_context(self) -> Any:
        """The context of the newest pause; ``{}`` when there is none."""
        return self._drive(run_pauses.pause_context_flow(self._core))

    def wait(
        self,
        name: str,
        *,
        timeout: float | None = None,
        prompt: str | None = None,
        default: Any = MISSING,
        returns: Any = None,
    ) -> Any:
        """Block until somebody answers ``name``; every later wait of that name gives the same answer.

        Args:
            timeout: seconds from the first time this wait was reached; stored, so a resumed wait only waits the rest.
            default: what a timeout gives; without it ``WaitTimeout`` is raised.

        Raises:
            WaitTimeout: nobody answered in time.
            ValueError: ``timeout`` is more than 1 000 000 000 s, or not a number.
            InvalidTransition: the name is that of a sleep.
            RunCancelled: within a second of a cancellation.
        """
        return self._drive(run_pauses.wait_flow(self._core, name, timeout, prompt, default, returns))

    def sleep(self, name: str, seconds: float) -> None:
        """Sleep; a resumed run only sleeps the rest.

        Args:
            name: its own in an execution: in a loop, number it.

        Raises:
            InvalidTransition: the name was slept under before in this execution, or is that of a pause or wait.
            ValueError: ``seconds`` is more than 1 000 000 000, or not a number.
        """
        self._drive(run_pauses.sleep_flow(self._core, name, seconds))

    def done(self, summary: Any = None) -> None:
        """Complete the run.

        In a new execution of a completed run only the summary is updated.

        Raises:
            InvalidTransition: called twice, after a pause, or while a step is in flight.
        """
        self._drive(run_flows.done_flow(self._core, summary))

    def cancel(self) -> NoReturn:
        """Cancel this run and stop here.

        Raises:
            RunCancelled: always.
        """
        self._drive(run_flows.cancel_flow(self._core))
        raise errors.RunCancelled(self._core.run_id, at=self._core.store.location.option)

    # -- loop state and counters ---------------------------------------------------------------------------------

    def get_loop_state(self) -> dict[str, Any]:
        """Those of ``verdict``, ``status``, ``turns``, ``reason`` that are set."""
        found: dict[str, Any] = self._drive(run_flows.loop_state_flow(self._core))
        return found

    def set_loop_state(
        self, *, verdict: Any = MISSING, status: Any = MISSING, turns: Any = MISSING, reason: Any = MISSING
    ) -> None:
        """Set some of the loop's fields, durably. None is a value."""
        given = {"verdict": verdict, "status": status, "turns": turns, "reason": reason}
        encode = self._core.codec.encode_tagged
        values = {f"loop_{name}": encode(value) for name, value in given.items() if value is not MISSING}
        if values:
            self._drive(run_flows.set_fields_flow(self._core, values))

    def loop(self, name: str, *, max_turns: int | None = None, max_seconds: float | None = None) -> Loop:
        """Turns that survive: ``for turn in run.loop("refine", max_turns=5): …``.

        Turn N is the step ``NAME-N``: call ``turn.step(fn, turn.last)`` in it, and ``turn.done()`` when the result is
        good enough. A resume skips the finished turns and goes on with the next; ``turn.last`` is the result of the
        turn before. A turn that was killed between its step and its verdict is handed out once more, with its step
        stored. Verdict, status, turns and reason are kept by the loop itself (``get_loop_state``, and attributes of
        the iterator). A turn that ends without ``turn.step``, or whose failure you caught, counts as finished with
        the result None.

        Args:
            max_turns: the loop ends after so many turns, of all executions; status ``budget_exhausted``.
            max_seconds: no turn is begun once its turns took so long, in all executions; the time between does not count.

        Raises:
            ValueError, InvalidName: an option that cannot be meant.
        """
        return Loop(self, self._core, name, max_turns, max_seconds)

    def set_expect_max_ms(self, ms: float) -> None:
        """How long this run may be quiet before it is shown as overdue or idle: ``max(600 s, ms)``.

        Values that are no finite number above 0 are ignored, as documented.
        """
        if isinstance(ms, int | float) and not isinstance(ms, bool) and 0 < ms < 2**53:
            self._drive(run_flows.set_fields_flow(self._core, {"expect_max_ms": round(ms) or 1}))

    def count_completed_keys_with_prefix(self, prefix: str, *, digits_only: bool = False) -> int:
        """How many completed keys start with ``prefix``.

        Args:
            digits_only: only those with nothing but ASCII digits after it.
        """
        return int(self._drive(run_flows.count_flow(self._core, prefix, digits_only)))

    def count_completed_turns(self) -> int:
        """Deprecated: ``count_completed_keys_with_prefix("turn-", digits_only=True)``."""
        warnings.warn(
            "count_completed_turns() is deprecated; use count_completed_keys_with_prefix('turn-', digits_only=True)",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.count_completed_keys_with_prefix("turn-", digits_only=True)

    # -- durability ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Everything written so far is on disk and synced when this returns, in every durability."""
        self._drive(run_flows.flush_flow(self._core))

    def flush_log(self) -> None:
        """Store what is kept in memory for the next write (the skips)."""
        self._drive(run_flows.flush_log_flow(self._core))

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
    def status(self) -> str:
        """The stored status, as it is now; ``running`` for a run that was never written."""
        row = self._drive(run_flows.row_flow(self._core))
        return "running" if row is None else str(row.status)

    def state(self) -> AgentRunState:
        """The run and its steps, as they are now.

        Raises:
            RunNotFound: nothing was written yet.
        """
        return self._core.store.load_run(self._core.run_id)

    def timeline(self) -> tuple[RecordedStep, ...]:
        """The run's steps in the order they were begun."""
        return self.state().steps

    def report(self) -> str:
        """The run as a Markdown report."""
        store = self._core.store
        row = store.run_row(self._core.run_id)
        summary = None if row.summary is None else _shown(row.summary)
        return report.markdown(store.load_run(row.id), summary, store_status.duration_ms(row))


def _shown(text: str) -> Any:
    return codec.json_value("tagged", text)
