"""``run.loop``: turns that are steps. The loop keeps the counting, the budgets and the verdicts, durably.

Turn N of the loop ``refine`` is the step ``refine-N``. What became of each turn is a ``loop`` event, so several loops
of one run never mistake each other; the run's own loop fields show the newest one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from . import clock, errors, store_queries, store_records
from .names import LONGEST, check_name
from .run_effects import Flow, Read, Write
from .run_flows import record_flow, result_flow
from .run_steps import enter

if TYPE_CHECKING:
    from .run_core import RunCore


# Ours, and yet failures of the step that was called.
_FAILURES = (errors.StepTimeout, errors.OutputNotStorable, errors.StoredStepError)


class LoopState:
    """What is known of a loop; ``Loop`` and ``AsyncLoop`` only drive it.

    Attributes:
        name: the loop's name; turn N is the step ``NAME-N``.
        turns: how many turns are finished.
        last: the newest finished turn's result, None before the first.
        status: ``completed`` (a turn said done), ``budget_exhausted``, ``failed``; None while it goes on.
        verdict: ``continue`` or ``done`` (or what ``done(verdict)`` was given) of the newest finished turn.
        reason: which budget ran out: ``maxTurns`` or ``maxRuntimeMs``.
    """

    def __init__(self, core: RunCore, name: object, max_turns: int | None, max_seconds: float | None) -> None:
        self._core = core
        self.name = check_name("loop name", name, longest=LONGEST - 20)  # a turn adds its number
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise ValueError(f"max_turns is a number of turns from 1, not {max_turns!r}")
        if max_seconds is not None and not max_seconds > 0:
            raise ValueError(f"max_seconds is a number of seconds above 0, not {max_seconds!r}")
        self.max_turns = max_turns
        self.max_seconds = max_seconds
        self.turns = 0
        self.last: Any = None
        self.status: str | None = None
        self.verdict: Any = None
        self.reason: str | None = None
        self._begun = False
        self._open: int | None = None
        self._stepped = False
        self._spent_ms = 0
        self._started = 0.0
        self._replay = False
        self._was_out_of_budget = False
        self._ended = False

    def key(self, turn: int) -> str:
        """The step that is turn ``turn``."""
        return f"{self.name}-{turn}"

    # -- flows ---------------------------------------------------------------------------------------------------

    def next_flow(self) -> Flow:
        """The number of the next turn; None when the loop has ended."""
        if not self._begun:
            yield from self._begin()
        elif self._open is not None:
            yield from self._end_turn()
        if self.status in ("completed", "budget_exhausted"):
            return None
        if self._replay:
            # Killed between its step and its verdict: the body looks at its stored result once more.
            self._replay = False
            number = self.turns
        else:
            spent = self._spent_ms + (clock.monotonic() - self._started) * 1000
            if self.max_turns is not None and self.turns >= self.max_turns:
                return (yield from self._out_of_budget("maxTurns"))
            if self.max_seconds is not None and spent >= self.max_seconds * 1000:
                return (yield from self._out_of_budget("maxRuntimeMs"))
            number = self.turns + 1
            yield from self._note(
                {}, phase="iterate", turn=number, fromTurn=self.turns or None, maxTurns=self.max_turns
            )
        self._open = number
        self._stepped = False
        return number

    def _begin(self) -> Flow:
        core = self._core
        core.refuse_if_stopped(f"start loop {self.name!r}")
        yield from enter(core)
        self._begun = True
        self._started = clock.monotonic()
        rows = yield Read(store_queries.turns_of, (core.where.seq, self.name))
        took = dict(rows)
        while self.key(self.turns + 1) in took:
            self.turns += 1
            self._spent_ms += took[self.key(self.turns)] or 0
        notes = yield Read(store_queries.loop_notes, (core.where.seq,))
        said = [note for note in map(json.loads, notes) if isinstance(note, dict)]  # users write "loop" events as well
        self._take_notes([note for note in said if note.get("name") == self.name])
        behind = self.turns - 1 if self._replay else self.turns
        if behind:
            self.last = yield from result_flow(core, self.key(behind), None)
        self._ended = (yield Read(store_queries.status_of, (core.where.seq,))) in ("completed", "cancelled")
        if self.status == "completed":
            return
        fresh: dict[str, Any] = {}
        if not self.turns:
            fresh = {f"loop_{field}": None for field in ("verdict", "status", "turns", "reason")}
        elif self._was_out_of_budget:
            fresh = {"loop_status": None, "loop_reason": None}
        yield from self._note(fresh, phase="start", maxTurns=self.max_turns, fromTurn=self.turns or None)

    def _take_notes(self, notes: list[dict[str, Any]]) -> None:
        known = [note for note in notes if note.get("phase") == "turn-done" and note.get("turn") == self.turns]
        if known and known[-1].get("done"):
            self.status, self.verdict = "completed", known[-1].get("verdict", "done")
        elif known:
            self.verdict = "continue"
        self._replay = self.turns > 0 and not known
        self._was_out_of_budget = bool(notes) and notes[-1].get("phase") == "budget"

    def _out_of_budget(self, reason: str) -> Flow:
        self.status, self.reason = "budget_exhausted", reason
        encode = self._core.codec.encode_tagged
        fields = {
            "loop_status": encode(self.status), "loop_turns": encode(self.turns), "loop_reason": encode(reason),
        }  # fmt: skip
        yield from self._note(fields, phase="budget", turn=self.turns, maxTurns=self.max_turns, reason=reason)

    def finish_flow(self, turn: int, verdict: Any) -> Flow:
        """``done()`` of a turn: the loop ends with it."""
        if self._open != turn:
            raise errors.InvalidTransition(
                self._core.run_id, status=f"past turn {turn} of loop {self.name!r}", action="end the loop with it",
                hint="call done() inside the turn",
            )  # fmt: skip
        if self.status != "completed":
            yield from self._end_turn(verdict, done=True)
            self._open = turn

    def _end_turn(self, verdict: Any = "continue", *, done: bool = False) -> Flow:
        turn, core = self._open, self._core
        assert turn is not None  # both callers looked
        if self.status == "completed":
            self._open = None
            return
        if not self._stepped and turn == self.turns:  # handed out once more, and not looked at
            self.last = yield from result_flow(core, self.key(turn), None)
        elif not self._stepped:
            # A turn without a step of its own is finished all the same, and a resume must know it.
            self.last = yield from record_flow(core, self.key(turn), None, None, replace=False)
        self._open = None
        self.turns, self.verdict = turn, verdict
        encode = core.codec.encode_tagged
        fields: dict[str, Any] = {"loop_verdict": encode(verdict), "loop_turns": encode(turn)}
        said: dict[str, Any] = {}
        if done:
            self.status = "completed"
            fields |= {"loop_status": encode("completed"), "loop_reason": None}
            said = {} if verdict == "done" else {"verdict": json.loads(encode(verdict))}
        yield from self._note(fields, phase="turn-done", turn=turn, done=done, **said)

    def stepped(self, value: Any, fn: Callable[..., Any], returns: Any) -> None:
        """The turn's step has its result; what the body does to it must not reach the next turn."""
        self._stepped = True
        _, self.last = self._core.codec.settle(value, returns=returns, hint=fn)

    def refuse_a_step(self, turn: int) -> None:
        """No step of a turn that said ``done()``: what it gave is stored.

        Raises:
            InvalidTransition: the turn is over.
        """
        if self.status == "completed" and turn == self.turns:
            raise errors.InvalidTransition(
                self._core.run_id, status=f"past turn {turn} of loop {self.name!r}", action="call its step",
                hint="call the turn's step before its done()",
            )  # fmt: skip

    def failed_flow(self, turn: int, error: BaseException) -> Flow:
        """The turn's step failed; the loop's state says so until it ends in another way."""
        refused = issubclass(type(error), errors.AgentResumeError) and not issubclass(type(error), _FAILURES)
        if self._stepped or refused:
            return
        self.status = "failed"
        text = str(self._core.failure_of(error).get("message", ""))
        fields = {"loop_status": self._core.codec.encode_tagged("failed")}
        try:
            yield from self._note(fields, phase="failed", turn=turn, error=text)
        except errors.AgentResumeError as trouble:
            error.add_note(f"agent-resume could not store that loop {self.name!r} failed: {trouble}")

    def _note(self, fields: dict[str, Any], **data: Any) -> Flow:
        core = self._core
        if self._ended and data["phase"] != "iterate":
            return  # its turns can be looked at; a further one is refused
        said = {name: value for name, value in data.items() if value is not None} | {"name": self.name}
        skips = core.take_skips()
        try:
            yield Write(store_records.loop_note, (core.loose, fields, json.dumps(said), skips), core.full)
        except BaseException:
            core.return_skips(skips)
            raise


