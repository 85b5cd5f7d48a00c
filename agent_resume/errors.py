"""Every error and warning of agent-resume.

    AgentResumeError
    ├── RunNotFound            no run of that id
    ├── AmbiguousRunId         a prefix that fits several runs
    ├── RunInUse               a live owner executes the run
    ├── RunLost                this process lost the run to another owner
    ├── InvalidTransition      a call in the wrong order for the run's status
    ├── InvalidName            a name, id or key that cannot be one
    ├── DuplicateStep          one name used for two steps of one execution
    ├── StepInFlight           the step is being executed right now
    ├── StepInDoubt            an effect="once" step whose outcome nobody knows
    ├── StepInputChanged       the step was recorded with other inputs
    ├── StepTimeout            (also TimeoutError) the step took too long
    ├── StoredStepError        a kept failure whose class cannot be rebuilt
    ├── WaitTimeout            (also TimeoutError) nobody answered in time
    ├── OutputNotStorable      (also TypeError) a value that cannot be kept faithfully
    ├── NoActiveStep           (also LookupError) current_step() outside a step
    ├── ImportConflict         an imported run meets another one of its id
    ├── StoredValueUnreadable  a stored value whose class is not to be had
    ├── StoredException        (codec_exceptions.py) an exception as a value whose class cannot be rebuilt
    └── StoreError             the store cannot be used
        ├── StoreBusy          somebody else held it too long
        ├── StoreUnavailable   it cannot be opened, reached, read or written (also ImportError: no driver for it)
        ├── StoreDamaged       not a database, another program's, or broken
        ├── StoreNewer         written by a newer agent-resume
        ├── StoreReadOnly      it may be read, not written
        ├── StoreFull          no space, or a quota
        ├── StoreMoved         the file was deleted or replaced under us
        └── StoreForked        a fork happened where connections could not be closed

    BaseException (signals that ``except Exception`` must not swallow)
    ├── RunPaused              the run waits for an answer
    └── RunCancelled           somebody cancelled the run

    UserWarning
    └── AgentResumeWarning
        ├── DuplicateStepWarning
        ├── StepInputChangedWarning
        ├── StepCodeChangedWarning
        └── RecordConflictWarning

Messages end with what to do next, and never contain SQL parameters. ``at`` is how a command in one names the store.
"""

from __future__ import annotations

import sys
from typing import Any

from .errors_base import NO_RESULT, AgentResumeError, Picklable
from .errors_steps import (
    DuplicateStep,
    OutputNotStorable,
    StepInDoubt,
    StepInFlight,
    StepInputChanged,
    StepTimeout,
    StoredStepError,
    WaitTimeout,
)
from .errors_store import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForked,
    StoreFull,
    StoreMoved,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = [
    "AgentResumeError",
    "AgentResumeWarning",
    "AmbiguousRunId",
    "DuplicateStep",
    "DuplicateStepWarning",
    "ImportConflict",
    "InvalidName",
    "InvalidTransition",
    "NO_RESULT",
    "NoActiveStep",
    "OutputNotStorable",
    "RecordConflictWarning",
    "RunCancelled",
    "RunInUse",
    "RunLost",
    "RunNotFound",
    "RunPaused",
    "StepCodeChangedWarning",
    "StepInDoubt",
    "StepInFlight",
    "StepInputChanged",
    "StepInputChangedWarning",
    "StepTimeout",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreForked",
    "StoreFull",
    "StoreMoved",
    "StoreNewer",
    "StoreReadOnly",
    "StoreUnavailable",
    "StoredStepError",
    "StoredValueUnreadable",
    "WaitTimeout",
]


class RunNotFound(AgentResumeError):
    """No run has this id (or prefix, or ``NAME@latest``).

    Attributes:
        run_id: what was asked for.
    """

    run_id: str

    def __init__(self, run_id: str, *, where: str | None = None, at: str = "") -> None:
        place = f" in {where}" if where else ""
        super().__init__(
            f"no run {run_id!r}{place}; `agent-resume list{at}` shows the runs, db= (or --db) names another store",
            run_id=run_id,
        )


