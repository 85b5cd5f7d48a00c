"""What ``agent_run`` does when a pause left its body."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Literal

from . import errors, run_telling
from .models import Paused

if TYPE_CHECKING:
    from .redact import Redactor

OnPause = Literal["exit", "raise", "return"]


def pause_in(error: BaseException) -> errors.RunPaused | None:
    """The pause that left a body, also out of an exception group."""
    if isinstance(error, errors.RunPaused):
        return error
    if isinstance(error, BaseExceptionGroup):
        found: BaseException | None = error.subgroup(errors.RunPaused)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        return found if isinstance(found, errors.RunPaused) else None
    return None


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
