"""Saying something to people: progress lines on stderr, and where in the agent's code a warning belongs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from . import failure, report
from .database_location import SUPERVISOR

if TYPE_CHECKING:
    from .models import StepEvent
    from .redact import Redactor
    from .store import Store


def print_progress(event: StepEvent, redactor: Redactor) -> bool:
    """Print a step's progress line; False when there is nowhere to print to any more, and the agent goes on."""
    key = report.printable(event.key)
    line = {"start": f"[run] {key}", "skip": f"[skip] {key}"}.get(event.kind)
    if event.kind == "error":
        text = failure.message(event.error) if event.error is not None else ""
        line = f"[error] {key}: {report.printable(redactor.text(text))}"
    if line is None or sys.stderr is None:  # print() takes None for stdout, which is not ours
        return True
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - the progress lines that the caller asked for
    except Exception:  # noqa: BLE001 - full, closed, or an object of the program's that cannot do it
        return False
    return True


def on_a_terminal() -> bool:
    """Whether stderr is one; programs put objects of their own there, which may not know."""
    try:
        return sys.stderr is not None and bool(sys.stderr.isatty())
    except Exception:  # noqa: BLE001 - closed, or without isatty()
        return False


def say(text: str) -> None:
    """Print one line on stderr, where there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(report.printable(text), file=sys.stderr, flush=True)  # noqa: T201 - else the program ends in silence


def address_text(run_id: str, key: str) -> str:
    """The warning about a step whose name is an object's default text."""
    return (
        f"step {key!r} of run {run_id!r} has a memory address in its name: another process gives another one, so a "
        "resume never finds its result; name the step after what the object is, not after where it is"
    )


def outside() -> int:
    """The stack level of the first frame outside this package, so that a warning points at the agent's code."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("agent_resume."):
        frame = frame.f_back
        level += 1
    return level


#: Set by ``agent-resume run``: a file of its own, to which a program adds the runs that it meets.
MET = "AGENT_RESUME_MET"


def met(store: Store, run_id: str) -> None:
    """Tell an ``agent-resume run`` which run this program asked for.

    One that is completed, cancelled or somebody else's gets no event from it, by which it would be found otherwise.
    """
    _tell_supervisor([store.display, run_id])


def met_doubt(store: Store, run_id: str, last_seq: int) -> None:
    """Tell it likewise that a step of the run is in doubt, which this program is about to be told.

    Args:
        last_seq: number of the run's newest event: whether the program went on all the same is seen by what comes after.
    """
    _tell_supervisor([store.display, run_id, last_seq])


def is_followed() -> bool:
    """Whether an ``agent-resume run`` wants to know what this program meets."""
    return MET in os.environ and SUPERVISOR in os.environ  # one of them taken out: not to be followed


def _tell_supervisor(what: list[str | int]) -> None:
    if is_followed():
        with contextlib.suppress(OSError), open(os.environ[MET], "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