class AmbiguousRunId(AgentResumeError):
    """A run id prefix fits more than one run.

    Attributes:
        prefix: what was asked for.
        candidates: the ids it fits, at most ten of them.
    """

    prefix: str
    candidates: tuple[str, ...]

    def __init__(self, prefix: str, candidates: tuple[str, ...]) -> None:
        names = ", ".join(candidates)
        super().__init__(f"{prefix!r} fits {names}; type more of the id", prefix=prefix, candidates=candidates)


class RunInUse(AgentResumeError):
    """A live owner executes the run.

    Attributes:
        run_id: the run.
        host: the owner's host name.
        pid: the owner's process id.
        since: when that owner began: created or resumed the run, or started its command. ISO UTC; None where not known.
    """

    run_id: str
    host: str | None
    pid: int | None
    since: str | None

    def __init__(
        self,
        run_id: str,
        *,
        host: str | None = None,
        pid: int | None = None,
        since: str | None = None,
        at: str = "",
        option: str = "--take-over",
    ) -> None:
        who = f"process {pid} on {host}" if pid is not None else "another execution"
        when = f" since {since}" if since else ""
        super().__init__(
            f"run {run_id!r} is executed by {who}{when}; wait for it, or if it hangs: "
            f"agent-resume resume{at} {option} -- {run_id!r}",
            run_id=run_id,
            host=host,
            pid=pid,
            since=since,
        )


class RunLost(AgentResumeError):
    """This process no longer owns the run or the step; nothing was written.

    Attributes:
        run_id: the run.
        key: the step whose outcome was refused, or None.
        result: what the step's function returned, so that it can be kept; else ``NO_RESULT``.
    """

    run_id: str
    key: str | None
    result: Any

    def __init__(self, run_id: str, *, key: str | None = None, result: Any = NO_RESULT, at: str = "") -> None:
        what = f"step {key!r} of run {run_id!r}" if key is not None else f"run {run_id!r}"
        super().__init__(
            f"{what} is not this process's any more: it was taken over or changed by somebody else; nothing more of this "
            f"process is stored (error.result holds a result that was refused). Stop here; "
            f"agent-resume show{at} -- {run_id!r} says what became of it",
            run_id=run_id,
            key=key,
            result=result,
        )


class InvalidTransition(AgentResumeError):
    """A call that the run's status does not allow.

    Attributes:
        run_id: the run.
        status: the run's stored status.
        action: what was tried.
        asked_wrongly: whether it was for what the run does not have, so that the same call can never succeed.
    """

    run_id: str
    status: str
    action: str
    asked_wrongly: bool

    def __init__(
        self, run_id: str, *, status: str, action: str, hint: str, said: str | None = None, asked_wrongly: bool = False
    ) -> None:
        super().__init__(
            f"cannot {action}: run {run_id!r} {said or f'is {status}'}; {hint}",
            run_id=run_id,
            status=status,
            action=action,
            asked_wrongly=asked_wrongly,
        )


class InvalidName(AgentResumeError, ValueError):
    """A run name, run id or step key that cannot be one.

    Attributes:
        kind: ``"run name"``, ``"run id"``, ``"step key"`` …
        name: the offending value.
    """

    kind: str
    name: object

    def __init__(self, kind: str, name: object, why: str) -> None:
        shown = repr(name)
        super().__init__(
            f"not a {kind}: {shown if len(shown) <= 200 else f'{shown[:200]}…'} ({why}); "
            "use a non-empty str of 2,000 bytes at most, without NUL and lone surrogates",
            kind=kind, name=name,
        )  # fmt: skip