class _SyncRun(Protocol):
    """What a loop needs of ``Run``."""

    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any: ...

    def _drive(self, flow: Flow) -> Any: ...


class _AwaitedRun(Protocol):
    """What a loop needs of ``AsyncRun``."""

    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any: ...

    async def _drive(self, flow: Flow) -> Any: ...


class _TurnBase:
    def __init__(self, state: LoopState, number: int) -> None:
        self._state = state
        self.number = number

    # A turn in a step's name is its number: an object's own text has an address in it, and never comes twice.

    def __str__(self) -> str:
        return str(self.number)

    def __format__(self, spec: str) -> str:
        return format(self.number, spec)

    def __index__(self) -> int:
        return self.number

    __int__ = __index__

    @property
    def last(self) -> Any:
        """The result of the turn before this one, and of this one once its step has ended; None before the first."""
        return self._state.last

    @property
    def name(self) -> str:
        """The key of this turn's step: ``NAME-NUMBER``."""
        return self._state.key(self.number)


class Turn(_TurnBase):
    """One turn of ``run.loop``.

    Attributes:
        number: from 1; it goes on after a resume.
    """

    def __init__(self, run: _SyncRun, state: LoopState, number: int) -> None:
        super().__init__(state, number)
        self._run = run

    def step(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """The turn's step, ``run.step(NAME-NUMBER, fn, *args, …)``; its result is the next turn's ``last``."""
        self._state.refuse_a_step(self.number)
        try:
            value = self._run.step(self.name, fn, *args, **options)
        except Exception as error:
            self._run._drive(self._state.failed_flow(self.number, error))
            raise
        self._state.stepped(value, fn, options.get("returns"))
        return value

    def done(self, verdict: Any = "done") -> None:
        """This turn is the loop's last; stored at once, so that a resume does not turn again.

        Raises:
            InvalidTransition: the turn is over already.
        """
        self._run._drive(self._state.finish_flow(self.number, verdict))


class Loop(LoopState):
    """An iterator over the turns that are still to do; see ``Run.loop``."""

    def __init__(
        self, run: _SyncRun, core: RunCore, name: object, max_turns: int | None, max_seconds: float | None
    ) -> None:
        super().__init__(core, name, max_turns, max_seconds)
        self._run = run

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Turn:
        number = self._run._drive(self.next_flow())
        if number is None:
            raise StopIteration
        return Turn(self._run, self, number)


class AsyncTurn(_TurnBase):
    """``Turn``, awaited."""

    def __init__(self, run: _AwaitedRun, state: LoopState, number: int) -> None:
        super().__init__(state, number)
        self._run = run

    async def step(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """``Turn.step``."""
        self._state.refuse_a_step(self.number)
        try:
            value = await self._run.step(self.name, fn, *args, **options)
        except Exception as error:
            await self._run._drive(self._state.failed_flow(self.number, error))
            raise
        self._state.stepped(value, fn, options.get("returns"))
        return value

    async def done(self, verdict: Any = "done") -> None:
        """``Turn.done``."""
        await self._run._drive(self._state.finish_flow(self.number, verdict))


class AsyncLoop(LoopState):
    """``Loop`` for ``async for``."""

    def __init__(
        self, run: _AwaitedRun, core: RunCore, name: object, max_turns: int | None, max_seconds: float | None
    ) -> None:
        super().__init__(core, name, max_turns, max_seconds)
        self._run = run

    def __aiter__(self) -> AsyncLoop:
        return self

    async def __anext__(self) -> AsyncTurn:
        number = await self._run._drive(self.next_flow())
        if number is None:
            raise StopAsyncIteration
        return AsyncTurn(self._run, self, number)
