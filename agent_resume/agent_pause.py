"""What ``agent_run`` does when a pause left its body."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Literal

from . import errors, run_telling
from .models import Paused

if TYPE_CHECKING:
    from .redact import Redactor

log = logging.getLogger("agent_resume")
OnPause = Literal["exit", "raise", "return"]


def pause_in(error: BaseException, run_id: str) -> errors.RunPaused | None:
    """The pause of this very run that left its body, also out of an exception group."""
    # By type: isinstance asks the object for its __class__, and that may raise.
    kind = type(error)
    if issubclass(kind, BaseExceptionGroup):
        return _pause_among(error.exceptions, run_id)  # type: ignore[attr-defined]  # a group
    if issubclass(kind, errors.InvalidTransition) and error.status == "paused":  # type: ignore[attr-defined]  # one of ours
        # A ``finally`` that the pause passed through wanted to do more in this run.
        return pause_in(error.__context__, run_id) if error.__context__ is not None else None
    if issubclass(kind, errors.RunPaused) and error.run_id == run_id:  # type: ignore[attr-defined]  # one of ours
        return error  # type: ignore[return-value]
    return None


def _pause_among(members: tuple[BaseException, ...], run_id: str) -> errors.RunPaused | None:
    found = [pause_in(each, run_id) for each in members]
    pause = next(filter(None, found), None)
    for each, its_pause in zip(members, found, strict=True):
        if pause is not None and its_pause is None:
            # The run is paused, so nothing else tells of what went wrong beside it.
            log.error("beside the pause of run %r: %s", run_id, type(each).__name__, exc_info=each)
    return pause


def after_pause(pause: errors.RunPaused, on_pause: OnPause, redactor: Redactor) -> Paused:
    """Do what ``on_pause`` says: return a record, end the program (and say why on stderr), or raise."""
    if on_pause == "return":
        return Paused(pause.run_id, pause.name, pause.reason, pause.context)
    if on_pause == "exit" and not _in_a_side_task():
        run_telling.say(redactor.text(str(pause)))
        raise SystemExit(0) from pause
    raise pause


def _in_a_side_task() -> bool:
    """Whether SystemExit would stop a whole loop with a traceback: in every task but the one the loop was run for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "run_until_complete" and "future" in frame.f_locals:
            return frame.f_locals["future"] is not task
    return True