class StoredValueUnreadable(AgentResumeError):
    """A stored value that cannot be given back as it was; it stays stored.

    Attributes:
        run_id: the run, where known.
        key: the step, where known.
        type: the stored type's name.
    """

    run_id: str | None
    key: str | None
    type: str

    def __init__(self, *, type: str, reason: str, hint: str, run_id: str | None = None, key: str | None = None) -> None:
        place = f"step {key!r}" if key is not None else "stored value"
        owner = f" of run {run_id!r}" if run_id is not None else ""
        super().__init__(
            f"{place}{owner}: cannot give back a {type} ({reason}); {hint}", run_id=run_id, key=key, type=type
        )
        self._parts = (type, reason, hint)

    def located(self, run_id: str | None, key: str | None) -> StoredValueUnreadable:
        """The same error, naming the run and the step."""
        kind, reason, hint = self._parts
        return StoredValueUnreadable(type=kind, reason=reason, hint=hint, run_id=run_id, key=key)


class NoActiveStep(AgentResumeError, LookupError):
    """``current_step()`` was called where no step of this thread or task is being executed."""

    def __init__(self) -> None:
        super().__init__(
            "no active step in this thread; call current_step() inside a step's function, and hand the run itself to "
            "threads of your own"
        )


class ImportConflict(AgentResumeError):
    """An imported run has the id of another one.

    Attributes:
        run_id: the id.
    """

    run_id: str

    def __init__(self, run_id: str, *, why: str, hint: str = "choose --on-conflict skip, replace or rename") -> None:
        super().__init__(f"run {run_id!r} was not imported: {why}; {hint}", run_id=run_id)


class RunPaused(Picklable):
    """The run waits for an answer; everything is stored.

    A BaseException, so that ``except Exception`` around a pause cannot swallow it.

    Attributes:
        run_id: the run.
        name: the pause's name.
        reason: why it waits.
        context: what the asker said with it.
    """

    def __init__(self, run_id: str, *, name: str, reason: str, context: Any = None, at: str = "") -> None:
        super().__init__(
            f"run {run_id!r} waits for an answer to {name!r}: {reason}; "
            f"agent-resume resume{at} --answer JSON -- {run_id!r}"
        )
        self.run_id = run_id
        self.name = name
        self.reason = reason
        self.context = context


class _ExitingRunPaused(RunPaused, SystemExit):
    """What a bare synchronous Checkpoint raises: uncaught, it ends the process with exit code 0."""

    code = 0

    def __init__(self, run_id: str, *, name: str, reason: str, context: Any = None, at: str = "") -> None:
        RunPaused.__init__(self, run_id, name=name, reason=reason, context=context, at=at)
        self.code = 0


class RunCancelled(Picklable):
    """The run was cancelled; it starts no further step.

    A BaseException, so that ``except Exception`` cannot swallow it.

    Attributes:
        run_id: the run.
    """

    def __init__(self, run_id: str, *, at: str = "") -> None:
        super().__init__(
            f"run {run_id!r} was cancelled; to open it again: agent-resume resume{at} --force -- {run_id!r}"
        )
        self.run_id = run_id


class AgentResumeWarning(UserWarning):
    """Base of the warnings of agent-resume."""


class DuplicateStepWarning(AgentResumeWarning):
    """A step name was used twice in one execution; the stored value was returned."""


class StepInputChangedWarning(AgentResumeWarning):
    """A stored result was returned although it was recorded for other inputs."""


class StepCodeChangedWarning(AgentResumeWarning):
    """A stored result was returned although the step's function has changed since."""


class RecordConflictWarning(AgentResumeWarning):
    """``record()`` met an earlier, different value; the earlier one was kept."""


for _name in __all__:
    if isinstance(globals()[_name], type):
        # Where users import it from, and what their tracebacks shall say. It is put there, too: a stored class is
        # looked for among what is there, and never by an import.
        globals()[_name].__module__ = __package__
        setattr(sys.modules[__package__], _name, globals()[_name])
