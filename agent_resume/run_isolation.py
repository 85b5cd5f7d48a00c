"""``isolation="process"``: the step's function in a child process, which a timeout or a cancellation really ends.

The child is spawned, never forked: a fork would copy the locks of threads that do not exist in it. So the function,
its arguments and its result travel as pickles, by name for functions and classes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from . import errors, failure
from .run_context import StepContext, active
from .run_effects import Outcome
from .run_options import StepSpec

#: How long the child may take to import the program, in s, when the step has a timeout.
START_LIMIT = 60.0
#: Longest single look for a child's answer, in s.
LONGEST_POLL = 1_000_000.0

_context = multiprocessing.get_context("spawn")


def call(spec: StepSpec, context: StepContext) -> Outcome:
    """Call a step's function in a child process and wait for it."""
    child = Child(spec, context)
    try:
        return child.run()
    except BaseException as error:  # noqa: BLE001 - an interrupt; the flow decides what becomes of it
        child.stop()
        return Outcome(error=error)


class Child:
    """One child process for one call."""

    def __init__(self, spec: StepSpec, context: StepContext) -> None:
        self._spec = spec
        self._context = context
        self._lock = threading.Lock()
        self._process: Any = None
        self._stopped = False

    def run(self) -> Outcome:
        """Call the function; its value, its exception, ``StepTimeout``, or what became of the child."""
        spec, context = self._spec, self._context
        try:
            task = pickle.dumps((spec.fn, spec.args, context))
        except Exception as error:  # noqa: BLE001 - pickling runs code of the values
            return Outcome(error=_cannot_travel(spec.key, "the function and its arguments", error))
        ours, theirs = _context.Pipe(duplex=False)
        with self._lock:
            if self._stopped:
                return Outcome(error=ChildProcessError(f"step {spec.key!r}: stopped before it began"))
            self._process = _context.Process(target=_work, args=(theirs, task), name=f"agent-resume {spec.key}")
            self._process.start()
        theirs.close()
        try:
            return self._outcome(ours)
        finally:
            self.stop()
            ours.close()
            self._process.join()
            self._process.close()

    def _outcome(self, pipe: Connection) -> Outcome:
        spec, limit = self._spec, self._spec.timeout
        late = Outcome(error=errors.StepTimeout(self._context.run_id, spec.key, limit or 0.0))
        if not _answers(pipe, None if limit is None else max(limit, START_LIMIT)):
            return late
        try:
            pipe.recv_bytes()  # it has imported what it needs; now the function's own time begins
            if not _answers(pipe, limit):
                return late
            sent: tuple[str, bytes] = pipe.recv()
        except (EOFError, OSError):
            return Outcome(
                error=ChildProcessError(f"step {spec.key!r}: its process ended {self._end()} without a result")
            )
        kind, content = sent
        if kind == "refused":
            return Outcome(error=_cannot_travel(spec.key, "its result", content.decode("utf-8", "replace")))
        try:
            found = pickle.loads(content)
        except Exception as error:  # noqa: BLE001 - unpickling runs code of the values
            return Outcome(error=_cannot_travel(spec.key, "its result", error))
        if kind == "value":
            return Outcome(found)
        whole, described = found
        failed: BaseException = whole if whole is not None else _described(spec, self._context, described)
        if described.get("traceback"):
            failed.__cause__ = ChildTraceback(described["traceback"])
        return Outcome(error=failed)

    def _end(self) -> str:
        self._process.join(1)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"with exit code {code}"
        return f"by signal {-code}"

    def stop(self) -> None:
        """Kill the child and what it started; nothing when it has ended."""
        with self._lock:
            self._stopped = True
            process = self._process
            if process is None:
                return
            with contextlib.suppress(ValueError, OSError):  # closed; gone already
                if process.pid is not None and process.exitcode is None:  # without a pid it could not be started
                    _kill_group(process.pid)
                    process.kill()


class ChildTraceback(Exception):
    """Where a child process raised the exception that this is the cause of: frames do not travel, their text does."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def _answers(pipe: Connection, seconds: float | None) -> bool:
    # The system's own poll counts ms in 32 bits: 24 days.
    while seconds is not None and seconds > LONGEST_POLL:
        if pipe.poll(LONGEST_POLL):
            return True
        seconds -= LONGEST_POLL
    return pipe.poll(seconds)


def _kill_group(pid: int | None) -> None:
    # The child leads a group of its own as soon as it runs; before that its group is ours.
    if pid is not None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)


def _cannot_travel(key: str, what: str, why: object) -> TypeError:
    return TypeError(
        f'step {key!r}: isolation="process" wants {what} to be picklable ({why}); use a function at the top of a module '
        "and plain values"
    )


def _described(spec: StepSpec, context: StepContext, described: dict[str, Any]) -> BaseException:
    rebuilt = failure.rebuild(described)
    if rebuilt is not None:
        return rebuilt
    kind, text = str(described.get("type")), str(described.get("message"))
    return errors.StoredStepError(context.run_id, spec.key, type=kind, text=text)


# -- in the child ----------------------------------------------------------------------------------------------------


def _work(pipe: Connection, task: bytes) -> None:
    """Unpickle, call, answer."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that it can be killed with all that it starts, and Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        fn, args, context = pickle.loads(task)
        active.set(context)
        pipe.send_bytes(b"began")
        value = fn(*args)
    except BaseException as raised:  # noqa: BLE001 - the parent decides what becomes of it
        error = raised
        _answer(pipe, "error", lambda: (_whole(error), failure.describe(error)))
    else:
        _answer(pipe, "value", lambda: value)


def _answer(pipe: Connection, kind: str, make: Callable[[], Any]) -> None:
    try:
        sent = (kind, pickle.dumps(make()))
    except Exception as error:  # noqa: BLE001 - pickling runs code of the values
        sent = ("refused", f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    with contextlib.suppress(BrokenPipeError):
        pipe.send(sent)
    pipe.close()


def _whole(error: BaseException) -> BaseException | None:
    """The exception when it survives the way to the parent, else None."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - its own constructor runs
        return None
    return error if type(copy) is type(error) and copy.args == error.args else None


def _end_with_parent() -> None:
    """End with the parent, and with what was started here: its run may be resumed, and two would do the same step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
