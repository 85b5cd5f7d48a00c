"""Own events in flowcast's log: what of a line is the event's name, what its data, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_resume import run_events
from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts import jstext
from agent_resume.layouts.flowcast_names import STATE, escaped, is_storable
from agent_resume.layouts.flowcast_shapes import HEAD, OURS_IN_STATE

#: Events of the run itself that leave no line: flowcast writes none for opening, setters and done() either.
SILENT = frozenset({"created", "state", "completed", "released"})
_LINES_OF_THE_RUN = SILENT | {"paused", "skips"}
# Own events of these types stay what they are: having no step, they cannot be taken for a step's.
_OF_STEPS = frozenset({*shapes.STEP_LINES, "record"})


def run_of(folder: Path) -> str | None:
    """Id of the run that an exported folder holds; None when it holds none that can be read."""
    try:
        state = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    ours = state.get(OURS_IN_STATE)
    given = ours.get("id") if isinstance(ours, dict) else None
    return given if isinstance(given, str) else folder.name


def is_ours(kind: str) -> bool:
    """Whether agent-resume itself writes events of this type."""
    return run_events.stored_type(kind) != kind


def exported_type(kind: str) -> str:
    """The name in flowcast's log of a stored type."""
    bare = kind.removeprefix(run_events.OWN_PREFIX)
    return bare if is_ours(bare) else kind


def type_of(fields: dict[str, Any]) -> str:
    """The event's name; lines of other writers may lack it."""
    for name in ("event", "type", "status"):
        if isinstance(fields.get(name), str):
            return str(fields[name])
    return "step"


def stored_type(kind: str) -> str:
    """The type of an own event as it is stored: never to be mistaken for one of the run's."""
    kind = kind if is_storable(kind) else escaped(kind)
    return kind if kind in _OF_STEPS else run_events.stored_type(kind)


def event_data(fields: dict[str, Any], kind: str) -> dict[str, Any]:
    """The line without what every line has; ``type`` is data where it is another than the name."""
    hidden = HEAD if jstext.same(fields.get("type", kind), kind) else ("event", "ts", "runId")
    return {name: value for name, value in fields.items() if name not in hidden}


def mark_of_ours(fields: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Our mark in the line of an event that was exported from here."""
    mark = fields.get(OURS_IN_STATE)
    if not isinstance(mark, dict) or not set(mark) <= {"step", "attempt"}:
        return None
    if not isinstance(mark.get("step", ""), str) or kind in shapes.STEP_LINES or kind == "record":
        return None
    # Without a step, an export marks only what it writes as an own event for want of a line of flowcast's.
    return mark if mark or (is_ours(kind) and kind not in _LINES_OF_THE_RUN) else None


def odd_head(fields: dict[str, Any], ts: str, run_id: str) -> dict[str, Any] | None:
    """The first fields of a line, where they are not those that an export will write."""
    kind = type_of(fields)
    usual = shapes.line(exported_type(stored_type(kind)), ts, run_id, {})
    data = event_data(fields, kind)
    if "type" in data:
        usual["type"] = data["type"]
    head = {name: fields[name] for name in HEAD if name in fields}
    return None if jstext.same(head, usual) else head
