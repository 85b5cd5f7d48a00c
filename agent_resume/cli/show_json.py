"""Runs as JSON: what ``show --json`` and ``resume --json`` print. The documented state shape, with more beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import tables

if TYPE_CHECKING:
    from agent_resume.models import OwnerRow, StepRow
    from agent_resume.redact import Redactor
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail, StepDetail


def run_json(store: Store, detail: RunDetail) -> dict[str, Any]:
    """A run without its steps' outputs; ``with_outputs`` adds those."""
    from agent_resume import codec

    run, mask = detail.run, store.redactor.value
    given, made = detail.tokens
    shown: dict[str, Any] = {
        "id": run.id,
        "name": run.name,
        "status": detail.status,
        "storedStatus": run.status,
        "createdAt": run.created_at,
        "updatedAt": run.updated_at,
        "finishedAt": run.finished_at,
        "durationMs": detail.duration_ms,
        "owner": _owner(detail.owner, detail.owner_verdict),
        "steps": [step_json(store.redactor, step, cut_off=step.key in detail.cut_off) for step in detail.steps],
        "stepsCompleted": len(detail.completed),
        "inputTokens": given,
        "outputTokens": made,
        "pauses": [mask(pause.to_dict()) for pause in detail.pauses],
        "events": detail.events,
        "warnings": warnings(detail),
        "loop": _loop(detail),
        "meta": mask(run.meta_dict),
        "error": None if run.error is None else mask(json.loads(run.error)),
        "parentRunId": run.parent_run_id,
        "forkedFrom": run.forked_from,
        "command": None if run.command is None else json.loads(run.command),
    }
    for name, text in (("input", run.input), ("summary", run.summary)):
        if text is not None:
            shown[name] = mask(codec.json_value("tagged", text))
    if run.result is not None and run.result_format is not None:
        shown["result"] = mask(codec.json_value(run.result_format, run.result))
    return shown


def _owner(owner: OwnerRow | None, verdict: str | None) -> dict[str, Any] | None:
    from agent_resume import ownership

    if owner is None:
        return None
    return {"host": ownership.host_name(owner.host), "pid": owner.pid, "beatAt": owner.beat_at, "verdict": verdict}


def _loop(detail: RunDetail) -> dict[str, Any]:
    from agent_resume import codec

    names = ("verdict", "status", "turns", "reason")
    found = {name: getattr(detail.run, f"loop_{name}") for name in names}
    return {name: codec.json_value("tagged", text) for name, text in found.items() if text is not None}


def step_json(redactor: Redactor, step: StepRow, *, cut_off: bool) -> dict[str, Any]:
    """A step without its output; its stored status, and beside it whether that is over."""
    shown: dict[str, Any] = {
        "name": step.key,
        "status": step.status,
        "startedAt": step.started_at,
        "finishedAt": step.finished_at,
        "durationMs": step.duration_ms,
        "attempts": step.attempts,
        "effect": step.effect,
        "meta": redactor.value(step.meta_dict),
        "outputBytes": step.output_bytes,
    }
    if cut_off:
        shown["cutOff"] = True
    if step.error is not None:
        shown["error"] = redactor.value(step.error_dict)
    return shown


def with_outputs(store: Store, detail: RunDetail, shown: dict[str, Any]) -> dict[str, Any]:
    """The same, with what each completed step returned."""
    from agent_resume import codec, store_queries

    mask = store.redactor.value
    rows = store.ask(store_queries.steps_with_outputs, detail.run.seq)
    texts = {row.key: (row.output_format, text) for row, text in rows}
    for step in shown["steps"]:
        format, text = texts.get(step["name"], (None, None))
        if format is not None and text is not None:
            step["output"] = mask(codec.json_value(format, text))
    return shown


def one_step_json(store: Store, detail: StepDetail) -> dict[str, Any]:
    """One step with its output and its attempts."""
    from agent_resume import codec

    shown = step_json(store.redactor, detail.row, cut_off=detail.cut_off)
    if detail.text is not None and detail.row.output_format is not None:
        shown["output"] = store.redactor.value(codec.json_value(detail.row.output_format, detail.text))
    shown["attemptList"] = store.redactor.value(detail.attempts)
    return shown


def warnings(detail: RunDetail) -> list[dict[str, Any]]:
    """What ``show`` warns of."""
    from agent_resume.store_admin_detail import MARKS

    found: list[dict[str, Any]] = [
        {"step": key, "kind": kind, "text": MARKS[kind], "at": event.ts}
        for key, marks in detail.marks.items()
        for kind, event in marks.items()
    ]
    if detail.events_lost:
        text = f"{tables.plural(detail.events_lost, 'event')} could not be stored"
        found.append({"step": None, "kind": "lost_events", "text": text, "at": None})
    return found
