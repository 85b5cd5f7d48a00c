"""Errors about a step, a wait or a value; part of the tree that ``errors.py`` draws."""

from __future__ import annotations

from typing import Any

from .errors_base import NO_RESULT, AgentResumeError


class DuplicateStep(AgentResumeError):
    """The same step name was used twice in one execution.

    Attributes:
        run_id: the run.
        key: the step's key.
    """

    run_id: str
    key: str

    def __init__(self, run_id: str, key: str, *, hint: str | None = None) -> None:
        hint = hint or f"give each step its own name, or pass repeat=True to number them ({key}, {key}#2, …)"
        super().__init__(
            f"step {key!r} of run {run_id!r} was already used in this execution; {hint}",
            run_id=run_id,
            key=key,
        )


class StepInFlight(AgentResumeError):
    """The step is being executed right now, by another call or another process.

    Attributes:
        run_id: the run.
        key: the step's key.
        host: the executing process's host, where known.
        pid: its process id, where known.
    """

    run_id: str
    key: str
    host: str | None
    pid: int | None

    def __init__(self, run_id: str, key: str, *, host: str | None = None, pid: int | None = None) -> None:
        who = f"process {pid} on {host}" if pid is not None else "another call of this process"
        super().__init__(
            f"step {key!r} of run {run_id!r} is being executed by {who}; wait until it ends and call again",
            run_id=run_id,
            key=key,
            host=host,
            pid=pid,
        )


class StepInDoubt(AgentResumeError):
    """An ``effect="once"`` step was started before and nobody knows whether it took effect.

    Attributes:
        run_id: the run.
        key: the step's key.
    """

    run_id: str
    key: str

    def __init__(self, run_id: str, key: str, *, at: str = "") -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} may have taken effect already; decide with verify=, or look and then run "
            f"agent-resume resume{at} --step {key!r} --mark-done JSON -- {run_id!r} (it happened) or --retry (it did not)",
            run_id=run_id,
            key=key,
        )


class StepInputChanged(AgentResumeError):
    """The step was recorded with other inputs than those it is called with now.

    Attributes:
        run_id: the run.
        key: the step's key.
        recorded: fingerprint of the recorded inputs.
        given: fingerprint of the inputs given now.
    """

    run_id: str
    key: str
    recorded: str | None
    given: str | None

    def __init__(self, run_id: str, key: str, *, recorded: str | None, given: str | None, at: str = "") -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} was recorded for other inputs (recorded {recorded}, given {given}); "
            f"pass on_change='rerun' to run it again, or discard it: agent-resume rerun{at} -- {run_id!r} {key!r}",
            run_id=run_id,
            key=key,
            recorded=recorded,
            given=given,
        )


class StepTimeout(AgentResumeError, TimeoutError):
    """The step did not end within its ``timeout``.

    Attributes:
        run_id: the run.
        key: the step's key.
        seconds: the limit.
    """

    run_id: str
    key: str
    seconds: float

    def __init__(
        self, run_id: str, key: str, seconds: float, *, hint: str = "raise timeout=, or resume the run later"
    ) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} took longer than {seconds:g} s; {hint}",
            run_id=run_id,
            key=key,
            seconds=seconds,
        )


class StoredStepError(AgentResumeError):
    """A failure that was kept as the step's outcome and whose class cannot be rebuilt.

    Attributes:
        run_id: the run.
        key: the step's key.
        type: qualified name of the original class.
        text: the original message.
    """

    run_id: str
    key: str
    type: str
    text: str

    def __init__(self, run_id: str, key: str, *, type: str, text: str, at: str = "") -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} ended with {type}: {text} (kept by keep_errors); "
            f"to try it again: agent-resume rerun{at} -- {run_id!r} {key!r}",
            run_id=run_id,
            key=key,
            type=type,
            text=text,
        )


class WaitTimeout(AgentResumeError, TimeoutError):
    """Nobody answered before the stored deadline.

    Attributes:
        run_id: the run.
        name: the wait's name.
        deadline: ISO UTC.
    """

    run_id: str
    name: str
    deadline: str

    def __init__(self, run_id: str, name: str, deadline: str) -> None:
        super().__init__(
            f"nobody answered {name!r} of run {run_id!r} by {deadline}; pass default= to go on without an answer",
            run_id=run_id,
            name=name,
            deadline=deadline,
        )


class OutputNotStorable(AgentResumeError, TypeError):
    """A value that cannot be stored so that it comes back equal.

    Attributes:
        key: the step (or other place) whose value it is, or None.
        path: where inside the value, as ``$.items[3].client``.
        type: the offending type's name.
        reason: why it cannot be kept.
        result: the whole value, so that the caller can keep it; else ``NO_RESULT``.
    """

    key: str | None
    path: str
    type: str
    reason: str
    result: Any

    def __init__(
        self, *, key: str | None, path: str, type: str, reason: str, hint: str, result: Any = NO_RESULT
    ) -> None:
        where = f"step {key!r}: " if key is not None else ""
        inside = "the value itself" if path == "$" else path
        self._said = f"cannot store {inside}: {type} ({reason}); {hint}"
        super().__init__(
            f"{where}{self._said}",
            key=key,
            path=path,
            type=type,
            reason=reason,
            result=result,
        )

    def about(self, what: str) -> None:
        """Name what it was that could not be stored, when it was no step's result."""
        self.args = (f"{what}: {self._said}",)
