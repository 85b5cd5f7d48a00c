"""The registry of event types: who writes each, with which fields, and who reads it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors
from .names import check_name

if TYPE_CHECKING:
    from .run_core import RunCore


log = logging.getLogger("agent_resume")


@dataclass(frozen=True, slots=True)
class EventType:
    """A registered type of events.

    Attributes:
        fields: names in its data, each with what it means.
        writer: who writes it.
        reader: who understands it.
    """

    fields: Mapping[str, str]
    writer: str
    reader: str


_STORE = "agent-resume"
_SHOW = "show, events, export"
_DASHBOARD = "show, flowcast's dashboard"

#: Every registered type; ``register_event_type`` adds to it.
EVENT_TYPES: dict[str, EventType] = {
    "created": EventType({}, _STORE, _SHOW),
    "resumed": EventType(
        {"from": "the status before", "host": "the dead owner's", "pid": "the dead owner's"}, _STORE, _SHOW
    ),
    "start": EventType({}, _STORE, _SHOW),
    "done": EventType({"durationMs": "ms", "by": "who vouched for it"}, _STORE, _SHOW),
    "error": EventType({"durationMs": "ms", "error": "the failure as text"}, _STORE, _SHOW),
    "interrupted": EventType({"durationMs": "ms", "error": "what left the step"}, _STORE, _SHOW),
    "in_doubt": EventType({"durationMs": "ms", "error": "what left the step"}, _STORE, _SHOW),
    "unknown": EventType({}, _STORE, _SHOW),
    "record": EventType({"replaced": "whether an earlier value was overwritten"}, _STORE, _SHOW),
    "skips": EventType({"ranges": "first and last number of the skipped steps"}, _STORE, _SHOW),
    "code_changed": EventType({}, _STORE, _SHOW),
    "input_changed": EventType({}, _STORE, _SHOW),
    "duplicate": EventType({}, _STORE, _SHOW),
    "conflict": EventType({}, _STORE, _SHOW),
    "paused": EventType({"name": "of the pause", "reason": "why"}, _STORE, _SHOW),
    "wait": EventType({"name": "of the wait", "reason": "the prompt", "deadline": "ISO UTC"}, _STORE, _SHOW),
    "sleep": EventType({"name": "of the sleep", "reason": "none", "deadline": "ISO UTC"}, _STORE, _SHOW),
    "answered": EventType({"name": "of the pause or wait", "by": "who answered"}, _STORE, _SHOW),
    "state": EventType({"fields": "names of what was set"}, _STORE, _SHOW),
    "completed": EventType({}, _STORE, _SHOW),
    "failed": EventType({"error": "the failure as text"}, _STORE, _SHOW),
    "run_interrupted": EventType({"error": "what left the body"}, _STORE, _SHOW),
    "released": EventType({}, _STORE, _SHOW),
    "cancelled": EventType({}, _STORE, _SHOW),
    "taken_over": EventType({"from": "the status before", "host": "the owner's", "pid": "the owner's"}, _STORE, _SHOW),
    "reopened": EventType({"from": "the status before"}, _STORE, _SHOW),
    "retry": EventType({"by": "who decided that the step did not happen"}, _STORE, _SHOW),
    "discarded": EventType({}, _STORE, _SHOW),
    "renamed": EventType({"from": "the name before", "to": "the name now"}, _STORE, _SHOW),
    "forked": EventType(
        {
            "from": "the source's id",
            "before": "the first step not shared",
            "ancestors": "what the source was forked from, the nearest first",
        },
        _STORE,
        _SHOW,
    ),
    "copied": EventType({}, _STORE, _SHOW),
    "exec": EventType({"host": "of who starts it", "pid": "likewise", "started": "likewise"}, _STORE, _SHOW),
    "fallback": EventType(
        {"scope": "provider or cli", "cli": "name", "from": "name", "to": "name", "reason": "why"},
        "the agent",
        _DASHBOARD,
    ),
    "rate-limit": EventType(
        {"cli": "name", "model": "name", "availableAt": "ms since 1970", "source": "pattern, llm or default"},
        "the agent",
        _DASHBOARD,
    ),
    "gate": EventType(
        {"name": "of the gate", "status": "pass or fail", "exitCode": "integer"}, "the agent", _DASHBOARD
    ),
    "group": EventType({"name": "of the group", "status": "done or failed", "reason": "why"}, "the agent", _DASHBOARD),
    "loop": EventType(
        {
            "phase": "start, iterate, turn-done, budget or failed",
            "turn": "number",
            "fromTurn": "number",
            "maxTurns": "number",
            "reason": "why",
            "done": "whether the loop ended",
            "error": "text",
            "goal": "text",
        },
        "run.loop, the agent",
        _DASHBOARD,
    ),
}


def register_event_type(
    name: str, fields: Mapping[str, str], *, writer: str = "the agent", reader: str = "show"
) -> EventType:
    """Register an event type of your own, so that ``event(name, …)`` does not warn.

    Args:
        name: the type.
        fields: names in its data, each with what it means.
        writer: who writes it.
        reader: who understands it.

    Raises:
        InvalidName: not a name.
        ValueError: agent-resume itself writes events of that type.
    """
    check_name("event type", name)
    known = EVENT_TYPES.get(name)
    if known is not None and known.writer == _STORE:
        raise ValueError(f"agent-resume itself writes {name!r} events; choose another name")
    made = EVENT_TYPES[name] = EventType(dict(fields), writer, reader)
    return made


#: Put before a type of the user's own that agent-resume itself writes, so that the two cannot be mistaken.
OWN_PREFIX = "user:"


def stored_type(type: str) -> str:
    """The type as it is stored: one that agent-resume itself writes gets ``OWN_PREFIX``."""
    known = EVENT_TYPES.get(type)
    return f"{OWN_PREFIX}{type}" if known is not None and known.writer == _STORE else type


def warn_unless_registered(core: RunCore, type: str) -> None:
    """Warn, once an execution, about a type that nobody explained."""
    if type in EVENT_TYPES:
        return
    try:
        core.warn_once_plainly(
            f"event:{type}",
            errors.AgentResumeWarning,
            f"event type {type!r} is not registered; it is stored all the same (register_event_type says what it means)",
        )
    except errors.AgentResumeWarning as warning:
        log.warning("%s", warning)  # warnings are errors in this program, but an event never raises into the agent


def payload(data: Any, fields: dict[str, Any]) -> Any:
    """The data of an event."""
    if data is None:
        return fields or None
    if not fields:
        return data
    if isinstance(data, Mapping):
        return {**data, **fields}
    return {"data": data, **fields}
