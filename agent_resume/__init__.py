"""agent-resume: agents that survive crashes, restarts and days of waiting, on one SQLite file.

Names are resolved at first use (PEP 562), so that importing the package stays cheap.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import agent_run
    from .aio import AsyncRun
    from .checkpoint import Checkpoint
    from .checkpoint_aio import AsyncCheckpoint
    from .codec import ValueCodec
    from .decorators import agent, step
    from .errors import (
        AgentResumeError,
        AgentResumeWarning,
        AmbiguousRunId,
        DuplicateStep,
        DuplicateStepWarning,
        ImportConflict,
        InvalidName,
        InvalidTransition,
        NoActiveStep,
        OutputNotStorable,
        RecordConflictWarning,
        RunCancelled,
        RunInUse,
        RunLost,
        RunNotFound,
        RunPaused,
        StepCodeChangedWarning,
        StepInDoubt,
        StepInFlight,
        StepInputChanged,
        StepInputChangedWarning,
        StepTimeout,
        StoreBusy,
        StoreDamaged,
        StoredStepError,
        StoredValueUnreadable,
        StoreError,
        StoreForked,
        StoreFull,
        StoreMoved,
        StoreNewer,
        StoreReadOnly,
        StoreUnavailable,
        WaitTimeout,
    )
    from .models import AgentRunState, Paused, RecordedStep, RunSummary, StepEvent
    from .report import format_timeline
    from .run import Run
    from .run_context import StepContext, current_step
    from .run_events import EVENT_TYPES, EventType, register_event_type
    from .run_map import MapOutcome
    from .run_retry import NOT_DONE, UNKNOWN, Retry, Verified
    from .store import Store
    from .top_level import answer, cancel, list_runs, load_run

__version__ = "0.1.0"

_HOMES = {
    "agent": ("agent_run",),
    "aio": ("AsyncRun",),
    "checkpoint": ("Checkpoint",),
    "checkpoint_aio": ("AsyncCheckpoint",),
    "codec": ("ValueCodec",),
    "decorators": ("agent", "step"),
    "errors": (
        "AgentResumeError", "AgentResumeWarning", "AmbiguousRunId", "DuplicateStep", "DuplicateStepWarning",
        "ImportConflict", "InvalidName", "InvalidTransition", "NoActiveStep", "OutputNotStorable",
        "RecordConflictWarning", "RunCancelled", "RunInUse", "RunLost", "RunNotFound", "RunPaused",
        "StepCodeChangedWarning", "StepInDoubt", "StepInFlight", "StepInputChanged", "StepInputChangedWarning",
        "StepTimeout", "StoreBusy", "StoreDamaged", "StoreError", "StoreForked", "StoreFull", "StoreMoved",
        "StoreNewer", "StoreReadOnly", "StoreUnavailable", "StoredStepError", "StoredValueUnreadable", "WaitTimeout",
    ),
    "models": ("AgentRunState", "Paused", "RecordedStep", "RunSummary", "StepEvent"),
    "report": ("format_timeline",),
    "run": ("Run",),
    "run_context": ("StepContext", "current_step"),
    "run_events": ("EVENT_TYPES", "EventType", "register_event_type"),
    "run_map": ("MapOutcome",),
    "run_retry": ("NOT_DONE", "UNKNOWN", "Retry", "Verified"),
    "store": ("Store",),
    "top_level": ("answer", "cancel", "list_runs", "load_run"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentResumeError",
    "AgentResumeWarning",
    "AgentRunState",
    "AmbiguousRunId",
    "AsyncCheckpoint",
    "AsyncRun",
    "Checkpoint",
    "DuplicateStep",
    "DuplicateStepWarning",
    "EVENT_TYPES",
    "EventType",
    "ImportConflict",
    "InvalidName",
    "InvalidTransition",
    "MapOutcome",
    "NOT_DONE",
    "NoActiveStep",
    "OutputNotStorable",
    "Paused",
    "RecordConflictWarning",
    "RecordedStep",
    "Retry",
    "Run",
    "RunCancelled",
    "RunInUse",
    "RunLost",
    "RunNotFound",
    "RunPaused",
    "RunSummary",
    "StepCodeChangedWarning",
    "StepContext",
    "StepEvent",
    "StepInDoubt",
    "StepInFlight",
    "StepInputChanged",
    "StepInputChangedWarning",
    "StepTimeout",
    "Store",
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
    "UNKNOWN",
    "ValueCodec",
    "Verified",
    "WaitTimeout",
    "__version__",
    "agent",
    "agent_run",
    "answer",
    "cancel",
    "current_step",
    "format_timeline",
    "list_runs",
    "load_run",
    "register_event_type",
    "step",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The decorator ``agent`` and the module ``agent.py`` share a name: importing the module must not hide the decorator."""

    @property
    def agent(self) -> Any:
        """The decorator."""
        return __getattr__("agent")

    @agent.setter
    def agent(self, module: ModuleType) -> None:
        """Called by the import of ``agent.py``, which stays where every submodule is: in ``sys.modules``."""


sys.modules[__name__].__class__ = _Package
