"""state.json: its top-level fields, and the file as JavaScript writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts import jstext
from agent_resume.layouts.filenames import Names
from agent_resume.layouts.flatten import flatten, flatten_column
from agent_resume.layouts.flowcast_shapes import ABSENT, OURS_IN_META, OURS_IN_STATE
from agent_resume.layouts.outcomes import Bends

#: flowcast knows no other statuses: what failed, was interrupted or was cancelled is running to it.
STATUSES = {"completed": "completed", "paused": "paused"}
# Fields of flowcast's that some column of ours gives.
_OURS_TO_SAY = frozenset(shapes.TOP) - {"flowPath", "flowName"}
LOOP_FIELDS = {
    "loop_verdict": "loopVerdict",
    "loop_status": "loopStatus",
    "loop_turns": "loopTurns",
    "loop_reason": "loopReason",
}


def top_fields(
    run: dict[str, Any], pause: dict[str, Any] | None, current: Any, folder: str, names: Names, bends: Bends
) -> dict[str, Any]:
    """What state.json says of a run, without ``completed`` and ``steps``.

    Args:
        run: a row of ``runs``.
        pause: the row of ``pauses`` that it asked last.
        current: ``currentStep``, or ABSENT.
        folder: the id that flowcast knows the run by.
        names: such ids of other runs.
        bends: gets a note for each place that is not kept as it was.
    """
    status = STATUSES.get(run["status"], "running")
    fields: dict[str, Any] = {"runId": folder, "status": status, "startedAt": run["created_at"]}
    if current is not ABSENT:
        fields["currentStep"] = current
    if run["expect_max_ms"] is not None:
        fields["expectMaxMs"] = run["expect_max_ms"]
    for column, name in LOOP_FIELDS.items():
        if run[column] is not None:
            fields[name] = flatten_column(run[column], bends, f"run.{column}")
    fields |= _pause_fields(pause, bends)
    if status == "completed" and run["finished_at"] is not None:
        fields["completedAt"] = run["finished_at"]
    if run["summary"] is not None:
        fields["summary"] = flatten_column(run["summary"], bends, "run.summary")
    elif status == "completed":
        fields["summary"] = {}
    if run["parent_run_id"] is not None:
        fields["parentRunId"] = names.pick(run["parent_run_id"])
    ours = _our_fields(run, folder, bends)
    return fields | ({OURS_IN_STATE: ours} if ours else {})


def _pause_fields(pause: dict[str, Any] | None, bends: Bends) -> dict[str, Any]:
    if pause is None:
        return {}
    fields = {} if pause["reason"] is None else {"pauseReason": pause["reason"]}
    context = flatten_column(pause["context"], bends, f"pauses[{pause['name']!r}].context")
    return fields | {"pauseContext": {} if pause["context"] is None else context}


def _our_fields(run: dict[str, Any], folder: str, bends: Bends) -> dict[str, Any]:
    """What flowcast has no place for and keeps untouched."""
    ours: dict[str, Any] = {}
    if run["id"] != folder:
        ours["id"] = run["id"]
    if run["name"] != run["id"]:
        ours["name"] = run["name"]
    meta = flatten_column(run["meta"], bends, "run.meta")
    if isinstance(meta, dict) and meta.keys() - {OURS_IN_META}:
        ours["meta"] = {name: value for name, value in meta.items() if name != OURS_IN_META}
    if run["input"] is not None:
        ours["input"] = flatten_column(run["input"], bends, "run.input")
    if run["result"] is not None:
        ours["result"] = flatten(run["result_format"] or "json", run["result"], bends, "run.result")
    return ours


def kept_of(meta: Any) -> dict[str, Any]:
    """What an import kept, from a run's ``meta``; anybody may have written there, so only what has the right shape."""
    kept = meta.get(OURS_IN_META) if isinstance(meta, dict) else None
    if not isinstance(kept, dict):
        return {}
    found = {name: kept[name] for name in ("fields", "given", "keys", "heads") if isinstance(kept.get(name), dict)}
    found |= {name: kept[name] for name in ("order", "completedOrder") if isinstance(kept.get(name), list)}
    for name, kind in (("given", dict), ("heads", dict), ("keys", str)):
        if name in found:
            found[name] = {key: item for key, item in found[name].items() if isinstance(item, kind)}
    for name in ("order", "completedOrder"):
        if name in found:
            found[name] = [item for item in found[name] if isinstance(item, str)]
    return found


def with_kept(fields: dict[str, Any], kept: dict[str, Any], last_seq: int) -> dict[str, Any]:
    """Put back what an import kept of the original, where nothing has changed it here since.

    Args:
        fields: what our own rows say.
        kept: our member of the run's ``meta``.
        last_seq: number of the run's last event.
    """
    fields = dict(fields)
    for name, value in kept.get("fields", {}).items():
        fields.setdefault(name, value)
    for name, pair in kept.get("given", {}).items():
        moved = pair.get("seq", last_seq) != last_seq
        if not moved and _same_field(fields.get(name, ABSENT), pair.get("was", ABSENT)):
            if "is" in pair:
                fields[name] = pair["is"]
            else:
                fields.pop(name, None)
    return fields


def _same_field(one: Any, other: Any) -> bool:
    if one is ABSENT or other is ABSENT:
        return one is other
    return jstext.same(one, other)


def what_to_keep(derived: dict[str, Any], original: dict[str, Any], last_seq: int) -> dict[str, Any]:
    """The other half of ``with_kept``: what must be kept beside our rows so that the original can be written again."""
    fields: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name in dict.fromkeys((*original, *derived)):
        was, is_ = derived.get(name, ABSENT), original.get(name, ABSENT)
        if _same_field(was, is_):
            continue
        if name not in _OURS_TO_SAY and was is ABSENT:
            fields[name] = is_
        else:
            pair = {"was": was, "is": is_}
            given[name] = {side: value for side, value in pair.items() if value is not ABSENT}
            if name == "currentStep":
                given[name]["seq"] = last_seq
    return {name: value for name, value in (("fields", fields), ("given", given)) if value}


def write_state(
    file: BinaryIO,
    fields: dict[str, Any],
    completed: Iterable[tuple[str, str]],
    records: Iterable[dict[str, Any]],
) -> None:
    """Write state.json.

    Args:
        file: where to.
        fields: in their order; those of ``completed`` and ``steps`` only hold the place.
        completed: key and indented text of each result, in JavaScript's order.
        records: the entries of ``steps``.
    """
    mark = "{\n  "
    for name, value in fields.items():
        file.write(f"{mark}{jstext.quoted(name)}: ".encode())
        if name == "completed":
            _write_lines(file, "{}", (f"{jstext.quoted(key)}: {text}" for key, text in completed))
        elif name == "steps":
            _write_lines(file, "[]", (jstext.pretty(record, 2) for record in records))
        else:
            file.write(jstext.pretty(value, 1).encode())
        mark = ",\n  "
    file.write(b"\n}")


def _write_lines(file: BinaryIO, brackets: str, items: Iterator[str]) -> None:
    mark = brackets[0] + "\n    "
    empty = True
    for item in items:
        file.write((mark + item).encode())
        mark = ",\n    "
        empty = False
    file.write(brackets.encode() if empty else f"\n  {brackets[1]}".encode())
