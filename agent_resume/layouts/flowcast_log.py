"""A run's events, written as flowcast's log, and what state.json takes from their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts import jstext
from agent_resume.layouts.flatten import flatten_column
from agent_resume.layouts.flowcast_names import Keys
from agent_resume.layouts.flowcast_own import SILENT, exported_type, is_ours
from agent_resume.layouts.flowcast_results import Results, Step, is_current
from agent_resume.layouts.flowcast_shapes import ABSENT, OURS_IN_META, OURS_IN_STATE
from agent_resume.layouts.outcomes import Bends

_NOTHING: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of ``steps`` to be: the step's stored key, and what its event says.

    Attributes:
        duration: ABSENT for a recorded value.
        raw: the entry as it was imported, to be written as it is.
    """

    key: str
    duration: Any
    ts: str
    raw: dict[str, Any] | None


class LogWriter:
    """Writes one line or none for each event, in order.

    Args:
        run_id: the id that flowcast knows the run by.
        heads: fields of lines that are not what they usually are, by event number.
    """

    def __init__(
        self,
        file: BinaryIO,
        run_id: str,
        results: Results,
        keys: Keys,
        bends: Bends,
        *,
        heads: dict[str, Any] | None = None,
    ) -> None:
        self.records: list[Record] = []
        #: Keys in the order in which they came into ``completed``.
        self.done: dict[str, None] = {}
        #: Keys that some event told of, with an entry in ``steps`` or without.
        self.told: set[str] = set()
        self.current: Any = ABSENT
        self.paused: str | None = None
        self.lines = 0
        self.last_ts: str | None = None
        self._file = file
        self._run_id = run_id
        self._quoted_id = jstext.quoted(run_id)
        self._results = results
        self._keys = keys
        self._bends = bends
        self._heads = heads or {}

    def take(self, row: dict[str, Any]) -> None:
        """One row of ``events``."""
        kind, key, seq = row["type"], row["step_key"], row["seq"]
        data = flatten_column(row["data"], self._bends, f"events[{seq}].data")
        self.last_ts = row["ts"]
        if key is not None:
            handler = _STEP_EVENTS.get(kind)
            if handler is not None:
                handler(self, row, data if isinstance(data, dict) else {})
                return
        elif kind == "skips":
            self._write_skips(row["ts"], data)
            return
        elif kind == "paused":
            self._write_pause(row, data if isinstance(data, dict) else {})
            return
        elif kind in SILENT:
            return
        self._write_own(row, data)

    # Steps

    def _start(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        self._step_line(row, "start", {}, _flags(data))

    def _done(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        flags = _flags(data)
        duration = data.get("durationMs", ABSENT)
        self._add_record(row, duration, flags)
        step = self._results.steps.get(row["step_key"])
        line_data: dict[str, Any] = {name: data[name] for name in ("durationMs",) if name in data}
        line_data["result"] = flags.get("result", ABSENT)
        current = step is not None and is_current(step, row["attempt"], row["ts"], data.get("durationMs"))
        line_data["meta"] = flags.get("meta", step.meta if step is not None and current else {})
        if line_data["result"] is ABSENT and current and not flags.get("noResult"):
            assert step is not None  # current says so
            self._step_line(row, "done", line_data, flags, self._results.compact(step))
            return
        if line_data["result"] is ABSENT:
            del line_data["result"]
        self._step_line(row, "done", line_data, flags)

    def _error(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        error = data.get("error")
        error = error if isinstance(error, dict) else {}
        # No stack and no class name: flowcast's lines have none either.
        known = {name: error[name] for name in shapes.ERROR_NAMES if error.get(name) is not None}
        fields: dict[str, Any] = {"error": error if OURS_IN_META in data else known}
        fields |= {name: data[name] for name in ("durationMs",) if name in data}
        fields["meta"] = data.get("meta", {})
        self._step_line(row, "error", fields, _flags(data))

    def _skip(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        self._step_line(row, "skip", {}, _flags(data))

    def _rerun(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        self.done.pop(row["step_key"], None)
        self._step_line(row, "rerun", data, _flags(data))

    def _unknown(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        if _flags(data).get("log") is not False:
            self._write_own(row, data)

    def _record(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        self._add_record(row, ABSENT, _flags(data))

    def _add_record(self, row: dict[str, Any], duration: Any, flags: dict[str, Any]) -> None:
        raw = flags.get("record")
        raw = None if raw is True else raw
        self.done.setdefault(row["step_key"])
        self.told.add(row["step_key"])
        if raw is not False:
            self.records.append(Record(row["step_key"], duration, row["ts"], raw))

    def _step_line(
        self, row: dict[str, Any], kind: str, data: dict[str, Any], flags: dict[str, Any], result: str | None = None
    ) -> None:
        key = self._keys.original(row["step_key"])
        self.current = shapes.current_step(self.current, kind, key)
        if flags.get("log") is False:
            return
        fields = flags.get("line")
        if fields is not None:
            self._write(fields, result)
            return
        if result is not None:
            data["result"] = None
        # Most lines of a log are such; their names need no sorting, and are written as shapes.line() has them.
        text = f'{{"event":"{kind}","type":"{kind}","ts":{jstext.quoted(row["ts"])},"runId":{self._quoted_id}'
        for name, value in shapes.step_fields(kind, key, data).items():
            text += f',"{name}":{result if name == "result" and result is not None else jstext.compact(value)}'
        self._put(text + "}")

    def _write_skips(self, ts: str, data: Any) -> None:
        for key in self._skipped(data):
            fields = shapes.step_fields("skip", self._keys.original(key), {})
            self._write(shapes.line("skip", ts, self._run_id, fields))

    def _skipped(self, data: Any) -> list[str]:
        ranges = data.get("ranges") if isinstance(data, dict) else None
        if not isinstance(ranges, list):
            return []
        pairs = [pair for pair in ranges if isinstance(pair, list) and len(pair) == 2 and set(map(type, pair)) == {int}]
        return [key for low, high in pairs for key in self._results.between(low, high)]

    # The run

    def _write_pause(self, row: dict[str, Any], data: dict[str, Any]) -> None:
        self.paused = data.get("name")
        flags = _flags(data)
        fields = flags.get("line") or shapes.line(
            "paused", row["ts"], self._run_id, shapes.pause_fields(data.get("reason"))
        )
        if flags.get("log") is not False:
            self._write(fields)

    def _write_own(self, row: dict[str, Any], data: Any) -> None:
        fields = self._own_data(row, data)
        head = self._heads.get(str(row["seq"]))
        if head is not None:
            fields = head | shapes.own_fields(fields)
        else:
            fields = shapes.line(exported_type(row["type"]), row["ts"], self._run_id, shapes.own_fields(fields))
        self._write(fields)

    def _own_data(self, row: dict[str, Any], data: Any) -> dict[str, Any]:
        path = f"events[{row['seq']}].data"
        if data is None:
            fields: dict[str, Any] = {}
        elif isinstance(data, dict):
            fields = {}
            for name, value in data.items():
                taken = name in ("event", "ts", "runId")
                if taken:
                    self._bends.add(f"{path}.{name}", f"would replace the event's own, written as {name}_")
                fields[f"{name}_" if taken else name] = value
        else:
            self._bends.add(path, "not an object, written as the field data")
            fields = {"data": data}
        named = {"event": exported_type(row["type"])} | fields
        if shapes.is_step_line(named) or shapes.is_pause_line(named):
            self._bends.add(f"{path}.key", "would look like a step's line, written as key_")
            fields = {("key_" if name == "key" else name): value for name, value in fields.items()}
        if row["step_key"] is not None:
            mark = {"step": self._keys.original(row["step_key"]), "attempt": row["attempt"]}
            fields |= {OURS_IN_STATE: {name: value for name, value in mark.items() if value is not None}}
        elif is_ours(row["type"]) and row["type"] not in shapes.STEP_LINES and row["type"] != "record":
            fields |= {OURS_IN_STATE: {}}
        return fields

    def _write(self, fields: dict[str, Any], result: str | None = None) -> None:
        if result is None:
            text = jstext.compact(fields)
        else:
            # The result's own text takes its place; parsing and writing it again would double the work.
            parts = (
                f"{jstext.quoted(name)}:{result if name == 'result' else jstext.compact(fields[name])}"
                for name in jstext.ordered(list(fields))
            )
            text = f"{{{','.join(parts)}}}"
        self._put(text)

    def _put(self, text: str) -> None:
        self._file.write(text.encode() + b"\n")
        self.lines += 1


def _flags(data: dict[str, Any]) -> dict[str, Any]:
    """What an import kept of the original; anybody may have written there, so only what has the right shape."""
    flags = data.get(OURS_IN_META)
    if not flags or not isinstance(flags, dict):
        return _NOTHING
    shaped = {name: flags[name] for name in ("line", "meta", "record") if isinstance(flags.get(name), dict)}
    shaped |= {name: flags[name] for name in ("log", "noResult", "record") if isinstance(flags.get(name), bool)}
    return shaped | {name: flags[name] for name in ("result",) if name in flags}


_STEP_EVENTS: dict[str, Callable[[LogWriter, dict[str, Any], dict[str, Any]], None]] = {
    "start": LogWriter._start,
    "done": LogWriter._done,
    "error": LogWriter._error,
    "skip": LogWriter._skip,
    "rerun": LogWriter._rerun,
    "record": LogWriter._record,
    "unknown": LogWriter._unknown,
}


def record_fields(
    record: Record, step: Step | None, *, last: bool, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The entry of ``steps`` for one record; only the last one of a key knows its metadata.

    Args:
        record: what its event says.
        step: the step as it is now, None when it is gone.
        last: no later record is of this key.
        meta: to be written in place of the step's own.
    """
    if record.raw is not None:
        return record.raw
    key = step.key if step is not None else record.key
    if step is None or not last:
        return shapes.record(key, record.duration, record.ts, {})
    return shapes.record(key, record.duration, step.finished_at or record.ts, step.meta if meta is None else meta)
