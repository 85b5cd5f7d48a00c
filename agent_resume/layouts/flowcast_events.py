"""Rows of ``events`` from a flowcast run.

Each row is compared with what an export will make of it; where that is not the original, the original is kept in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agent_resume.codec import Codec
from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts import jstext
from agent_resume.layouts.flowcast_log import Record, record_fields
from agent_resume.layouts.flowcast_own import event_data, mark_of_ours, stored_type, type_of
from agent_resume.layouts.flowcast_plan import Item, Plan
from agent_resume.layouts.flowcast_read import Source, is_time
from agent_resume.layouts.flowcast_results import is_current
from agent_resume.layouts.flowcast_shapes import ABSENT, OURS_IN_META, OURS_IN_STATE
from agent_resume.layouts.flowcast_steps import StepRows


class EventRows:
    """Makes the rows.

    Args:
        source: the folder; its log is read once more.
        plan: its order.
        steps: the rows of its steps; they must have been made before.
        folder: its name.
        codec: how values are stored.
        pause_name: the name of a pause by its reason.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        steps: StepRows,
        folder: str,
        codec: Codec,
        pause_name: Callable[[Any], str],
    ) -> None:
        self._source = source
        self._plan = plan
        self._steps = steps
        self._folder = folder
        self._codec = codec
        self._pause_name = pause_name
        #: Of the event before, for what has no time of its own.
        self._ts = plan.first_ts

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each item of the plan."""
        lines = self._source.lines()
        for seq, item in enumerate(self._plan.items, 1):
            fields = next(lines)[1] if item.kind == "line" else {}
            row = _MAKERS[item.kind](self, item, fields, seq)
            self._ts = row["ts"]
            yield {"seq": seq} | row

    def _row(
        self, ts: str, kind: str, key: str | None = None, attempt: int | None = None, data: Any = None
    ) -> dict[str, Any]:
        return {
            "ts": ts,
            "type": kind,
            "step_key": None if key is None else self._plan.keys.stored(key),
            "attempt": attempt,
            "data": None if data is None else self._text(data),
        }

    def _text(self, data: Any) -> str:
        duration = data.get("durationMs")
        if len(data) == 1 and type(duration) is int and abs(duration) <= jstext.MAX_SAFE:
            # By far the most events have this and nothing else.
            return f'{{"durationMs":{duration}}}'
        return self._codec.encode_tagged(data)

    # What no line tells of

    def _unknown(self, item: Item, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        return self._row(self._plan.lines[item.at].ts, "unknown", item.key, item.attempt, _SILENT_DATA)

    def _open(self, item: Item, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        return self._row(self._ts, "start", item.key, item.attempt, _SILENT_DATA)

    def _bare(self, item: Item, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        assert item.key is not None  # the plan gives one
        ts = self._steps.steps[item.key].finished_at or self._ts
        return self._row(ts, "record", item.key, None, {OURS_IN_META: {"record": False}})

    def _record(self, item: Item, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        record = self._plan.records[item.at]
        kind = "done" if "durationMs" in record else "record"
        ts = record["completedAt"] if is_time(record.get("completedAt")) else self._ts
        data: dict[str, Any] = {"durationMs": record["durationMs"]} if kind == "done" else {}
        flags: dict[str, Any] = {"log": False} if kind == "done" else {}
        self._compare_record(item, record, ts, record.get("durationMs", ABSENT), flags)
        if flags:
            data[OURS_IN_META] = flags
        return self._row(ts, kind, item.key, item.attempt, data or None)

    def _compare_record(
        self, item: Item, record: dict[str, Any], ts: str, duration: Any, flags: dict[str, Any]
    ) -> None:
        assert item.key is not None  # records without a key are left out before
        found, step = self._plan.steps[item.key], self._steps.steps[item.key]
        mine = Record(item.key, duration, ts, None)
        expected = record_fields(mine, step, last=found.record is record)
        # Only the first record of a key springs the trap; where flowcast has set it itself, all of them stay as they are.
        trapped = step.status == "completed" and shapes.is_trapped(found.first or {}, item.key in self._steps.texts)
        if trapped or not jstext.same(expected, record) or list(expected) != list(record):
            flags["record"] = record

    # Lines

    def _line(self, item: Item, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        line = self._plan.lines[item.at]
        if line.kind == "own":
            return self._own(line.ts, fields, seq)
        if line.kind == "paused":
            return self._paused(line.ts, fields)
        if line.kind == "skip":
            return self._skip(line.ts, item, fields)
        if line.kind == "done":
            return self._done(line.ts, item, fields)
        names = {"start": (), "rerun": ("reason",), "error": ("error", "durationMs", "meta")}[line.kind]
        data = {name: fields[name] for name in names if name in fields}
        flags: dict[str, Any] = {}
        self._compare_line(line.kind, line.ts, fields, data, flags)
        if flags or line.kind == "error":
            data[OURS_IN_META] = flags
        return self._row(line.ts, line.kind, item.key, item.attempt, data or None)

    def _compare_line(
        self, kind: str, ts: str, fields: dict[str, Any], data: dict[str, Any], flags: dict[str, Any]
    ) -> None:
        key = shapes.key_text(fields["key"])
        expected = shapes.line(kind, ts, self._folder, shapes.step_fields(kind, key, data))
        if list(expected) != list(fields) or not jstext.same(expected, fields):
            flags["line"] = fields

    def _done(self, ts: str, item: Item, fields: dict[str, Any]) -> dict[str, Any]:
        assert item.key is not None  # a done line has one
        step = self._steps.steps[item.key]
        flags: dict[str, Any] = {}
        duration = fields.get("durationMs", ABSENT)
        matched = self._plan.matched.get(item.at)
        if matched is None:
            flags["record"] = False
        else:
            self._compare_record(item, self._plan.records[matched], ts, duration, flags)
        current = is_current(step, item.attempt, ts, None if duration is ABSENT else duration)
        has_result = "result" in fields
        if current and has_result and self._steps.has_result(item.key, fields["result"]):
            # The result is the step's own; in its line only its place is kept.
            fields = fields | {"result": None}
        elif has_result:
            flags["result"] = fields["result"]
        elif current:
            flags["noResult"] = True
        if not jstext.same(fields.get("meta", ABSENT), step.meta if current else {}) and "meta" in fields:
            flags["meta"] = fields["meta"]
        data = {name: fields[name] for name in ("durationMs",) if name in fields}
        told = data | {name: fields[name] for name in ("result",) if has_result}
        meta = flags.get("meta", step.meta if current else {})
        self._compare_line("done", ts, fields, told | {"meta": meta}, flags)
        if flags:
            data[OURS_IN_META] = flags
        return self._row(ts, "done", item.key, item.attempt, data or None)

    def _skip(self, ts: str, item: Item, fields: dict[str, Any]) -> dict[str, Any]:
        flags: dict[str, Any] = {}
        self._compare_line("skip", ts, fields, {}, flags)
        step = self._steps.steps.get(item.key or "")
        if step is None or flags:
            return self._row(ts, "skip", item.key, None, {OURS_IN_META: flags} if flags else None)
        return self._row(ts, "skips", data={"ranges": [[step.seq, step.seq]]})

    def _paused(self, ts: str, fields: dict[str, Any]) -> dict[str, Any]:
        reason = fields.get("reason")
        data: dict[str, Any] = {"name": self._pause_name(reason), "reason": reason}
        expected = shapes.line("paused", ts, self._folder, shapes.pause_fields(reason))
        if list(expected) != list(fields) or not jstext.same(expected, fields):
            data[OURS_IN_META] = {"line": fields}
        return self._row(ts, "paused", data=data)

    def _own(self, ts: str, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        kind = type_of(fields)
        data = event_data(fields, kind)
        mark = mark_of_ours(fields, kind)
        if mark is None:
            return self._row(ts, stored_type(kind), data=data or None)
        data.pop(OURS_IN_STATE)
        attempt = mark.get("attempt")
        return self._row(ts, kind, mark.get("step"), attempt if type(attempt) is int else None, data or None)


_SILENT_DATA = {OURS_IN_META: {"log": False}}
_MAKERS: dict[str, Callable[[EventRows, Item, dict[str, Any], int], dict[str, Any]]] = {
    "line": EventRows._line,
    "record": EventRows._record,
    "open": EventRows._open,
    "unknown": EventRows._unknown,
    "bare": EventRows._bare,
}
