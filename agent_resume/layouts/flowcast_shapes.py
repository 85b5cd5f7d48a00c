"""What flowcast writes for a step record, a log line and the top of state.json.

Shared by export and import: the import asks here what the export would write from the rows it makes, and keeps beside
them whatever the original has otherwise.
"""

from __future__ import annotations

from typing import Any

from agent_resume.layouts import jstext
from agent_resume.layouts.flowcast_names import PAUSE_KEY

#: A field that is not there.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()

#: Our member of ``meta``, of event data and of state.json.
OURS_IN_META = "flowcast"
OURS_IN_STATE = "agentResume"

STEP_LINES = ("start", "done", "skip", "rerun", "error")
#: Names that come before everything else of an own event's line.
HEAD = ("event", "type", "ts", "runId")
#: In this order; the rest follows as it came.
TOP = (
    "runId", "status", "completed", "steps", "startedAt", "flowPath", "flowName", "currentStep", "expectMaxMs",
    "loopVerdict", "loopStatus", "loopTurns", "loopReason", "pauseReason", "pauseContext", "completedAt", "summary",
)  # fmt: skip
RECORD_NAMES = ("key", "status", "durationMs", "completedAt")
#: A truthy one of these on the first record of a key makes flowcast turn the result into text.
TRAP_NAMES = ("cli", "model", "inputTokens")
ERROR_NAMES = (
    "message", "code", "gate", "timedOut", "exitCode", "schemaError", "configError", "spawnError", "failures",
    "voterErrors",
)  # fmt: skip


def record(key: str, duration: Any, completed_at: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """A step record; ``duration`` is ABSENT for a recorded value."""
    fields = {"key": key, "status": "done", "durationMs": duration, "completedAt": completed_at}
    if duration is ABSENT:
        del fields["durationMs"]
    return fields | meta


def is_trapped(record_: dict[str, Any], result_is_text: bool) -> bool:
    """Whether flowcast would give text in place of this record's result."""
    return not result_is_text and any(is_truthy(record_.get(name)) for name in TRAP_NAMES)


def is_truthy(value: Any) -> bool:
    """JavaScript's: every object and array is."""
    return isinstance(value, (dict, list)) or bool(value)


def line(event: str, ts: Any, run_id: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """A log line; names in ``fields`` take the place of the standard ones."""
    return {"event": event, "type": event, "ts": ts, "runId": run_id} | fields


def step_fields(kind: str, key: Any, data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step's line after the first four, from an event's data."""
    fields: dict[str, Any] = {"status": kind, "key": key}
    if kind == "done":
        names: tuple[str, ...] = ("durationMs", "result", "meta")
    elif kind == "error":
        names = ("error", "durationMs", "meta")
    else:
        names = ("reason",) if kind == "rerun" else ()
    return fields | {name: data[name] for name in names if name in data}


def pause_fields(reason: Any) -> dict[str, Any]:
    """The fields of a pause's line; ABSENT for a pause without a reason."""
    fields = {"status": "paused", "key": PAUSE_KEY}
    return fields if reason is ABSENT or reason is None else fields | {"reason": reason}


def own_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of an own event's line: ``status`` first."""
    return {"status": data["status"]} | data if "status" in data else data


def in_order(fields: dict[str, Any], order: list[str] | None) -> dict[str, Any]:
    """Top-level fields in the order they had, new ones in flowcast's usual order."""
    names = list(order or ())
    known = set(names)
    names += [name for name in (*TOP, *fields) if name not in known and not known.add(name)]  # type: ignore[func-returns-value]
    return {name: fields[name] for name in names if name in fields}


def current_step(current: Any, kind: str, key: str) -> Any:
    """``currentStep`` after one more step line."""
    if kind == "start":
        return key
    return None if kind == "done" else current


def is_step_line(fields: dict[str, Any]) -> bool:
    """Whether flowcast reads a log line as a step's."""
    event, key = fields.get("event"), fields.get("key")
    named = type(key) in (str, int, float)
    return named and isinstance(event, str) and event in STEP_LINES and fields.get("status") == event


def is_pause_line(fields: dict[str, Any]) -> bool:
    """Whether flowcast reads a log line as a pause."""
    return fields.get("event") == "paused" and fields.get("key") == PAUSE_KEY


def key_text(key: Any) -> str:
    """A key as ``completed`` has it; numbers are possible elsewhere."""
    return key if isinstance(key, str) else jstext.string(key)
