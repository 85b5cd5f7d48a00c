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
    └── StoreError             the store cannot be used
        ├── StoreBusy          somebody else held it too long
        ├── StoreUnavailable   it cannot be opened, reached, read or written
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

Messages end with what to do next, and never contain SQL parameters.
"""

from __future__ import annotations

from typing import Any

#: What ``result`` holds on errors that carry none; a stored None is a result too.
NO_RESULT: Any = type("NoResult", (), {"__repr__": lambda _: "NO_RESULT", "__bool__": lambda _: False})()


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Picklable(BaseException):
    """Makes exceptions with keyword-only constructors survive pickling, which rebuilds from ``args`` alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if value is not NO_RESULT}
        return _rebuild, (type(self), self.args, state)


class AgentResumeError(_Picklable, Exception):
    """Base of everything that agent-resume raises as an error.

    Attributes are keyword arguments of the constructor, kept under the same names.
    """

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


class RunNotFound(AgentResumeError):
    """No run has this id (or prefix, or ``NAME@latest``).

    Attributes:
        run_id: what was asked for.
    """

    run_id: str

    def __init__(self, run_id: str, *, where: str | None = None) -> None:
        place = f" in {where}" if where else ""
        super().__init__(
            f"no run {run_id!r}{place}; `agent-resume list` shows the runs, --db names another store", run_id=run_id
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
        since: when the owner took its place, ISO UTC.
    """

    run_id: str
    host: str | None
    pid: int | None
    since: str | None

    def __init__(self, run_id: str, *, host: str | None = None, pid: int | None = None, since: str | None = None) -> None:
        who = f"process {pid} on {host}" if pid is not None else "another execution"
        when = f" since {since}" if since else ""
        super().__init__(
            f"run {run_id!r} is executed by {who}{when}; wait for it, or if it hangs: "
            f"agent-resume resume --take-over -- {run_id!r}",
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

    def __init__(self, run_id: str, *, key: str | None = None, result: Any = NO_RESULT) -> None:
        what = f"step {key!r} of run {run_id!r}" if key is not None else f"run {run_id!r}"
        super().__init__(
            f"{what} was taken over by another process; nothing of this one was stored "
            f"(error.result holds a result that was refused). Stop here, the other process goes on",
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
    """

    run_id: str
    status: str
    action: str

    def __init__(self, run_id: str, *, status: str, action: str, hint: str) -> None:
        super().__init__(f"cannot {action}: run {run_id!r} is {status}; {hint}", run_id=run_id, status=status, action=action)


class InvalidName(AgentResumeError, ValueError):
    """A run name, run id or step key that cannot be one.

    Attributes:
        kind: ``"run name"``, ``"run id"``, ``"step key"`` …
        name: the offending value.
    """

    kind: str
    name: object

    def __init__(self, kind: str, name: object, why: str) -> None:
        super().__init__(
            f"not a {kind}: {name!r} ({why}); use a non-empty str without NUL and lone surrogates", kind=kind, name=name
        )


class DuplicateStep(AgentResumeError):
    """The same step name was used twice in one execution.

    Attributes:
        run_id: the run.
        key: the step's key.
    """

    run_id: str
    key: str

    def __init__(self, run_id: str, key: str) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} was already used in this execution; give each step its own name, "
            f"or pass repeat=True to number them ({key}, {key}#2, …)",
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

    def __init__(self, run_id: str, key: str) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} may have taken effect already; decide with verify=, or look and then run "
            f"agent-resume resume --step {key!r} --mark-done JSON -- {run_id!r} (it happened) or --retry (it did not)",
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

    def __init__(self, run_id: str, key: str, *, recorded: str | None, given: str | None) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} was recorded for other inputs (recorded {recorded}, given {given}); "
            f"pass on_change='rerun' to run it again, or discard it: agent-resume rerun -- {run_id!r} {key!r}",
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

    def __init__(self, run_id: str, key: str, seconds: float) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} took longer than {seconds:g} s; raise timeout=, or resume the run later",
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

    def __init__(self, run_id: str, key: str, *, type: str, text: str) -> None:
        super().__init__(
            f"step {key!r} of run {run_id!r} ended with {type}: {text} (kept by keep_errors); "
            f"to try it again: agent-resume rerun -- {run_id!r} {key!r}",
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
        super().__init__(
            f"{where}cannot store {path}: {type} ({reason}); {hint}",
            key=key,
            path=path,
            type=type,
            reason=reason,
            result=result,
        )


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

    def __init__(self, run_id: str, *, why: str) -> None:
        super().__init__(
            f"run {run_id!r} was not imported: {why}; choose --on-conflict skip, replace or rename", run_id=run_id
        )


class StoreError(AgentResumeError):
    """The store cannot be used.

    Attributes:
        path: the database file, or the URL without its password.
        result: what a step's function had returned when storing it failed; else ``NO_RESULT``.
    """

    path: str
    result: Any = NO_RESULT


class StoreBusy(StoreError):
    """Somebody else held the store for longer than we wait.

    Attributes:
        seconds: how long we waited.
        holder: the process that holds it, where known.
    """

    seconds: float
    holder: str | None

    def __init__(self, path: str, *, seconds: float, holder: str | None = None, why: str = "another writer holds it") -> None:
        known = f" (probably {holder})" if holder else ""
        super().__init__(
            f"{path}: still busy after {seconds:.1f} s, {why}{known}; end that process or try again",
            path=path,
            seconds=seconds,
            holder=holder,
        )


class StoreUnavailable(StoreError):
    """The store cannot be opened, reached, read or written."""

    def __init__(self, path: str, why: str, hint: str = "mend that, then resume the run") -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreDamaged(StoreError):
    """The file is no database of ours, or a broken one. It was left as it is."""

    def __init__(self, path: str, why: str, hint: str = "the file was left as it is; restore a copy or name another with --db") -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreNewer(StoreError):
    """The file was written by a newer agent-resume. It was left as it is.

    Attributes:
        found: the file's schema revision.
        known: the newest revision that this version knows.
    """

    found: str
    known: str

    def __init__(self, path: str, *, found: str, known: str) -> None:
        super().__init__(
            f"{path}: made by a newer agent-resume (schema {found}, this one knows up to {known}); "
            f"pip install --upgrade agent-resume",
            path=path,
            found=found,
            known=known,
        )


class StoreReadOnly(StoreError):
    """The store may be read but not written."""

    def __init__(self, path: str, why: str, hint: str = "make the file and its folder writable, or name another store with --db") -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreFull(StoreError):
    """No space left for the store, or a quota or size limit was met."""

    def __init__(self, path: str, why: str = "no space left", hint: str = "free some space, then resume the run") -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreMoved(StoreError):
    """The database file was deleted or replaced while it was open."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: the database file was replaced or removed while it was open; nothing was written. "
            f"Put the file back, or start the program again to begin a new one",
            path=path,
        )


class StoreForked(StoreError):
    """This process was forked while its parent's connections could not be closed."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: forked while a transaction was open, so this child cannot use the store safely; "
            f"fork outside run.transaction, or start the child with multiprocessing's 'spawn'",
            path=path,
        )


class RunPaused(_Picklable):
    """The run waits for an answer; everything is stored.

    A BaseException, so that ``except Exception`` around a pause cannot swallow it.

    Attributes:
        run_id: the run.
        name: the pause's name.
        reason: why it waits.
        context: what the asker said with it.
    """

    def __init__(self, run_id: str, *, name: str, reason: str, context: Any = None) -> None:
        super().__init__(
            f"run {run_id!r} waits for an answer to {name!r}: {reason}; "
            f"agent-resume resume --answer JSON -- {run_id!r}"
        )
        self.run_id = run_id
        self.name = name
        self.reason = reason
        self.context = context


class _ExitingRunPaused(RunPaused, SystemExit):
    """What a bare synchronous Checkpoint raises: uncaught, it ends the process with exit code 0."""

    code = 0

    def __init__(self, run_id: str, *, name: str, reason: str, context: Any = None) -> None:
        RunPaused.__init__(self, run_id, name=name, reason=reason, context=context)
        self.code = 0


class RunCancelled(_Picklable):
    """The run was cancelled; it starts no further step.

    A BaseException, so that ``except Exception`` cannot swallow it.

    Attributes:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} was cancelled; to open it again: agent-resume resume --force -- {run_id!r}"
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
