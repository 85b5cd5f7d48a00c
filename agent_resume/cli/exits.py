"""Exit codes, and which error or status gives which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_resume import errors

if TYPE_CHECKING:
    from agent_resume.store_admin_detail import RunDetail

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
IN_USE = 4
PAUSED = 5
STORE = 6
CANCELLED = 7
AMBIGUOUS = 8
INTERRUPTED = 130

#: The exit code for each status as it is shown.
OF_STATUS = {
    "completed": OK,
    "failed": FAILED,
    "running": IN_USE,
    "overdue": IN_USE,
    "paused": PAUSED,
    "cancelled": CANCELLED,
    "interrupted": INTERRUPTED,
    "idle": INTERRUPTED,
}

_OF_ERROR: tuple[tuple[type[BaseException], int], ...] = (
    (errors.RunNotFound, NOT_FOUND),
    (errors.AmbiguousRunId, AMBIGUOUS),
    (errors.RunInUse, IN_USE),
    (errors.StepInFlight, IN_USE),
    (errors.RunLost, IN_USE),
    (errors.StoreError, STORE),
    (errors.RunCancelled, CANCELLED),
    (errors.InvalidName, USAGE),
)


def of_run(detail: RunDetail) -> int:
    """The exit code for a run: one that nobody is seen to hold is not live, whatever it is marked as."""
    return INTERRUPTED if detail.status in ("running", "overdue") and not detail.is_held else OF_STATUS[detail.status]


def of_error(error: BaseException) -> int:
    """The exit code for an error of ours."""
    if isinstance(error, errors.InvalidTransition) and error.asked_wrongly:
        return USAGE
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), FAILED)


class Usage(Exception):
    """What was asked for makes no sense; exit code 2."""


class TooDeep(Usage):
    """A value is nested deeper than it can be read."""


class Stop(Exception):
    """End with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
