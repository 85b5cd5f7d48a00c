"""The badgr layout: one JSON file a run, holding its state as ``AgentRunState``, and nothing else.

``{id, name, createdAt, updatedAt, steps: [{name, status, startedAt, finishedAt?, output?, error?}], result?}``, where a
step is ``running``, ``completed`` or ``failed``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from agent_resume import clock
from agent_resume.codec import Codec
from agent_resume.layouts import guard, jstext
from agent_resume.layouts.flatten import flatten, flatten_column
from agent_resume.layouts.flowcast_names import is_storable
from agent_resume.layouts.flowcast_own import is_ours
from agent_resume.layouts.flowcast_read import is_time
from agent_resume.layouts.outcomes import Bends, Refused
from agent_resume.models import RunDump

STATUSES = ("running", "completed", "failed")
# The layout knows no other; an attempt that was left or nobody knows the end of is one that did not end.
_WRITTEN_AS = {"interrupted": "running", "in_doubt": "running"}


def file_stem(run: dict[str, Any]) -> str:
    """``<name>-<timestamp>``, before it is made safe."""
    return f"{run['name']}-{clock.parse_iso(run['created_at'])}"


def run_of(path: Path) -> str | None:
    """Id of the run that a file holds; None when it holds none that can be read."""
    if guard.is_database(path):
        return f"\0{path.name}"
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    given = document.get("id")
    # Somebody's, though nobody can say whose: not ours to replace.
    return given if isinstance(given, str) else f"\0{path.name}"


def write_run(dump: RunDump, file: BinaryIO, bends: Bends, tick: Callable[[], None] = lambda: None) -> None:
    """Write one run; its steps stream, one a line."""
    run = dump.run
    head = {"id": run["id"], "name": run["name"], "createdAt": run["created_at"], "updatedAt": run["updated_at"]}
    for name, value in head.items():
        mark = "{\n  " if name == "id" else ",\n  "
        file.write(f"{mark}{jstext.quoted(name)}: {jstext.quoted(value)}".encode())
    file.write(b',\n  "steps": [')
    between = "\n    "
    last = None
    for row in dump.steps:
        last = row["status"]
        file.write((between + jstext.compact(_step(row, bends))).encode())
        between = ",\n    "
        tick()
    file.write(b"]" if between == "\n    " else b"\n  ]")
    if run["result"] is not None:
        result = flatten(run["result_format"] or "json", run["result"], bends, "run.result")
        file.write(f',\n  "result": {jstext.compact(result)}'.encode())
    elif run["status"] == "completed":
        file.write(b',\n  "result": null')  # only a result says that a run is completed
    file.write(b"\n}\n")
    _note_lost(dump, last, bends, tick)


_NO_PLACE = (
    "input", "error", "summary", "loop_verdict", "loop_status", "loop_turns", "loop_reason", "expect_max_ms", "meta",
    "parent_run_id", "forked_from",
)  # fmt: skip


def _note_lost(dump: RunDump, last_step: str | None, bends: Bends, tick: Callable[[], None]) -> None:
    run = dump.run
    ended = run["result"] is not None or run["status"] == "completed"
    read = "completed" if ended else "failed" if last_step == "failed" else "interrupted"
    if read != ("interrupted" if run["status"] == "running" else run["status"]):
        bends.add("run.status", f"{run['status']}, which this layout cannot say; it is read back as {read}")
    for name in _NO_PLACE:
        if run[name] is not None:
            bends.add(f"run.{name}", "no place in this layout, left out")
    own = 0
    for event in dump.events:
        own += not is_ours(event["type"])
        tick()
    if own:
        bends.add("events", f"{own} of the agent's own, left out")
    for pause in dump.pauses:
        bends.add(f"pauses[{pause['name']!r}]", "no place in this layout, left out")


def _step(row: dict[str, Any], bends: Bends) -> dict[str, Any]:
    path = f"steps[{row['key']!r}]"
    status = _WRITTEN_AS.get(row["status"], row["status"])
    if status != row["status"]:
        bends.add(f"{path}.status", f"{row['status']}, written as {status}")
    elif status == "running" and row["effect"] == "once":
        bends.add(f"{path}.effect", "once, and nobody knows yet whether it happened; there it runs again")
    if row["meta"] is not None:
        bends.add(f"{path}.meta", "no place in this layout, left out")
    step: dict[str, Any] = {"name": row["key"], "status": status, "startedAt": row["started_at"]}
    if step["startedAt"] is None:
        step["startedAt"] = row["finished_at"]
    if row["finished_at"] is not None and status != "running":
        step["finishedAt"] = row["finished_at"]
    if status == "completed" and row["output"] is not None:
        step["output"] = flatten(row["output_format"], row["output"], bends, f"{path}.output")
    if status == "failed":
        error = flatten_column(row["error"], bends, f"{path}.error")
        message = error.get("message") if isinstance(error, dict) else error
        step["error"] = message if isinstance(message, str) else jstext.string(message)
    return step


def is_state(document: Any) -> bool:
    """Whether a JSON document looks like a run of this layout."""
    return isinstance(document, dict) and isinstance(document.get("steps"), list) and "createdAt" in document


def read_run(document: dict[str, Any], codec: Codec, bends: Bends) -> RunDump:
    """The rows of a run.

    Raises:
        Refused: it is no such run.
        OutputNotStorable: it holds a value that is too large or too deep.
    """
    run_id, name = (_name(document, field, "run") for field in ("id", "name"))
    created_at = _time(document, "createdAt", "run")
    updated_at = _time(document, "updatedAt", "run")
    steps = [_row(step, index, codec, bends) for index, step in enumerate(document["steps"])]
    if len({step["key"] for step in steps}) < len(steps):
        raise Refused("two steps of one name; give each its own")
    events = _events(steps, created_at)
    for extra in document.keys() - {"id", "name", "createdAt", "updatedAt", "steps", "result"}:
        bends.add(extra, "not a field of this layout, left out")
    status = _status(document, steps)
    result = codec.encode(document["result"]) if status == "completed" else None
    run: dict[str, Any] = {
        "last_seq": len(events), "id": run_id, "name": name, "status": status, "input": None, "input_digest": None,
        "result": result.text if result else None, "result_format": result.format if result else None, "error": None,
        "summary": None, "loop_verdict": None, "loop_status": None, "loop_turns": None, "loop_reason": None,
        "expect_max_ms": None, "meta": None, "parent_run_id": None, "forked_from": None, "command": None,
        "created_at": created_at, "updated_at": updated_at,
        "finished_at": updated_at if status in ("completed", "failed") else None, "epoch": 1,
    }  # fmt: skip
    return RunDump(run, iter(steps), iter(events), iter(()))


def _status(document: dict[str, Any], steps: list[dict[str, Any]]) -> str:
    """The layout has none: a result means completed, a failed last step failed, anything else was left."""
    if "result" in document:
        return "completed"
    return "failed" if steps and steps[-1]["status"] == "failed" else "interrupted"


def _name(given: dict[str, Any], field: str, place: str) -> str:
    value = given.get(field)
    if not isinstance(value, str) or not is_storable(value) or (not value and place == "run"):
        raise Refused(f"{place}.{field}: not a name")
    return value


def _time(given: dict[str, Any], field: str, place: str) -> str:
    value = given.get(field)
    if is_time(value):
        return value
    try:
        return clock.iso(clock.parse_iso(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"{place}.{field}: no time") from None


def _row(given: Any, index: int, codec: Codec, bends: Bends) -> dict[str, Any]:
    place = f"steps[{index}]"
    if not isinstance(given, dict) or given.get("status") not in STATUSES:
        raise Refused(f"{place}: no step that is {', '.join(STATUSES)}")
    row: dict[str, Any] = {
        "key": _name(given, "name", place), "seq": 0, "status": given["status"], "attempts": 1, "effect": "repeatable",
        "fingerprint": None, "code_hash": None, "meta": None, "started_at": _time(given, "startedAt", place),
        "finished_at": None, "duration_ms": None, "error": None, "output_format": None, "output_bytes": None,
        "output": None,
    }  # fmt: skip
    if "finishedAt" in given and row["status"] != "running":
        row["finished_at"] = _time(given, "finishedAt", place)
        row["duration_ms"] = clock.parse_iso(row["finished_at"]) - clock.parse_iso(row["started_at"])
    if row["status"] == "completed":
        encoded = codec.encode(given.get("output"), key=row["key"])
        row["output_format"], row["output"] = encoded.format, encoded.text
        row["output_bytes"] = len(encoded.text.encode())
    elif row["status"] == "failed":
        message = given.get("error")
        row["error"] = codec.encode_tagged(message if isinstance(message, dict) else {"message": message})
    for extra in given.keys() - {"name", "status", "startedAt", "finishedAt", "output", "error"}:
        bends.add(f"{place}.{extra}", "not a field of this layout, left out")
    return row


_OUTCOMES = {"completed": "done", "failed": "error"}


def _events(steps: list[dict[str, Any]], created_at: str) -> list[dict[str, Any]]:
    """What the steps tell of: their starts and ends, in the order of the file, and the numbers that they need."""
    events = [{"seq": 1, "ts": created_at, "type": "created", "step_key": None, "attempt": None, "data": None}]
    for step in steps:
        step["seq"] = len(events) + 1
        common = {"step_key": step["key"], "attempt": 1}
        events.append({"seq": step["seq"], "ts": step["started_at"], "type": "start", **common, "data": None})
        if step["status"] in _OUTCOMES:
            ms = "null" if step["duration_ms"] is None else step["duration_ms"]
            data = f'{{"durationMs": {ms}}}'
            if step["status"] == "failed":
                data = f'{{"durationMs": {ms}, "error": {step["error"]}}}'
            ts = step["finished_at"] or step["started_at"]
            events.append({"seq": len(events) + 1, "ts": ts, "type": _OUTCOMES[step["status"]], **common, "data": data})
    return events
